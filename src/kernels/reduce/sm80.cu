/* sm80.cu - the reduce kernel on NVIDIA GPUs: all blocks together take chunk after chunk; in a
 * chunk a thread takes every so-many-th 16 bytes, of all ranks at once, so that enough is under
 * way.
 *
 *     IMX_DTYPE   imbrex_dtype          IMX_RANKS   how many parts there are
 *
 * Rows are one long vector, [rows * n]; only the bias repeats.
 */
#include "../end.cuh"
#include "../grid.cuh"
#include "../trace.cuh"
#include "../vector.cuh"
#include "args.h"

enum { AT_ONCE = 4 };                                /* parts in registers */
enum { VECTOR = IMX_DTYPE == 2 /* f32 */ ? 4 : 8 }; /* elements in 16 bytes */

IMX_VECTOR_FN uint64_t use_of(const imx_reduce_args *args)
{
    return *(const volatile uint64_t *)args->use + (uint64_t)args->ahead;
}

/* Until every rank's part of chunk q is there: one thread a rank looks, the barrier orders the
 * loads of all after what they saw.  0: give up. */
IMX_VECTOR_FN int wait_parts(const imx_reduce_args *args, const imbrexd_watch *watch, int q)
{
    int r = (int)threadIdx.x, there = 1;
    imx_trace_begin(IMX_TRACE_PART);
    if (r < IMX_RANKS && r != args->own) {
        imbrexd_site site = { args->plan, IMX_SITE_PART, args->from + r * args->every,
                              args->chunk + q };
        const uint64_t *signal = &args->arrived[(int64_t)r * args->chunks + q];
        there = imbrexd_signal_wait(watch, signal, use_of(args), site);
    }
    there = __syncthreads_and(there);
    if (r == 0)
        imx_trace_end(IMX_TRACE_PART, -1, q);
    return there;
}

IMX_VECTOR_FN const char *part(const imx_reduce_args *args, int r)
{
    if (args->team.size)
        return imx_team_data(&args->team, r) +
               args->row * args->n * imx_vector_bytes(IMX_DTYPE);
    return r == args->own ? (const char *)args->own_part
                          : (const char *)args->slots + r * args->slot_bytes;
}

/* sum[VECTOR] = elements from `at` on, of all parts, in rank order. */
IMX_VECTOR_FN void add_parts(const imx_reduce_args *args, int64_t at, float *sum)
{
#pragma unroll 1
    for (int first = 0; first < IMX_RANKS; first += AT_ONCE) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (first + j < IMX_RANKS)
                v[j] = imx_vector_load_any(IMX_DTYPE, part(args, first + j) +
                                                          at * imx_vector_bytes(IMX_DTYPE));
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (first + j < IMX_RANKS)
                imx_vector_add(IMX_DTYPE, sum, v[j], first + j == 0);
        }
    }
}

IMX_VECTOR_FN void reduce_one(const imx_reduce_args *args, int64_t at)
{
    float sum = imx_vector_get(IMX_DTYPE, part(args, 0), at);
    for (int r = 1; r < IMX_RANKS; r++)
        sum += imx_vector_get(IMX_DTYPE, part(args, r), at);
    if (args->bias)
        sum += imx_vector_get(IMX_DTYPE, args->bias, at % args->n);
    imx_vector_put(IMX_DTYPE, args->c, at, sum);
}

/* `at` is where c is aligned; column: of `at`. */
IMX_VECTOR_FN void reduce_vector(const imx_reduce_args *args, int64_t at, int64_t column)
{
    float sum[VECTOR];
    add_parts(args, at, sum);
    if (args->bias) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            sum[i] += imx_vector_get(IMX_DTYPE, args->bias, column);
            column = column + 1 < args->n ? column + 1 : 0;
        }
    }
    *(uint4 *)((char *)args->c + at * imx_vector_bytes(IMX_DTYPE)) =
        imx_vector_narrow(IMX_DTYPE, sum);
}

/* This thread's share of the elements [first, last) of c. */
IMX_VECTOR_FN void reduce_chunk(const imx_reduce_args *args, int64_t first, int64_t last)
{
    const int bytes = imx_vector_bytes(IMX_DTYPE);
    int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t threads = (int64_t)gridDim.x * blockDim.x;

    /* Up to where c is aligned, and after its last whole vector, one by one. */
    int64_t past = (int64_t)((uintptr_t)args->c + (uintptr_t)(first * bytes)) & 15;
    int64_t head = first + (past ? (16 - past) / bytes : 0);
    head = head < last ? head : last;
    int64_t tail = head + (last - head) / VECTOR * VECTOR;
    if (thread < head - first)
        reduce_one(args, first + thread);
    if (thread < last - tail)
        reduce_one(args, tail + thread);

    int64_t at = head + thread * VECTOR, step = threads * VECTOR;
    if (at >= tail)
        return;
    int64_t column = args->bias ? at % args->n : 0, column_step = args->bias ? step % args->n : 0;
    for (; at < tail; at += step) {
        reduce_vector(args, at, column);
        column += column_step;
        column -= args->bias && column >= args->n ? args->n : 0;
    }
}

extern "C" __global__ void __launch_bounds__(512, 2)
    imx_reduce(const __grid_constant__ imx_reduce_args args,
               const __grid_constant__ imbrexd_watch watch)
{
    imx_grid_wait();
    imx_grid_let_go();
    imx_trace_open();
    for (int q = 0; (int64_t)q * args.chunk_rows < args.rows; q++) {
        if (args.arrived && !wait_parts(&args, &watch, q))
            return;
        int64_t first = (int64_t)q * args.chunk_rows, end = first + args.chunk_rows;
        imx_trace_begin(IMX_TRACE_FOLD);
        reduce_chunk(&args, first * args.n, (end < args.rows ? end : args.rows) * args.n);
        if (threadIdx.x == 0)
            imx_trace_end(IMX_TRACE_FOLD, args.own, q);
    }
    if (args.ended) {
        __syncthreads();
        if (threadIdx.x < 32)
            imx_end_run(&args.team, args.use, use_of(&args), args.ended);
    }
    imx_trace_close();
}
