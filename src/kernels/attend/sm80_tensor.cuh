/* sm80_tensor.cuh - splits by tensor cores: up to 16 rows of q against 16 tokens a warp at once.
 *
 *     tokens of a split   | warp 0: 16 | warp 1: 16 | warp 2 | warp 3 | warp 0: 16 | ...
 *     of a warp           a ring of IMX_STAGES tiles: | k [16, IMX_DIM] | v [16, IMX_DIM] |
 *
 * Tokens, and numbers of v, are the 16 rows of a fragment, and rows of q its eight columns:
 *
 *     scores [tokens, rows] = k q^T          sums [numbers of v, rows] += v^T weights
 *
 * Each warp loads its own tokens and weighs them for itself, and its loads go on into the next
 * split without a pause.  At a split's end the tile that was weighed last gives its place to the
 * warp's sums, and the four add them, in the warps' order.  That a split has ended is noted; when
 * the block has no more of them, or has noted ROOM, it counts these all at once and adds up over
 * splits what is complete then, so that loads seldom pause for that. */
#ifndef IMX_ATTEND_SM80_TENSOR_CUH
#define IMX_ATTEND_SM80_TENSOR_CUH

#include "sm80_tokens.cuh"

enum {
    EIGHTS = IMX_ROWS / 8,                                            /* of rows */
    RING_BYTES = IMX_STAGES * STAGE_BYTES,                            /* of a warp */
    SIXTEENS = IMX_DIM / 16,                                          /* of v's numbers */
    KEEPS_Q = IMX_DIM * EIGHTS <= (__CUDA_ARCH__ >= 900 ? 256 : 128), /* in registers, */
    EARLY_Q = IMX_DIM * EIGHTS <= 128, /* the next split's beside the sums of the one before */
    ROOM = LANES,                      /* for splits that have ended and are not counted */
    /* Rows whose sums a warp leaves at once: a tile has room for so many. */
    ROWS_LEFT = STAGE_BYTES / (IMX_DIM * 4) < IMX_ROWS ? STAGE_BYTES / (IMX_DIM * 4) : IMX_ROWS
};
static_assert(WARPS == 4 && EIGHTS * 8 == IMX_ROWS && EIGHTS <= 2 && IMX_DIM == IMX_VALUES &&
                  ROWS_LEFT % 8 == 0,
              "rows are of whole fragments");

/* What warps tell each other. */
struct heads_room {
    int from[WARPS][IMX_ROWS], to[WARPS][IMX_ROWS]; /* tokens that a row sees, by each for itself */
    float2 weights[WARPS][IMX_ROWS];                /* largest score, sum of weights */
    work ended[ROOM];                               /* splits that are not counted yet */
    uint32_t last; /* bit i: split i of those was its sequence's last, for that head and piece */
};

/* ---- q --------------------------------------------------------------------------------------- */

/* Of a step's 16 numbers lane t has 2 t, 2 t + 1, and those 8 further; of 8-bit numbers, of which a
 * word has four, 4 t up to 4 t + 4: q is cut as k is. */
enum { IN_A_ROW = EIGHT ? 4 : 2 };

/* Rows g and g + 8, from this lane's first number on; NULL: there is no such row. */
struct queries {
    const uint16_t *row[EIGHTS];
};

struct q_step {
    uint32_t b[EIGHTS][2];
};

ATTEND_FN queries queries_of(const imx_attend_args &x, const work &w)
{
    queries q;
    int lane = (int)threadIdx.x % LANES;
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
        int row = lane / 4 + 8 * n;
        q.row[n] = row < rows_of(x, w)
                       ? (const uint16_t *)x.q + state_of(x, w, row) * IMX_DIM + lane % 4 * IN_A_ROW
                       : NULL;
    }
    return q;
}

ATTEND_FN uint32_t load_two(const uint16_t *at)
{
    uint32_t two;
    if ((uintptr_t)at & 2)
        return *(const volatile uint16_t *)at | (uint32_t) * (const volatile uint16_t *)(at + 1)
                                                    << 16;
    asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(two) : "l"(at) : "memory");
    return two;
}

ATTEND_FN void load_q_step(q_step *to, const queries &q, int step)
{
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            to->b[n][i] = q.row[n] ? load_two(q.row[n] + step * 16 + i * (EIGHT ? 2 : 8)) : 0;
    }
}

/* ---- a warp's tokens ------------------------------------------------------------------------- */

/* Of rows 2 t, to which c[0] and c[2] of a fragment belong, and 2 t + 1 of each eight. */
struct lane_sums {
    float most[EIGHTS][2], sum[EIGHTS][2]; /* sum: of tokens g and g + 8 */
    float of[SIXTEENS][EIGHTS][4];
};

