/* sm80.cu - the norm kernel on NVIDIA GPUs: a block takes every so-many-th row, and holds it in
 * registers from the sum to what is stored.  A warp has two segments of it, a lane the columns that
 * args.h gives it, eight of which are 16 bytes.  One kernel for all dtypes: a group has it ready
 * from the start, and what is asked of the dtype is alike in all threads.
 */
#include "../grid.cuh"
#include "sm80_steps.cuh"

enum {
    SEGMENTS = IMX_NORM_COLUMNS / IMX_NORM_SEGMENT,
    HELD = 2, /* segments of a warp */
    WARPS = SEGMENTS / HELD
};

/* This thread's columns of a row. */
typedef struct held {
    float x[HELD * GROUPS][TOGETHER];
} held;

NORM_FN int warp_of(void)
{
    return (int)threadIdx.x / LANES;
}

/* The first of group g. */
NORM_FN int column_of(int g)
{
    int segment = warp_of() + g / GROUPS * WARPS;
    return segment * IMX_NORM_SEGMENT + (g % GROUPS * LANES + lane_of()) * TOGETHER;
}

/* Of the warps' first segments, and their second ones if the row is so long. */
#define EACH_GROUP(n, g)                                 \
    _Pragma("unroll") for (int g = 0; g < HELD * GROUPS; \
                           g++) if (g < GROUPS || (n) > WARPS * IMX_NORM_SEGMENT)

/* ---- memory ---------------------------------------------------------------------------------- */

NORM_FN void add(int dtype, const void *row, int column, int n, float *x)
{
    float more[TOGETHER];
    imx_row_load(dtype, row, column, n, more);
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        x[i] = __fadd_rn(x[i], more[i]);
}

/* ---- over the row ---------------------------------------------------------------------------- */

/* shared[SEGMENTS].  All threads of the block. */
NORM_FN float row_inverse(const imx_norm_args *args, const held *row, float *shared)
{
#pragma unroll
    for (int s = 0; s < HELD; s++) {
        float sum = norm_squares(row->x + s * GROUPS);
        if (lane_of() == 0)
            shared[warp_of() + s * WARPS] = sum;
    }
    __syncthreads();
    return norm_inverse(args, shared);
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
        imx_row_load(dtype, norm_row_at(dtype, args->in, row, n), column, n, x);
        if (args->bias)
            add(dtype, args->bias, column, n, x);
        if (args->residual)
            add(dtype, norm_row_at(dtype, args->residual, row, n), column, n, x);
        imx_row_round(dtype, x);
        if (args->h)
            norm_store(dtype, norm_row_at(dtype, args->h, row, n), column, n, x);
    }
}

NORM_FN void norm_row(const imx_norm_args *args, float inverse, held *held)
{
    EACH_GROUP(args->n, g)
    {
        float *x = held->x[g], gamma[TOGETHER];
        imx_row_load(args->dtype, args->gamma, column_of(g), (int)args->n, gamma);
        norm_columns(args, inverse, gamma, x);
    }
}

NORM_FN void store_row(const imx_norm_args *args, void *to, int64_t row, const held *held)
{
    EACH_GROUP(args->n, g)
    norm_store(args->dtype, norm_row_at(args->dtype, to, row, args->n), column_of(g), (int)args->n,
               held->x[g]);
}

NORM_FN void quantize_row(const imx_norm_args *args, int64_t row, held *held, float *shared)
{
    float scale = 0.0f;
    if (args->quant == IMBREX_PER_TENSOR)
        scale = *(const volatile float *)args->scale;
    else if (args->quant == IMBREX_PER_ROW)
        scale = row_scale(args, held, shared);
    if (args->quant == IMBREX_PER_ROW && threadIdx.x == 0)
        args->scale[row] = scale;
    EACH_GROUP(args->n, g)
    norm_quantize(args, row, column_of(g), scale, held->x[g]);
}

NORM_FN void one_row(const imx_norm_args *args, int64_t row, float *squares, float *largest)
{
    held held = { 0 };
    load_row(args, row, &held);
    if (args->rms)
        norm_row(args, row_inverse(args, &held, squares), &held);
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
