/* sm80_places.cuh - where experts begin, once a block has counted their pairs in its shared memory:
 * the same for all who place pairs. */
#ifndef IMX_ROUTE_SM80_PLACES_CUH
#define IMX_ROUTE_SM80_PLACES_CUH

#include "args.h"
#include "imbrex_device.h"

#define ROUTE_FN static __device__ __forceinline__

/* Of a block. */
struct places {
    int32_t count[IMX_ROUTE_EXPERTS], begin[IMX_ROUTE_EXPERTS];
    int32_t all; /* rows of all experts */
};

ROUTE_FN bool is_here(const imx_route_args &args, int32_t id)
{
    return id >= args.first && id - args.first < args.here;
}

ROUTE_FN int32_t cut(const imx_route_args &args, int32_t row)
{
    return row < args.rows ? row : args.rows;
}

/* By the first warp: 32 experts at a time. */
ROUTE_FN void place_experts(const imx_route_args &args, places *s)
{
    int32_t row = 0, lane = threadIdx.x;
    for (int32_t at = 0; at < args.here; at += 32) {
        int32_t e = at + lane, rows = e < args.here ? s->count[e] : 0;
        if (args.capacity)
            rows = e < args.here ? args.capacity : 0;
        else if (e + 1 < args.here)
            rows = (rows + args.align - 1) / args.align * args.align;
        int32_t upto = rows;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int32_t other = __shfl_up_sync(0xffffffffu, upto, step);
            upto += lane >= step ? other : 0;
        }
        if (e < args.here)
            s->begin[e] = row + upto - rows;
        row += __shfl_sync(0xffffffffu, upto, 31);
    }
    if (lane == 0)
        s->all = row;
}

/* Behind the last row that an expert may have. */
ROUTE_FN int32_t limit_of(const imx_route_args &args, const places *s, int32_t e)
{
    return args.capacity ? s->begin[e] + args.capacity : args.rows;
}

ROUTE_FN void fail(const imx_route_args &args, const imbrexd_watch &watch, int32_t expert,
                   int32_t rows, int32_t most)
{
    imbrexd_wait_point point = { args.plan, 0, watch.rank, expert };
    if (rows > most)
        imbrexd_fault_raise(&watch, IMBREXD_FAULT_ROWS, point, (uint64_t)rows, (uint64_t)most);
}

ROUTE_FN void tell(const imx_route_args &args, const places *s, const imbrexd_watch &watch)
{
    for (int32_t e = threadIdx.x; e < args.here; e += blockDim.x) {
        int32_t begin = cut(args, s->begin[e]);
        args.expert_begin[e] = begin;
        int32_t end = s->begin[e] + s->count[e], limit = limit_of(args, s, e);
        args.expert_rows[e] = end < limit ? end - begin : limit - begin;
        if (args.capacity)
            fail(args, watch, args.first + e, s->count[e], args.capacity);
    }
    if (threadIdx.x == 0) {
        args.expert_begin[args.here] = cut(args, s->all);
        fail(args, watch, -1, s->all, args.rows);
    }
}

/* Rows between experts, and those behind all, which are most; by that block of so many. */
ROUTE_FN void clear_gaps(const imx_route_args &args, const places *s, int32_t block, int32_t blocks)
{
    int32_t thread = (int32_t)threadIdx.x, threads = (int32_t)blockDim.x;
    for (int32_t e = block; e < args.here; e += blocks) {
        int32_t next = e + 1 < args.here ? s->begin[e + 1] : s->all;
        for (int32_t row = s->begin[e] + s->count[e] + thread; row < cut(args, next);
             row += threads)
            args.row_pair[row] = -1;
    }
    for (int64_t row = s->all + (int64_t)block * threads + thread; row < args.rows;
         row += blocks * threads)
        args.row_pair[row] = -1;
}

#endif /* IMX_ROUTE_SM80_PLACES_CUH */
