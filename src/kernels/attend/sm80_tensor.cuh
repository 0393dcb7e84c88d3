/* sm80_tensor.cuh - splits by tensor cores: up to 16 rows of q against 16 tokens a warp at once.
 *
 *     tokens of a split   | warp 0: 16 | warp 1: 16 | warp 2 | warp 3 | warp 0: 16 | ...
 *     of a warp           a ring of IMX_STAGES tiles: | k [16, IMX_DIM] | v [16, IMX_DIM] |
 *
 * Each warp loads its own tokens and weighs them for itself, and goes on into the next split
 * without a pause: its loads are ahead of its products by a ring.  Of each split the first warps
 * leave their sums in shared memory; the last one adds all of them, in their order, and counts.
 * What is complete then is added up over splits by all warps at the block's end. */
#ifndef IMX_ATTEND_SM80_TENSOR_CUH
#define IMX_ATTEND_SM80_TENSOR_CUH

#include "sm80_units.cuh"

enum {
    TOKENS = 16, /* of a warp's tile */
    STEP = TOKENS * WARPS,
    HALVES = IMX_ROWS / 8,           /* of a fragment's rows, that are used */
    HALF_BYTES = TOKENS * ROW_BYTES, /* k, or v */
    STAGE_BYTES = 2 * HALF_BYTES,
    RING_BYTES = IMX_STAGES * STAGE_BYTES, /* of a warp */
    SUM_PITCH = IMX_DIM + 8,               /* floats of a row of the sums that a warp leaves */
    COLUMNS = IMX_DIM / 8,                 /* of a fragment of the sums over v */
    KEEPS_Q = IMX_DIM <= 128,              /* in registers */
    PENDING = 32,
    LAST = WARPS - 1
};
static_assert(WARPS == 4 && HALVES * 8 == IMX_ROWS && HALVES <= 2 && IMX_DIM == IMX_VALUES,
              "four warps, of a fragment each");

/* What warps tell each other. */
struct heads_room {
    int from[WARPS][IMX_ROWS], to[WARPS][IMX_ROWS]; /* tokens that a row sees, by each for itself */
    float2 weights[LAST][IMX_ROWS];                 /* largest score, sum of weights */
    work pending[PENDING];                          /* whose last split this block has ended */
    int pending_count;
};

/* Numbers of barriers: sums are there; they have been read. */
enum { FULL = 1, FREE };

ATTEND_FN void meet(int barrier)
{
    asm volatile("bar.sync %0, %1;" : : "r"(barrier), "n"(IMX_THREADS) : "memory");
}

ATTEND_FN void pass(int barrier)
{
    asm volatile("bar.arrive %0, %1;" : : "r"(barrier), "n"(IMX_THREADS) : "memory");
}

/* ---- which tokens ---------------------------------------------------------------------------- */

/* The tokens that a row sees. */
ATTEND_FN void look(const imx_attend_args &x, const work &w, int row, int *from, int *to)
{
    int64_t query = query_of(x, w, row);
    bool is_one = row < rows_of(x, w);
    int end = is_one && x.visible ? x.visible[query] : w.end;
    *from = is_one && x.hidden ? x.hidden[query] : 0;
    *to = !is_one ? 0 : end < w.end ? end : w.end;
}

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
#pragma unroll
    for (int step = IMX_ROWS / 2; step; step /= 2) {
        int other_from = __shfl_xor_sync(ALL, from, step);
        int other_to = __shfl_xor_sync(ALL, to, step);
        from = other_from < from ? other_from : from;
        to = other_to > to ? other_to : to;
    }
    return narrow(w, from, to, STEP);
}

ATTEND_FN int steps_of(const work &w)
{
    return w.end > w.first ? (w.end - w.first + STEP - 1) / STEP : 0;
}

/* ---- loads ----------------------------------------------------------------------------------- */

/* What a warp loads next. */
struct loader {
    work w;
    int item, left; /* steps of w; 0: there is nothing more */
    int next;       /* first token of the warp's tile */
    int page, in;   /* of that token, or, where tiles are not together, of this lane's */
    bool together;  /* a tile's tokens are in one page, and begin at multiples of 16 bytes */
    int apart;      /* bytes from token to token */
};

