/* sm80.cu - the combine_parts kernel on NVIDIA GPUs.
 *
 *     IMX_DTYPE   imbrex_dtype of rows and sums
 *
 * A warp has a token's part at a time, its lanes 16 bytes each, and between them the list of the
 * token's places.  Blocks are large, so that a few of them have all of the multiprocessors that a
 * product leaves free, and move as much as those can.
 */
#include "../combine/sm80_places.cuh"
#include "../grid.cuh"
#include "../vector.cuh"
#include "args.h"

#define PARTS_FN static __device__ __forceinline__

enum { THREADS = 1024, WARPS = THREADS / LANES };
enum { BYTES = IMX_IS_F32 ? 4 : 2, TOGETHER = 16 / BYTES };

/* The sum of 16 bytes of a token's rows, which lie `at` bytes into each; all lanes, of which those
 * that are not `in` load nothing. */
PARTS_FN uint4 sum_of(const imx_combine_args &x, const places &p, int64_t at, bool in)
{
    float sum[TOGETHER] = { 0.0f };
    auto load = [&](int64_t row) {
        return in ? imx_vector_load((const char *)x.from + row * x.n * BYTES + at)
                  : make_uint4(0, 0, 0, 0);
    };
    auto add = [&](uint4 data, float weight, bool first) {
        float term[TOGETHER];
        imx_vector_add(IMX_DTYPE, term, data, true);
        add_weighted<TOGETHER>(sum, term, weight, first);
    };
    each_place<uint4>(p, load, add);
    return imx_vector_narrow(IMX_DTYPE, sum);
}

/* By a warp. */
PARTS_FN void send_token(const imx_combine_parts_args &args, int q, int64_t token)
{
    const imx_combine_args &x = args.combine;
    places p = places_of(x, token);
    int owner = imx_combine_owner(&x, token), lane = lane_of();
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
