/* sm80.cu - the norm kernel on NVIDIA GPUs: a crew, so many of a block's warps, takes every
 * so-many-th row, and holds it in registers from the sum to what is stored.  A warp has a segment
 * of it, or two where all warps are one crew, a lane the columns that args.h gives it, eight of
 * which are 16 bytes.  While one crew of a block waits the others go on.  One kernel for all
 * dtypes: a group has it ready from the start, and what is asked of the dtype is alike in all
 * threads.
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

/* Warps of a crew, crews of a block, and which of them this warp is in, and as which. */
NORM_FN int crew_warps(const imx_norm_args *args)
{
    int segments = ((int)args->n + IMX_NORM_SEGMENT - 1) / IMX_NORM_SEGMENT;
    return segments < WARPS ? segments : WARPS;
}

NORM_FN int crews_of(const imx_norm_args *args)
{
    return WARPS / crew_warps(args);
}

NORM_FN int crew_of(const imx_norm_args *args)
{
    return (int)threadIdx.x / LANES / crew_warps(args);
}

NORM_FN int warp_of(const imx_norm_args *args)
{
    return (int)threadIdx.x / LANES % crew_warps(args);
}

/* All threads of the crew. */
NORM_FN void crew_sync(const imx_norm_args *args)
{
    asm volatile("bar.sync %0, %1;"
                 :
                 : "r"(crew_of(args)), "r"(crew_warps(args) * LANES)
                 : "memory");
}

/* The first of group g. */
NORM_FN int column_of(const imx_norm_args *args, int g)
{
    int segment = warp_of(args) + g / GROUPS * WARPS;
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

/* shared[SEGMENTS].  All threads of the crew. */
NORM_FN float row_inverse(const imx_norm_args *args, const held *row, float *shared)
{
#pragma unroll
    for (int s = 0; s < HELD && s * WARPS * IMX_NORM_SEGMENT < args->n; s++) {
        float sum = norm_squares(row->x + s * GROUPS);
        if (lane_of() == 0)
            shared[warp_of(args) + s * WARPS] = sum;
    }
    crew_sync(args);
    return norm_inverse(args, shared);
}

/* Of the whole row; shared[WARPS].  All threads of the crew. */
NORM_FN float row_scale(const imx_norm_args *args, const held *row, float *shared)
{
    float largest = 0.0f;
    EACH_GROUP(args->n, g) largest = fmaxf(largest, imx_row_largest(row->x[g]));
    largest = imx_row_largest_of(largest, LANES);
    if (lane_of() == 0)
        shared[warp_of(args)] = largest;
    crew_sync(args);
#pragma unroll 1
    for (int w = 0; w < crew_warps(args); w++)
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
        int column = column_of(args, g);
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
        imx_row_load(args->dtype, args->gamma, column_of(args, g), (int)args->n, gamma);
        norm_columns(args, inverse, gamma, x);
    }
}

NORM_FN void store_row(const imx_norm_args *args, void *to, int64_t row, const held *held)
{
    EACH_GROUP(args->n, g)
    norm_store(args->dtype, norm_row_at(args->dtype, to, row, args->n), column_of(args, g),
               (int)args->n, held->x[g]);
}

NORM_FN void quantize_row(const imx_norm_args *args, int64_t row, held *held, float *shared)
{
    float scale = 0.0f;
    if (args->quant == IMBREX_PER_TENSOR)
        scale = *(const volatile float *)args->scale;
    else if (args->quant == IMBREX_PER_ROW)
        scale = row_scale(args, held, shared);
    if (args->quant == IMBREX_PER_ROW && warp_of(args) == 0 && lane_of() == 0)
        args->scale[row] = scale;
    EACH_GROUP(args->n, g)
    norm_quantize(args, row, column_of(args, g), scale, held->x[g]);
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

/* ---- the same where that is simple ----------------------------------------------------------- */

/* 16 bits, whole vectors, a segment a warp, nothing quantised: loads that no branch parts are under
 * way together. */
NORM_FN bool is_plain(const imx_norm_args *args)
{
    const void *all[] = { args->in, args->bias, args->residual, args->gamma, args->h, args->c };
    bool plain = args->dtype != IMBREX_F32 && !args->quant && args->n % TOGETHER == 0 &&
                 args->n <= WARPS * IMX_NORM_SEGMENT;
#pragma unroll
    for (int i = 0; i < 6; i++)
        plain &= imx_vector_aligned(all[i]);
    return plain;
}

NORM_FN void load_plain(const imx_norm_args *args, const void *row, uint4 *v)
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        v[g] = make_uint4(0, 0, 0, 0);
        if (column_of(args, g) < args->n)
            v[g] = imx_vector_load((const char *)row + column_of(args, g) * 2);
    }
}

