/* activate_cases.h - imbrex_activate on any device against float64: all kinds, dtypes and
 * alignments, with a gate and without, rows counted on the device, all magnitudes of float32. */
#ifndef ACTIVATE_CASES_H
#define ACTIVATE_CASES_H

#include "imbrex.h"

/* As a rank: 0 if all is right, else it was said what is not. */
int activate_cases(imbrex_group *group, void *ctx);

#endif /* ACTIVATE_CASES_H */
