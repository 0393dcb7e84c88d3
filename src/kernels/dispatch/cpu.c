/* cpu.c - the dispatch kernel on CPU ranks: a block takes its share of the tokens. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "args.h"
#include "kernels/dtype.h"
#include "kernels/scale.h"

void imx_dispatch_cpu(const void *args, const imbrexd_block *block);

/* ---- sends ----------------------------------------------------------------------------------- */

/* Of this rank's token, among all. */
static int64_t number_of(const imx_dispatch_args *args, int64_t token)
{
    return (int64_t)args->rank * args->most + token;
}

static void pack(const imx_dispatch_args *args, int64_t token)
{
    const float one = 1, none = 0;
    int64_t top_k = args->top_k;
    for (int r = 0; r < imx_dispatch_targets(args); r++) {
        int32_t *to = imx_dispatch_packed(args, r, number_of(args, token));
        imbrexd_check_write(to, (size_t)(2 * top_k) * sizeof *to, 0, 1);
        for (int64_t i = token * top_k; i < (token + 1) * top_k; i++, to++) {
            bool own = token < args->tokens;
            const float *weight = own ? &one : &none;
            if (own && args->weights)
                weight = &args->weights[i];
            to[0] = own ? args->ids[i] : -1;
            memcpy(&to[top_k], weight, sizeof *weight);
        }
    }
}

/* Targets of the token, a bit each. */
static uint32_t targets_of(const imx_dispatch_args *args, int64_t token)
{
    uint32_t targets = args->stores ? 0 : 1;
    for (int64_t i = token * args->top_k; args->stores && i < (token + 1) * args->top_k; i++) {
        int target = imx_dispatch_target(args, args->ids[i]);
        targets |= target < 0 ? 0 : 1u << target;
    }
    return targets;
}

/* Before a row is written: tells the checker, and clears what lies behind it, since a copy of all
 * rows reads that, too. */
static void begin_row(const imx_dispatch_args *args, int target, int64_t number)
{
    int64_t bytes = args->n * imx_dtype_size(args->wire);
    size_t scales = (size_t)imx_dispatch_blocks(args) * sizeof(float);
    char *row = imx_dispatch_row(args, target, number);
    imbrexd_check_write(row, (size_t)args->row_bytes, 0, 1);
    memset(row + bytes, 0, (size_t)(args->row_bytes - bytes));
    if (scales)
        imbrexd_check_write(imx_dispatch_scales(args, target, number), scales, 0, 1);
}

/* Columns [col, col + cols) of a row, under one scale. */
static float quantize(const imx_dispatch_args *args, const void *row, int64_t col, int64_t cols,
                      uint8_t *to)
{
    float x[IMX_DISPATCH_BLOCK], largest = 0;
    imx_dtype_widen(args->dtype, imx_dtype_at(args->dtype, row, col), x, cols);
    for (int64_t i = 0; i < cols; i++)
        largest = largest < imx_scale_size(x[i]) ? imx_scale_size(x[i]) : largest;
    float scale = imx_scale_of(largest, 0);
    for (int64_t i = 0; i < cols; i++)
        x[i] /= scale;
    imx_dtype_narrow(IMBREX_E4M3, x, to, cols);
    return scale;
}

static void send_quantized(const imx_dispatch_args *args, const void *row, int64_t number,
                           uint32_t targets)
{
    for (int64_t col = 0; col < args->n; col += IMX_DISPATCH_BLOCK) {
        uint8_t bytes[IMX_DISPATCH_BLOCK];
        int64_t cols = args->n - col < IMX_DISPATCH_BLOCK ? args->n - col : IMX_DISPATCH_BLOCK;
        float scale = quantize(args, row, col, cols, bytes);
        for (int r = 0; targets >> r; r++) {
            if (!(targets >> r & 1))
                continue;
            memcpy(imx_dispatch_row(args, r, number) + col, bytes, (size_t)cols);
            imx_dispatch_scales(args, r, number)[col / IMX_DISPATCH_BLOCK] = scale;
        }
    }
}

static void send(const imx_dispatch_args *args, int64_t token)
{
    uint32_t targets = targets_of(args, token);
    int64_t number = number_of(args, token);
    const void *row = imx_dtype_at(args->dtype, args->a, token * args->n);
    for (int r = 0; targets >> r; r++) {
        if (targets >> r & 1)
            begin_row(args, r, number);
    }
    if (args->wire == IMBREX_E4M3) {
        send_quantized(args, row, number, targets);
        return;
    }
    for (int r = 0; targets >> r; r++) {
        if (targets >> r & 1)
            memcpy(imx_dispatch_row(args, r, number), row,
                   (size_t)(args->n * imx_dtype_size(args->wire)));
    }
}

/* ---- takes ----------------------------------------------------------------------------------- */

/* To row `row` of c. */
static void take_to(const imx_dispatch_args *args, int64_t token, int64_t row)
{
    int64_t blocks = imx_dispatch_blocks(args);
    size_t bytes = (size_t)(args->n * imx_dtype_size(args->wire));
    size_t scales = (size_t)blocks * sizeof(float);
    imbrexd_check_read(imx_dispatch_row(args, 0, token), bytes, 0, 1);
    imbrexd_check_write((char *)args->c + (size_t)row * bytes, bytes, 0, 1);
    memcpy((char *)args->c + (size_t)row * bytes, imx_dispatch_row(args, 0, token), bytes);
    if (!scales)
        return;
    imbrexd_check_read(imx_dispatch_scales(args, 0, token), scales, 0, 1);
    imbrexd_check_write(args->scale_c + row * blocks, scales, 0, 1);
    memcpy(args->scale_c + row * blocks, imx_dispatch_scales(args, 0, token), scales);
}

static void take(const imx_dispatch_args *args, int64_t token)
{
    for (int64_t pair = token * args->top_k; pair < (token + 1) * args->top_k; pair++) {
        if (args->pair_row[pair] >= 0)
            take_to(args, token, args->pair_row[pair]);
    }
}

void imx_dispatch_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_dispatch_args *args = untyped;
    bool sends = args->step == IMX_DISPATCH_SENDS;
    int64_t all = imx_dispatch_tokens(args);
    int64_t last = all * (block->index + 1) / block->count;
    for (int64_t i = all * block->index / block->count; i < last; i++) {
        if (sends)
            pack(args, i);
        if (sends && i < args->tokens)
            send(args, i);
        else if (!sends)
            take(args, i);
    }
}
