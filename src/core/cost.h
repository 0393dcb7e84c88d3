/* cost.h - what an operator's algorithms are expected to take on GPUs: a pure function. */
#ifndef IMX_COST_H
#define IMX_COST_H

#include "tune.h"

/* What a rank's product takes by itself, in microseconds. */
double imx_cost_product(const imx_tune_input *input);

/* Chooses config->algorithm for GPUs of several ranks and says in config->why what each is expected
 * to take.  The constants were measured on 2 and 4 H200s with NVLink; docs/performance.md has the
 * figures.  Other links move the numbers, seldom the order. */
void imx_cost_choose(const imx_tune_input *input, imx_config *config);

#endif /* IMX_COST_H */