ATTEND_FN void look_up(const imx_attend_args &x, loader *l)
{
    int t = l->next + (l->together ? 0 : (int)threadIdx.x % TOKENS);
    l->page = l->w.sequence;
    l->in = t;
    if (x.page) {
        int page = (int)((unsigned)t / (unsigned)x.page);
        l->in = t - page * x.page;
        l->page = t < l->w.end ? x.pages[l->w.sequence * x.page_stride + page] : 0;
    }
}

/* From l->item on, the first one with tokens. */
ATTEND_FN void find_tokens(const imx_attend_args &x, const items &all, loader *l)
{
    l->left = 0;
    for (; l->item < all.end && !l->left; l->item += (int)gridDim.x) {
        l->w = narrowed(x, work_of(x, all.first, all.upto, l->item));
        l->left = steps_of(l->w);
    }
    if (l->left) {
        l->next = l->w.first + (int)threadIdx.x / LANES * TOKENS;
        look_up(x, l);
    }
}

/* Rows that a warp loads at once, a lane a unit. */
enum { AT_ONCE = LANES / UNITS ? LANES / UNITS : 1 };
static_assert(UNITS <= LANES, "a row is no longer than a warp");

ATTEND_FN void load_together(const imx_attend_args &x, const loader &l, int64_t at, uint32_t tile)
{
    int lane = (int)threadIdx.x % LANES, row = lane / UNITS, there = l.w.end - l.next - row;
    int64_t from = at * ELEMENT + row * l.apart + lane % UNITS * 16;
    const char *k = (const char *)x.k + from, *v = (const char *)x.v + from;
    uint32_t to = tile + (uint32_t)(row * ROW_BYTES), unit = lane_unit(row, lane % UNITS);
#pragma unroll
    for (int i = 0; i < TOKENS; i += AT_ONCE) {
        uint32_t at = to + (uint32_t)(i * ROW_BYTES) + (unit ^ (uint32_t)(swizzle(i) * 16));
        copy_async(at, k, i < there ? 16 : 0);
        copy_async(at + HALF_BYTES, v, i < there ? 16 : 0);
        k += AT_ONCE * l.apart;
        v += AT_ONCE * l.apart;
    }
}

/* own: this lane's token. */
ATTEND_FN void load_apart(const imx_attend_args &x, const loader &l, int64_t own, uint32_t tile)
{
    int lane = (int)threadIdx.x % LANES, unit = lane % UNITS;
    own = l.next + lane % TOKENS < l.w.end ? own : -1;
#pragma unroll 1
    for (int i = 0; i < TOKENS; i += AT_ONCE) {
        int row = i + lane / UNITS;
        int64_t at = __shfl_sync(ALL, own, row);
        int64_t from = (at < 0 ? 0 : at) * ELEMENT + unit * 16;
        uint32_t to = unit_at(tile, row, unit);
        bool aligned = (((uintptr_t)x.k | (uintptr_t)x.v | (uintptr_t)from) & 15) == 0;
        load_unit(to, (const char *)x.k + from, at >= 0, aligned);
        load_unit(to + HALF_BYTES, (const char *)x.v + from, at >= 0, aligned);
    }
}

/* The next tile of this warp into a stage; tokens from w.end on are zeros. */
ATTEND_FN void load_tile(const imx_attend_args &x, const imbrexd_watch &watch, const items &all,
                         loader *l, uint32_t tile)
{
    if (l->left) {
        int64_t at = token_in(x, watch, l->w, l->page, l->in);
        if (l->together)
            load_together(x, *l, at, tile);
        else
            load_apart(x, *l, at, tile);
        l->next += STEP;
        if (--l->left)
            look_up(x, l);
        else
            find_tokens(x, all, l);
    }
    commit();
}

/* ---- q --------------------------------------------------------------------------------------- */

/* Of a step's 16 numbers lane t has 2 t, 2 t + 1, and those 8 further; of 8-bit numbers, of which a
 * word has four, 4 t up to 4 t + 4: q is cut as k is. */
enum { IN_A_ROW = EIGHT ? 4 : 2 };

/* Rows g and g + 8, from this lane's first number on; NULL: there is no such row. */
struct queries {
    const uint16_t *row[HALVES];
};

