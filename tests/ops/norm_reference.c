/* norm_reference.c - the contract of norms and scales (docs/numerics.md), in plain steps. */
#include "norm_reference.h"

#include <math.h>
#include <stdbool.h>

#include "kernels/dtype.h"
#include "reference.h"

static float add(float x, float y)
{
    return (float)((double)x + (double)y);
}

static float segment(const float *x, int64_t count)
{
    float lanes[32] = { 0 };
    for (int l = 0; l < 32; l++)
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 8; i++) {
                int64_t at = 256 * j + 8 * l + i;
                double one = at < count ? (double)x[at] : 0;
                lanes[l] = add(lanes[l], (float)(one * one));
            }
    for (int d = 16; d; d /= 2)
        for (int l = 0; l < d; l++)
            lanes[l] = add(lanes[l], lanes[l + d]);
    return lanes[0];
}

float norm_inverse(const float *x, int64_t n, float eps)
{
    float sum = 0;
    for (int64_t at = 0; at < n; at += 1024)
        sum = add(sum, segment(x + at, n - at < 1024 ? n - at : 1024));
    float root = sqrtf(add(sum / (float)n, eps));
    return 1 / root;
}

float norm_scale(float largest, int power_of_two)
{
    float scale = fmaxf(largest, 0x1p-9f) / 448;
    return power_of_two ? (float)exp2(ceil(log2((double)scale))) : scale;
}

/* A block at a time: of every element of the table of operators. */
enum { BLOCK = 256 };

void norm_row_of(const imbrex_norm *norm, imbrex_dtype dtype, int64_t n, const void *h,
                 const void *gamma, float *y)
{
    size_t bytes = element_bytes(dtype);
    imx_dtype_widen((int)dtype, h, y, n);
    if (!norm->rms)
        return;
    float inverse = norm_inverse(y, n, norm->eps > 0 ? norm->eps : 1e-6f);
    for (int64_t at = 0; at < n; at += BLOCK) {
        float times[BLOCK];
        char rounded[BLOCK * 4];
        int64_t left = n - at < BLOCK ? n - at : BLOCK;
        imx_dtype_widen((int)dtype, (const char *)gamma + (size_t)at * bytes, times, left);
        for (int64_t i = 0; i < left; i++)
            y[at + i] = y[at + i] * inverse * add(times[i], norm->gamma_offset);
        imx_dtype_narrow((int)dtype, y + at, rounded, left);
        imx_dtype_widen((int)dtype, rounded, y + at, left);
    }
}

int64_t norm_quant_differs(const imbrex_norm *norm, int64_t n, const float *y, const float *scales,
                           const uint8_t *c)
{
    int64_t each = norm->quant == IMBREX_PER_BLOCK ? 128 : n;
    for (int64_t i = 0; i < n; i++) {
        float largest = 0, scale = scales[i / each];
        for (int64_t j = i; i % each == 0 && j < n && j < i + each; j++)
            largest = fmaxf(largest, fabsf(y[j]));
        bool checks = norm->quant != IMBREX_PER_TENSOR && i % each == 0;
        if (checks && scale != norm_scale(largest, norm->power_of_two))
            return i;
        if (imx_dtype_to_e4m3(y[i] / scale) != c[i])
            return i;
    }
    return -1;
}
