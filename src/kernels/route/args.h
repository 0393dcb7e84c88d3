/* args.h - the contract of the route kernel: where the pairs of all tokens lie, as a function of
 * the ids alone.
 *
 * IMX_ROUTE_PACKS, on each rank, of its own tokens:
 *
 *     ids[tokens, top_k], weights[tokens, top_k] or NULL (all 1), scales_in[tokens, scales]
 *         ->  packed[tokens]: ids, weights, scales
 *
 * so that they travel together, in words of 4 bytes.  What scales are for route does not ask.
 *
 * IMX_ROUTE_ROUTES, of all ranks' tokens, from packed:
 *
 *     expert_begin   the first is 0; each next one is the first multiple of align behind the rows
 *                    of the one before; the last: behind all rows.  With a capacity: expert e's
 *                    is e * capacity
 *     row_pair       an expert's pairs ascend; -1 where there is none, behind all rows too
 *     pair_row       -1: the pair's expert is not one of `here` from `first` on
 *     pair_expert    -1: no expert of 0..experts-1
 *
 * A histogram over experts, a prefix sum, and each expert's pairs counted off in their order: no
 * two blocks or threads compete for a place.  On GPUs warps count the pairs of their parts first,
 * so that each knows how many lie ahead.
 *
 * More rows than `rows`, or than `capacity` of one expert: nothing is written beyond them (pair_row
 * is -1, and what experts have is cut), and the group fails by IMBREXD_FAULT_ROWS, whose index is
 * that expert, or -1.  Ids may be anything. */
#ifndef IMX_ROUTE_ARGS_H
#define IMX_ROUTE_ARGS_H

#include <stdint.h>

enum { IMX_ROUTE_EXPERTS = 2048, IMX_ROUTE_PAIRS_LOG2 = 30 }; /* here, and at most 2^30 pairs */

enum { IMX_ROUTE_PACKS, IMX_ROUTE_ROUTES };

typedef struct imx_route_args {
    int step;
    int32_t tokens;
    int32_t top_k, experts, first, here;
    int32_t align, rows;
    int32_t capacity; /* of each expert, then rows is here * capacity; 0: none */
    int32_t plan;     /* for the fault */
    const int32_t *ids;
    const float *weights_in, *scales_in;
    int32_t scales; /* of a token */
    int32_t *packed;
    int32_t *expert_begin, *expert_rows, *row_pair, *pair_row, *pair_expert;
    float *weights;
} imx_route_args;

/* Words of a token in packed. */
static inline int32_t imx_route_words(int32_t top_k, int32_t scales)
{
    return 2 * top_k + scales;
}

#endif /* IMX_ROUTE_ARGS_H */
