/* sm80.cu - the silu_mul kernel on NVIDIA GPUs: a thread takes every so-many-th 16 bytes of out, or
 * every so-many-th element where rows are not aligned.  One kernel for all dtypes: the branches on
 * it cost nothing beside the memory, and a group then has it ready from the start.
 */
#include "../grid.cuh"
#include "../vector.cuh"
#include "args.h"

/* x / (1 + e^-x) with h = e^(-|x| / 2), which cannot overflow; below zero it is x * h * h /
 * (1 + h * h), whose factors are applied one by one, so that small results do not vanish early.
 * From -200 on, also at -infinity, everything rounds to -0. */
IMX_VECTOR_FN float silu(float x)
{
    float down = fmaxf(-fabsf(x), -200.0f);
    float h = expf(0.5f * down);
    float above = x < 0 ? down * h * h : x;
    return above / (1.0f + h * h);
}

IMX_VECTOR_FN uint32_t gate_word(int dtype, uint32_t x, uint32_t up)
{
    float low = silu(imx_vector_low(dtype, x)) * imx_vector_low(dtype, up);
    float high = 0;
    if (dtype != IMBREX_F32)
        high = silu(imx_vector_high(dtype, x)) * imx_vector_high(dtype, up);
    return imx_vector_word(dtype, low, high);
}

IMX_VECTOR_FN void gate_vector(const imx_silu_mul_args *args, int64_t row, int64_t byte)
{
    int64_t row_bytes = args->cols * imx_vector_bytes(args->dtype);
    const char *in = (const char *)args->in + row * 2 * row_bytes + byte;
    uint4 x = imx_vector_load(in), up = imx_vector_load(in + row_bytes);
    *(uint4 *)((char *)args->out + row * row_bytes + byte) =
        make_uint4(gate_word(args->dtype, x.x, up.x), gate_word(args->dtype, x.y, up.y),
                   gate_word(args->dtype, x.z, up.z), gate_word(args->dtype, x.w, up.w));
}

IMX_VECTOR_FN void gate_one(const imx_silu_mul_args *args, int64_t row, int64_t column)
{
    int64_t at = row * 2 * args->cols + column;
    float x = imx_vector_get(args->dtype, args->in, at);
    float up = imx_vector_get(args->dtype, args->in, at + args->cols);
    imx_vector_put(args->dtype, args->out, row * args->cols + column, silu(x) * up);
}

extern "C" __global__ void __launch_bounds__(512, 2)
    imx_silu_mul(const __grid_constant__ imx_silu_mul_args args,
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
    int64_t row = thread / width, column = thread % width;
    int64_t rows = threads / width, columns = threads % width; /* one step of all threads */

    while (row < args.rows) {
        if (aligned)
            gate_vector(&args, row, column * 16);
        else
            gate_one(&args, row, column);
        row += rows;
        column += columns;
        if (column >= width) {
            column -= width;
            row++;
        }
    }
}
