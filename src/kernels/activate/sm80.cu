/* sm80.cu - the activate kernel on NVIDIA GPUs: a thread takes every so-many-th 16 bytes of out, or
 * every so-many-th element where rows are not aligned.  One kernel for all dtypes and functions:
 * the branches on them cost nothing beside the memory, and a group has it ready from the start.
 *
 * With quant half a warp takes every so-many-th 128 columns, a lane eight of them; where a row has
 * one scale, a block takes every so-many-th row, and computes it twice: for the scale, and for what
 * is stored.
 */
#include "../grid.cuh"
#include "../row.cuh"
#include "args.h"

/* x / (1 + e^-v), v of x's sign, with h = e^(-|v| / 2), which cannot overflow; below zero it is
 * x * h * h / (1 + h * h), whose factors are applied one by one, so that small results do not
 * vanish early. */
IMX_VECTOR_FN float sigmoid_times(float x, float v)
{
    float down = fmaxf(-fabsf(v), -200.0f);
    float h = expf(0.5f * down);
    float above = x < 0 ? x * h * h : x;
    return above / (1.0f + h * h);
}

/* x, but what is below least is least: from there on a function rounds to -0, also at -infinity. */
IMX_VECTOR_FN float not_below(float least, float x)
{
    return x < least ? least : x; /* not fmaxf, which makes a number of NaN */
}

IMX_VECTOR_FN float silu(float x)
{
    float near = not_below(-200.0f, x);
    return sigmoid_times(near, near);
}

/* normcdff keeps its digits far below zero, which erff cannot. */
IMX_VECTOR_FN float gelu(float x)
{
    float near = not_below(-20.0f, x);
    return near * normcdff(near);
}

/* x * (1 + tanh(v / 2)) / 2, v = 2 * sqrt(2/pi) * (x + 0.044715 * x^3). */
IMX_VECTOR_FN float gelu_tanh(float x)
{
    float near = not_below(-20.0f, x);
    float v = near * (1.5957691216f + 0.0713548163f * near * near);
    return sigmoid_times(near, v);
}

IMX_VECTOR_FN float relu(float x)
{
    return x < 0 ? 0.0f : x;
}

IMX_VECTOR_FN float relu2(float x)
{
    return relu(x) * relu(x);
}

/* x[i] = f(x[i]) for i < count <= 8, which is a constant. */
#define EACH(f)                                \
    _Pragma("unroll") for (int i = 0; i < 8; i++) \
    {                                          \
        if (i < count)                         \
            x[i] = f(x[i]);                    \
    }

IMX_VECTOR_FN void activate(int kind, int count, float *x)
{
    switch (kind) {
    case IMBREX_SILU:
        EACH(silu);
        break;
    case IMBREX_GELU:
        EACH(gelu);
        break;
    case IMBREX_GELU_TANH:
        EACH(gelu_tanh);
        break;
    case IMBREX_RELU:
        EACH(relu);
        break;
    case IMBREX_RELU2:
        EACH(relu2);
        break;
    }
}

/* 16 bytes of out; dtype is args->dtype, as a constant. */
IMX_VECTOR_FN void gate_vector(const imx_activate_args *args, int dtype, int64_t row, int64_t byte)
{
    const int count = dtype == IMBREX_F32 ? 4 : 8;
    int64_t row_bytes = args->cols * imx_vector_bytes(dtype);
    const char *in = (const char *)args->in + row * (args->gated ? 2 : 1) * row_bytes + byte;
    float x[8], up[8];
    imx_vector_add(dtype, x, imx_vector_load(in), true);
    if (args->gated)
        imx_vector_add(dtype, up, imx_vector_load(in + row_bytes), true);
    activate(args->kind, count, x);
    if (args->gated) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i < count)
                x[i] *= up[i];
        }
    }
    *(uint4 *)((char *)args->out + row * row_bytes + byte) = imx_vector_narrow(dtype, x);
}

IMX_VECTOR_FN void gate_one(const imx_activate_args *args, int64_t row, int64_t column)
{
    int64_t at = row * (args->gated ? 2 : 1) * args->cols + column;
    float x[8] = { imx_vector_get(args->dtype, args->in, at) };
    activate(args->kind, 1, x);
    if (args->gated)
        x[0] *= imx_vector_get(args->dtype, args->in, at + args->cols);
    imx_vector_put(args->dtype, args->out, row * args->cols + column, x[0]);
}

/* How many rows there are, read behind imx_grid_wait: the kernel before may write it. */
IMX_VECTOR_FN int64_t count_rows(const imx_activate_args *args)
{
    int64_t here = args->rows_here ? *(const volatile int32_t *)args->rows_here : args->rows;
    return here < args->rows ? here : args->rows;
}

/* ---- quantised ------------------------------------------------------------------------------- */

