/* sm80.cu - the activate kernel on NVIDIA GPUs: a thread takes every so-many-th 16 bytes of out, or
 * every so-many-th element where rows are not aligned.  One kernel for all dtypes and functions:
 * the branches on them cost nothing beside the memory, and a group has it ready from the start.
 */
#include "../grid.cuh"
#include "../vector.cuh"
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
