/* sm80_steps.cuh - what happens to a segment of a row, or to eight columns of it, on NVIDIA GPUs,
 * wherever a kernel holds them meanwhile: args.h says which lane has which.
 */
#ifndef IMX_NORM_SM80_STEPS_CUH
#define IMX_NORM_SM80_STEPS_CUH

#include "../row.cuh"
#include "args.h"

#define NORM_FN static __device__ __forceinline__

enum {
    LANES = IMX_NORM_LANES,
    TOGETHER = IMX_ROW_COLS,
    GROUPS = IMX_NORM_SEGMENT / (LANES * TOGETHER), /* a lane has so many times TOGETHER columns */
};
static_assert(TOGETHER == IMX_NORM_TOGETHER, "a lane has its columns");

NORM_FN int lane_of(void)
{
    return (int)threadIdx.x % LANES;
}

/* The squares of a segment, whose columns the lanes have: x[GROUPS]. */
NORM_FN float norm_squares(const float (*x)[TOGETHER])
{
    float sum = 0.0f;
#pragma unroll
    for (int at = 0; at < GROUPS * TOGETHER; at++) {
        float one = x[at / TOGETHER][at % TOGETHER];
        sum = __fadd_rn(sum, __fmul_rn(one, one));
    }
#pragma unroll
    for (int d = LANES / 2; d; d /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, d));
    return sum;
}

/* Of a row of n, whose segments' squares these are. */
NORM_FN float norm_inverse(const imx_norm_args *args, const float *segments)
{
    enum { AT_A_TIME = 4 }; /* are read; of room for these there is a multiple */
    float squares = 0.0f;
#pragma unroll 1
    for (int first = 0; first * IMX_NORM_SEGMENT < args->n; first += AT_A_TIME) {
        float some[AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++)
            some[i] = segments[first + i];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            if ((first + i) * IMX_NORM_SEGMENT < args->n)
                squares = __fadd_rn(squares, some[i]);
        }
    }
    return imx_norm_inverse(squares, args->n, args->eps);
}

/* Before they are rounded. */
NORM_FN void norm_columns(const imx_norm_args *args, float inverse, const float *gamma, float *x)
{
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        x[i] = __fmul_rn(__fmul_rn(x[i], inverse), __fadd_rn(gamma[i], args->gamma_offset));
}

NORM_FN void norm_store(int dtype, void *row, int column, int n, const float *x)
{
    char *at = (char *)row + column * imx_vector_bytes(dtype);
    if (n - column >= TOGETHER && imx_vector_aligned(at)) {
        if (dtype == IMBREX_F32) {
            *(uint4 *)at = imx_vector_narrow(IMBREX_F32, x);
            *(uint4 *)(at + 16) = imx_vector_narrow(IMBREX_F32, x + 4);
        } else if (dtype == IMBREX_BF16) {
            *(uint4 *)at = imx_vector_narrow(IMBREX_BF16, x);
        } else {
            *(uint4 *)at = imx_vector_narrow(IMBREX_F16, x);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        if (column + i < n)
            imx_vector_put(dtype, row, column + i, x[i]);
    }
}

NORM_FN char *norm_row_at(int dtype, const void *matrix, int64_t row, int64_t n)
{
    return (char *)matrix + row * n * imx_vector_bytes(dtype);
}

/* x / scale of row's columns from `column` on, as c; IMBREX_PER_BLOCK: by the scale that the lanes
 * find which have a block's. */
NORM_FN void norm_quantize(const imx_norm_args *args, int64_t row, int column, float scale,
                           float *x)
{
    int n = (int)args->n, blocks = (n + IMX_SCALE_BLOCK - 1) / IMX_SCALE_BLOCK;
    if (args->quant == IMBREX_PER_BLOCK) {
        scale =
            imx_scale_of(imx_row_largest_of(imx_row_largest(x), IMX_ROW_HALF), args->power_of_two);
        if (lane_of() % IMX_ROW_HALF == 0 && column < n)
            args->scale[row * blocks + column / IMX_SCALE_BLOCK] = scale;
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        x[i] = __fdiv_rn(x[i], scale);
    imx_row_store_e4m3((char *)args->c + row * n, column, n, x);
}

#endif /* IMX_NORM_SM80_STEPS_CUH */