ATTEND_FN int row_of(int eight, int i)
{
    return eight * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
}

/* The number of v that c[i] of a fragment is of. */
ATTEND_FN int value_of(int sixteen, int i)
{
    int g = (int)threadIdx.x % LANES / 4;
    return sixteen * 16 + (EIGHT ? g * 2 + i / 2 : g + i / 2 * 8);
}

/* Two steps of k. */
ATTEND_FN void load_k(uint32_t tile, int step, uint32_t (&a)[2][4])
{
    int row = (int)threadIdx.x % 16, half = (int)threadIdx.x % LANES / 16;
    uint32_t row_at = tile + (uint32_t)(row * ROW_BYTES), unit = lane_unit(row, half);
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

/* In two sums, as each product waits for the one before. */
ATTEND_FN void multiply_k(uint32_t tile, const queries &q, const q_step (&kept)[K_STEPS],
                          float (&score)[EIGHTS][4])
{
    float other[EIGHTS][4] = {};
#pragma unroll(KEEPS_Q ? K_STEPS : 1)
    for (int step = 0; step < K_STEPS; step += 2) {
        uint32_t a[2][4];
        load_k(tile, step, a);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            q_step now;
            if (KEEPS_Q)
                now = kept[step + i];
            else
                load_q_step(&now, q, step + i);
#pragma unroll
            for (int n = 0; n < EIGHTS; n++)
                multiply(i ? other[n] : score[n], a[i], now.b[n][0], now.b[n][1]);
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
        int row = row_of(i / 4, i), at = first + lane / 4 + i % 4 / 2 * 8;
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
    load_matrices_turned(m, further(tile + row * ROW_BYTES, lane_unit(row, half), sixteen));
#pragma unroll
    for (int i = 0; i < 4; i++)
        part_words(m[i], a[i / 2][i % 2 * 2], a[i / 2][i % 2 * 2 + 1]);
#else
    const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < 2; i++)
        load_matrices_turned(
            a[i], further(tile + row * ROW_BYTES, lane_unit(row, half), 2 * (sixteen + i)));
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
ATTEND_FN float *left_at(float *sums, int row, int value)
{
    return sums + row % ROWS_LEFT * IMX_DIM + (value ^ row / 2 % 4 * 8);
}

/* A warp's sums of ROWS_LEFT rows from `first` on. */
ATTEND_FN void leave(const lane_sums &s, int first, float *sums, heads_room *room)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
#pragma unroll
    for (int i = 0; i < 4 * EIGHTS; i++) {
        if (i / 4 * 8 < first || i / 4 * 8 >= first + ROWS_LEFT)
            continue;
#pragma unroll
        for (int m = 0; m < SIXTEENS; m++)
            *left_at(sums, row_of(i / 4, i), value_of(m, i % 4)) = s.of[m][i / 4][i % 4];
        if (i % 4 < 2 && lane < 4)
            room->weights[warp][row_of(i / 4, i)] =
                make_float2(s.most[i / 4][i % 2], s.sum[i / 4][i % 2]);
    }
}

/* What the four have left of those rows, in the warps' order, to the split's part. */
ATTEND_FN void put_sums(const imx_attend_args &x, const work &w, int first, float *sums,
                        const heads_room *room)
{
    const int fours = IMX_DIM / 4; /* of a row */
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < ROWS_LEFT * fours; i += WARPS * LANES) {
        int row = first + i / fours, value = i % fours * 4;
        float most = NONE, sum = 0;
        float4 all = make_float4(0, 0, 0, 0);
        if (row >= rows_of(x, w))
            continue;
#pragma unroll
        for (int j = 0; j < WARPS; j++)
            most = fmaxf(most, room->weights[j][row].x);
#pragma unroll
        for (int j = 0; j < WARPS; j++) {
            float2 one = room->weights[j][row];
            float by = weight(one.x, most);
            float4 of = *(const float4 *)left_at(sums + j * (RING_BYTES / 4), row, value);
            sum += one.y * by;
            all.x += of.x * by;
            all.y += of.y * by;
            all.z += of.z * by;
            all.w += of.w * by;
        }
        int64_t state = state_of(x, w, row);
        *(float4 *)(part_of(x, state, w.split) + value) = all;
        if (value == 0)
            *(float2 *)weight_of(x, state, w.split) = make_float2(most, sum);
    }
}

/* When the four have weighed their tokens of w; free: the first warp's tile that is to be loaded
 * next. */
