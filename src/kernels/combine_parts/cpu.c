/* cpu.c - the combine_parts kernel on CPU ranks: a block takes its share of the tokens of each
 * part. */
#include <stdbool.h>

#include "args.h"
#include "kernels/dtype.h"

void imx_combine_parts_cpu(const void *args, const imbrexd_block *block);

enum { STRIP = 1024 };

/* In two roundings, also where the machine could do it in one. */
static void add_weighted(const imx_combine_args *c, float weight, const void *row, int64_t cols,
                         float *sum, bool first)
{
    float room[STRIP];
    const float *x = imx_dtype_floats(c->dtype, row, room, cols);
    for (int64_t i = 0; i < cols; i++) {
        volatile float term = weight * x[i];
        sum[i] = first ? term : sum[i] + term;
    }
}

/* Columns [col, col + cols) of a token, if it has a row here. */
static void send_strip(const imx_combine_args *c, int64_t token, int64_t col, int64_t cols)
{
    int64_t element = imx_dtype_size(c->dtype);
    float sum[STRIP];
    bool first = true;
    for (int64_t pair = token * c->top_k; pair < (token + 1) * c->top_k; pair++) {
        int64_t row = c->pair_row[pair];
        if (row < 0 || row >= c->rows)
            continue;
        const void *from = imx_dtype_at(c->dtype, c->from, row * c->n + col);
        imbrexd_check_read(from, (size_t)(cols * element), 0, 1);
        add_weighted(c, c->weights[pair], from, cols, sum, first);
        first = false;
    }
    if (first)
        return;
    int owner = imx_combine_owner(c, token);
    int64_t at = (token - imx_team_row(c->tokens, c->ranks, owner)) * c->n + col;
    char *to = c->data[owner] + c->own * c->slot_bytes + at * element;
    imbrexd_check_write(to, (size_t)(cols * element), 0, 1);
    imx_dtype_narrow(c->dtype, sum, to, cols);
}

void imx_combine_parts_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_combine_parts_args *args = untyped;
    const imx_combine_args *c = &args->combine;
    int64_t first = c->tokens * block->index / block->count;
    int64_t end = c->tokens * (block->index + 1) / block->count;
    for (int q = args->first_part; q < args->end_part; q++) {
        imbrexd_wait_point point = {
            .plan = args->plan, .what = IMX_POINT_DONE, .rank = c->own, .index = q
        };
        int64_t from = q * args->part_cols, to = from + imx_combine_parts_cols(args, q);
        if (args->made && !imbrexd_signal_wait(block->watch, &args->made[q], *args->epoch, point))
            return;
        for (int64_t token = first; token < end; token++)
            for (int64_t col = from; col < to; col += STRIP)
                send_strip(c, token, col, to - col < STRIP ? to - col : STRIP);
    }
}
