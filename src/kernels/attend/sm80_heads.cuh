/* sm80_heads.cuh - what four warps make of tokens by tensor cores, up to 16 rows of q against 16
 * tokens a warp at once, and what splits come to.  How tokens come into shared memory is in
 * sm80_tensor.cuh and sm90_tensor.cuh: a warp has tiles of 16 rows of k, and of v.
 *
 * Tokens, and numbers of v, are the 16 rows of a fragment, and rows of q its eight columns:
 *
 *     scores [tokens, rows] = k q^T          sums [numbers of v, rows] += v^T weights */
#ifndef IMX_ATTEND_SM80_HEADS_CUH
#define IMX_ATTEND_SM80_HEADS_CUH

#include "sm80_units.cuh"

enum {
    TOKENS = 16, /* of a warp's tile */
    STEP = TOKENS * WARPS,
    HALF_BYTES = TOKENS * ROW_BYTES, /* k, or v */
    EIGHTS = IMX_ROWS / 8,           /* of rows */
    SIXTEENS = IMX_DIM / 16,         /* of v's numbers */
/* Where a warp leaves its sums for the others, and how far apart these places are. */
#ifdef IMX_BOX
    LEFT_BYTES = 8 * IMX_DIM * 4,
    LEFT_APART = LEFT_BYTES,
#else
    LEFT_BYTES = 2 * HALF_BYTES, /* a tile's place */
    LEFT_APART = IMX_STAGES * LEFT_BYTES,
#endif
    ROWS_LEFT = LEFT_BYTES / (IMX_DIM * 4) < IMX_ROWS ? LEFT_BYTES / (IMX_DIM * 4) : IMX_ROWS
};
static_assert(WARPS == 4 && EIGHTS * 8 == IMX_ROWS && EIGHTS <= 2 && IMX_DIM == IMX_VALUES &&
                  ROWS_LEFT % 8 == 0,
              "rows are of whole fragments");

/* Splits that a block works on: entry i of a list in shared memory is of[i % ROOM]. */
#ifdef IMX_BOX
enum { ROOM = 16 };
#else
enum { ROOM = LANES };
#endif

/* What warps tell each other. */
struct heads_room {
    int from[WARPS][IMX_ROWS], to[WARPS][IMX_ROWS]; /* tokens that a row sees, by each for itself */
    float2 weights[WARPS][IMX_ROWS];                /* largest score, sum of weights */
    work splits[ROOM];
};

/* ---- which tokens ---------------------------------------------------------------------------- */

/* Without those that no row sees. */
ATTEND_FN work narrowed(const imx_attend_args &x, const work &w)
{
    int from, to;
    if (!x.hidden && !x.visible)
        return w;
    look(x, w, (int)threadIdx.x % IMX_ROWS, &from, &to);
    bool sees = from < to;
    from = sees ? from : w.end;
    to = sees ? to : w.first;
    join<IMX_ROWS>(&from, &to);
    return narrow(w, from, to, STEP);
}

ATTEND_FN int steps_of(const work &w)
{
    return w.end > w.first ? (w.end - w.first + STEP - 1) / STEP : 0;
}

/* Whether units of k and v begin at multiples of 16 bytes. */
ATTEND_FN bool is_aligned(const imx_attend_args &x)
{
    return (((uintptr_t)x.k | (uintptr_t)x.v | (uintptr_t)(x.cache_stride * ELEMENT)) & 15) == 0;
}

/* ---- q --------------------------------------------------------------------------------------- */

enum { Q_ROW_BYTES = IMX_DIM * 2, Q_UNITS = Q_ROW_BYTES / 16, Q_BYTES = IMX_ROWS * Q_ROW_BYTES };

ATTEND_SELDOM void put_q(uint32_t to, const uint16_t *from, bool there)
{
    shared_store(to, there ? imx_vector_load_any(IMX_DTYPE, from) : make_uint4(0, 0, 0, 0));
}

/* So many threads, all with their number: a split's rows of q on their way into shared memory;
 * others are zeros. */
