/* args.h - the contract of the combine_ll kernel: all of combine in one launch, for few tokens.
 *
 *     each rank's sums of tokens (IMX_COMBINE_PLACES) go to the tokens' owners, and to[own, n]
 *     becomes the sum of all ranks' (IMX_COMBINE_RANKS): combine/args.h, bit for bit
 *
 * combine: `tokens` and what follows for places are of all ranks' tokens, `first`, bias, residual
 * and `to` of own ones, of which there are `own`.  Who has a row of a token is known by its experts
 * to both sides.
 *
 * Sums travel in lines, which carry the run's epoch (ll/args.h).  A part, what one rank sends to
 * another:
 *
 *     | a line that says that the rank has come | of each of the owner's tokens its lines |
 *
 * Part of rank r, in a run whose epoch is u: number (u % 2) * ranks + r of the owner's data.  The
 * first line is there in every run, so that nobody overwrites what was not read, as ll/args.h
 * says. */
#ifndef IMX_COMBINE_LL_ARGS_H
#define IMX_COMBINE_LL_ARGS_H

#include "../combine/args.h"
#include "../ll/args.h"

typedef struct imx_combine_ll_args {
    imx_combine_args combine; /* step, slots, own_part, stores: nothing */
    int64_t own, most;        /* tokens; the most that a rank has, in any run */
    int plan;                 /* for the wait point */
    int64_t part_bytes;
    char *local;    /* CPUs: parts [tokens, n], then slots [ranks][most, n] */
    uint64_t *uses; /* [blocks] */
    imx_team team;
} imx_combine_ll_args;

/* Of a token's sum of so many bytes. */
IMX_TEAM_FN int64_t imx_combine_ll_units(int64_t row_bytes)
{
    return imx_ll_units(1, row_bytes);
}

IMX_TEAM_FN int64_t imx_combine_ll_part_bytes(int64_t most, int64_t row_bytes)
{
    return (IMX_LL_UNITS + most * imx_combine_ll_units(row_bytes)) * (int64_t)sizeof(imx_ll_unit);
}

/* The first line of what `of` sends to `holder`. */
IMX_TEAM_FN imx_ll_unit *imx_combine_ll_part(const imx_combine_ll_args *args, int holder, int of,
                                             uint64_t epoch)
{
    int64_t part = (int64_t)(epoch & 1) * args->team.size + of;
    return (imx_ll_unit *)(imx_team_data(&args->team, holder) + part * args->part_bytes);
}

/* And of the owner's token of that number. */
IMX_TEAM_FN imx_ll_unit *imx_combine_ll_token(const imx_combine_ll_args *args, int holder, int of,
                                              uint64_t epoch, int64_t token, int64_t row_bytes)
{
    return imx_combine_ll_part(args, holder, of, epoch) + IMX_LL_UNITS +
           token * imx_combine_ll_units(row_bytes);
}

#endif /* IMX_COMBINE_LL_ARGS_H */