ATTEND_FN queries queries_of(const imx_attend_args &x, const work &w)
{
    queries q;
    int lane = (int)threadIdx.x % LANES;
#pragma unroll
    for (int r = 0; r < HALVES; r++) {
        int row = lane / 4 + 8 * r;
        q.row[r] = row < rows_of(x, w)
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

ATTEND_FN void load_q_step(uint32_t (&to)[4], const queries &q, int step)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint16_t *row = i % 2 < HALVES ? q.row[i % 2 < HALVES ? i % 2 : 0] : NULL;
        to[i] = row ? load_two(row + step * 16 + i / 2 * (EIGHT ? 2 : 8)) : 0;
    }
}

/* ---- a warp's tokens ------------------------------------------------------------------------- */

/* Of rows g and g + 8. */
struct lane_sums {
    float most[HALVES], sum[HALVES]; /* sum: of this lane's tokens */
    float of[COLUMNS][4];
};

/* Of a step of k: for tokens 0 up to 8, and 8 up to 16.  Loaded are two steps. */
struct k_step {
    uint32_t b[2][2];
};

ATTEND_FN void load_k(uint32_t tile, int step, k_step (&to)[2])
{
    int lane = (int)threadIdx.x % LANES;
    uint32_t m[4];
#if IMX_EIGHT
    const int row = lane % 16, half = lane / 16;
    load_matrices(m, further(tile + row * ROW_BYTES, lane_unit(row, half), step));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[i / 2].b[i % 2][0] = widen(m[i]);
        to[i / 2].b[i % 2][1] = widen(m[i] >> 16);
    }
#else
    const int row = lane / 16 * 8 + lane % 8, half = lane / 8 % 2;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        load_matrices(m, further(tile + row * ROW_BYTES, lane_unit(row, half), 2 * (step + j)));
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[j].b[i / 2][i % 2] = m[i];
    }
#endif
}

/* score[n]: of tokens 8 n up to 8 n + 8.  In two sums, as each product waits for the one before. */
ATTEND_FN void multiply_k(uint32_t tile, const queries &q, const uint32_t (&kept)[K_STEPS][4],
                          float (&score)[2][4])
{
    float other[2][4] = {};
#pragma unroll(KEEPS_Q ? K_STEPS : 2)
    for (int step = 0; step < K_STEPS; step += 2) {
        k_step k[2];
        load_k(tile, step, k);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t a[4];
            if (!KEEPS_Q)
                load_q_step(a, q, step + i);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                float(&sum)[4] = i ? other[n] : score[n];
                if (KEEPS_Q)
                    multiply(sum, kept[step + i], k[i].b[n][0], k[i].b[n][1]);
                else
                    multiply(sum, a, k[i].b[n][0], k[i].b[n][1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * HALVES; i++) {
        score[0][i] += other[0][i];
        score[1][i] += other[1][i];
    }
}

/* Products become scores; first: the tile's first token. */
ATTEND_FN void see(const imx_attend_args &x, const heads_room *room, float scale, int first,
                   bool whole, float (&score)[2][4])
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES, t = first + lane % 4 * 2;
    if (x.soft_cap > 0) {
#pragma unroll
        for (int i = 0; i < 4 * HALVES; i++) {
            float *of = &score[i % 2][i / 2];
            *of = x.soft_cap * tanhf(__fdividef(*of * scale, x.soft_cap)) * LOG2E;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4 * HALVES; i++)
            score[i % 2][i / 2] *= scale * LOG2E;
    }
    if (whole)
        return;
#pragma unroll
    for (int i = 0; i < 2 * HALVES; i++) {
        int row = lane / 4 + i / 2 * 8, from = room->from[warp][row], to = room->to[warp][row];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            int at = t + n * 8 + i % 2;
            score[n][i] = at >= from && at < to ? score[n][i] : NONE;
        }
    }
}

/* Scores become weights. */
ATTEND_FN void weigh(lane_sums *s, float (&score)[2][4])
{
    bool grows = false;
    float by[HALVES];
#pragma unroll
    for (int r = 0; r < HALVES; r++) {
        float most = fmaxf(fmaxf(score[0][2 * r], score[0][2 * r + 1]),
                           fmaxf(score[1][2 * r], score[1][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
        most = fmaxf(s->most[r], fmaxf(most, __shfl_xor_sync(ALL, most, 2)));
        by[r] = most == s->most[r] ? 1 : weight(s->most[r], most);
        grows |= by[r] != 1;
        s->most[r] = most;
        s->sum[r] *= by[r];
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                score[n][i] = weight(score[n][i], most);
                s->sum[r] += score[n][i];
            }
        }
    }
    if (__any_sync(ALL, grows)) {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
#pragma unroll
            for (int r = 0; r < HALVES; r++) {
                s->of[i][2 * r] *= by[r];
                s->of[i][2 * r + 1] *= by[r];
            }
        }
    }
}