ATTEND_FN void load_q(const imx_attend_args &x, const work &w, uint32_t to, int number,
                      const int threads)
{
    bool aligned = ((uintptr_t)x.q & 15) == 0;
#pragma unroll
    for (int i = number; i < IMX_ROWS * Q_UNITS; i += threads) {
        int row = i / Q_UNITS, unit = i % Q_UNITS;
        bool is_one = row < rows_of(x, w);
        const uint16_t *from =
            (const uint16_t *)x.q + (is_one ? state_of(x, w, row) : 0) * IMX_DIM + unit * 8;
        uint32_t at = to + (uint32_t)(row * Q_ROW_BYTES + (unit ^ (row & 7)) * 16);
        if (aligned)
            copy_async(at, from, is_one ? 16 : 0);
        else
            put_q(at, from, is_one);
    }
}

ATTEND_FN uint32_t shared_word(uint32_t at)
{
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
    return word;
}

/* Of a step's 16 numbers lane t has 2 t, 2 t + 1, and those 8 further; of 8-bit numbers, of which a
 * word has four, 4 t up to 4 t + 4: q is cut as k is. */
ATTEND_FN void read_q(uint32_t q, int step, uint32_t (&to)[EIGHTS][2])
{
    int g = (int)threadIdx.x % LANES / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int unit = 2 * step + (EIGHT ? t / 2 : i), in = EIGHT ? t % 2 * 8 + i * 4 : t * 4;
            to[n][i] =
                shared_word(q + (uint32_t)((g + 8 * n) * Q_ROW_BYTES + (unit ^ g) * 16 + in));
        }
    }
}

/* A split's rows of q, as products read them: from shared memory, */
struct shared_rows {
    enum { UNROLLED = IMX_DIM <= 128 ? K_STEPS : 2 }; /* steps */
    uint32_t at;

    ATTEND_METHOD void read(int step, uint32_t (&to)[EIGHTS][2]) const { read_q(at, step, to); }
};

/* ---- a warp's tokens ------------------------------------------------------------------------- */

/* Of rows 2 t, to which c[0] and c[2] of a fragment belong, and 2 t + 1 of each eight. */
struct lane_sums {
    float most[EIGHTS][2], sum[EIGHTS][2]; /* sum: of tokens g and g + 8 */
    float of[SIXTEENS][EIGHTS][4];
};

ATTEND_FN int row_of(int eight, int i, int lane)
{
    return eight * 8 + lane % 4 * 2 + i % 2;
}

/* A warp, for itself: what its rows see of w. */
ATTEND_FN void look_all(const imx_attend_args &x, const work &w, heads_room *room)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    if (lane < IMX_ROWS)
        look(x, w, lane, &room->from[warp][lane], &room->to[warp][lane]);
}

/* Before its first tile of a split. */
ATTEND_FN lane_sums no_sums(void)
{
    lane_sums own = {};
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; i++)
        own.most[i / 2][i % 2] = NONE;
    return own;
}

/* The number of v that c[i] of a fragment is of. */
ATTEND_FN int value_of(int sixteen, int i, int lane)
{
    int g = lane / 4;
    return sixteen * 16 + (EIGHT ? g * 2 + i / 2 : g + i / 2 * 8);
}

/* Two steps of k. */
ATTEND_FN void load_k(uint32_t tile, int step, uint32_t (&a)[2][4])
{
    int row = (int)threadIdx.x % 16, half = (int)threadIdx.x % LANES / 16;
    uint32_t row_at = tile + (uint32_t)(row * ROW_APART), unit = lane_unit(row, half);
#if IMX_EIGHT
    uint32_t m[4];
    load_matrices(m, further(row_at, unit, step));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i / 2][i % 2] = widen(m[i]);
        a[i / 2][i % 2 + 2] = widen(m[i] >> 16);
    }
#else
    load_matrices(a[0], further(row_at, unit, 2 * step));
    load_matrices(a[1], further(row_at, unit, 2 * step + 2));
#endif
}

