/* sm90.cu - the route kernel for Hopper, of many pairs: one cluster counts them, a part in each of
 * its warps, and then places them.
 *
 *     a warp      | counts its part | the block adds up its warps | the cluster its blocks |
 *                 | begins of experts | its part once more: each pair to its place
 *
 * So a warp knows how many of an expert's pairs lie ahead of its part.  Counts are added by
 * atomics, whose order does not show in a sum; places follow from votes of a warp.  Blocks beside
 * the cluster bring what is each pair's own.
 *
 *     IMX_EXPERTS   that are here, at most; a power of two
 */
#include "../grid.cuh"
#include "sm80_pairs.cuh"
#include "sm90_shape.h"

enum { CLUSTER = IMX_ROUTE_CLUSTER, WARPS = IMX_ROUTE_WARPS, THREADS = WARPS * 32 };
enum : unsigned { ALL = 0xffffffff }; /* lanes */

/* Of a block. */
struct shared : places {
    int32_t ahead[WARPS][IMX_EXPERTS]; /* an expert's pairs in each warp's part, then those ahead */
    int32_t own[IMX_EXPERTS];          /* in the block's parts */
    int32_t next[IMX_EXPERTS];         /* the row behind those of blocks ahead */
};

static_assert(sizeof(shared) == IMX_ROUTE_SHARED(IMX_EXPERTS), "the launch and the kernel agree");

extern __shared__ __attribute__((aligned(16))) char dynamic[];

/* ---- the cluster ----------------------------------------------------------------------------- */

ROUTE_FN void cluster_meets(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;"
                 :
                 :
                 : "memory");
}

/* A word of another block, at this one's address. */
ROUTE_FN int32_t word_of(const int32_t *at, uint32_t block)
{
    int32_t word;
    asm volatile("{\n\t.reg .b32 there;\n\t"
                 "mapa.shared::cluster.u32 there, %1, %2;\n\t"
                 "ld.shared::cluster.s32 %0, [there];\n\t}"
                 : "=r"(word)
                 : "r"((uint32_t)__cvta_generic_to_shared(at)), "r"(block)
                 : "memory");
    return word;
}

/* ---- counts ---------------------------------------------------------------------------------- */

/* This warp's part, of all of the cluster: whole groups of 32. */
ROUTE_FN void part_of(int32_t pairs, int32_t *first, int32_t *end)
{
    int32_t part = (pairs / (CLUSTER * WARPS) / 32 + 1) * 32;
    int64_t at = (int64_t)(blockIdx.x * WARPS + threadIdx.x / 32) * part;
    *first = at < pairs ? (int32_t)at : pairs;
    *end = pairs - *first < part ? pairs : *first + part;
}

ROUTE_FN void count_part(const imx_route_args &args, shared *s, int32_t first, int32_t end)
{
    int32_t *count = s->ahead[threadIdx.x / 32];
    for (int32_t e = threadIdx.x % 32; e < args.here; e += 32)
        count[e] = 0;
    __syncwarp();
    walk w = walk_from(args, first + (int32_t)threadIdx.x % 32);
    for (int32_t at = first; at < end; at += AHEAD * 32) {
        int32_t id[AHEAD];
        load_ids(args, &w, end, id);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (is_here(args, id[j]))
                atomicAdd(&count[id[j] - args.first], 1);
        }
    }
}

/* The block's warps. */
ROUTE_FN void add_warps(const imx_route_args &args, shared *s)
{
    for (int32_t e = threadIdx.x; e < args.here; e += THREADS) {
        int32_t sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            int32_t here = s->ahead[w][e];
            s->ahead[w][e] = sum;
            sum += here;
        }
        s->own[e] = sum;
    }
}

