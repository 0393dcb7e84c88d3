/* sm80.cu - the reduce kernel on NVIDIA GPUs: all blocks together take chunk after chunk; in a
 * chunk a thread takes every so-many-th 16 bytes, of all ranks at once, so that enough is under
 * way.
 *
 *     IMX_DTYPE   imbrex_dtype          IMX_RANKS   how many parts there are
 *
 * Rows are one long vector, [rows * n]; only the bias repeats.
 */
#include "../grid.cuh"
#include "../trace.cuh"
#include "../vector.cuh"
#include "args.h"

/* 16 bytes of each of AT_ONCE parts, at SIDE places: up to 8 ranks 128 bytes of a thread are under
 * way, 64 KB of a multiprocessor, whose share of the memory's speed takes half of that at least. */
enum { FEW = IMX_RANKS <= 8, AT_ONCE = FEW ? IMX_RANKS : 4, SIDE = FEW ? 8 / AT_ONCE : 1 };
enum { VECTOR = IMX_IS_F32 ? 4 : 8 }; /* elements in 16 bytes */

/* Until every rank's part of chunk q is there: one thread a rank looks, the barrier orders the
 * loads of all after what they saw.  0: give up. */
IMX_VECTOR_FN int wait_parts(const imx_reduce_args *args, const imbrexd_watch *watch, int q)
{
    int r = (int)threadIdx.x, there = 1;
    imx_trace_begin(IMX_TRACE_PART);
    if (r < IMX_RANKS && r != args->own) {
        imbrexd_wait_point point = { args->plan, IMX_POINT_PART, args->from + r * args->every,
                                     args->chunk + q };
        const uint64_t *signal = &args->arrived[(int64_t)r * args->chunks + q];
        there = imbrexd_signal_wait(watch, signal, *args->epoch, point);
    }
    there = __syncthreads_and(there);
    if (r == 0)
        imx_trace_end(IMX_TRACE_PART, -1, q);
    return there;
}

IMX_VECTOR_FN const char *part(const imx_reduce_args *args, int r)
{
    return r == args->own ? (const char *)args->own_part
                          : (const char *)args->slots + r * args->slot_bytes;
}

/* v = 16 bytes from element `at` on, of the parts from `first` on.  wide: all are aligned. */
IMX_VECTOR_FN void load_parts(const imx_reduce_args *args, int first, int64_t at, bool wide,
                              uint4 *v)
{
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        if (first + j < IMX_RANKS) {
            const char *from = part(args, first + j) + at * imx_vector_bytes(IMX_DTYPE);
            v[j] = wide ? imx_vector_load(from) : imx_vector_load_any(IMX_DTYPE, from);
        }
    }
}

IMX_VECTOR_FN void add_parts(int first, const uint4 *v, float *sum)
{
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        if (first + j < IMX_RANKS)
            imx_vector_add(IMX_DTYPE, sum, v[j], first + j == 0);
    }
}

IMX_VECTOR_FN void reduce_one(const imx_reduce_args *args, int64_t at)
{
    float sum = imx_vector_get(IMX_DTYPE, part(args, 0), at);
    for (int r = 1; r < IMX_RANKS; r++)
        sum += imx_vector_get(IMX_DTYPE, part(args, r), at);
    if (args->bias)
        sum += imx_vector_get(IMX_DTYPE, args->bias, at % args->n);
    if (args->residual)
        sum += imx_vector_get(IMX_DTYPE, args->residual, at);
    imx_vector_put(IMX_DTYPE, args->c, at, sum);
}

/* `at` is where c is aligned; column: of `at`. */
IMX_VECTOR_FN void finish(const imx_reduce_args *args, int64_t at, uint32_t column, float *sum)
{
    if (args->bias) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            sum[i] += imx_vector_get(IMX_DTYPE, args->bias, column);
            column = column + 1 < args->n ? column + 1 : 0;
        }
    }
    if (args->residual)
        imx_vector_add(IMX_DTYPE, sum,
                       imx_vector_load_any(IMX_DTYPE, (const char *)args->residual +
                                                          at * imx_vector_bytes(IMX_DTYPE)),
                       false);
    *(uint4 *)((char *)args->c + at * imx_vector_bytes(IMX_DTYPE)) =
        imx_vector_narrow(IMX_DTYPE, sum);
}

/* Where a thread is: every step elements it has 16 bytes to do. */
typedef struct place {
    int64_t at;
    uint32_t step, column, column_step;
} place;

/* The next `count` places.  All that fits into registers is under way before the first is added. */
IMX_VECTOR_FN void reduce_places(const imx_reduce_args *args, place *p, int count, bool wide)
{
    uint4 v[SIDE][AT_ONCE];
#pragma unroll
    for (int i = 0; i < count; i++)
        load_parts(args, 0, p->at + (int64_t)i * p->step, wide, v[i]);
#pragma unroll
    for (int i = 0; i < count; i++) {
        float sum[VECTOR];
        add_parts(0, v[i], sum);
#pragma unroll 1
        for (int first = AT_ONCE; first < IMX_RANKS; first += AT_ONCE) {
            load_parts(args, first, p->at, wide, v[i]);
            add_parts(first, v[i], sum);
        }
        finish(args, p->at, p->column, sum);
        p->at += p->step;
        p->column += p->column_step;
        p->column -= args->bias && p->column >= args->n ? (uint32_t)args->n : 0;
    }
}

/* This thread's share of the elements [first, last) of c. */
IMX_VECTOR_FN void reduce_chunk(const imx_reduce_args *args, int64_t first, int64_t last)
{
    const int bytes = imx_vector_bytes(IMX_DTYPE);
    int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    /* Up to where c is aligned, and after its last whole vector, one by one. */
    int64_t past = (int64_t)((uintptr_t)args->c + (uintptr_t)(first * bytes)) & 15;
    int64_t head = first + (past ? (16 - past) / bytes : 0);
    head = head < last ? head : last;
    int64_t tail = head + (last - head) / VECTOR * VECTOR;
    if (thread < head - first)
        reduce_one(args, first + thread);
    if (thread < last - tail)
        reduce_one(args, tail + thread);

    place p = { head + thread * VECTOR, gridDim.x * blockDim.x * VECTOR, 0, 0 };
    if (p.at >= tail)
        return;
    if (args->bias) {
        p.column = (uint32_t)(p.at % args->n);
        p.column_step = (uint32_t)(p.step % args->n);
    }
    bool wide = true;
    for (int r = 0; r < IMX_RANKS; r++)
        wide = wide && imx_vector_aligned(part(args, r) + head * bytes);
    while (wide && p.at + (SIDE - 1) * (int64_t)p.step < tail)
        reduce_places(args, &p, SIDE, true);
    while (p.at < tail)
        reduce_places(args, &p, 1, false);
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
    imx_trace_close();
}
