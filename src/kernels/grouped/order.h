/* order.h - which tiles come first where others' rows are still on their way: those that have own
 * tokens alone.  A function of the ids, which all targets share.
 *
 *     rows of an expert, by rank:  | rank 0's .. | own .......... | the next rank's ..... |
 *     tiles                        | late | late | early | early | late | late | late     |
 */
#ifndef IMX_GROUPED_ORDER_H
#define IMX_GROUPED_ORDER_H

#include "../team.h"
#include "args.h"

/* Of an expert's tiles down the rows: early ones are `early` from `first` on. */
typedef struct imx_grouped_order {
    int32_t first, early, late;
} imx_grouped_order;

/* How many of `rows` ascending pairs are below `pair`. */
IMX_TEAM_FN int64_t imx_grouped_below(const int32_t *pairs, int64_t rows, int64_t pair)
{
    int64_t low = 0, high = rows;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (pairs[middle] < pair)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Of an expert whose `rows` rows begin at `row`. */
IMX_TEAM_FN imx_grouped_order imx_grouped_order_of(const imx_grouped_args *args, int64_t row,
                                                   int64_t rows, int tile_rows)
{
    int64_t all = (rows + tile_rows - 1) / tile_rows, own = args->own_first;
    imx_grouped_order order = { 0, (int32_t)all, 0 };
    if (!args->ready || rows == 0)
        return order;
    const int32_t *pairs = args->row_pair + row;
    int64_t from = imx_grouped_below(pairs, rows, own * args->top_k);
    int64_t to = imx_grouped_below(pairs, rows, (own + args->own_rows) * args->top_k);
    int64_t first = (from + tile_rows - 1) / tile_rows, end = to == rows ? all : to / tile_rows;
    order.first = (int32_t)first;
    order.early = end > first ? (int32_t)(end - first) : 0;
    order.late = (int32_t)all - order.early;
    return order;
}

/* Tile number i of the late ones, or of the early ones, counted down the rows. */
IMX_TEAM_FN int64_t imx_grouped_tile(int32_t first, int32_t early, int late, int64_t i)
{
    if (!late)
        return first + i;
    return i < first ? i : i + early;
}

/* How many signals rank r raises as its rows come in. */
IMX_TEAM_FN int imx_grouped_chunks(const imx_grouped_args *args, int r)
{
    int64_t rows =
        imx_team_row(args->tokens, args->ranks, r + 1) - imx_team_row(args->tokens, args->ranks, r);
    return r == args->rank ? 0 : (int)((rows + args->chunk_rows - 1) / args->chunk_rows);
}

#endif /* IMX_GROUPED_ORDER_H */