ATTEND_FN void multiply_v(uint32_t tile, const float (&weights)[2][4], lane_sums *s)
{
    int row = (int)threadIdx.x % 16, half = (int)threadIdx.x % LANES / 16;
    uint32_t row_at = tile + (uint32_t)(row * ROW_BYTES), unit = lane_unit(row, half);
    uint32_t a[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i % 2 < HALVES)
            a[i] = imx_vector_word(IMX_DTYPE, weights[i / 2][i % 2 * 2],
                                   weights[i / 2][i % 2 * 2 + 1]);
    }
#if IMX_EIGHT
#pragma unroll
    for (int i = 0; i < UNITS; i += 2) {
        uint32_t m[4];
        load_matrices_turned(m, further(row_at, unit, i));
#pragma unroll
        for (int j = 0; j < 2; j++) { /* words are two tokens of two numbers each */
            uint32_t even[2], odd[2];
            part_words(m[2 * j], even[0], odd[0]);
            part_words(m[2 * j + 1], even[1], odd[1]);
            multiply(s->of[2 * (i + j)], a, even[0], even[1]);
            multiply(s->of[2 * (i + j) + 1], a, odd[0], odd[1]);
        }
    }
#else
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        uint32_t b[4];
        load_matrices_turned(b, further(row_at, unit, 2 * i));
        multiply(s->of[2 * i], a, b[0], b[1]);
        multiply(s->of[2 * i + 1], a, b[2], b[3]);
    }
#endif
}

/* ---- four warps' ----------------------------------------------------------------------------- */

ATTEND_FN void add_lanes(lane_sums *s)
{
#pragma unroll
    for (int r = 0; r < HALVES; r++) {
        s->sum[r] += __shfl_xor_sync(ALL, s->sum[r], 1);
        s->sum[r] += __shfl_xor_sync(ALL, s->sum[r], 2);
    }
}

/* The first warps: to the last one. */
ATTEND_FN void leave(const lane_sums &s, heads_room *room, float *sums)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
#pragma unroll
    for (int r = 0; r < HALVES; r++) {
        int row = lane / 4 + 8 * r;
        float *to = sums + (warp * IMX_ROWS + row) * SUM_PITCH + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            *(float2 *)(to + i * 8) = make_float2(s.of[i][2 * r], s.of[i][2 * r + 1]);
        if (lane % 4 == 0)
            room->weights[warp][row] = make_float2(s.most[r], s.sum[r]);
    }
}

/* The last warp: all sums of row g + 8 r, in the warps' order. */
ATTEND_FN void put_row_sums(const imx_attend_args &x, const work &w, const lane_sums &s, int r,
                            const heads_room *room, const float *sums)
{
    int lane = (int)threadIdx.x % LANES, row = lane / 4 + 8 * r;
    float most = s.most[r], sum = 0, by[WARPS];
    if (row >= rows_of(x, w))
        return;
#pragma unroll
    for (int i = 0; i < LAST; i++)
        most = fmaxf(most, room->weights[i][row].x);
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        float2 one = i < LAST ? room->weights[i][row] : make_float2(s.most[r], s.sum[r]);
        by[i] = weight(one.x, most);
        sum += one.y * by[i];
    }
    int64_t state = state_of(x, w, row);
    float *part = part_of(x, state, w.split) + lane % 4 * IN_A_ROW;
    const float *from = sums + row * SUM_PITCH + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        float2 all = make_float2(0, 0);
#pragma unroll
        for (int j = 0; j < WARPS; j++) {
            float2 one = j < LAST ? *(const float2 *)(from + j * IMX_ROWS * SUM_PITCH + i * 8)
                                  : make_float2(s.of[i][2 * r], s.of[i][2 * r + 1]);
            all.x += one.x * by[j];
            all.y += one.y * by[j];
        }
        if (EIGHT) {
            part[i / 2 * 16 + i % 2] = all.x;
            part[i / 2 * 16 + i % 2 + 2] = all.y;
        } else {
            *(float2 *)(part + i * 8) = all;
        }
    }
    if (lane % 4 == 0)
        *(float2 *)weight_of(x, state, w.split) = make_float2(most, sum);
}

