/* norm_cases.h - imbrex_rms_norm and imbrex_quantize on any device: against float64, against the
 * order of sums that docs/numerics.md gives, a row alone and among others, in place, NaN and
 * infinities. */
#ifndef NORM_CASES_H
#define NORM_CASES_H

#include "imbrex.h"

/* As a rank: 0 if all is right, else it was said what is not. */
int norm_cases(imbrex_group *group, void *ctx);

#endif /* NORM_CASES_H */