/* The cluster's blocks. */
ROUTE_FN void add_blocks(const imx_route_args &args, shared *s)
{
    for (int32_t e = threadIdx.x; e < args.here; e += THREADS) {
        int32_t ahead = 0, all = 0;
#pragma unroll
        for (uint32_t b = 0; b < CLUSTER; b++) {
            int32_t of = word_of(&s->own[e], b);
            ahead += b < blockIdx.x ? of : 0;
            all += of;
        }
        s->count[e] = all;
        s->next[e] = ahead;
    }
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Lanes whose pair is of the same expert, a bit each; e: of those here, else -1. */
ROUTE_FN uint32_t lanes_like(int32_t e)
{
    uint32_t like = __ballot_sync(ALL, e >= 0);
#pragma unroll
    for (uint32_t bit = 1; bit < IMX_EXPERTS; bit *= 2) {
        bool has = (uint32_t)e & bit;
        uint32_t mask = __ballot_sync(ALL, has);
        like &= has ? mask : ~mask;
    }
    return like;
}

/* 32 pairs: this lane's is number i, of that id. */
ROUTE_FN void place_group(const imx_route_args &args, shared *s, int32_t *ahead, int32_t i,
                          int32_t end, int32_t id)
{
    int32_t e = i < end && is_here(args, id) ? id - args.first : -1;
    uint32_t like = lanes_like(e), before = like & ((1u << threadIdx.x % 32) - 1);
    int32_t row = e < 0 ? 0 : s->next[e] + ahead[e] + __popc(before);
    __syncwarp(); /* all have read what the first of them raises */
    if (e >= 0 && !before)
        ahead[e] += __popc(like);
    __syncwarp();
    bool fits = e >= 0 && row < limit_of(args, s, e);
    if (i < end)
        args.pair_row[i] = fits ? row : -1;
    if (fits)
        args.row_pair[row] = i;
}

ROUTE_FN void place_part(const imx_route_args &args, shared *s, int32_t first, int32_t end)
{
    int32_t lane = (int32_t)threadIdx.x % 32;
    walk w = walk_from(args, first + lane);
    for (int32_t at = first; at < end; at += AHEAD * 32) {
        int32_t id[AHEAD];
        load_ids(args, &w, end, id);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (at + j * 32 < end)
                place_group(args, s, s->ahead[threadIdx.x / 32], at + j * 32 + lane, end, id[j]);
        }
    }
}

/* What is each pair's own. */
ROUTE_FN void every_pair(const imx_route_args &args, int32_t thread, int32_t threads)
{
    for (int32_t i = thread; i < args.tokens * args.top_k; i += threads) {
        const int32_t *at = pair_at(args, i);
        int32_t id = at[0];
        args.pair_expert[i] = id >= 0 && id < args.experts ? id : -1;
        args.weights[i] = __int_as_float(at[args.top_k]);
    }
}

ROUTE_FN void route(const imx_route_args &args, shared *s, const imbrexd_watch &watch)
{
    int32_t first, end;
    part_of(args.tokens * args.top_k, &first, &end);
    count_part(args, s, first, end);
    __syncthreads();
    add_warps(args, s);
    cluster_meets();
    add_blocks(args, s);
    cluster_meets(); /* others have read: this block may end */
    if (threadIdx.x < 32)
        place_experts(args, s);
    __syncthreads();
    if (blockIdx.x == 0)
        tell(args, s, watch);
    for (int32_t e = threadIdx.x; e < args.here; e += THREADS)
        s->next[e] += s->begin[e];
    __syncthreads();
    place_part(args, s, first, end);
    clear_gaps(args, s, blockIdx.x, CLUSTER);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    imx_route(const __grid_constant__ imx_route_args args,
              const __grid_constant__ imbrexd_watch watch)
{
    int32_t thread = blockIdx.x * THREADS + threadIdx.x, threads = gridDim.x * THREADS;
    imx_grid_wait();
    imx_grid_let_go();
    if (args.step == IMX_ROUTE_PACKS)
        pack(args, thread, threads);
    else if (blockIdx.x < CLUSTER)
        route(args, (shared *)dynamic, watch);
    else
        every_pair(args, thread - CLUSTER * THREADS, threads - CLUSTER * THREADS);
}
