/* cpu.c - the combine_parts kernel on CPU ranks: a block takes its share of the tokens of each
 * part. */
#include "args.h"
#include "kernels/combine/cpu_places.h"

void imx_combine_parts_cpu(const void *args, const imbrexd_block *block);

enum { STRIP = IMX_COMBINE_STRIP };

/* Columns [col, col + cols) of a token, if it has a row here. */
static void send_strip(const imx_combine_args *c, int64_t token, int64_t col, int64_t cols)
{
    int64_t element = imx_dtype_size(c->dtype);
    float sum[STRIP];
    if (!imx_combine_add_places(c, token, col, cols, sum))
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
