/* args.h - the contract of the combine kernel: products of pairs become sums of tokens.
 *
 * IMX_COMBINE_PLACES, on each rank, of all ranks' tokens:
 *
 *     to[token, n] = the sum of weights[pair] * from[pair_row[pair], n] over the token's places
 *                    that have a row here, in place order, in float32, rounded once; without one: 0
 *
 * or, if it `stores`: to the token's owner, slot `own` of data[owner], those alone that have a row
 * here.  Ranks share the tokens as rows are shared everywhere (imx_team_row).
 *
 * IMX_COMBINE_RANKS, of this rank's tokens, `first` and those behind it:
 *
 *     to[token, n] = the sum of the parts of those ranks, from `begin` up to `end`, that have a row
 *                    of the token, in rank order, in float32, then bias, then residual[token, n],
 *                    rounded once; without a rank: those, or 0
 *
 * Rank r's part, [tokens, n], lies at slots + (r - begin) * slot_bytes; part `own` lies at own_part
 * instead.  Who has a row: with `whole` the rank of the expert (r has r*experts/ranks up to
 * (r+1)*experts/ranks), else all ranks.  Nodes of equally many ranks share experts in the same way:
 * what they have together is added with nodes in the place of ranks. */
#ifndef IMX_COMBINE_ARGS_H
#define IMX_COMBINE_ARGS_H

#include "../team.h"
#include "imbrex_device.h"

enum { IMX_COMBINE_PLACES, IMX_COMBINE_RANKS };

typedef struct imx_combine_args {
    int step;
    int64_t tokens, n;
    int top_k, dtype; /* imbrex_dtype */
    void *to;
    /* places */
    const void *from;
    int64_t rows; /* that `from` has: others count as none */
    const int32_t *pair_row;
    const float *weights;
    int stores;
    char *data[IMX_TEAM_MOST]; /* of each owner */
    /* ranks */
    int ranks, own, begin, end, experts, whole;
    int64_t first, slot_bytes;
    const int32_t *pair_expert;
    const void *slots, *own_part, *bias, *residual;
} imx_combine_args;

IMX_TEAM_FN int imx_combine_owner(const imx_combine_args *args, int64_t token)
{
    return imx_team_owner(args->tokens, args->ranks, token);
}

/* Whether rank has a row of that of all tokens. */
IMX_TEAM_FN int imx_combine_is_on(const imx_combine_args *args, int64_t token, int rank)
{
    int64_t from = args->whole ? imx_team_row(args->experts, args->ranks, rank) : 0;
    int64_t to = args->whole ? imx_team_row(args->experts, args->ranks, rank + 1) : args->experts;
    const int32_t *expert = args->pair_expert + token * args->top_k;
    for (int place = 0; place < args->top_k; place++) {
        if (expert[place] >= from && expert[place] < to)
            return 1;
    }
    return 0;
}

#endif /* IMX_COMBINE_ARGS_H */
