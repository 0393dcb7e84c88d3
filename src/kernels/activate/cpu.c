/* cpu.c - the activate kernel on CPU ranks: a block takes its share of the rows, a strip of columns
 * at a time. */
#include <math.h>

#include "args.h"
#include "imbrex_device.h"
#include "kernels/dtype.h"
#include "kernels/scale.h"

enum { STRIP = 8 * IMX_SCALE_BLOCK };

void imx_activate_cpu(const void *args, const imbrexd_block *block);

/* 2^n for -126 <= n <= 127. */
IMX_DTYPE_FN float power_of_two(uint32_t n)
{
    return imx_dtype_float((n + 127) << 23);
}

IMX_DTYPE_FN float select_float(int condition, float yes, float no)
{
    return imx_dtype_float(imx_dtype_select(condition, imx_dtype_bits(yes), imx_dtype_bits(no)));
}

/* x / (1 + e^-x), without a branch, so that a loop of it becomes vectors.
 *
 * With z = e^-|x|, which cannot overflow, it is x / (1 + z) for x >= 0 and x * z / (1 + z) below.
 * z = 2^n * e^r, |r| <= ln(2)/2, e^r by its Taylor polynomial (relative error 6e-9); 2^n is applied
 * to x * e^r in two halves, so that the result is right down to the smallest numbers, where z alone
 * would vanish.  From -120 on everything rounds to -0, also at -infinity. */
IMX_DTYPE_FN float silu(float x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to a whole number, found in the low bits */
    float down = imx_dtype_float(imx_dtype_bits(x) | 0x80000000); /* -|x| */
    float t = select_float(down < -120, -120, down);
    float whole = t * 0x1.715476p0f + magic; /* log2(e) */
    uint32_t n = imx_dtype_bits(whole) - imx_dtype_bits(magic);
    whole -= magic;
    float r = (t - whole * 0x1.62e4p-1f) - whole * 0x1.7f7d1cp-20f; /* ln(2), high and low part */

    float e = 1.0f / 5040 * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1;
    e = e * r + 1;

    uint32_t half = (uint32_t)((int32_t)n >> 1);
    float z_half = e * power_of_two(half), rest = power_of_two(n - half);
    float below = t * z_half * rest;
    return select_float(x < 0, below, x) / (1 + z_half * rest);
}

/* x * Phi(x), Phi(x) = erfc(-x / sqrt(2)) / 2.  In float64, because float32 loses the digits of a
 * small result at an x far below zero.  From -20 on all rounds to -0, also at -infinity. */
IMX_DTYPE_FN float gelu(float x)
{
    double wide = x < -20 ? -20 : (double)x;
    return (float)(0.5 * wide * erfc(-0.70710678118654752 * wide));
}

/* x * (1 + tanh(u)) / 2 = x / (1 + e^-2u), u = sqrt(2/pi) * (x + 0.044715 * x^3); as above. */
IMX_DTYPE_FN float gelu_tanh(float x)
{
    double wide = x < -20 ? -20 : (double)x;
    double twice_u = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide);
    return (float)(wide / (1 + exp(-twice_u)));
}

IMX_DTYPE_FN float relu(float x)
{
    return select_float(x < 0, 0, x);
}

IMX_DTYPE_FN float relu2(float x)
{
    return relu(x) * relu(x);
}

