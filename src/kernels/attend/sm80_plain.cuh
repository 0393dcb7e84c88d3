/* sm80_plain.cuh - a split by plain arithmetic, for any type and size: a warp has a row at a time.
 * Of a tile of 32 tokens a lane has the score of one; then all weights, and of the sum over v two
 * of every 64 numbers. */
#ifndef IMX_ATTEND_SM80_PLAIN_CUH
#define IMX_ATTEND_SM80_PLAIN_CUH

#include "sm80_add.cuh"

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

struct sums {
    float most, sum;
    float2 of[PAIRS];
};

ATTEND_FN float warp_max(float x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL, x, step));
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

/* Tokens from `first` on, up to 32 of those before end: one a lane.  A score that is no number
 * makes the sum NaN. */
ATTEND_FN void add_tile(const imx_attend_args &x, const imbrexd_watch &watch, const work &w,
                        const float *q, float scale, int first, int end, sums *s)
{
    const void *v = x.v ? x.v : x.k;
    int lane = (int)threadIdx.x % LANES, t = first + lane;
    int64_t at = t < end ? token_in(x, watch, w, page_of(x, w, t), x.page ? t % x.page : t) : 0;
    float score = t < end ? score_of(x, q, at, scale) : NONE;
    float most = fmaxf(s->most, warp_max(score));
    float by = weight(s->most, most), with = weight(score, most);
    s->most = most;
    s->sum = s->sum * by + warp_sum(with);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        s->of[i].x *= by;
        s->of[i].y *= by;
    }
    for (int j = 0; j < LANES && first + j < end; j++) {
        float one = __shfl_sync(ALL, with, j);
        int64_t from = __shfl_sync(ALL, at, j) + lane * 2;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            s->of[i].x += one * cache_get(v, from + i * LANES * 2);
            s->of[i].y += one * cache_get(v, from + i * LANES * 2 + 1);
        }
    }
}

ATTEND_FN void attend_row(const imx_attend_args &x, const imbrexd_watch &watch, const work &w,
                          int i, float *q)
{
    int lane = (int)threadIdx.x % LANES;
    int64_t row = query_of(x, w, i), state = state_of(x, w, i);
    int hidden = x.hidden ? x.hidden[row] : 0, visible = x.visible ? x.visible[row] : w.end;
    int end = visible < w.end ? visible : w.end;
    float scale = x.scale * (x.scale_k ? *x.scale_k : 1);
    sums s = { NONE, 0, {} };
    for (int j = lane; j < IMX_DIM; j += LANES)
        q[j] = imx_vector_get(IMX_DTYPE, x.q, state * IMX_DIM + j);
    __syncwarp();
    for (int t = hidden > w.first ? hidden : w.first; t < end; t += LANES)
        add_tile(x, watch, w, q, scale, t, end, &s);
    __syncwarp(); /* q is the next row's */
    float2 *part = (float2 *)part_of(x, state, w.split);
#pragma unroll
    for (int j = 0; j < PAIRS; j++)
        part[j * LANES + lane] = s.of[j];
    if (lane == 0)
        *(float2 *)weight_of(x, state, w.split) = make_float2(s.most, s.sum);
}

ATTEND_FN void attend_split(const imx_attend_args &x, const imbrexd_watch &watch, const work &w)
{
    __shared__ float room[WARPS][IMX_DIM];
    int warp = (int)threadIdx.x / LANES;
    for (int i = warp; i < rows_of(x, w); i += WARPS)
        attend_row(x, watch, w, i, room[warp]);
}

#endif /* IMX_ATTEND_SM80_PLAIN_CUH */
