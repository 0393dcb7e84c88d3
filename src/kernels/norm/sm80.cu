/* sm80.cu - the norm kernel on NVIDIA GPUs: a block takes every so-many-th row, and holds it in
 * registers from the sum to what is stored.  A warp has two segments of it, a lane the columns that
 * args.h gives it, eight of which are 16 bytes.  One kernel for all dtypes: a group has it ready
 * from the start, and what is asked of the dtype is alike in all threads.
 */
#include "../grid.cuh"
#include "../row.cuh"
#include "args.h"

#define NORM_FN static __device__ __forceinline__

enum {
    LANES = IMX_NORM_LANES,
    TOGETHER = IMX_ROW_COLS,
    GROUPS = IMX_NORM_SEGMENT / (LANES * TOGETHER), /* a lane has so many times TOGETHER columns */
    SEGMENTS = IMX_NORM_COLUMNS / IMX_NORM_SEGMENT,
    HELD = 2, /* segments of a warp */
    WARPS = SEGMENTS / HELD
};
static_assert(TOGETHER == IMX_NORM_TOGETHER, "a lane has its columns");

/* This thread's columns of a row. */
typedef struct held {
    float x[HELD * GROUPS][TOGETHER];
} held;

NORM_FN int warp_of(void)
{
    return (int)threadIdx.x / LANES;
}

NORM_FN int lane_of(void)
{
    return (int)threadIdx.x % LANES;
}

/* The first of group g. */
NORM_FN int column_of(int g)
{
    int segment = warp_of() + g / GROUPS * WARPS;
    return segment * IMX_NORM_SEGMENT + (g % GROUPS * LANES + lane_of()) * TOGETHER;
}

/* Of the warps' first segments, and their second ones if the row is so long. */
#define EACH_GROUP(n, g)                                           \
    _Pragma("unroll") for (int g = 0; g < HELD * GROUPS; g++) \
        if (g < GROUPS || (n) > WARPS * IMX_NORM_SEGMENT)

/* ---- memory ---------------------------------------------------------------------------------- */

NORM_FN void add(int dtype, const void *row, int column, int n, float *x)
{
    float more[TOGETHER];
    imx_row_load(dtype, row, column, n, more);
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        x[i] = __fadd_rn(x[i], more[i]);
}

NORM_FN void store(int dtype, void *row, int column, int n, const float *x)
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

NORM_FN char *row_at(int dtype, const void *matrix, int64_t row, int64_t n)
{
    return (char *)matrix + row * n * imx_vector_bytes(dtype);
}

/* ---- over the row ---------------------------------------------------------------------------- */

/* What args.h says of the order; shared[SEGMENTS].  All threads of the block. */
NORM_FN float add_squares(const imx_norm_args *args, const held *row, float *shared)
{
    float squares = 0.0f;
#pragma unroll
    for (int s = 0; s < HELD; s++) {
        float sum = 0.0f;
#pragma unroll
        for (int at = 0; at < GROUPS * TOGETHER; at++) {
            float one = row->x[s * GROUPS + at / TOGETHER][at % TOGETHER];
            sum = __fadd_rn(sum, __fmul_rn(one, one));
        }
#pragma unroll
        for (int d = LANES / 2; d; d /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, d));
        if (lane_of() == 0)
            shared[warp_of() + s * WARPS] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w * IMX_NORM_SEGMENT < args->n; w++)
        squares = __fadd_rn(squares, shared[w]);
    return squares;
}

/* Of the whole row; shared[WARPS].  All threads of the block. */
NORM_FN float row_scale(const imx_norm_args *args, const held *row, float *shared)
{
    float largest = 0.0f;
    EACH_GROUP(args->n, g) largest = fmaxf(largest, imx_row_largest(row->x[g]));
    largest = imx_row_largest_of(largest, LANES);
    if (lane_of() == 0)
        shared[warp_of()] = largest;
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < WARPS && w * IMX_NORM_SEGMENT < args->n; w++)
        largest = fmaxf(largest, shared[w]);
    return imx_scale_of(largest, args->power_of_two);
}

/* ---- one row --------------------------------------------------------------------------------- */

