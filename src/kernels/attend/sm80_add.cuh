/* sm80_add.cuh - adds up what a sequence's splits have come to, in their order: a warp a row, of
 * MLA on Hopper a part of one. */
#ifndef IMX_ATTEND_SM80_ADD_CUH
#define IMX_ATTEND_SM80_ADD_CUH

#include "sm80_where.cuh"

/* Pairs of numbers that a lane has: of a row, of MLA on Hopper of a column of rows. */
#ifdef IMX_BOX
enum { PAIRS = IMX_DIM == IMX_VALUES ? IMX_VALUES / LANES / 2 : 1 };
#else
enum { PAIRS = IMX_VALUES / LANES / 2 };
#endif
enum {
    IS_SHORT =
        IMX_THREADS > 256 || (IMX_CACHE == IMBREX_E4M3 && IMX_VALUES > 128), /* of registers */
    WANTED = (IS_SHORT ? 16 : 32) / PAIRS,
    AHEAD = WANTED < 16 || IMX_DIM != IMX_VALUES ? WANTED : 16 /* splits that are loaded at once */
};
static_assert(LANES % AHEAD == 0, "they share their weights' lanes");

ATTEND_FN float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 2 ^ (x - most), and 0 of what nothing has come to. */
ATTEND_FN float weight(float x, float most)
{
    return power_of_two(x - (most == NONE ? 0 : most));
}

ATTEND_FN float2 load_pair(const float *at)
{
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(at) : "memory");
    return v;
}

/* Of the first `count` splits from `part` on. */
template <int ahead>
ATTEND_FN void load_parts(const float *part, int count, float2 (&v)[ahead][PAIRS])
{
#pragma unroll
    for (int j = 0; j < ahead; j++)
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++)
            v[j][pair] =
                j < count ? load_pair(part + j * IMX_VALUES + pair * LANES * 2) : make_float2(0, 0);
}

/* Of a split, what counts of the sums before it and of its own; and its sum of weights.  One that
 * has none changes nothing but the sign of a zero. */
struct share {
    float keep, by, sum;
};

/* most: the largest score of the splits before; upto: with this one. */
ATTEND_FN share share_between(float most, float upto, float2 own)
{
    bool is_none = own.y == 0;
    return share{ is_none ? 1 : weight(most, upto), is_none ? 0 : weight(own.x, upto), own.y };
}

/* The share of this lane's split, if splits follow each other as lanes do; most: the largest score
 * ahead of all of them, then with them. */
ATTEND_FN share share_of(float2 own, float *most)
{
    int lane = (int)threadIdx.x % LANES;
    float upto = fmaxf(own.x, *most);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
        upto = fmaxf(upto, __shfl_up_sync(ALL, upto, step)); /* its own where there is no other */
    float before = __shfl_up_sync(ALL, upto, 1);
    before = lane ? before : *most;
    *most = __shfl_sync(ALL, upto, LANES - 1);
    return share_between(before, upto, own);
}

ATTEND_FN void add_share(const share &s, float of, float *to)
{
    *to = __fmaf_rn(of, s.by, __fmul_rn(*to, s.keep));
}

/* sum += those, and all += their sums of weights; own: of lane `first` and the next ones.  Behind
 * the last split there are zeros. */
template <int ahead>
ATTEND_FN void add_parts(int first, const share &own, const float2 (&v)[ahead][PAIRS],
                         float2 (&sum)[PAIRS], float *all)
{
#pragma unroll
    for (int j = 0; j < ahead; j++) {
        share s = { __shfl_sync(ALL, own.keep, first + j), __shfl_sync(ALL, own.by, first + j),
                    __shfl_sync(ALL, own.sum, first + j) };
        add_share(s, s.sum, all);
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            add_share(s, v[j][pair].x, &sum[pair].x);
            add_share(s, v[j][pair].y, &sum[pair].y);
        }
    }
}

/* The largest score, and the sum of weights, of this lane's split of LANES from `from` on. */
ATTEND_FN float2 load_weight(const imx_attend_args &x, int64_t state, int from, int splits)
{
    int i = from + (int)threadIdx.x % LANES;
    return i < splits ? load_pair(weight_of(x, state, i)) : make_float2(NONE, 0);
}

