/* cpu.c - the norm kernel on CPU ranks: a block takes its share of the rows, each of which stays in
 * its scratch from the sum to what is stored.  Compiled without contracting x * x + y. */
#include <math.h>

#include "args.h"
#include "kernels/dtype.h"

size_t imx_norm_cpu_scratch(const void *args)
{
    (void)args;
    return (IMX_NORM_COLUMNS + IMX_NORM_SEGMENT) * sizeof(float);
}

static void *row_of(const imx_norm_args *args, const void *matrix, int64_t row)
{
    return (char *)(uintptr_t)matrix + row * args->n * imx_dtype_size(args->dtype);
}

/* x[n] rounded to dtype, and stored if there is where. */
static void round_row(const imx_norm_args *args, float *x, void *room, void *to)
{
    for (int64_t col = 0; col < args->n; col += IMX_NORM_SEGMENT) {
        int64_t left = args->n - col, cols = left < IMX_NORM_SEGMENT ? left : IMX_NORM_SEGMENT;
        size_t bytes = (size_t)(cols * imx_dtype_size(args->dtype));
        imx_dtype_narrow(args->dtype, x + col, room, cols);
        imx_dtype_widen(args->dtype, room, x + col, cols);
        if (to)
            memcpy((char *)to + col * imx_dtype_size(args->dtype), room, bytes);
    }
}

/* As args.h says; x has all columns of a segment, 0 behind the last of the row. */
static float add_segment(const float *x)
{
    const int step = IMX_NORM_LANES * IMX_NORM_TOGETHER;
    float sum[IMX_NORM_LANES] = { 0 };
    for (int j = 0; j < IMX_NORM_SEGMENT; j += step)
        for (int i = 0; i < IMX_NORM_TOGETHER; i++)
            for (int l = 0; l < IMX_NORM_LANES; l++) {
                float one = x[j + IMX_NORM_TOGETHER * l + i];
                sum[l] += one * one;
            }
    for (int d = IMX_NORM_LANES / 2; d; d /= 2)
        for (int l = 0; l < d; l++)
            sum[l] += sum[l + d];
    return sum[0];
}

static float add_squares(const float *x, int64_t n)
{
    float squares = 0;
    for (int64_t col = 0; col < n; col += IMX_NORM_SEGMENT)
        squares += add_segment(x + col);
    return squares;
}

static void norm_row(const imx_norm_args *args, float *x, float *room)
{
    float inverse = imx_norm_inverse(add_squares(x, args->n), args->n, args->eps);
    for (int64_t col = 0; col < args->n; col += IMX_NORM_SEGMENT) {
        int64_t left = args->n - col, cols = left < IMX_NORM_SEGMENT ? left : IMX_NORM_SEGMENT;
        const float *gamma =
            imx_dtype_floats(args->dtype, imx_dtype_at(args->dtype, args->gamma, col), room, cols);
        for (int64_t i = 0; i < cols; i++)
            x[col + i] = x[col + i] * inverse * (gamma[i] + args->gamma_offset);
    }
}

static float largest_of(const float *x, int64_t count)
{
    float largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = largest < imx_scale_size(x[i]) ? imx_scale_size(x[i]) : largest;
    return largest;
}

/* x / scale, in place, where the scale of `cols` columns at a time is number `first` on. */
static void quantize_row(const imx_norm_args *args, float *x, int64_t row, void *c)
{
    int64_t each = args->quant == IMBREX_PER_BLOCK ? IMX_SCALE_BLOCK : args->n;
    int64_t first = row * ((args->n + each - 1) / each);
    for (int64_t col = 0, block = 0; col < args->n; col += each, block++) {
        int64_t cols = args->n - col < each ? args->n - col : each;
        float scale;
        if (args->quant == IMBREX_PER_TENSOR) {
            scale = args->scale[0];
        } else {
            scale = imx_scale_of(largest_of(x + col, cols), args->power_of_two);
            args->scale[first + block] = scale;
        }
        for (int64_t i = 0; i < cols; i++)
            x[col + i] /= scale;
    }
    imx_dtype_narrow(IMBREX_E4M3, x, (char *)c + row * args->n, args->n);
}

/* The checker hears of what the row touches before it is touched. */
static void tell(const imx_norm_args *args, int64_t row)
{
    size_t bytes = (size_t)(args->n * imx_dtype_size(args->dtype));
    imbrexd_check_read(row_of(args, args->in, row), bytes, 0, 1);
    if (args->residual)
        imbrexd_check_read(row_of(args, args->residual, row), bytes, 0, 1);
    if (args->h)
        imbrexd_check_write(row_of(args, args->h, row), bytes, 0, 1);
    if (args->normed)
        imbrexd_check_write(row_of(args, args->normed, row), bytes, 0, 1);
    if (args->quant)
        imbrexd_check_write((char *)args->c + row * args->n, (size_t)args->n, 0, 1);
    else
        imbrexd_check_write(row_of(args, args->c, row), bytes, 0, 1);
}

static void one_row(const imx_norm_args *args, int64_t row, float *x, float *room)
{
    int dtype = args->dtype;
    tell(args, row);
    memset(x + args->n / IMX_NORM_SEGMENT * IMX_NORM_SEGMENT, 0,
           args->n % IMX_NORM_SEGMENT ? IMX_NORM_SEGMENT * sizeof *x : 0);
    imx_dtype_widen(dtype, row_of(args, args->in, row), x, args->n);
    if (args->bias)
        imx_dtype_add(dtype, args->bias, x, args->n);
    if (args->residual)
        imx_dtype_add(dtype, row_of(args, args->residual, row), x, args->n);
    round_row(args, x, room, args->h ? row_of(args, args->h, row) : NULL);
    if (args->rms) {
        norm_row(args, x, room);
        round_row(args, x, room, NULL);
    }
    if (args->normed)
        imx_dtype_narrow(dtype, x, row_of(args, args->normed, row), args->n);
    if (args->quant)
        quantize_row(args, x, row, args->c);
    else
        imx_dtype_narrow(dtype, x, row_of(args, args->c, row), args->n);
}

void imx_norm_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_norm_args *args = untyped;
    float *x = block->scratch, *room = x + IMX_NORM_COLUMNS;
    int64_t last = args->rows * (block->index + 1) / block->count;
    for (int64_t row = args->rows * block->index / block->count; row < last; row++)
        one_row(args, row, x, room);
}
