/* gate_cases.h - imbrex_topk_gate on any device against float64: scores, ties, bias, groups,
 * places, dtypes, and logits that are no numbers. */
#ifndef GATE_CASES_H
#define GATE_CASES_H

#include "imbrex.h"

/* As a rank: 0 if all is right, else it was said what is not. */
int gate_cases(imbrex_group *group, void *ctx);

#endif /* GATE_CASES_H */