ATTEND_FN void end_split(const imx_attend_args &x, const work &w, lane_sums *own, float *free,
                         heads_room *room)
{
    int warp = (int)threadIdx.x / LANES;
    add_lanes(own);
#pragma unroll
    for (int first = 0; first < IMX_ROWS; first += ROWS_LEFT) {
        if (first)
            __syncthreads();
        leave(*own, first, free + warp * (RING_BYTES / 4), room);
        __syncthreads();
        put_sums(x, w, first, free, room);
    }
    __syncthreads();
}

/* ---- over splits ----------------------------------------------------------------------------- */

/* The four: counts so many that have ended, and adds up what is complete. */
ATTEND_FN void add_ended(const imx_attend_args &x, heads_room *room, int count)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    __syncthreads();
    if (warp == 0) {
        uint32_t last = __ballot_sync(ALL, lane < count && has_ended(x, room->ended[lane]));
        if (lane == 0)
            room->last = last;
    }
    __syncthreads();
    for (uint32_t last = room->last; last; last &= last - 1) {
        const work w = room->ended[__ffs((int)last) - 1];
        for (int row = warp; row < rows_of(x, w); row += WARPS)
            add_row(x, w, row);
    }
}

/* ---- splits ---------------------------------------------------------------------------------- */

/* A ring's next stage. */
ATTEND_FN int after(int stage)
{
    return stage + 1 == IMX_STAGES ? 0 : stage + 1;
}

/* Which tokens an item has, and its q. */
ATTEND_FN void begin_split(const imx_attend_args &x, const items &all, int item, work *w,
                           queries *q, q_step (&kept)[K_STEPS])
{
    *w = narrowed(x, work_of(x, all.first, all.upto, item));
    *q = queries_of(x, *w);
    if (KEEPS_Q) {
#pragma unroll
        for (int step = 0; step < K_STEPS; step++)
            load_q_step(&kept[step], *q, step);
    }
}

/* A block's items of a chunk. */
ATTEND_FN void attend_items(const imx_attend_args &x, const imbrexd_watch &watch, const items &all)
{
    __shared__ heads_room room;
    int count = 0; /* of room.ended */
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES, stage = 0;
    char *rings = (char *)imx_attend_shared;
    uint32_t ring = (uint32_t)__cvta_generic_to_shared(rings) + warp * RING_BYTES;
    const uintptr_t places =
        (uintptr_t)x.k | (uintptr_t)x.v | (uintptr_t)(x.cache_stride * ELEMENT);
    const bool all_see = !x.hidden && !x.visible;
    float scale = scale_of(x);
    loader l;
    l.item = all.next;
    l.together = (places & 15) == 0 && x.page % TOKENS == 0;
    l.apart = (x.heads_first ? 1 : x.kv_heads) * ROW_BYTES;
    find_tokens(x, all, &l);
    for (int i = 0; i < IMX_STAGES - 1; i++)
        load_tile(x, watch, all, &l, ring + (uint32_t)(i * STAGE_BYTES));
    int into = IMX_STAGES - 1;
    work w = {};
    queries q = {};
    q_step kept[K_STEPS];
    int item = all.next;
    if (item < all.end)
        begin_split(x, all, item, &w, &q, kept);
    while (item < all.end) {
        lane_sums own = {};
        if (lane < IMX_ROWS)
            look(x, w, lane, &room.from[warp][lane], &room.to[warp][lane]);
#pragma unroll
        for (int i = 0; i < 2 * EIGHTS; i++)
            own.most[i / 2][i % 2] = NONE;
        for (int first = w.first + warp * TOKENS, i = steps_of(w); i; i--, first += STEP) {
            wait_stage();
            __syncwarp();
            load_tile(x, watch, all, &l, ring + (uint32_t)(into * STAGE_BYTES));
            uint32_t tile = ring + (uint32_t)(stage * STAGE_BYTES);
            float score[EIGHTS][4] = {};
            multiply_k(tile, q, kept, score);
            see(x, &room, scale, first, all_see && first + TOKENS <= w.end, score);
            weigh(&own, score);
            multiply_v(tile + HALF_BYTES, score, &own);
            stage = after(stage);
            into = after(into);
        }
        const work ended = w;
        item += (int)gridDim.x;
        if (EARLY_Q && item < all.end)
            begin_split(x, all, item, &w, &q, kept);
        end_split(x, ended, &own, (float *)(rings + into * STAGE_BYTES), &room);
        if (threadIdx.x == 0)
            room.ended[count] = ended;
        if (++count == ROOM) {
            add_ended(x, &room, count);
            count = 0;
        }
        if (!EARLY_Q && item < all.end)
            begin_split(x, all, item, &w, &q, kept);
    }
    add_ended(x, &room, count);
}

#endif /* IMX_ATTEND_SM80_TENSOR_CUH */
