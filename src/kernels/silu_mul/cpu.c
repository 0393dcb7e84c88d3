/* cpu.c - the silu_mul kernel on CPU ranks: a block takes its share of the rows, a strip of columns
 * at a time. */
#include "args.h"
#include "imbrex_device.h"
#include "kernels/dtype.h"

enum { STRIP = 1024 };

void imx_silu_mul_cpu(const void *args, const imbrexd_block *block);

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

IMX_DTYPE_LOOP(, silu_loop, float, float, =, silu)
IMX_DTYPE_LOOP(, times_loop, float, float, *=, imx_dtype_same)
#if defined(__x86_64__)
IMX_DTYPE_LOOP(__attribute__((target("avx2"))), silu_loop_avx2, float, float, =, silu)
IMX_DTYPE_LOOP(__attribute__((target("avx2"))), times_loop_avx2, float, float, *=, imx_dtype_same)
#endif

/* out[cols] = silu(gate[cols]) * up[cols], all of dtype; cols <= STRIP. */
static void gate_strip(int dtype, const void *gate, const void *up, void *out, int64_t cols)
{
    float room[STRIP], result[STRIP];
    IMX_DTYPE_RUN(silu_loop, imx_dtype_floats(dtype, gate, room, cols), result, cols);
    IMX_DTYPE_RUN(times_loop, imx_dtype_floats(dtype, up, room, cols), result, cols);
    imx_dtype_narrow(dtype, result, out, cols);
}

void imx_silu_mul_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_silu_mul_args *args = untyped;
    int dtype = args->dtype;
    int64_t last = args->rows * (block->index + 1) / block->count;

    for (int64_t row = args->rows * block->index / block->count; row < last; row++)
        for (int64_t col = 0; col < args->cols; col += STRIP) {
            int64_t cols = args->cols - col < STRIP ? args->cols - col : STRIP;
            const void *gate = imx_dtype_at(dtype, args->in, row * 2 * args->cols + col);
            const void *up = imx_dtype_at(dtype, gate, args->cols);
            char *out = (char *)args->out + (row * args->cols + col) * imx_dtype_size(dtype);
            gate_strip(dtype, gate, up, out, cols);
        }
}