/* In two sums, as each product waits for the one before.  q.read(step, to): a step's fragments. */
template <class rows>
ATTEND_FN void multiply_k(uint32_t tile, const rows &q, float (&score)[EIGHTS][4])
{
    float other[EIGHTS][4] = {};
#pragma unroll(rows::UNROLLED)
    for (int step = 0; step < K_STEPS; step += 2) {
        uint32_t a[2][4];
        load_k(tile, step, a);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t b[EIGHTS][2];
            q.read(step + i, b);
#pragma unroll
            for (int n = 0; n < EIGHTS; n++)
                multiply(i ? other[n] : score[n], a[i], b[n][0], b[n][1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4 * EIGHTS; i++)
        score[i / 4][i % 4] += other[i / 4][i % 4];
}

/* Products become scores; first: the tile's first token. */
ATTEND_FN void see(const imx_attend_args &x, const heads_room *room, float scale, int first,
                   bool whole, float (&score)[EIGHTS][4])
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    if (x.soft_cap > 0) {
#pragma unroll
        for (int i = 0; i < 4 * EIGHTS; i++) {
            float *of = &score[i / 4][i % 4];
            *of = x.soft_cap * tanhf(__fdividef(*of * scale, x.soft_cap)) * LOG2E;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4 * EIGHTS; i++)
            score[i / 4][i % 4] *= scale * LOG2E;
    }
    if (whole)
        return;
#pragma unroll
    for (int i = 0; i < 4 * EIGHTS; i++) {
        int row = row_of(i / 4, i, lane), at = first + lane / 4 + i % 4 / 2 * 8;
        bool seen = at >= room->from[warp][row] && at < room->to[warp][row];
        score[i / 4][i % 4] = seen ? score[i / 4][i % 4] : NONE;
    }
}

/* The largest scores grow to these or stay: what there is so far is made smaller by that. */
ATTEND_FN void grow(lane_sums *s, float (&most)[EIGHTS][2])
{
    float by[EIGHTS][2];
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; i++) {
        float *own = &s->most[i / 2][i % 2], now = most[i / 2][i % 2];
#pragma unroll
        for (int step = 4; step < LANES; step *= 2)
            now = fmaxf(now, __shfl_xor_sync(ALL, now, step));
        now = fmaxf(now, *own);
        by[i / 2][i % 2] = weight(*own, now);
        s->sum[i / 2][i % 2] *= by[i / 2][i % 2];
        *own = now;
    }
#pragma unroll
    for (int m = 0; m < SIXTEENS; m++) {
#pragma unroll
        for (int i = 0; i < 4 * EIGHTS; i++)
            s->of[m][i / 4][i % 4] *= by[i / 4][i % 2];
    }
}

/* Scores become weights. */
ATTEND_FN void weigh(lane_sums *s, float (&score)[EIGHTS][4])
{
    float most[EIGHTS][2];
    bool grows = false;
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; i++) {
        most[i / 2][i % 2] = fmaxf(score[i / 2][i % 2], score[i / 2][i % 2 + 2]);
        grows |= most[i / 2][i % 2] > s->most[i / 2][i % 2];
    }
    if (__any_sync(ALL, grows))
        grow(s, most);
#pragma unroll
    for (int i = 0; i < 4 * EIGHTS; i++) {
        float *of = &score[i / 4][i % 4];
        *of = weight(*of, s->most[i / 4][i % 2]);
        s->sum[i / 4][i % 2] += *of;
    }
}

/* Two fragments of v, its numbers as rows. */
ATTEND_FN void load_v(uint32_t tile, int sixteen, uint32_t (&a)[2][4])
{
    int lane = (int)threadIdx.x % LANES;
#if IMX_EIGHT
    const int row = lane % 16, half = lane / 16;
    uint32_t m[4]; /* of two tokens, two numbers each */
    load_matrices_turned(m, further(tile + row * ROW_APART, lane_unit(row, half), sixteen));
#pragma unroll
    for (int i = 0; i < 4; i++)
        part_words(m[i], a[i / 2][i % 2 * 2], a[i / 2][i % 2 * 2 + 1]);
#else
    const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < 2; i++)
        load_matrices_turned(
            a[i], further(tile + row * ROW_APART, lane_unit(row, half), 2 * (sixteen + i)));
#endif
}

ATTEND_FN void multiply_v(uint32_t tile, const float (&weights)[EIGHTS][4], lane_sums *s)
{
    uint32_t b[EIGHTS][2];
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; i++)
        b[i / 2][i % 2] = turn(
            imx_vector_word(IMX_DTYPE, weights[i / 2][i % 2 * 2], weights[i / 2][i % 2 * 2 + 1]));
#pragma unroll
    for (int m = 0; m < SIXTEENS; m += 2) {
        uint32_t a[2][4];
        load_v(tile, m, a);
#pragma unroll
        for (int i = 0; i < 2 * EIGHTS; i++)
            multiply(s->of[m + i / EIGHTS][i % EIGHTS], a[i / EIGHTS], b[i % EIGHTS][0],
                     b[i % EIGHTS][1]);
    }
}

/* ---- the four's ----------------------------------------------------------------------------- */

