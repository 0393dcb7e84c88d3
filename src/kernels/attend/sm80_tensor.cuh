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
 * warp's sums, and the four add them, in the warps' order.  A block's splits are looked up all at
 * once, a lane each, or ahead, and up to ROOM of them counted at once, with what is complete added
 * up over splits then, so that loads seldom pause for either. */
#ifndef IMX_ATTEND_SM80_TENSOR_CUH
#define IMX_ATTEND_SM80_TENSOR_CUH

#include "sm80_tokens.cuh"

enum {
    EIGHTS = IMX_ROWS / 8,                 /* of rows */
    RING_BYTES = IMX_STAGES * STAGE_BYTES, /* of a warp */
    Q_AT = WARPS * RING_BYTES,             /* two splits' */
    SIXTEENS = IMX_DIM / 16,               /* of v's numbers */
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
    work splits[ROOM];
    uint32_t last; /* bit i: split i of those was its sequence's last, for that head and piece */
};

/* ---- q --------------------------------------------------------------------------------------- */

enum {
    Q_ROW_BYTES = IMX_DIM * 2,
    Q_UNITS = Q_ROW_BYTES / 16,
    Q_BYTES = IMX_ROWS * Q_ROW_BYTES,
    Q_LOADS = (IMX_ROWS * Q_UNITS + WARPS * LANES - 1) / (WARPS * LANES) /* of a thread */
};

ATTEND_SELDOM void put_q(uint32_t to, const uint16_t *from, bool there)
{
    shared_store(to, there ? imx_vector_load_any(IMX_DTYPE, from) : make_uint4(0, 0, 0, 0));
}

