/* moe_cases.h - one table of cases of ag_moe and moe_rs, and what is right.  Inputs are small whole
 * numbers, so that a product is exact in float32 and all that is rounded after it can be said bit
 * for bit: rows, places and ranks in their order; or, of a case that is `real`, near float64. */
#ifndef MOE_CASES_H
#define MOE_CASES_H

#include <stdbool.h>

#include "lent.h"
#include "ranks.h"

enum { EVEN, SKEWED, TO_ONE, TO_NONE, ANY_NUMBER, TWICE, KINDS }; /* of ids */

typedef struct moe_case {
    imbrex_moe_desc desc; /* n and k of both operators, on one rank */
    int ids, weights, bias, residual, gathered, real;
    const char *gathers, *scatters; /* algorithms of ag_moe, moe_rs */
} moe_case;

/* What one rank has. */
typedef struct moe_bench {
    const moe_case *c;
    int rank, ranks, first, here; /* experts */
    int node_ranks;               /* ranks of a node; all are on one: ranks */
    int64_t m, own_first, own, pairs, capacity;
    imbrex_routing routing;
    char *a, *b, *out, *gathered, *row_a, *row_b, *bias, *residual, *sum;
    int32_t *ids;
    float *weights;
    char *arena; /* memory of the device, where it cannot read the host's; else NULL */
} moe_bench;

/* What a rank has for a run of m tokens: outputs are filled with NaN, and followed by a guard. */
moe_bench moe_take(const moe_case *c, int rank, int ranks, int64_t m, int64_t capacity);
void moe_drop(moe_bench *b);

/* Each waits until it is done. */
int moe_run_ag(imbrex_group *group, imbrex_plan *plan, const moe_bench *b);
int moe_run_rs(imbrex_group *group, imbrex_plan *plan, const moe_bench *b);

int moe_check_routing(const moe_bench *b);
int moe_check_products(const moe_bench *b);

/* Both operators through the table, over nodes by what there is for that. */
typedef struct moe_walk {
    int step; /* every so-many-th case */
} moe_walk;
int moe_cases_all(imbrex_group *group, void *walk);

/* The same on a device that does not read the host's memory. */
int moe_cases_device(imbrex_group *group, void *walk);

/* There, what only kernels for GPUs tell apart: tiles of all sizes, several of them a block. */
int moe_cases_wide(imbrex_group *group, void *walk);

#endif /* MOE_CASES_H */
