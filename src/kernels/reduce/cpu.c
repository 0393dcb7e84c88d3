/* cpu.c - the reduce kernel on CPU ranks: a block takes every count-th chunk, waits for all its
 * parts, then adds them in rank order, a strip of columns at a time,
 * whose sum stays in the first-level cache: memory is read once and written once.
 */
#include "args.h"
#include "kernels/dtype.h"

enum { STRIP = 1024 };

void imx_reduce_cpu(const void *args, const imbrexd_block *block);

/* Until every rank's part of chunk q is there; 0: give up.  In the order in which they come when
 * each rank sends to the rank after it first: from own - 1 down, round to own + 1. */
static int wait_parts(const imx_reduce_args *args, const imbrexd_watch *watch, int q)
{
    for (int i = 1; i < args->ranks; i++) {
        int r = args->own - i >= 0 ? args->own - i : args->own - i + args->ranks;
        imbrexd_wait_point point = { .plan = args->plan,
                                     .what = IMX_POINT_PART,
                                     .rank = args->from + r * args->every,
                                     .index = args->chunk + q };
        const uint64_t *signal = &args->arrived[(int64_t)r * args->chunks + q];
        if (!imbrexd_signal_wait(watch, signal, *args->epoch, point))
            return 0;
    }
    return 1;
}

/* Elements from `at` on of rank r's part. */
static const void *part(const imx_reduce_args *args, int r, int64_t at)
{
    if (r == args->own)
        return imx_dtype_at(args->dtype, args->own_part, at);
    return imx_dtype_at(args->dtype, (const char *)args->slots + r * args->slot_bytes, at);
}

/* c[at, at + count) = the sum of the parts, + bias[count] if there is one, + the residual if there
 * is one; count <= STRIP. */
static void reduce_strip(const imx_reduce_args *args, int64_t at, int64_t count, const void *bias)
{
    float sum[STRIP];
    imx_dtype_widen(args->dtype, part(args, 0, at), sum, count);
    for (int r = 1; r < args->ranks; r++)
        imx_dtype_add(args->dtype, part(args, r, at), sum, count);
    if (bias)
        imx_dtype_add(args->dtype, bias, sum, count);
    if (args->residual)
        imx_dtype_add(args->dtype, imx_dtype_at(args->dtype, args->residual, at), sum, count);
    imx_dtype_narrow(args->dtype, sum, (char *)args->c + at * imx_dtype_size(args->dtype), count);
}

static void reduce_rows(const imx_reduce_args *args, int64_t first, int64_t rows)
{
    size_t bytes = (size_t)(rows * args->n) * (size_t)imx_dtype_size(args->dtype);
    for (int r = 0; r < args->ranks; r++)
        imbrexd_check_read(part(args, r, first * args->n), bytes, bytes, 1);
    if (args->residual)
        imbrexd_check_read(imx_dtype_at(args->dtype, args->residual, first * args->n), bytes, bytes,
                           1);
    imbrexd_check_write((char *)args->c + first * args->n * imx_dtype_size(args->dtype), bytes,
                        bytes, 1);

    /* Without a bias, which repeats with every row, the rows are one long vector. */
    int64_t n = args->bias ? args->n : args->n * rows;
    int64_t times = args->bias ? rows : 1;

    for (int64_t i = 0; i < times; i++)
        for (int64_t col = 0; col < n; col += STRIP) {
            const void *bias = args->bias ? imx_dtype_at(args->dtype, args->bias, col) : NULL;
            int64_t cols = n - col < STRIP ? n - col : STRIP;
            reduce_strip(args, (first + i) * args->n + col, cols, bias);
        }
}

void imx_reduce_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_reduce_args *args = untyped;
    for (int64_t q = block->index; q * args->chunk_rows < args->rows; q += block->count) {
        if (args->arrived && !wait_parts(args, block->watch, (int)q))
            return;
        int64_t first = q * args->chunk_rows, left = args->rows - first;
        reduce_rows(args, first, left < args->chunk_rows ? left : args->chunk_rows);
    }
}
