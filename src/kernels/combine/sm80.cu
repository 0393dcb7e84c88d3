/* sm80.cu - the combine kernel on NVIDIA GPUs: a block takes every so-many-th token.  Its first
 * warp lists what is to be added, in order; then each thread adds its columns. */
#include "../grid.cuh"
#include "../vector.cuh"
#include "args.h"

#define COMBINE_FN static __device__ __forceinline__

enum { THREADS = 256, LANES = 32, AHEAD = 4 /* loads of a thread before it adds */ };
enum { PLACES_MOST = 64, RANKS_MOST = 1024, MORE = 2 /* bias, residual */ };
enum { BYTES = IMX_IS_F32 ? 4 : 2, TOGETHER = 16 / BYTES };
enum : unsigned { ALL = 0xffffffff };

/* Of a block: rows to add, the place's weights, and where the sum goes. */
struct list {
    const char *from[RANKS_MOST + MORE];
    float weight[PLACES_MOST];
    int count;
    char *to; /* NULL: nothing is wanted */
};

/* ---- what is added --------------------------------------------------------------------------- */

/* Appends what lanes have found, in their order.  All lanes of a warp. */
COMBINE_FN void append(list *l, bool found, const char *from, float weight)
{
    unsigned mask = __ballot_sync(ALL, found), before = mask & ((1u << threadIdx.x) - 1);
    int at = l->count + __popc(before);
    if (found && at < RANKS_MOST)
        l->from[at] = from;
    if (found && at < PLACES_MOST)
        l->weight[at] = weight;
    __syncwarp();
    if (threadIdx.x == 0) {
        int count = l->count + __popc(mask);
        l->count = count < RANKS_MOST ? count : RANKS_MOST; /* more are on no node */
    }
    __syncwarp();
}

COMBINE_FN void list_places(const imx_combine_args &args, int64_t token, list *l)
{
    for (int first = 0; first < args.top_k; first += LANES) {
        int place = first + (int)threadIdx.x;
        int64_t pair = token * args.top_k + place, row = -1;
        if (place < args.top_k)
            row = args.pair_row[pair];
        bool found = row >= 0 && row < args.rows;
        append(l, found, (const char *)args.from + row * args.n * BYTES,
               found ? args.weights[pair] : 0.0f);
    }
}

COMBINE_FN void list_ranks(const imx_combine_args &args, int64_t token, list *l)
{
    int64_t at = token * args.n * BYTES;
    for (int first = args.begin; first < args.end; first += LANES) {
        int rank = first + (int)threadIdx.x;
        const char *part = (const char *)args.slots + (rank - args.begin) * args.slot_bytes;
        append(l, rank < args.end && imx_combine_is_on(&args, args.first + token, rank),
               (rank == args.own ? (const char *)args.own_part : part) + at, 1.0f);
    }
    if (threadIdx.x)
        return;
    if (args.bias)
        l->from[l->count++] = (const char *)args.bias;
    if (args.residual)
        l->from[l->count++] = (const char *)args.residual + at;
}

COMBINE_FN char *place_of(const imx_combine_args &args, int64_t token, const list *l)
{
    int64_t row_bytes = args.n * BYTES;
    if (args.step == IMX_COMBINE_RANKS || !args.stores)
        return (char *)args.to + token * row_bytes;
    if (!l->count)
        return NULL;
    int owner = imx_combine_owner(&args, token);
    int64_t at = token - imx_team_row(args.tokens, args.ranks, owner);
    return args.data[owner] + args.own * args.slot_bytes + at * row_bytes;
}

/* By the first warp. */
COMBINE_FN void make_list(const imx_combine_args &args, int64_t token, list *l)
{
    if (threadIdx.x == 0)
        l->count = 0;
    __syncwarp();
    if (args.step == IMX_COMBINE_PLACES)
        list_places(args, token, l);
    else
        list_ranks(args, token, l);
    __syncwarp();
    if (threadIdx.x == 0)
        l->to = place_of(args, token, l);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* A product is rounded before it is added, as everywhere. */
COMBINE_FN void add_one(float *sum, float x, bool weighted, float weight, bool first)
{
    float term = weighted ? __fmul_rn(weight, x) : x;
    *sum = first ? term : __fadd_rn(*sum, term);
}

COMBINE_FN void add_vector(float *sum, uint4 v, bool weighted, float weight, bool first)
{
    float x[TOGETHER];
    imx_vector_add(IMX_DTYPE, x, v, true);
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
        add_one(&sum[i], x[i], weighted, weight, first);
}

COMBINE_FN void add_vectors(const list *l, int64_t row_bytes, bool weighted)
{
    int count = l->count;
    for (int64_t at = threadIdx.x * 16; at < row_bytes; at += THREADS * 16) {
        float sum[TOGETHER] = { 0.0f };
        for (int first = 0; first < count; first += AHEAD) {
            uint4 v[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (first + i < count)
                    v[i] = imx_vector_load(l->from[first + i] + at);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (first + i < count)
                    add_vector(sum, v[i], weighted, weighted ? l->weight[first + i] : 1.0f,
                               first + i == 0);
            }
        }
        *(uint4 *)(l->to + at) = imx_vector_narrow(IMX_DTYPE, sum);
    }
}

/* Where rows do not lie well. */
COMBINE_FN void add_elements(const list *l, int64_t n, bool weighted)
{
    for (int64_t col = threadIdx.x; col < n; col += THREADS) {
        float sum = 0.0f;
        for (int i = 0; i < l->count; i++)
            add_one(&sum, imx_vector_get(IMX_DTYPE, l->from[i], col), weighted,
                    weighted ? l->weight[i] : 1.0f, i == 0);
        imx_vector_put(IMX_DTYPE, l->to, col, sum);
    }
}

COMBINE_FN bool lies_well(const imx_combine_args &args)
{
    return args.n * BYTES % 16 == 0 && imx_vector_aligned(args.to) &&
           imx_vector_aligned(args.from) && imx_vector_aligned(args.slots) &&
           imx_vector_aligned(args.own_part) && imx_vector_aligned(args.bias) &&
           imx_vector_aligned(args.residual);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    imx_combine(const __grid_constant__ imx_combine_args args,
                const __grid_constant__ imbrexd_watch watch)
{
    __shared__ list l;
    bool wide = lies_well(args), weighted = args.step == IMX_COMBINE_PLACES;
    imx_grid_wait();
    imx_grid_let_go();
    for (int64_t token = blockIdx.x; token < args.tokens; token += gridDim.x) {
        if (threadIdx.x < LANES)
            make_list(args, token, &l);
        __syncthreads();
        if (l.to && wide)
            add_vectors(&l, args.n * BYTES, weighted);
        else if (l.to)
            add_elements(&l, args.n, weighted);
        __syncthreads(); /* before another token's list comes to the same place */
    }
}
