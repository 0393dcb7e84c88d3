/* sm80_rows.cuh - a token's ids, row and scales by all threads of a block, wherever rows lie.  What
 * is loaded once goes to all its targets. */
#ifndef IMX_DISPATCH_SM80_ROWS_CUH
#define IMX_DISPATCH_SM80_ROWS_CUH

#include "../scale.h"
#include "../vector.cuh"
#include "args.h"

#define DISPATCH_FN static __device__ __forceinline__

enum { THREADS = 256, LANES = 32, AHEAD = 4 /* loads of a thread before it stores */ };
enum { COLUMNS = 8, HALF = IMX_DISPATCH_BLOCK / COLUMNS }; /* of a lane; lanes under one scale */

/* ---- copies ---------------------------------------------------------------------------------- */

/* Where rows are copied to: data of targets at an offset, or one address. */
struct places {
    char *const *base;
    int64_t at;
    unsigned targets; /* a bit each */
};

/* As many units of 16 bytes as there are; all threads. */
DISPATCH_FN void copy_vectors(const places &to, const char *from, int64_t units)
{
    for (int64_t first = threadIdx.x; first < units; first += AHEAD * THREADS) {
        uint4 v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (first + i * THREADS < units)
                v[i] = imx_vector_load(from + (first + i * THREADS) * 16);
        }
        for (unsigned left = to.targets; left; left &= left - 1) {
            char *at = to.base[__ffs((int)left) - 1] + to.at;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (first + i * THREADS < units)
                    *(uint4 *)(at + (first + i * THREADS) * 16) = v[i];
            }
        }
    }
}

/* Bytes from `first` on, where rows do not lie well. */
DISPATCH_FN void copy_bytes(const places &to, const char *from, int64_t first, int64_t bytes)
{
    for (int64_t i = first + threadIdx.x; i < bytes; i += THREADS) {
        char byte = *(const volatile char *)(from + i);
        for (unsigned left = to.targets; left; left &= left - 1)
            to.base[__ffs((int)left) - 1][to.at + i] = byte;
    }
}

/* Targets' data and slots are aligned to 16 bytes; `from` may not be, nor `at` of c. */
DISPATCH_FN void copy_row(const places &to, const char *from, int64_t bytes)
{
    bool wide = imx_vector_aligned(from) && ((uintptr_t)to.base[0] & 15) == 0 && to.at % 16 == 0;
    int64_t units = wide ? bytes / 16 : 0;
    copy_vectors(to, from, units);
    copy_bytes(to, from, units * 16, bytes);
}

/* ---- sends ----------------------------------------------------------------------------------- */

/* By those threads, from `thread` on. */
DISPATCH_FN void pack(const imx_dispatch_args &args, int32_t token, int thread, int threads)
{
    int64_t number = (int64_t)args.rank * args.most + token;
    bool own = token < args.tokens;
    for (int i = thread; i < imx_dispatch_targets(&args) * args.top_k; i += threads) {
        int place = i % args.top_k;
        int64_t pair = (int64_t)token * args.top_k + place;
        int32_t *to = imx_dispatch_packed(&args, i / args.top_k, number) + place;
        float weight = !own ? 0.0f : args.weights ? args.weights[pair] : 1.0f;
        to[0] = own ? args.ids[pair] : -1;
        to[args.top_k] = __float_as_int(weight);
    }
}

/* The same in all threads. */
DISPATCH_FN unsigned targets_of(const imx_dispatch_args &args, int32_t token)
{
    unsigned targets = 0;
    for (int place = 0; place < args.top_k; place++) {
        int target = imx_dispatch_target(&args, args.ids[(int64_t)token * args.top_k + place]);
        targets |= target < 0 ? 0u : 1u << target;
    }
    return targets;
}

DISPATCH_FN void load_columns(const imx_dispatch_args &args, const char *row, int64_t column,
                              float *x)
{
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        x[i] = column + i < args.n ? imx_vector_get(args.dtype, row, column + i) : 0.0f;
}

