/* sm80.cu - the attend kernel on NVIDIA GPUs, by plain arithmetic: a block has a split of one head
 * of the cache, and a warp of it one row at a time.
 *
 *     IMX_DTYPE   of q and o          IMX_CACHE   of k and v
 *     IMX_DIM     of q and k          IMX_VALUES  of v and o
 *
 * Of a tile of 32 tokens a lane has the score of one; then all weights, and of the sum over v every
 * 32nd number.  What a split comes to is kept in float32; the combining step, a warp a row, adds a
 * row's splits in their order. */
#include "../grid.cuh"
#include "../vector.cuh"
#include "args.h"

#define ATTEND_FN static __device__ __forceinline__

enum { THREADS = 256, WARPS = THREADS / 32, LANES = 32, EACH = IMX_VALUES / LANES };
enum : unsigned { ALL = 0xffffffff };

#define NONE    __int_as_float(0xff800000)
#define LARGEST __int_as_float(0x7f7fffff)
#define LOG2E   1.44269504088896341f
#define LN2     0.693147180559945309f

ATTEND_FN float from_e4m3(uint8_t code)
{
    uint32_t size = code & 0x7f, sign = (uint32_t)(code & 0x80) << 24;
    float x = __uint_as_float(size << 20) * 1.329227995784916e36f; /* 2^120 */
    return size == 0x7f ? __int_as_float(0x7fc00000) : __uint_as_float(__float_as_uint(x) | sign);
}

ATTEND_FN float cache_get(const void *cache, int64_t at)
{
    return IMX_CACHE == IMBREX_E4M3 ? from_e4m3(((const uint8_t *)cache)[at])
                                    : imx_vector_get(IMX_CACHE, cache, at);
}

/* ---- where tokens are ------------------------------------------------------------------------ */

struct work {
    int sequence, head; /* of the cache */
    int length;
};

ATTEND_FN void complain(const imx_attend_args &x, const imbrexd_watch &watch, int kind,
                        int sequence, int64_t have, int64_t want)
{
    imbrexd_site site = { x.plan, 0, watch.rank, sequence };
    imbrexd_fault_raise(&watch, kind, site, (uint64_t)have, (uint64_t)want);
}

ATTEND_FN int length_of(const imx_attend_args &x, int sequence)
{
    int64_t length = x.lengths[sequence], most = imx_attend_most(&x);
    return (int)(length < 0 ? 0 : length < most ? length : most);
}

/* The first element of token t in k or v; *bad: a page that is not there. */
ATTEND_FN int64_t token_at(const imx_attend_args &x, const work &w, int t, int *bad)
{
    int64_t from = w.sequence;
    if (x.page) {
        from = x.pages[w.sequence * x.page_stride + t / x.page];
        t %= x.page;
        if (from < 0 || from >= x.page_count) {
            *bad = (int)from;
            from = 0;
        }
    }
    return from * x.cache_stride + imx_attend_row(&x, t, w.head) * IMX_DIM;
}

/* ---- one row of a split ---------------------------------------------------------------------- */

struct sums {
    float most, sum, of[EACH];
};

ATTEND_FN float warp_max(float x)
{
#pragma unroll
    for (int step = 16; step; step /= 2) {
        float other = __shfl_xor_sync(ALL, x, step);
        x = other > x || other != other ? other : x; /* NaN stays */
    }
    return x;
}

ATTEND_FN float warp_sum(float x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(ALL, x, step);
    return x;
}

/* To base 2. */
ATTEND_FN float score_of(const imx_attend_args &x, const float *q, int64_t at, float scale)
{
    float sum = 0;
#pragma unroll 8
    for (int i = 0; i < IMX_DIM; i++)
        sum += q[i] * cache_get(x.k, at + i);
    sum *= scale;
    if (x.soft_cap > 0)
        sum = x.soft_cap * tanhf(__fdividef(sum, x.soft_cap));
    return sum * LOG2E;
}

/* Tokens from `first` on, up to 32 of those before end: one a lane. */
ATTEND_FN void add_tile(const imx_attend_args &x, const imbrexd_watch &watch, const work &w,
                        const float *q, float scale, int first, int end, sums *s)
{
    const void *v = x.v ? x.v : x.k;
    int lane = (int)threadIdx.x % LANES, t = first + lane, bad = 0;
    int64_t at = t < end ? token_at(x, w, t, &bad) : 0;
    float score = t < end ? score_of(x, q, at, scale) : NONE;
    if (bad)
        complain(x, watch, IMBREXD_FAULT_PAGE, w.sequence, bad, x.page_count);
    float tile = warp_max(score), most = tile > s->most || tile != tile ? tile : s->most;
    if (most == NONE)
        return; /* weights of 0 */
    float by = exp2f(s->most - most), weight = t < end ? exp2f(score - most) : 0;
    s->most = most;
    s->sum = s->sum * by + warp_sum(weight);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        s->of[i] *= by;
    for (int j = 0; j < LANES && first + j < end; j++) {
        float one = __shfl_sync(ALL, weight, j);
        int64_t from = __shfl_sync(ALL, at, j);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            s->of[i] += one * cache_get(v, from + i * LANES + lane);
    }
}

