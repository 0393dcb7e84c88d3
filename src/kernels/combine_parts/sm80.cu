/* sm80.cu - the combine_parts kernel on NVIDIA GPUs.
 *
 *     IMX_DTYPE   imbrex_dtype of rows and sums
 *
 * A warp has a token's part at a time, its lanes 16 bytes each, and between them the list of the
 * token's places.  Blocks are large, so that a few of them have all of the multiprocessors that a
 * product leaves free, and move as much as those can.
 */
#include "../grid.cuh"
#include "../vector.cuh"
#include "args.h"

#define PARTS_FN static __device__ __forceinline__

enum { THREADS = 1024, WARPS = THREADS / 32, LANES = 32, HALVES = 2 /* top_k is at most 64 */ };
enum { AT_ONCE = 4 /* rows under way */ };
enum { BYTES = IMX_IS_F32 ? 4 : 2, TOGETHER = 16 / BYTES };
enum : unsigned { ALL = 0xffffffff }; /* lanes */

/* A lane's: of place `lane`, and lane + 32. */
struct places {
    int32_t row[HALVES];
    float weight[HALVES];
    unsigned has[HALVES]; /* those with a row here, a bit each; the same in all lanes */
};

PARTS_FN places places_of(const imx_combine_args &x, int64_t token)
{
    places p;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        int place = (int)threadIdx.x % LANES + h * LANES;
        int64_t pair = token * x.top_k + place;
        bool is_one = place < x.top_k;
        p.row[h] = is_one ? x.pair_row[pair] : -1;
        p.weight[h] = is_one ? x.weights[pair] : 0.0f;
        p.has[h] = __ballot_sync(ALL, p.row[h] >= 0 && p.row[h] < x.rows);
    }
    return p;
}

/* A product is rounded before it is added, as everywhere. */
PARTS_FN void add_weighted(float *sum, uint4 v, float weight, bool first)
{
    float x[TOGETHER];
    imx_vector_add(IMX_DTYPE, x, v, true);
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        float term = __fmul_rn(weight, x[i]);
        sum[i] = first ? term : __fadd_rn(sum[i], term);
    }
}

/* The sum of 16 bytes of a token's rows, which lie `at` bytes into each; all lanes, of which those
 * that are not `in` load nothing. */
PARTS_FN uint4 sum_of(const imx_combine_args &x, const places &p, int64_t at, bool in)
{
    float sum[TOGETHER] = { 0.0f };
    bool first = true;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll 1
        for (unsigned left = p.has[h]; left;) {
            uint4 v[AT_ONCE];
            float weight[AT_ONCE];
            int count = __popc(left);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                int place = left ? __ffs((int)left) - 1 : 0;
                int64_t row = __shfl_sync(ALL, p.row[h], place);
                weight[j] = __shfl_sync(ALL, p.weight[h], place);
                left &= left - 1;
                v[j] = make_uint4(0, 0, 0, 0);
                if (in && j < count)
                    v[j] = imx_vector_load((const char *)x.from + row * x.n * BYTES + at);
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (j < count) {
                    add_weighted(sum, v[j], weight[j], first);
                    first = false;
                }
            }
        }
    }
    return imx_vector_narrow(IMX_DTYPE, sum);
}

/* By a warp. */
PARTS_FN void send_token(const imx_combine_parts_args &args, int q, int64_t token)
{
    const imx_combine_args &x = args.combine;
    places p = places_of(x, token);
    int owner = imx_combine_owner(&x, token), lane = (int)threadIdx.x % LANES;
    int64_t number = token - imx_team_row(x.tokens, x.ranks, owner);
    char *to = x.data[owner] + x.own * x.slot_bytes + number * x.n * BYTES;
    int64_t from = q * args.part_cols * BYTES, bytes = imx_combine_parts_cols(&args, q) * BYTES;
    if (!(p.has[0] | p.has[1]))
        return;
#pragma unroll 1
    for (int64_t at = lane * 16; at - lane * 16 < bytes; at += LANES * 16) {
        uint4 sum = sum_of(x, p, from + at, at < bytes);
        if (at < bytes)
            *(uint4 *)(to + from + at) = sum;
    }
}

/* By all threads, which meet; 0: gave up. */
PARTS_FN int wait_part(const imx_combine_parts_args &args, const imbrexd_watch &watch, int q)
{
    int there = 1;
    if (threadIdx.x == 0 && args.made) {
        imbrexd_wait_point point = { args.plan, IMX_POINT_DONE, args.combine.own, q };
        there = imbrexd_signal_wait(&watch, &args.made[q], *args.epoch, point);
    }
    return __syncthreads_and(there);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imx_combine_parts(const __grid_constant__ imx_combine_parts_args args,
                      const __grid_constant__ imbrexd_watch watch)
{
    int warp = (int)(threadIdx.x / LANES * gridDim.x + blockIdx.x);
    int warps = WARPS * (int)gridDim.x;
    imx_grid_wait();
    imx_grid_let_go();
    for (int q = args.first_part; q < args.end_part; q++) {
        if (!wait_part(args, watch, q))
            return;
        for (int64_t token = warp; token < args.combine.tokens; token += warps)
            send_token(args, q, token);
    }
}