/* The last warp, when its lanes have stored: notes what it has ended, or adds it up at once if
 * there is no room. */
ATTEND_FN void count_split(const imx_attend_args &x, const work &w, heads_room *room)
{
    int ended = 0;
    __syncwarp();
    if (threadIdx.x % LANES == 0)
        ended = has_ended(x, w);
    if (!__shfl_sync(ALL, ended, 0))
        return;
    int at = room->pending_count;
    if (at == PENDING) {
        for (int row = 0; row < rows_of(x, w); row++)
            add_row(x, w, row);
        return;
    }
    __syncwarp();
    if (threadIdx.x % LANES == 0) {
        room->pending[at] = w;
        room->pending_count = at + 1;
    }
    __syncwarp();
}

/* ---- splits ---------------------------------------------------------------------------------- */

/* A ring's next stage. */
ATTEND_FN int after(int stage)
{
    return stage + 1 == IMX_STAGES ? 0 : stage + 1;
}

/* All threads: a block's items of a chunk. */
ATTEND_FN void attend_items(const imx_attend_args &x, const imbrexd_watch &watch, const items &all)
{
    __shared__ heads_room room;
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES, stage = 0;
    uint32_t ring = (uint32_t)__cvta_generic_to_shared(imx_attend_shared) + warp * RING_BYTES;
    float *sums = (float *)((char *)imx_attend_shared + WARPS * RING_BYTES);
    const uintptr_t places =
        (uintptr_t)x.k | (uintptr_t)x.v | (uintptr_t)(x.cache_stride * ELEMENT);
    const bool all_see = !x.hidden && !x.visible;
    float scale = scale_of(x);
    loader l;
    l.item = all.next;
    l.together = (places & 15) == 0 && x.page % TOKENS == 0;
    l.apart = (x.heads_first ? 1 : x.kv_heads) * ROW_BYTES;
    if (threadIdx.x == LAST * LANES)
        room.pending_count = 0;
    find_tokens(x, all, &l);
    for (int i = 0; i < IMX_STAGES - 1; i++)
        load_tile(x, watch, all, &l, ring + (uint32_t)(i * STAGE_BYTES));
    int into = IMX_STAGES - 1;
    for (int item = all.next; item < all.end; item += (int)gridDim.x) {
        const work w = narrowed(x, work_of(x, all.first, all.upto, item));
        const queries q = queries_of(x, w);
        lane_sums own = {};
        uint32_t kept[K_STEPS][4];
        if (lane < IMX_ROWS)
            look(x, w, lane, &room.from[warp][lane], &room.to[warp][lane]);
#pragma unroll
        for (int r = 0; r < HALVES; r++)
            own.most[r] = NONE;
        if (KEEPS_Q) {
#pragma unroll
            for (int step = 0; step < K_STEPS; step++)
                load_q_step(kept[step], q, step);
        }
        if (warp == LAST && item != all.next)
            pass(FREE);
        for (int first = w.first + warp * TOKENS, i = steps_of(w); i; i--, first += STEP) {
            wait_stage();
            __syncwarp();
            load_tile(x, watch, all, &l, ring + (uint32_t)(into * STAGE_BYTES));
            uint32_t tile = ring + (uint32_t)(stage * STAGE_BYTES);
            float score[2][4] = {};
            multiply_k(tile, q, kept, score);
            see(x, &room, scale, first, all_see && first + TOKENS <= w.end, score);
            weigh(&own, score);
            multiply_v(tile + HALF_BYTES, score, &own);
            stage = after(stage);
            into = after(into);
        }
        add_lanes(&own);
        if (warp < LAST) {
            if (item != all.next)
                meet(FREE);
            leave(own, &room, sums);
            pass(FULL);
            continue;
        }
        meet(FULL);
#pragma unroll
        for (int r = 0; r < HALVES; r++)
            put_row_sums(x, w, own, r, &room, sums);
        count_split(x, w, &room);
    }
    __syncthreads();
    for (int i = 0; i < room.pending_count; i++)
        for (int row = warp; row < rows_of(x, room.pending[i]); row += WARPS)
            add_row(x, room.pending[i], row);
}

#endif /* IMX_ATTEND_SM80_TENSOR_CUH */
