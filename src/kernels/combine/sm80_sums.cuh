/* sm80_sums.cuh - sums of tokens by blocks of GPUs: a block's first warp lists what is to be added
 * of a token, in order; then each thread adds its columns.
 *
 *     THREADS     of a block
 *     IMX_DTYPE   imbrex_dtype of rows and sums
 */
#ifndef IMX_COMBINE_SM80_SUMS_CUH
#define IMX_COMBINE_SM80_SUMS_CUH

#include "../vector.cuh"
#include "args.h"

#define COMBINE_FN static __device__ __forceinline__

enum { LANES = 32, AHEAD = 4 /* loads of a thread before it adds */ };
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

/* ---- which token ----------------------------------------------------------------------------- */

/* Places in the walk of all blocks together. */
COMBINE_FN uint32_t walk_of(const imx_combine_args &args)
{
    uint32_t ranks = (uint32_t)args.ranks, tokens = (uint32_t)args.tokens;
    return args.stores ? (tokens + ranks - 1) / ranks * ranks : tokens;
}

/* Sums that are stored at their owners take turns, the next rank's, then the one's after it, so
 * that all links are busy all the time.  -1: that owner has no more.  imx_team_row's product would
 * not fit into 32 bits. */
COMBINE_FN int32_t token_at(const imx_combine_args &args, uint32_t i)
{
    if (!args.stores)
        return (int32_t)i;
    uint32_t ranks = (uint32_t)args.ranks, tokens = (uint32_t)args.tokens;
    uint32_t owner = ((uint32_t)args.own + 1 + i) % ranks, at = i / ranks;
    uint32_t each = tokens / ranks, more = tokens % ranks;
    uint32_t first = owner * each + owner * more / ranks;
    uint32_t end = (owner + 1) * each + (owner + 1) * more / ranks;
    return at < end - first ? (int32_t)(first + at) : -1;
}

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

COMBINE_FN void list_places(const imx_combine_args &args, int32_t token, list *l)
{
    for (int first = 0; first < args.top_k; first += LANES) {
        int place = first + (int)threadIdx.x;
        int64_t pair = (int64_t)token * args.top_k + place, row = -1;
        if (place < args.top_k)
            row = args.pair_row[pair];
        bool found = row >= 0 && row < args.rows;
        append(l, found, (const char *)args.from + row * args.n * BYTES,
               found ? args.weights[pair] : 0.0f);
    }
}

COMBINE_FN void list_ranks(const imx_combine_args &args, int32_t token, list *l)
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

COMBINE_FN char *place_of(const imx_combine_args &args, int32_t token, const list *l)
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
COMBINE_FN void make_list(const imx_combine_args &args, int32_t token, list *l)
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

/* By all threads. */
COMBINE_FN void one_token(const imx_combine_args &args, int32_t token, bool wide, list *l)
{
    bool weighted = args.step == IMX_COMBINE_PLACES;
    if (threadIdx.x < LANES)
        make_list(args, token, l);
    __syncthreads();
    if (l->to && wide)
        add_vectors(l, args.n * BYTES, weighted);
    else if (l->to)
        add_elements(l, args.n, weighted);
    __syncthreads(); /* before another token's list comes to the same place */
}

#endif /* IMX_COMBINE_SM80_SUMS_CUH */
