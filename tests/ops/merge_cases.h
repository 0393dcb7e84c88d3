/* merge_cases.h - merge_states on any device against float64: every algorithm with the same bits,
 * ranks without tokens, lse that are no numbers and o that must not be read, sinks, both bases. */
#ifndef MERGE_CASES_H
#define MERGE_CASES_H

#include "imbrex.h"

/* As a rank: 0 if all is right, else it was said what is not.  ctx: NULL. */
int merge_cases(imbrex_group *group, void *ctx);

#endif /* MERGE_CASES_H */
