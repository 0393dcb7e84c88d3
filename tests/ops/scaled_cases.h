/* scaled_cases.h - products of 8-bit numbers on any device: against float64, with scales of every
 * kind and size, and equal bits by all algorithms and in runs of any number of rows. */
#ifndef SCALED_CASES_H
#define SCALED_CASES_H

#include "imbrex.h"

/* As a rank: 0 if all is right, else it was said what is not. */
int scaled_cases(imbrex_group *group, void *ctx);

/* The same where ranks are on two nodes. */
int scaled_cases_over_nodes(imbrex_group *group, void *ctx);

#endif /* SCALED_CASES_H */