/* What becomes of a row's sums.  One with a score that is no number does not pass for one without
 * tokens. */
struct ending {
    float share, lse;
    bool bad;
};

ATTEND_FN ending ending_of(const imx_attend_args &x, float most, float sum)
{
    float scale_v = x.scale_v ? *x.scale_v : x.scale_k && !x.v ? *x.scale_k : 1;
    ending e;
    e.lse = sum > 0 ? most + log2f(sum) : NONE;
    e.bad = !(sum - sum == 0) || (sum > 0 && !(e.lse - e.lse == 0));
    e.lse = e.bad ? LARGEST : x.natural ? e.lse * LN2 : e.lse;
    asm("rcp.approx.f32 %0, %1;" : "=f"(e.share) : "f"(sum)); /* sum is at least 1, or 0 */
    e.share = sum > 0 ? scale_v * e.share : 0;
    return e;
}

/* Number i of o; a zero has no sign. */
ATTEND_FN void put_o(const imx_attend_args &x, const ending &e, int64_t i, float sum)
{
    imx_vector_put(IMX_DTYPE, x.o, i, e.bad ? __int_as_float(0x7fc00000) : sum * e.share + 0.0f);
}

ATTEND_FN void put_columns(const imx_attend_args &x, int64_t state, int first, float most,
                           float sum, const float2 (&of)[PAIRS])
{
    int lane = (int)threadIdx.x % LANES;
    const ending e = ending_of(x, most, sum);
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
        int64_t at = state * IMX_VALUES + (pair * LANES + lane) * 2 + first;
        put_o(x, e, at, of[pair].x);
        put_o(x, e, at + 1, of[pair].y);
    }
    if (lane == 0 && first == 0 && x.lse)
        x.lse[state] = e.lse;
}

/* Numbers of a row from `first` on, PAIRS of each lane.  Where there are registers enough a warp
 * waits once for weights and AHEAD splits together. */
ATTEND_FN void add_columns(const imx_attend_args &x, const work &w, int64_t state, int first)
{
    const float *parts = part_of(x, state, 0) + (int)threadIdx.x % LANES * 2 + first;
    float2 v[AHEAD][PAIRS], of[PAIRS] = {};
    if (!IS_SHORT)
        load_parts(parts, w.splits, v);
    float2 own = load_weight(x, state, 0, w.splits);
    float most = NONE, sum = 0;
    for (int from = 0; from < w.splits; from += LANES) {
        int count = w.splits - from < LANES ? w.splits - from : LANES;
        if (from)
            own = load_weight(x, state, from, w.splits);
        share s = share_of(own, &most);
        for (int i = 0; i < count; i += AHEAD) {
            if (from + i || IS_SHORT)
                load_parts(parts + (from + i) * IMX_VALUES, count - i, v);
            add_parts(i, s, v, of, &sum);
        }
    }
    put_columns(x, state, first, most, sum, of);
}

ATTEND_FN void add_row(const imx_attend_args &x, const work &w, int row)
{
    add_columns(x, w, state_of(x, w, row), 0);
}

/* One thread, when the others' parts of a split happen before: whether the sequence's splits, for
 * this head and piece, have all ended now. */
ATTEND_FN bool has_ended(const imx_attend_args &x, const work &w)
{
    uint32_t *count =
        x.counts + ((int64_t)w.sequence * x.kv_heads + w.head) * pieces_of(x) + w.piece;
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(count)
                 : "memory");
    if ((int)before != w.splits - 1)
        return false;
    *count = 0;
    return true;
}

/* All threads, when their part of a split is written: whoever is the last one adds up. */
ATTEND_FN void add_if_last(const imx_attend_args &x, const work &w)
{
    __shared__ int is_last;
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = has_ended(x, w);
    __syncthreads();
    if (is_last)
        for (int row = (int)threadIdx.x / LANES; row < rows_of(x, w); row += WARPS)
            add_row(x, w, row);
}

#endif /* IMX_ATTEND_SM80_ADD_CUH */