/* ---- splits ---------------------------------------------------------------------------------- */

/* Of a row and head: | sum over v [IMX_VALUES] | most | sum | */
ATTEND_FN float *part_of(const imx_attend_args &x, int64_t state, int split)
{
    return x.parts + (state * x.splits + split) * (IMX_VALUES + 2);
}

ATTEND_FN void attend_row(const imx_attend_args &x, const imbrexd_watch &watch, const work &w,
                          int split, int query, int head, float *q)
{
    int lane = (int)threadIdx.x % LANES, each = (int)imx_attend_split(w.length);
    int64_t row = (int64_t)w.sequence * x.queries + query, state = row * x.heads + head;
    int first = split * each, end = first + each < w.length ? first + each : w.length;
    int hidden = x.hidden ? x.hidden[row] : 0, visible = x.visible ? x.visible[row] : end;
    float scale = x.scale * (x.scale_k ? *x.scale_k : 1);
    sums s = { NONE, 0, { 0 } };
    end = visible < end ? visible : end;
    for (int i = lane; i < IMX_DIM; i += LANES)
        q[i] = imx_vector_get(IMX_DTYPE, x.q, state * IMX_DIM + i);
    __syncwarp();
    for (int t = hidden > first ? hidden : first; t < end; t += LANES)
        add_tile(x, watch, w, q, scale, t, end, &s);
    __syncwarp(); /* q is the next row's */
    float *part = part_of(x, state, split);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        part[i * LANES + lane] = s.of[i];
    if (lane < 2)
        part[IMX_VALUES + lane] = lane ? s.sum : s.most;
}

ATTEND_FN void attend(const imx_attend_args &x, const imbrexd_watch &watch)
{
    __shared__ float room[WARPS][IMX_DIM];
    int group = x.heads / x.kv_heads, rows = x.queries * group, warp = (int)threadIdx.x / LANES;
    int items = (int)x.sequences * x.kv_heads * x.splits;
    for (int item = (int)blockIdx.x; item < items; item += (int)gridDim.x) {
        int split = item % x.splits, head = item / x.splits % x.kv_heads;
        work w = { item / x.splits / x.kv_heads, head, 0 };
        w.length = length_of(x, w.sequence);
        if (item % (x.splits * x.kv_heads) == 0 && threadIdx.x == 0 &&
            w.length != x.lengths[w.sequence])
            complain(x, watch, IMBREXD_FAULT_LENGTH, w.sequence, x.lengths[w.sequence],
                     imx_attend_most(&x));
        if (split * imx_attend_split(w.length) >= w.length)
            continue;
        for (int i = warp; i < rows; i += WARPS)
            attend_row(x, watch, w, split, i / group, head * group + i % group, room[warp]);
    }
}

/* A warp a state: its splits in their order. */
ATTEND_FN void combine(const imx_attend_args &x, int state)
{
    int lane = (int)threadIdx.x % LANES, length = length_of(x, state / x.heads / x.queries);
    int each = (int)imx_attend_split(length);
    float scale_v = x.scale_v ? *x.scale_v : x.scale_k && !x.v ? *x.scale_k : 1;
    sums all = { NONE, 0, { 0 } };
    for (int split = 0; split * each < length; split++) {
        const float *part = part_of(x, state, split);
        float one = part[IMX_VALUES], sum = part[IMX_VALUES + 1];
        if (one == NONE)
            continue;
        float most = one > all.most || one != one ? one : all.most;
        float by = exp2f(all.most - most), with = exp2f(one - most);
        all.most = most;
        all.sum = all.sum * by + sum * with;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            all.of[i] = all.of[i] * by + part[i * LANES + lane] * with;
    }
    float lse = all.sum > 0 ? all.most + log2f(all.sum) : NONE;
    bool bad = !(all.sum - all.sum == 0) || (all.sum > 0 && !(lse - lse == 0));
    float share; /* sum is at least 1, or 0 */
    asm("rcp.approx.f32 %0, %1;" : "=f"(share) : "f"(all.sum));
    share = all.sum > 0 ? scale_v * share : 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        imx_vector_put(IMX_DTYPE, x.o, (int64_t)state * IMX_VALUES + i * LANES + lane,
                       bad ? __int_as_float(0x7fc00000) : all.of[i] * share);
    if (lane == 0)
        x.lse[state] = bad ? LARGEST : x.natural ? lse * LN2 : lse;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imx_attend(const __grid_constant__ imx_attend_args args,
               const __grid_constant__ imbrexd_watch watch)
{
    imx_grid_wait();
    imx_grid_let_go();
    if (!args.combines) {
        attend(args, watch);
        return;
    }
    int warp = (int)(blockIdx.x * WARPS + threadIdx.x / LANES), warps = (int)gridDim.x * WARPS;
    int states = (int)args.sequences * args.queries * args.heads;
    for (int state = warp; state < states; state += warps)
        combine(args, state);
}