/* A lane's columns, to one target. */
DISPATCH_FN void store_columns(const imx_dispatch_args &args, char *row, int64_t column,
                               uint64_t bytes)
{
    if (args.n - column >= COLUMNS) {
        *(uint64_t *)(row + column) = bytes;
        return;
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        if (column + i < args.n)
            row[column + i] = (char)(bytes >> 8 * i);
    }
}

/* 128 columns are half a warp's; all threads go round equally often. */
DISPATCH_FN void send_quantized(const imx_dispatch_args &args, const char *row, int64_t number,
                                unsigned targets)
{
    for (int64_t first = 0; first < args.n; first += THREADS * COLUMNS) {
        int64_t column = first + threadIdx.x * COLUMNS;
        float x[COLUMNS], largest = 0.0f;
        load_columns(args, row, column, x);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            largest = fmaxf(largest, imx_scale_size(x[i]));
#pragma unroll
        for (int d = HALF / 2; d; d /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, d));
        float scale = imx_scale_of(largest, 0);
        uint64_t bytes = 0;
#pragma unroll
        for (int i = 0; i < COLUMNS; i += 2)
            bytes |= (uint64_t)imx_vector_e4m3(__fdiv_rn(x[i], scale), __fdiv_rn(x[i + 1], scale))
                     << 8 * i;
        if (column >= args.n)
            continue;
        for (unsigned left = targets; left; left &= left - 1) {
            int target = __ffs((int)left) - 1;
            store_columns(args, imx_dispatch_row(&args, target, number), column, bytes);
            if (column % IMX_DISPATCH_BLOCK == 0)
                imx_dispatch_scales(&args, target, number)[column / IMX_DISPATCH_BLOCK] = scale;
        }
    }
}

DISPATCH_FN void send(const imx_dispatch_args &args, int32_t token)
{
    int64_t number = (int64_t)args.rank * args.most + token;
    int64_t bytes = args.n * imx_vector_bytes(args.dtype);
    const char *row = (const char *)args.a + (int64_t)token * bytes;
    unsigned targets = targets_of(args, token);
    if (args.wire == IMBREX_E4M3) {
        send_quantized(args, row, number, targets);
        return;
    }
    const places to = { args.data, args.rows_at + number * args.row_bytes, targets };
    copy_row(to, row, bytes);
}

/* ---- takes ----------------------------------------------------------------------------------- */

DISPATCH_FN int64_t bytes_of_row(const imx_dispatch_args &args)
{
    return args.n * (args.wire == IMBREX_E4M3 ? 1 : imx_vector_bytes(args.wire));
}

/* By those threads, from `thread` on. */
DISPATCH_FN void take_scales(const imx_dispatch_args &args, int64_t token, int thread, int threads)
{
    int64_t blocks = imx_dispatch_blocks(&args);
    for (int place = 0; blocks && place < args.top_k; place++) {
        int64_t row = args.pair_row[token * args.top_k + place];
        for (int64_t i = thread; row >= 0 && i < blocks; i += threads)
            args.scale_c[row * blocks + i] = imx_dispatch_scales(&args, 0, token)[i];
    }
}

DISPATCH_FN void take_row(const imx_dispatch_args &args, int64_t token)
{
    int64_t bytes = bytes_of_row(args);
    char *c = (char *)args.c;
    for (int place = 0; place < args.top_k; place++) {
        int64_t row = args.pair_row[token * args.top_k + place];
        const places to = { &c, row * bytes, 1 };
        if (row >= 0)
            copy_row(to, imx_dispatch_row(&args, 0, token), bytes);
    }
}

/* ---- both ------------------------------------------------------------------------------------ */

/* By all threads of a block. */
DISPATCH_FN void one_token(const imx_dispatch_args &args, int32_t token)
{
    if (args.step == IMX_DISPATCH_TAKES) {
        take_row(args, token);
        take_scales(args, token, threadIdx.x, THREADS);
        return;
    }
    pack(args, token, threadIdx.x, THREADS);
    if (token < args.tokens)
        send(args, token);
}

#endif /* IMX_DISPATCH_SM80_ROWS_CUH */