/* Columns that the row does not have are 0. */
NORM_FN void load_row(const imx_norm_args *args, int64_t row, held *held)
{
    int n = (int)args->n, dtype = args->dtype;
    EACH_GROUP(args->n, g)
    {
        float *x = held->x[g];
        int column = column_of(g);
        imx_row_load(dtype, row_at(dtype, args->in, row, n), column, n, x);
        if (args->bias)
            add(dtype, args->bias, column, n, x);
        if (args->residual)
            add(dtype, row_at(dtype, args->residual, row, n), column, n, x);
        imx_row_round(dtype, x);
        if (args->h)
            store(dtype, row_at(dtype, args->h, row, n), column, n, x);
    }
}

NORM_FN void norm_row(const imx_norm_args *args, float inverse, held *held)
{
    EACH_GROUP(args->n, g)
    {
        float *x = held->x[g], gamma[TOGETHER];
        imx_row_load(args->dtype, args->gamma, column_of(g), (int)args->n, gamma);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            x[i] = __fmul_rn(__fmul_rn(x[i], inverse), __fadd_rn(gamma[i], args->gamma_offset));
        imx_row_round(args->dtype, x);
    }
}

NORM_FN void store_row(const imx_norm_args *args, void *to, int64_t row, const held *held)
{
    EACH_GROUP(args->n, g)
    store(args->dtype, row_at(args->dtype, to, row, args->n), column_of(g), (int)args->n,
          held->x[g]);
}

/* The scale of 128 columns is found by the lanes that have them. */
NORM_FN void quantize_row(const imx_norm_args *args, int64_t row, held *held, float *shared)
{
    int n = (int)args->n, blocks = (n + IMX_SCALE_BLOCK - 1) / IMX_SCALE_BLOCK;
    float scale = 0.0f;
    if (args->quant == IMBREX_PER_TENSOR)
        scale = *(const volatile float *)args->scale;
    else if (args->quant == IMBREX_PER_ROW)
        scale = row_scale(args, held, shared);
    if (args->quant == IMBREX_PER_ROW && threadIdx.x == 0)
        args->scale[row] = scale;
    EACH_GROUP(args->n, g)
    {
        float *x = held->x[g];
        int column = column_of(g);
        if (args->quant == IMBREX_PER_BLOCK) {
            scale = imx_scale_of(imx_row_largest_of(imx_row_largest(x), IMX_ROW_HALF),
                                 args->power_of_two);
            if (lane_of() % IMX_ROW_HALF == 0 && column < n)
                args->scale[row * blocks + column / IMX_SCALE_BLOCK] = scale;
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            x[i] = __fdiv_rn(x[i], scale);
        imx_row_store_e4m3((char *)args->c + row * n, column, n, x);
    }
}

NORM_FN void one_row(const imx_norm_args *args, int64_t row, float *squares, float *largest)
{
    held held = { 0 };
    load_row(args, row, &held);
    if (args->rms)
        norm_row(args, imx_norm_inverse(add_squares(args, &held, squares), args->n, args->eps),
                 &held);
    if (args->normed)
        store_row(args, args->normed, row, &held);
    if (args->quant)
        quantize_row(args, row, &held, largest);
    else
        store_row(args, args->c, row, &held);
}

/* Weights are there before the kernel ahead has ended. */
NORM_FN void fetch_gamma(const imx_norm_args *args)
{
    EACH_GROUP(args->n, g)
    {
        const char *at = (const char *)args->gamma + column_of(g) * imx_vector_bytes(args->dtype);
        if (column_of(g) < args->n)
            asm volatile("prefetch.global.L2 [%0];" : : "l"(at));
    }
}

extern "C" __global__ void __launch_bounds__(512, 1)
    imx_norm(const __grid_constant__ imx_norm_args args,
             const __grid_constant__ imbrexd_watch watch)
{
    __shared__ float squares[SEGMENTS], largest[WARPS];
    if (args.rms)
        fetch_gamma(&args);
    imx_grid_wait();
    imx_grid_let_go();
#pragma unroll 1
    for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
        one_row(&args, row, squares, largest);
        __syncthreads(); /* before another row's sums come to the same places */
    }
}
