/* scaled_cases.h - products of 8-bit numbers on any device: against float64, with scales of every
 * kind and size, and equal bits by all algorithms and in runs of any number of rows. */
#ifndef SCALED_CASES_H
#define SCALED_CASES_H

#include <stdbool.h>

#include "imbrex.h"

/* Which cases, and what they may err by. */
typedef struct scaled_where {
    const char *op; /* NULL: of all operators */
    bool gpu;       /* those whose forms differ, and more rows */
    bool some;      /* of each operator that has peers half, others with other ranks or nodes */
    bool hopper;    /* tensor cores add up 8-bit products with some 14 bits */
} scaled_where;

/* As a rank: 0 if all is right, else it was said what is not.  ctx: a scaled_where, or NULL. */
int scaled_cases(imbrex_group *group, void *ctx);

/* The same where ranks are on two nodes. */
int scaled_cases_over_nodes(imbrex_group *group, void *ctx);

#endif /* SCALED_CASES_H */
