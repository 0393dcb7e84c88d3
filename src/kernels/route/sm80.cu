/* sm80.cu - the route kernel on NVIDIA GPUs.  Blocks need not meet: each makes the histogram of all
 * pairs for itself, which costs less than to wait for one, and then places the pairs of every
 * so-many-th expert.  Counts are added by atomics, whose order does not show in a sum; places are
 * not.
 *
 * A warp has a part of the pairs, 32 at a time.  Which of them are of the block's first expert it
 * writes down as it counts, a bit each, if there are not too many: then they are looked at once. */
#include "../grid.cuh"
#include "sm80_pairs.cuh"

enum { THREADS = 1024, WARPS = THREADS / 32 };
enum { MASKS = 4096 };
enum : unsigned { ALL = 0xffffffff }; /* lanes */

/* Of a block. */
struct shared : places {
    int32_t before[WARPS]; /* matches in each warp's part */
    uint32_t masks[MASKS]; /* of 32 pairs each: those of the block's first expert */
};

/* This warp's part: whole groups of 32. */
static __device__ __forceinline__ void part_of(int32_t pairs, int32_t *first, int32_t *end)
{
    int32_t part = (pairs / WARPS / 32 + 1) * 32;
    *first = (int32_t)threadIdx.x / 32 * part;
    *end = pairs - *first < part ? pairs : *first + part;
}

/* expert: the block's first, whose matches it counts, too. */
static __device__ __forceinline__ void count_pairs(const imx_route_args &args, shared *s,
                                                   int32_t expert)
{
    for (int32_t e = threadIdx.x; e < args.here; e += THREADS)
        s->count[e] = 0;
    __syncthreads();
    int32_t lane = threadIdx.x % 32, pairs = args.tokens * args.top_k, first, end, matches = 0;
    part_of(pairs, &first, &end);
    walk w = walk_from(args, first + lane);
    for (int32_t at = first; at < end; at += AHEAD * 32) {
        int32_t id[AHEAD];
        load_ids(args, &w, end, id);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            uint32_t mask = __ballot_sync(ALL, id[j] == expert);
            if (is_here(args, id[j]))
                atomicAdd(&s->count[id[j] - args.first], 1);
            if (lane == 0 && at + j * 32 < end && at / 32 + j < MASKS)
                s->masks[at / 32 + j] = mask;
            matches += __popc(mask);
        }
    }
    if (lane == 0)
        s->before[threadIdx.x / 32] = matches;
    __syncthreads();
}

/* What is each pair's own, and rows behind all experts'. */
static __device__ __forceinline__ void every_pair(const imx_route_args &args, const shared *s,
                                                  int32_t thread, int32_t threads)
{
    for (int32_t i = thread; i < args.tokens * args.top_k; i += threads) {
        const int32_t *at = pair_at(args, i);
        int32_t id = at[0];
        args.pair_expert[i] = id >= 0 && id < args.experts ? id : -1;
        args.weights[i] = __int_as_float(at[args.top_k]);
        if (!is_here(args, id))
            args.pair_row[i] = -1;
    }
    for (int64_t row = (int64_t)s->all + thread; row < args.rows; row += threads)
        args.row_pair[row] = -1;
}

/* By a warp: which of its pairs are the expert's, for one that the block did not count. */
static __device__ __forceinline__ int32_t count_matches(const imx_route_args &args, int32_t expert,
                                                        int32_t first, int32_t end)
{
    walk w = walk_from(args, first + threadIdx.x % 32);
    int32_t matches = 0;
    for (int32_t at = first; at < end; at += AHEAD * 32) {
        int32_t id[AHEAD];
        load_ids(args, &w, end, id);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            matches += __popc(__ballot_sync(ALL, id[j] == expert));
    }
    return matches;
}

/* 32 pairs from `at` on, of which mask says those of the expert: its rows from *row on are
 * theirs. */
static __device__ __forceinline__ void place_group(const imx_route_args &args, int32_t at,
                                                   uint32_t mask, int32_t limit, int32_t *row)
{
    int32_t lane = threadIdx.x % 32, i = at + lane;
    int32_t mine = *row + __popc(mask & ((1u << lane) - 1));
    if (mask >> lane & 1) {
        args.pair_row[i] = mine < limit ? mine : -1;
        if (mine < limit)
            args.row_pair[mine] = i;
    }
    *row += __popc(mask);
}

/* All of a block: the expert's pairs in their order, and the rows between it and the next one.
 * counted: it is the block's first, whose matches are known. */
static __device__ __forceinline__ void place_pairs(const imx_route_args &args, shared *s, int32_t e,
                                                   bool counted)
{
    int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, pairs = args.tokens * args.top_k;
    int32_t first, end, expert = args.first + e;
    part_of(pairs, &first, &end);
    if (!counted) {
        int32_t matches = count_matches(args, expert, first, end);
        if (lane == 0)
            s->before[warp] = matches;
        __syncthreads();
    }
    int32_t row = s->begin[e], limit = limit_of(args, s, e);
    for (int32_t w = 0; w < warp; w++)
        row += s->before[w];
    if (counted && pairs <= MASKS * 32) {
        for (int32_t at = first; at < end; at += 32)
            place_group(args, at, s->masks[at / 32], limit, &row);
    } else {
        walk w = walk_from(args, first + lane);
        for (int32_t at = first; at < end; at += AHEAD * 32) {
            int32_t id[AHEAD];
            load_ids(args, &w, end, id);
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                place_group(args, at + j * 32, __ballot_sync(ALL, id[j] == expert), limit, &row);
        }
    }
    int32_t next = e + 1 < args.here ? s->begin[e + 1] : s->all;
    for (int32_t gap = s->begin[e] + s->count[e] + threadIdx.x; gap < cut(args, next);
         gap += THREADS)
        args.row_pair[gap] = -1;
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imx_route(const __grid_constant__ imx_route_args args,
              const __grid_constant__ imbrexd_watch watch)
{
    __shared__ shared s;
    int32_t thread = blockIdx.x * THREADS + threadIdx.x, threads = gridDim.x * THREADS;
    imx_grid_wait();
    imx_grid_let_go();
    if (args.step == IMX_ROUTE_PACKS) {
        pack(args, thread, threads);
        return;
    }
    count_pairs(args, &s, args.first + (int32_t)blockIdx.x);
    if (threadIdx.x < 32)
        place_experts(args, &s);
    __syncthreads();
    if (blockIdx.x == 0)
        tell(args, &s, watch);
    every_pair(args, &s, thread, threads);
    for (int32_t e = blockIdx.x; e < args.here; e += gridDim.x)
        place_pairs(args, &s, e, e == (int32_t)blockIdx.x);
}