/* All threads: a split's rows of q on their way into shared memory; others are zeros. */
ATTEND_FN void load_q(const imx_attend_args &x, const work &w, uint32_t to)
{
    bool aligned = ((uintptr_t)x.q & 15) == 0;
#pragma unroll
    for (int n = 0; n < Q_LOADS; n++) {
        int i = (int)threadIdx.x + n * WARPS * LANES, row = i / Q_UNITS, unit = i % Q_UNITS;
        if (row >= IMX_ROWS)
            break;
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
ATTEND_FN void multiply_k(uint32_t tile, uint32_t q, float (&score)[EIGHTS][4])
{
    float other[EIGHTS][4] = {};
#pragma unroll(IMX_DIM <= 128 ? K_STEPS : 2)
    for (int step = 0; step < K_STEPS; step += 2) {
        uint32_t a[2][4];
        load_k(tile, step, a);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t b[EIGHTS][2];
            read_q(q, step + i, b);
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
        float most = own[i].x;
#pragma unroll
        for (int step = 16; step; step /= 2)
            most = fmaxf(most, __shfl_xor_sync(ALL, most, step));
        float by = own[i].y == 0 ? 0 : weight(own[i].x, most);
        float all = own[i].y == 0 ? 0 : own[i].y * by;
#pragma unroll
        for (int step = 16; step; step /= 2)
            all += __shfl_xor_sync(ALL, all, step);
        add_parts(0, w.splits, by, v[i], sum);
        if (first + i < rows_of(x, w))
            put_row(x, state_of(x, w, first + i), most, all, sum);
    }
}

/* The four: adds up over the splits of whatever `last` has a bit for. */
ATTEND_FN void add_complete(const imx_attend_args &x, const work *splits, uint32_t last)
{
    int warp = (int)threadIdx.x / LANES, turn = warp; /* whose turn it is, counted from this one */
    for (; last; last &= last - 1, turn += IMX_ROWS / TOGETHER) {
        const work w = splits[__ffs((int)last) - 1];
        if (TOGETHER > 1 && w.splits <= FEW_SPLITS) {
            for (int row = turn % WARPS * TOGETHER; row < rows_of(x, w); row += WARPS * TOGETHER)
                add_rows(x, w, row);
        } else {
            for (int row = warp; row < rows_of(x, w); row += WARPS)
                add_row(x, w, row);
        }
    }
}

/* The four: counts entries from `first` up to `end`, which have ended. */
ATTEND_FN void add_ended(const imx_attend_args &x, heads_room *room, int first, int end)
{
    int at = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    bool is_one = (unsigned)(at - first) % ROOM < (unsigned)(end - first);
    if (warp == 0) {
        uint32_t last = __ballot_sync(ALL, is_one && has_ended(x, room->splits[at]));
        if (at == 0)
            room->last = last;
    }
    __syncthreads();
    if (room->last)
        add_complete(x, room->splits, room->last);
}

/* ---- splits ---------------------------------------------------------------------------------- */

/* A ring's next stage. */
ATTEND_FN int after(int stage)
{
    return stage + 1 == IMX_STAGES ? 0 : stage + 1;
}

/* ---- who has which --------------------------------------------------------------------------- */

/* Items of a block that are dealt out; where there are more rounds, all others go to whoever is
 * free, since some SMs read faster than others. */
enum { DEALT = 3 };

ATTEND_FN bool are_claimed(const imx_attend_args &x, int items)
{
    return items >= (DEALT + 1) * (int)gridDim.x && x.sequences <= CHUNK;
}

/* One thread: the next of those, from 0 on. */
ATTEND_FN int claim(const imx_attend_args &x)
{
    int before;
    asm volatile("atom.add.relaxed.gpu.global.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(x.claims)
                 : "memory");
    return before;
}

/* One thread: what it has claimed becomes an entry.  Whether there was one left. */
ATTEND_FN bool enter(const imx_attend_args &x, const items &all, int claimed, work *to)
{
    int blocks = (int)gridDim.x, item = DEALT * blocks + claimed;
    bool is_one = item < all.end;
    if (is_one)
        *to = work_of(x, all.first, all.upto, item);
    else
        to->sequence = -1;
    if (item == all.end + blocks - 1) /* each block has asked once too often */
        *x.claims = 0;
    return is_one;
}

/* The first `count` entries of room->splits; where the others are claimed, these too: while split i
 * is attended to entry i + 2 is made, and what is claimed then is entry i + 3.  A split's q comes
 * while the one before is attended to. */
ATTEND_FN void attend_splits(const imx_attend_args &x, const imbrexd_watch &watch, const items &all,
                             int count, bool claims, heads_room *room)
{
    works known = { room->splits, claims ? 2 : count };
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    char *rings = (char *)imx_attend_shared;
    uint32_t shared = (uint32_t)__cvta_generic_to_shared(rings), ring = shared + warp * RING_BYTES;
    const uintptr_t places =
        (uintptr_t)x.k | (uintptr_t)x.v | (uintptr_t)(x.cache_stride * ELEMENT);
    const bool all_see = !x.hidden && !x.visible;
    bool claiming = claims && threadIdx.x == 0;
    float scale = scale_of(x);
    int claimed = 0, counted = 0;
    int stage = 0, into = 0, ahead = 0; /* ahead: tiles that have been asked for */
    loader l;
    l.item = l.left = 0;
    l.together = (places & 15) == 0 && x.page % TOKENS == 0;
    l.apart = (x.heads_first ? 1 : x.kv_heads) * ROW_BYTES;
    load_q(x, room->splits[0], shared + Q_AT);
    commit();
    for (int i = 0; i < IMX_STAGES - 1; i++) {
        if (load_tile(x, watch, known, &l, ring + (uint32_t)(into * STAGE_BYTES)))
            ahead++, into = after(into);
    }
    wait_but<IMX_STAGES - 1>();
    __syncthreads(); /* q is here */
    for (int i = 0, more = 1; more; i++) {
        const work w = narrowed(x, room->splits[i % ROOM]);
        uint32_t q = shared + (uint32_t)(Q_AT + i % 2 * Q_BYTES);
        if (claims)
            known.known = i + 2;
        if (claiming && i)
            claiming = enter(x, all, claimed, room->splits + (i + 2) % ROOM);
        if (claiming)
            claimed = claim(x);
        const work &next = room->splits[(i + 1) % ROOM];
        more = i + 1 < known.known && next.sequence >= 0;
        if (more) /* nobody reads the q of split i - 1 any more */
            load_q(x, next, shared + (uint32_t)(Q_AT + (i + 1) % 2 * Q_BYTES));
        lane_sums own = {};
        if (lane < IMX_ROWS)
            look(x, w, lane, &room->from[warp][lane], &room->to[warp][lane]);
#pragma unroll
        for (int j = 0; j < 2 * EIGHTS; j++)
            own.most[j / 2][j % 2] = NONE;
        int left = steps_of(w);
        if (left < IMX_STAGES) /* else the steps' own waits are enough for q */
            wait_all();
        for (int first = w.first + warp * TOKENS; left; left--, first += STEP) {
            __syncwarp(); /* all have read the tile before */
            if (load_tile(x, watch, known, &l, ring + (uint32_t)(into * STAGE_BYTES)))
                ahead++, into = after(into);
            if (ahead == IMX_STAGES)
                wait_but<IMX_STAGES - 1>();
            else
                wait_all(); /* at the end, or what comes was not known */
            __syncwarp();
            uint32_t tile = ring + (uint32_t)(stage * STAGE_BYTES);
            float score[EIGHTS][4] = {};
            multiply_k(tile, q, score);
            see(x, room, scale, first, all_see && first + TOKENS <= w.end, score);
            weigh(&own, score);
            multiply_v(tile + HALF_BYTES, score, &own);
            stage = after(stage);
            ahead--;
        }
        end_split(x, w, &own, (float *)(rings + into * STAGE_BYTES), room);
        if (!more || i + 5 - counted == ROOM) { /* or there is no room for more */
            add_ended(x, room, counted, i + 1);
            counted = i + 1;
        }
    }
}

/* A block's items of a chunk. */
ATTEND_FN void attend_items(const imx_attend_args &x, const imbrexd_watch &watch, const items &all)
{
    __shared__ heads_room room;
    int blocks = (int)gridDim.x, i = (int)threadIdx.x;
    bool claims = are_claimed(x, all.end);
    for (int next = all.next; next < all.end; next += ROOM * blocks) {
        int left = claims ? DEALT : (all.end - next + blocks - 1) / blocks;
        int count = left < ROOM ? left : ROOM;
        __syncthreads(); /* those before are counted */
        if (i < count)
            room.splits[i] = work_of(x, all.first, all.upto, next + i * blocks);
        __syncthreads();
        attend_splits(x, watch, all, count, claims, &room);
        if (claims)
            break;
    }
}

#endif /* IMX_ATTEND_SM80_TENSOR_CUH */