ATTEND_FN void add_lanes(lane_sums *s)
{
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; i++) {
#pragma unroll
        for (int step = 4; step < LANES; step *= 2)
            s->sum[i / 2][i % 2] += __shfl_xor_sync(ALL, s->sum[i / 2][i % 2], step);
    }
}

/* Where a warp leaves a row's numbers: those that its lanes have at once lie in different banks. */
ATTEND_FN int left_at(int row, int value)
{
    return row % ROWS_LEFT * IMX_DIM + (value ^ row / 2 % 4 * 8);
}

/* A warp's sums of ROWS_LEFT rows from `first` on. */
ATTEND_FN void leave(const lane_sums &s, int first, float *sums, heads_room *room)
{
    int lane, warp = (int)threadIdx.x / LANES;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane)); /* not worked out ahead of all splits */
#pragma unroll
    for (int i = 0; i < 4 * EIGHTS; i++) {
        if (i / 4 * 8 < first || i / 4 * 8 >= first + ROWS_LEFT)
            continue;
#pragma unroll
        for (int m = 0; m < SIXTEENS; m++)
            sums[left_at(row_of(i / 4, i, lane), value_of(m, i % 4, lane))] = s.of[m][i / 4][i % 4];
        if (i % 4 < 2 && lane < 4)
            room->weights[warp][row_of(i / 4, i, lane)] =
                make_float2(s.most[i / 4][i % 2], s.sum[i / 4][i % 2]);
    }
}

/* Into L2, which is to keep it: it is read soon, and written again in the next run. */
ATTEND_FN void put_part(float *to, float4 v)
{
    asm volatile("{\n\t.reg .b64 last;\n\t"
                 "createpolicy.fractional.L2::evict_last.b64 last, 1.0;\n\t"
                 "st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, last;\n\t}"
                 :
                 : "l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* What the four have left of four numbers of a row, in the warps' order; weights: the largest score
 * and the sum of weights. */
ATTEND_FN float4 sum_left(const float *sums, const heads_room *room, int row, int value,
                          float2 *weights)
{
    float most = NONE, sum = 0;
    float4 all = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < WARPS; j++)
        most = fmaxf(most, room->weights[j][row].x);
#pragma unroll
    for (int j = 0; j < WARPS; j++) {
        float2 one = room->weights[j][row];
        float by = weight(one.x, most);
        float4 of = *(const float4 *)(sums + j * (LEFT_APART / 4) + left_at(row, value));
        sum = __fmaf_rn(one.y, by, sum); /* alike wherever this is used */
        all.x = __fmaf_rn(of.x, by, all.x);
        all.y = __fmaf_rn(of.y, by, all.y);
        all.z = __fmaf_rn(of.z, by, all.z);
        all.w = __fmaf_rn(of.w, by, all.w);
    }
    *weights = make_float2(most, sum);
    return all;
}

/* Four numbers of a row, to the split's part. */
ATTEND_FN void put_sum(const imx_attend_args &x, const work &w, int row, int value, float4 all,
                       float2 weights)
{
    int64_t state = state_of(x, w, row);
    put_part(part_of(x, state, w.split) + value, all);
    if (value == 0)
        *(float2 *)weight_of(x, state, w.split) = weights;
}

/* ---- over splits ----------------------------------------------------------------------------- */

/* Rows that a warp adds up at once, if they have few splits: all are on their way together. */
enum { TOGETHER = PAIRS <= 2 ? 2 : 1, FEW_SPLITS = 8 };
static_assert(IMX_ROWS % TOGETHER == 0, "they are of one split");

ATTEND_FN void add_rows(const imx_attend_args &x, const work &w, int first)
{
    float2 own[TOGETHER], v[TOGETHER][FEW_SPLITS][PAIRS];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        int count = first + i < rows_of(x, w) ? w.splits : 0;
        int64_t state = count ? state_of(x, w, first + i) : 0;
        load_parts(part_of(x, state, 0) + (int)threadIdx.x % LANES * 2, count, v[i]);
        own[i] = load_weight(x, state, 0, count);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        float2 sum[PAIRS] = {};
        float most = NONE, all = 0;
        share s = share_of(own[i], &most);
        add_parts(0, s, v[i], sum, &all);
        if (first + i < rows_of(x, w))
            put_columns(x, state_of(x, w, first + i), 0, most, all, sum);
    }
}

#endif /* IMX_ATTEND_SM80_HEADS_CUH */
