/* sm80.cu - the combine kernel on NVIDIA GPUs: a thread makes 16 bytes of a token, or what is left
 * of its row.  Weights are multiplied and added in two roundings, as on the CPU.
 *
 *     IMX_DTYPE   imbrex_dtype
 */
#include "../grid.cuh"
#include "../team.h"
#include "../vector.cuh"
#include "args.h"

enum { VECTOR = IMX_IS_F32 ? 4 : 8 }; /* elements in 16 bytes */

/* Of a token's columns. */
typedef struct span {
    int64_t token, col;
    int count;
    bool wide; /* whole, and every row of the matrices begins at a multiple of 16 bytes */
} span;

IMX_VECTOR_FN void span_load(const void *matrix, int64_t at, const span &s, float *x)
{
    if (s.wide) {
        imx_vector_add(IMX_DTYPE, x,
                       imx_vector_load((const char *)matrix + at * imx_vector_bytes(IMX_DTYPE)),
                       true);
        return;
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        x[i] = i < s.count ? imx_vector_get(IMX_DTYPE, matrix, at + i) : 0;
}

IMX_VECTOR_FN void span_store(void *matrix, int64_t at, const span &s, const float *x)
{
    if (s.wide) {
        *(uint4 *)((char *)matrix + at * imx_vector_bytes(IMX_DTYPE)) =
            imx_vector_narrow(IMX_DTYPE, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (i < s.count)
            imx_vector_put(IMX_DTYPE, matrix, at + i, x[i]);
    }
}

IMX_VECTOR_FN void add_places(const imx_combine_args &args, const span &s, float *sum)
{
    bool first = true;
#pragma unroll 1
    for (int place = 0; place < args.top_k; place++) {
        int64_t pair = s.token * args.top_k + place;
        int32_t row = args.pair_row[pair];
        if (row < 0 || row >= args.rows)
            continue;
        float x[VECTOR], weight = args.weights[pair];
        span_load(args.from, row * args.n + s.col, s, x);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float term = __fmul_rn(weight, x[i]);
            sum[i] = first ? term : __fadd_rn(sum[i], term);
        }
        first = false;
    }
}

IMX_VECTOR_FN bool is_on(const imx_combine_args &args, int64_t token, int rank)
{
    int32_t from = 0, to = args.experts;
    if (args.whole) {
        from = (int32_t)imx_team_row(args.experts, args.ranks, rank);
        to = (int32_t)imx_team_row(args.experts, args.ranks, rank + 1);
    }
    const int32_t *expert = args.pair_expert + (args.first + token) * args.top_k;
    bool on = false;
#pragma unroll 1
    for (int place = 0; place < args.top_k; place++)
        on = on || (expert[place] >= from && expert[place] < to);
    return on;
}

IMX_VECTOR_FN void add_ranks(const imx_combine_args &args, const span &s, float *sum)
{
    bool first = true;
#pragma unroll 1
    for (int r = 0; r < args.ranks; r++) {
        if (!is_on(args, s.token, r))
            continue;
        const void *part =
            r == args.own ? args.own_part : (const char *)args.slots + r * args.slot_bytes;
        float x[VECTOR];
        span_load(part, s.token * args.n + s.col, s, x);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum[i] = first ? x[i] : sum[i] + x[i];
        first = false;
    }
    if (!args.bias)
        return;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (i < s.count)
            sum[i] += imx_vector_get(IMX_DTYPE, args.bias, s.col + i);
    }
}

extern "C" __global__ void __launch_bounds__(512)
    imx_combine(const __grid_constant__ imx_combine_args args,
                const __grid_constant__ imbrexd_watch watch)
{
    imx_grid_wait();
    imx_grid_let_go();
    const void *from = args.step == IMX_COMBINE_PLACES ? args.from : args.own_part;
    bool wide = args.n % VECTOR == 0 && imx_vector_aligned(args.to) && imx_vector_aligned(from);
    int64_t across = (args.n + VECTOR - 1) / VECTOR, step = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 1
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < args.tokens * across;
         i += step) {
        span s = { i / across, i % across * VECTOR, VECTOR, wide };
        if (args.n - s.col < VECTOR)
            s.count = (int)(args.n - s.col);
        float sum[VECTOR] = {};
        if (args.step == IMX_COMBINE_PLACES)
            add_places(args, s, sum);
        else
            add_ranks(args, s, sum);
        span_store(args.to, s.token * args.n + s.col, s, sum);
    }
}
