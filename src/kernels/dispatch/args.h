/* args.h - the contract of the dispatch kernel: tokens go to the ranks that have their experts.
 *
 * IMX_DISPATCH_SENDS, of this rank's tokens a[tokens, n], ids and weights[tokens, top_k]:
 *
 *     ids and weights go to every target, those of tokens from `tokens` up to `most` as none;
 *     a token's row goes once to each target that has an expert of it
 *
 * IMX_DISPATCH_TAKES, of all ranks' tokens, whose pairs the route kernel has placed:
 *
 *     c[pair_row[pair]] = the token's row, and its scales, of each of its pairs; none where that is
 *     -1
 *
 * Data of a rank, in which token t of rank s has number s * most + t:
 *
 *     | packed [ranks * most, 2, top_k], as the route kernel takes it
 *     | scales [ranks * most, n / 128 rounded up], from byte scales_at on, where wire is E4M3
 *     | rows [ranks * most], row_bytes each, from byte rows_at on: n elements of wire
 *
 * Targets: the data of all ranks, data[rank]; or, without `stores`, only one's own, data[0], which
 * then gets all tokens.  Expert e is rank ((e + 1) * ranks - 1) / experts's.  E4M3: element /
 * scale, with the scale of the largest of 128 columns, as the norm kernel makes it, bit for bit. */
#ifndef IMX_DISPATCH_ARGS_H
#define IMX_DISPATCH_ARGS_H

#include "../team.h"
#include "imbrex_device.h"

enum { IMX_DISPATCH_SENDS, IMX_DISPATCH_TAKES };

enum { IMX_DISPATCH_BLOCK = 128 }; /* columns under one scale */

typedef struct imx_dispatch_args {
    int step, stores;
    int rank, ranks;
    int dtype, wire; /* imbrex_dtype: of a; of rows and c */
    int32_t tokens, most;
    int32_t top_k, experts;
    int64_t n, row_bytes; /* row_bytes: a multiple of 16 */
    int64_t scales_at, rows_at;
    char *data[IMX_TEAM_MOST];
    /* sends */
    const void *a;
    const int32_t *ids;
    const float *weights; /* NULL: all 1 */
    /* takes: from data[0] */
    const int32_t *pair_row;
    void *c;
    float *scale_c;
} imx_dispatch_args;

/* Which target gets what is for expert `id`; -1: none. */
IMX_TEAM_FN int imx_dispatch_target(const imx_dispatch_args *args, int32_t id)
{
    if (!args->stores)
        return 0;
    if (id < 0 || id >= args->experts)
        return -1;
    return imx_team_owner(args->experts, args->ranks, id);
}

/* That a step goes through. */
IMX_TEAM_FN int32_t imx_dispatch_tokens(const imx_dispatch_args *args)
{
    return args->step == IMX_DISPATCH_SENDS ? args->most : args->ranks * args->most;
}

IMX_TEAM_FN int imx_dispatch_targets(const imx_dispatch_args *args)
{
    return args->stores ? args->ranks : 1;
}

/* Of the token of that number. */
IMX_TEAM_FN int32_t *imx_dispatch_packed(const imx_dispatch_args *args, int target, int64_t token)
{
    return (int32_t *)args->data[target] + token * 2 * args->top_k;
}

IMX_TEAM_FN int64_t imx_dispatch_blocks(const imx_dispatch_args *args)
{
    return args->wire == IMBREX_E4M3 ? (args->n + IMX_DISPATCH_BLOCK - 1) / IMX_DISPATCH_BLOCK : 0;
}

IMX_TEAM_FN float *imx_dispatch_scales(const imx_dispatch_args *args, int target, int64_t token)
{
    return (float *)(args->data[target] + args->scales_at) + token * imx_dispatch_blocks(args);
}

IMX_TEAM_FN char *imx_dispatch_row(const imx_dispatch_args *args, int target, int64_t token)
{
    return args->data[target] + args->rows_at + token * args->row_bytes;
}

#endif /* IMX_DISPATCH_ARGS_H */