template <int DTYPE>
NORM_FN void store_plain(const imx_norm_args *args, void *row, const float (*x)[TOGETHER])
{
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (column_of(args, g) < args->n)
            *(uint4 *)((char *)row + column_of(args, g) * 2) = imx_vector_narrow(DTYPE, x[g]);
    }
}

/* What comes from memory of a row. */
typedef struct plain_row {
    uint4 in[GROUPS], residual[GROUPS];
} plain_row;

NORM_FN void load_plain_row(const imx_norm_args *args, int64_t row, plain_row *to)
{
    int64_t at = row * args->n * 2;
    if (row >= args->rows)
        return;
    load_plain(args, (const char *)args->in + at, to->in);
    if (args->residual)
        load_plain(args, (const char *)args->residual + at, to->residual);
}

/* From `row` on, every step-th; the next one is under way meanwhile. */
template <int DTYPE>
NORM_FN void plain_rows(const imx_norm_args *args, int64_t row, int64_t step, float *squares)
{
    plain_row next;
    load_plain_row(args, row, &next);
#pragma unroll 1
    for (; row < args->rows; row += step) {
        held held = { 0 };
        float(*x)[TOGETHER] = held.x;
        uint4 v[GROUPS];
        int64_t at = row * args->n * 2;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            imx_vector_add(DTYPE, x[g], next.in[g], true);
        if (args->bias) {
            load_plain(args, args->bias, v);
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                imx_vector_add(DTYPE, x[g], v[g], false);
        }
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (args->residual)
                imx_vector_add(DTYPE, x[g], next.residual[g], false);
            imx_row_round(DTYPE, x[g]);
        }
        load_plain_row(args, row + step, &next);
        if (args->h)
            store_plain<DTYPE>(args, (char *)args->h + at, x);
        if (args->rms) {
            load_plain(args, args->gamma, v); /* while squares come together */
            float inverse = row_inverse(args, &held, squares);
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                float gamma[TOGETHER];
                imx_vector_add(DTYPE, gamma, v[g], true);
                norm_columns(args, inverse, gamma, x[g]);
            }
        }
        store_plain<DTYPE>(args, (char *)args->c + at, x);
        crew_sync(args); /* before another row's sums come to the same places */
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Weights are there before the kernel ahead has ended. */
NORM_FN void fetch_gamma(const imx_norm_args *args)
{
    EACH_GROUP(args->n, g)
    {
        const char *at =
            (const char *)args->gamma + column_of(args, g) * imx_vector_bytes(args->dtype);
        if (column_of(args, g) < args->n)
            asm volatile("prefetch.global.L2 [%0];" : : "l"(at));
    }
}

extern "C" __global__ void __launch_bounds__(512, 1)
    imx_norm(const __grid_constant__ imx_norm_args args,
             const __grid_constant__ imbrexd_watch watch)
{
    __shared__ float all_squares[SEGMENTS], all_largest[WARPS];
    int crew = crew_of(&args), crews = crews_of(&args), first_warp = crew * crew_warps(&args);
    float *squares = all_squares + first_warp, *largest = all_largest + first_warp;
    int64_t first = blockIdx.x + (int64_t)crew * gridDim.x, step = (int64_t)crews * gridDim.x;
    if (args.rms)
        fetch_gamma(&args);
    imx_grid_wait();
    imx_grid_let_go();
    if (crew >= crews)
        return;
    if (is_plain(&args)) {
        if (args.dtype == IMBREX_BF16)
            plain_rows<IMBREX_BF16>(&args, first, step, squares);
        else
            plain_rows<IMBREX_F16>(&args, first, step, squares);
        return;
    }
#pragma unroll 1
    for (int64_t row = first; row < args.rows; row += step) {
        one_row(&args, row, squares, largest);
        crew_sync(&args);
    }
}
