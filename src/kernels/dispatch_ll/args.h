/* args.h - the contract of the dispatch_ll kernel: all of dispatch in one launch, for few tokens.
 *
 *     each rank's ids, weights and rows go to those who want them (IMX_DISPATCH_SENDS), pairs get
 *     their places (IMX_ROUTE_ROUTES), and rows go there (IMX_DISPATCH_TAKES): dispatch/args.h and
 *     route/args.h, bit for bit
 *
 * What travels goes in lines, which carry the run's epoch (ll/args.h).  A part, what one rank sends
 * to another:
 *
 *     | lines of ids [most, top_k] | lines of weights [most, top_k] | of each token its lines |
 *
 * of a token: its row, row_bytes of it, then its scales; not of one that has no expert there.
 * Part of rank r, in a run whose epoch is u: number (u % 2) * ranks + r of the receiver's data.
 * Ids go to all in every run, so that nobody overwrites what was not read, as ll/args.h says. */
#ifndef IMX_DISPATCH_LL_ARGS_H
#define IMX_DISPATCH_LL_ARGS_H

#include "../dispatch/args.h"
#include "../ll/args.h"
#include "../route/args.h"

/* Tokens of all ranks: what a block keeps of their ids is in its shared memory.  And columns. */
enum { IMX_DISPATCH_LL_TOKENS = 1024, IMX_DISPATCH_LL_COLUMNS = 1 << 24 };

typedef struct imx_dispatch_ll_args {
    imx_dispatch_args dispatch; /* stores: 1; data[0]: local, of GPUs own rows as they travel, of
                                   CPUs as dispatch has it */
    imx_route_args route;       /* packed: nothing */
    int plan;                   /* for the wait point */
    int64_t part_bytes;
    uint64_t *uses; /* [blocks] */
    imx_team team;
} imx_dispatch_ll_args;

/* Bytes of ids of a rank, and of its weights. */
IMX_TEAM_FN int64_t imx_dispatch_ll_words(const imx_dispatch_args *args)
{
    return (int64_t)args->most * args->top_k * (int64_t)sizeof(int32_t);
}

/* Of a token. */
IMX_TEAM_FN int64_t imx_dispatch_ll_row(const imx_dispatch_args *args)
{
    return args->row_bytes + imx_dispatch_blocks(args) * (int64_t)sizeof(float);
}

/* The first unit of a part that is a weight's, or the token's of that number. */
IMX_TEAM_FN int64_t imx_dispatch_ll_weights(const imx_dispatch_args *args)
{
    return imx_ll_units(1, imx_dispatch_ll_words(args));
}

IMX_TEAM_FN int64_t imx_dispatch_ll_token(const imx_dispatch_args *args, int64_t token)
{
    return 2 * imx_dispatch_ll_weights(args) + token * imx_ll_units(1, imx_dispatch_ll_row(args));
}

IMX_TEAM_FN int64_t imx_dispatch_ll_part_bytes(const imx_dispatch_args *args)
{
    return imx_dispatch_ll_token(args, args->most) * (int64_t)sizeof(imx_ll_unit);
}

/* The first unit of what `of` sends to `holder`. */
IMX_TEAM_FN imx_ll_unit *imx_dispatch_ll_part(const imx_dispatch_ll_args *args, int holder, int of,
                                              uint64_t epoch)
{
    int64_t part = (int64_t)(epoch & 1) * args->team.size + of;
    return (imx_ll_unit *)(imx_team_data(&args->team, holder) + part * args->part_bytes);
}

#endif /* IMX_DISPATCH_LL_ARGS_H */