/* y = the columns from `column` on, rounded; those that a row does not have are 0, as f(0) is. */
IMX_VECTOR_FN void activate_cols(const imx_activate_args &args, int64_t row, int column, float *y)
{
    int cols = (int)args.cols;
    int64_t bytes = args.cols * imx_vector_bytes(args.dtype);
    const char *gate = (const char *)args.in + row * (args.gated ? 2 : 1) * bytes;
    imx_row_load(args.dtype, gate, column, cols, y);
    activate(args.kind, IMX_ROW_COLS, y);
    if (args.gated) {
        float up[IMX_ROW_COLS];
        imx_row_load(args.dtype, gate + bytes, column, cols, up);
#pragma unroll
        for (int i = 0; i < IMX_ROW_COLS; i++)
            y[i] *= up[i];
    }
    imx_row_round(args.dtype, y);
}

/* Of the largest numbers that all threads of the block have met; shared: one of each warp. */
IMX_VECTOR_FN float block_scale(const imx_activate_args &args, float largest, float *shared)
{
    largest = imx_row_largest_of(largest, 32);
    __syncthreads(); /* all have read what lies there of the row before */
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll 1
    for (int w = 0; w < (int)blockDim.x / 32; w++)
        largest = fmaxf(largest, shared[w]);
    return imx_scale_of(largest, args.power_of_two);
}

/* Blocks of 128 columns, of `rows` rows from `row` on: every step-th from number `first` on, for
 * half a warp.  looks: nothing is stored, and *largest is the largest of this lane's.  The loop is
 * as long for both halves of a warp, which look at each other. */
IMX_VECTOR_FN void quantize(const imx_activate_args &args, int64_t row, int64_t rows, int64_t first,
                            int64_t step, float scale, bool looks, float *largest)
{
    int64_t across = (args.cols + IMX_SCALE_BLOCK - 1) / IMX_SCALE_BLOCK, end = rows * across;
    int lane = (int)threadIdx.x % IMX_ROW_HALF;
#pragma unroll 1
    for (int64_t at = first; at - first % 2 < end; at += step) {
        int64_t r = row + at / across;
        int column = (int)(at % across) * IMX_SCALE_BLOCK + lane * IMX_ROW_COLS;
        bool here = at < end && column < args.cols;
        float y[IMX_ROW_COLS] = { 0 };
        if (here)
            activate_cols(args, r, column, y);
        float mine = imx_row_largest(y);
        if (looks) {
            *largest = fmaxf(*largest, mine);
            continue;
        }
        if (args.quant == IMBREX_PER_BLOCK) {
            scale = imx_scale_of(imx_row_largest_of(mine, IMX_ROW_HALF), args.power_of_two);
            if (here && lane == 0)
                args.scales[r * across + at % across] = scale;
        }
#pragma unroll
        for (int i = 0; i < IMX_ROW_COLS; i++)
            y[i] = __fdiv_rn(y[i], scale);
        if (here)
            imx_row_store_e4m3((char *)args.out + r * args.cols, column, (int)args.cols, y);
    }
}

/* A row's scale is of all of it: first the block looks, then it stores. */
IMX_VECTOR_FN void quantize_all(const imx_activate_args &args, int64_t rows, float *shared)
{
    int halves = (int)blockDim.x / IMX_ROW_HALF, half = (int)threadIdx.x / IMX_ROW_HALF;
    bool by_row = args.quant == IMBREX_PER_ROW;
    int64_t first = by_row ? half : (int64_t)blockIdx.x * halves + half;
    int64_t step = by_row ? halves : (int64_t)gridDim.x * halves;
    float scale = args.quant == IMBREX_PER_TENSOR ? *(const volatile float *)args.scales : 0.0f;
    float largest = 0.0f;
#pragma unroll 1
    for (int64_t row = by_row ? blockIdx.x : 0; row < rows; row += by_row ? gridDim.x : rows) {
#pragma unroll 1
        for (int looks = by_row; looks >= 0; looks--) {
            quantize(args, row, by_row ? 1 : rows, first, step, scale, looks, &largest);
            if (!looks)
                continue;
            scale = block_scale(args, largest, shared);
            largest = 0.0f;
            if (threadIdx.x == 0)
                args.scales[row] = scale;
        }
    }
}

extern "C" __global__ void __launch_bounds__(512, 2)
    imx_activate(const __grid_constant__ imx_activate_args args,
                 const __grid_constant__ imbrexd_watch watch)
{
    int64_t row_bytes = args.cols * imx_vector_bytes(args.dtype);
    bool aligned = row_bytes % 16 == 0 && imx_vector_aligned(args.in) &&
                   imx_vector_aligned(args.out);
    int64_t width = aligned ? row_bytes / 16 : args.cols; /* what a row has for threads */
    int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    imx_grid_wait();
    imx_grid_let_go();
    int64_t end = count_rows(&args);
    if (args.quant) {
        __shared__ float largest[16];
        quantize_all(args, end, largest);
        return;
    }
    int64_t row = thread / width, column = thread % width;
    int64_t rows = threads / width, columns = threads % width; /* one step of all threads */

    while (row < end) {
        if (!aligned)
            gate_one(&args, row, column);
        else if (args.dtype == IMBREX_F32)
            gate_vector(&args, IMBREX_F32, row, column * 16);
        else if (args.dtype == IMBREX_BF16)
            gate_vector(&args, IMBREX_BF16, row, column * 16);
        else
            gate_vector(&args, IMBREX_F16, row, column * 16);
        row += rows;
        column += columns;
        if (column >= width) {
            column -= width;
            row++;
        }
    }
}
