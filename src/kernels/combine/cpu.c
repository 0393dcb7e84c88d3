/* cpu.c - the combine kernel on CPU ranks: a block takes its share of the tokens, a strip of
 * columns at a time. */
#include <stdbool.h>
#include <string.h>

#include "cpu_places.h"
#include "kernels/team.h"

enum { STRIP = IMX_COMBINE_STRIP };

void imx_combine_cpu(const void *args, const imbrexd_block *block);

/* Columns of a token. */
typedef struct strip {
    const imx_combine_args *args;
    int64_t token, col, cols;
    float *sum;
} strip;

static void add_ranks(const strip *s)
{
    const imx_combine_args *args = s->args;
    int64_t at = s->token * args->n + s->col;
    bool first = true;
    for (int r = args->begin; r < args->end; r++) {
        const char *part = (const char *)args->slots + (r - args->begin) * args->slot_bytes;
        const void *row =
            imx_dtype_at(args->dtype, r == args->own ? args->own_part : (const void *)part, at);
        if (!imx_combine_is_on(args, args->first + s->token, r))
            continue;
        if (s->col == 0)
            imbrexd_check_read(row, (size_t)(args->n * imx_dtype_size(args->dtype)), 0, 1);
        if (first)
            imx_dtype_widen(args->dtype, row, s->sum, s->cols);
        else
            imx_dtype_add(args->dtype, row, s->sum, s->cols);
        first = false;
    }
    if (args->bias)
        imx_dtype_add(args->dtype, imx_dtype_at(args->dtype, args->bias, s->col), s->sum, s->cols);
    if (args->residual)
        imx_dtype_add(args->dtype, imx_dtype_at(args->dtype, args->residual, at), s->sum, s->cols);
}

static bool has_row(const imx_combine_args *args, int64_t token)
{
    for (int64_t pair = token * args->top_k; pair < (token + 1) * args->top_k; pair++) {
        if (args->pair_row[pair] >= 0 && args->pair_row[pair] < args->rows)
            return true;
    }
    return false;
}

/* Where the token's sum goes; NULL: nowhere. */
static char *place_of(const imx_combine_args *args, int64_t token)
{
    int64_t row_bytes = args->n * imx_dtype_size(args->dtype);
    if (args->step == IMX_COMBINE_RANKS || !args->stores)
        return (char *)args->to + token * row_bytes;
    int owner = imx_combine_owner(args, token);
    int64_t at = token - imx_team_row(args->tokens, args->ranks, owner);
    if (!has_row(args, token))
        return NULL;
    return args->data[owner] + args->own * args->slot_bytes + at * row_bytes;
}

static void combine(const imx_combine_args *args, int64_t token)
{
    char *to = place_of(args, token);
    if (!to)
        return;
    imbrexd_check_write(to, (size_t)(args->n * imx_dtype_size(args->dtype)), 0, 1);
    for (int64_t col = 0; col < args->n; col += STRIP) {
        float sum[STRIP] = { 0 };
        strip s = { args, token, col, args->n - col < STRIP ? args->n - col : STRIP, sum };
        if (args->step == IMX_COMBINE_PLACES)
            imx_combine_add_places(args, token, col, s.cols, sum);
        else
            add_ranks(&s);
        imx_dtype_narrow(args->dtype, sum, to + col * imx_dtype_size(args->dtype), s.cols);
    }
}

void imx_combine_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_combine_args *args = untyped;
    int64_t first = args->tokens * block->index / block->count;
    int64_t end = args->tokens * (block->index + 1) / block->count;
    for (int64_t token = first; token < end; token++)
        combine(args, token);
}
