/* args.h - the contract of the combine_parts kernel: sums of tokens go to the tokens' owners while
 * a product makes the rows that are added, column part by column part.
 *
 *     IMX_COMBINE_PLACES that `stores`: combine/args.h, bit for bit, of columns q * part_cols up to
 *     the next part's, for parts q = first_part up to end_part, each once made[q] is at *epoch
 *
 * Rows of `from` and data of owners lie at multiples of 16 bytes, and so do parts. */
#ifndef IMX_COMBINE_PARTS_ARGS_H
#define IMX_COMBINE_PARTS_ARGS_H

#include "../combine/args.h"
#include "../wait_points.h"

typedef struct imx_combine_parts_args {
    imx_combine_args combine; /* step, stores, to: nothing */
    int64_t part_cols;
    int first_part, end_part;
    int blocks;           /* of a GPU's launch, at most; 0: as many as there are */
    int plan;             /* for the wait point */
    const uint64_t *made; /* NULL: all parts are there */
    const uint64_t *epoch;
} imx_combine_parts_args;

/* Columns of part q. */
IMX_TEAM_FN int64_t imx_combine_parts_cols(const imx_combine_parts_args *args, int64_t q)
{
    int64_t left = args->combine.n - q * args->part_cols;
    return left < args->part_cols ? left : args->part_cols;
}

#endif /* IMX_COMBINE_PARTS_ARGS_H */