#define ACTIVATE_LOOPS(attributes, x)                                         \
    IMX_DTYPE_LOOP(attributes, silu_loop##x, float, float, =, silu)           \
    IMX_DTYPE_LOOP(attributes, gelu_loop##x, float, float, =, gelu)           \
    IMX_DTYPE_LOOP(attributes, gelu_tanh_loop##x, float, float, =, gelu_tanh) \
    IMX_DTYPE_LOOP(attributes, relu_loop##x, float, float, =, relu)           \
    IMX_DTYPE_LOOP(attributes, relu2_loop##x, float, float, =, relu2)         \
    IMX_DTYPE_LOOP(attributes, times_loop##x, float, float, *=, imx_dtype_same)

ACTIVATE_LOOPS(, )
#if defined(__x86_64__)
ACTIVATE_LOOPS(__attribute__((target("avx2"))), _avx2)
#endif

static void activate_strip(int kind, const float *in, float *out, int64_t cols)
{
    switch ((imbrex_activation_kind)kind) {
    case IMBREX_SILU:
        IMX_DTYPE_RUN(silu_loop, in, out, cols);
        break;
    case IMBREX_GELU:
        IMX_DTYPE_RUN(gelu_loop, in, out, cols);
        break;
    case IMBREX_GELU_TANH:
        IMX_DTYPE_RUN(gelu_tanh_loop, in, out, cols);
        break;
    case IMBREX_RELU:
        IMX_DTYPE_RUN(relu_loop, in, out, cols);
        break;
    case IMBREX_RELU2:
        IMX_DTYPE_RUN(relu2_loop, in, out, cols);
        break;
    }
}

/* out[cols] = f(gate[cols]), times up[cols] unless that is NULL, all of dtype; cols <= STRIP. */
static void gate_strip(const imx_activate_args *args, const void *gate, const void *up, void *out,
                       int64_t cols)
{
    float room[STRIP], result[STRIP];
    int dtype = args->dtype;
    activate_strip(args->kind, imx_dtype_floats(dtype, gate, room, cols), result, cols);
    if (up)
        IMX_DTYPE_RUN(times_loop, imx_dtype_floats(dtype, up, room, cols), result, cols);
    imx_dtype_narrow(dtype, result, out, cols);
}

/* The strip of a row from col on, into out. */
static void row_strip(const imx_activate_args *args, int64_t row, int64_t col, int64_t cols,
                      void *out)
{
    int64_t width = (args->gated ? 2 : 1) * args->cols;
    const void *gate = imx_dtype_at(args->dtype, args->in, row * width + col);
    const void *up = args->gated ? imx_dtype_at(args->dtype, gate, args->cols) : NULL;
    gate_strip(args, gate, up, out, cols);
}

static float largest_of(float largest, const float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        largest = largest < imx_scale_size(y[i]) ? imx_scale_size(y[i]) : largest;
    return largest;
}

/* y[cols], as it was rounded: of a row's strip. */
static void rounded_strip(const imx_activate_args *args, int64_t row, int64_t col, int64_t cols,
                          float *y)
{
    float room[STRIP];
    row_strip(args, row, col, cols, room);
    imx_dtype_widen(args->dtype, room, y, cols);
}

static float row_scale(const imx_activate_args *args, int64_t row)
{
    float y[STRIP], largest = 0;
    for (int64_t col = 0; col < args->cols; col += STRIP) {
        int64_t cols = args->cols - col < STRIP ? args->cols - col : STRIP;
        rounded_strip(args, row, col, cols, y);
        largest = largest_of(largest, y, cols);
    }
    return imx_scale_of(largest, args->power_of_two);
}

/* Where a row has one scale it is computed twice: there is room for a strip of it. */
static void quantize_row(const imx_activate_args *args, int64_t row)
{
    float y[STRIP], scale = 0;
    int64_t blocks = (args->cols + IMX_SCALE_BLOCK - 1) / IMX_SCALE_BLOCK;
    if (args->quant == IMBREX_PER_TENSOR)
        scale = args->scales[0];
    else if (args->quant == IMBREX_PER_ROW)
        scale = args->scales[row] = row_scale(args, row);
    for (int64_t col = 0; col < args->cols; col += STRIP) {
        int64_t cols = args->cols - col < STRIP ? args->cols - col : STRIP;
        rounded_strip(args, row, col, cols, y);
        for (int64_t i = 0; i < cols; i += IMX_SCALE_BLOCK) {
            int64_t here = cols - i < IMX_SCALE_BLOCK ? cols - i : IMX_SCALE_BLOCK;
            if (args->quant == IMBREX_PER_BLOCK) {
                scale = imx_scale_of(largest_of(0, y + i, here), args->power_of_two);
                args->scales[row * blocks + (col + i) / IMX_SCALE_BLOCK] = scale;
            }
            for (int64_t j = 0; j < here; j++)
                y[i + j] /= scale;
        }
        imx_dtype_narrow(IMBREX_E4M3, y, (char *)args->out + row * args->cols + col, cols);
    }
}

static void store_row(const imx_activate_args *args, int64_t row)
{
    for (int64_t col = 0; col < args->cols; col += STRIP) {
        int64_t cols = args->cols - col < STRIP ? args->cols - col : STRIP;
        int64_t to = (row * args->cols + col) * imx_dtype_size(args->dtype);
        row_strip(args, row, col, cols, (char *)args->out + to);
    }
}

/* Of the rows that there are: all blocks see the same number, which nobody writes meanwhile. */
static int64_t count_rows(const imx_activate_args *args)
{
    int64_t here = args->rows_here ? *args->rows_here : args->rows;
    return here < 0 ? 0 : here < args->rows ? here : args->rows;
}

void imx_activate_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_activate_args *args = untyped;
    int64_t rows = count_rows(args), last = rows * (block->index + 1) / block->count;
    for (int64_t row = rows * block->index / block->count; row < last; row++)
        (args->quant ? quantize_row : store_row)(args, row);
}
