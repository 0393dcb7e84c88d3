/* sm80_tensor.cuh - a split by tensor cores: 16 rows of q against 16 tokens a warp at once.
 *
 *     tokens of a split   | warp 0: 16 | warp 1: 16 | warp 2 | warp 3 | warp 0: 16 | ...
 *     of a warp           a ring of IMX_STAGES tiles: | k [16, IMX_DIM] | v [16, IMX_DIM] |
 *
 * Each warp loads its own tokens and weighs them for itself, so that no warp waits for another
 * before the split has ended; then the four are added in their order. */
#ifndef IMX_ATTEND_SM80_TENSOR_CUH
#define IMX_ATTEND_SM80_TENSOR_CUH

#include "sm80_units.cuh"

enum {
    TOKENS = 16, /* of a warp's tile */
    STEP = TOKENS * WARPS,
    HALF_BYTES = TOKENS * ROW_BYTES, /* k, or v */
    STAGE_BYTES = 2 * HALF_BYTES,
    RING_BYTES = IMX_STAGES * STAGE_BYTES, /* of a warp */
    Q_BYTES = IMX_ROWS * ROW_BYTES,
    SUM_PITCH = IMX_DIM + 8, /* floats of a row of the sums */
    COLUMNS = IMX_DIM / 8,   /* of a fragment of the sums over v */
    KEEPS_Q = IMX_DIM <= 128
};
static_assert(WARPS == 4 && IMX_ROWS == 16 && IMX_DIM == IMX_VALUES && STEP == IMX_ATTEND_TILE,
              "one tile a step");

/* ---- loads ----------------------------------------------------------------------------------- */

/* What a warp loads next. */
struct loader {
    uint32_t ring;
    int next; /* first token of its tile */
    int page; /* of this lane's token there */
    bool aligned;
};

ATTEND_FN void look_up(const imx_attend_args &x, const work &w, loader *l)
{
    int t = l->next + (int)threadIdx.x % TOKENS;
    l->page = t < w.end ? page_of(x, w, t) : 0;
}

/* The next tile of this warp into a stage; tokens from w.end on are zeros. */
ATTEND_FN void load_tile(const imx_attend_args &x, const imbrexd_watch &watch, const work &w,
                         loader *l, int stage)
{
    const int at_once = LANES / UNITS ? LANES / UNITS : 1; /* rows */
    const int parts = UNITS / LANES ? UNITS / LANES : 1;   /* of a row */
    int lane = (int)threadIdx.x % LANES, t = l->next + lane % TOKENS;
    int64_t own = t < w.end ? token_in(x, watch, w, l->page, t) : -1;
    uint32_t tile = l->ring + (uint32_t)(stage * STAGE_BYTES);
#pragma unroll(IMX_DIM > 128 ? 1 : TOKENS)
    for (int i = 0; i < TOKENS / at_once; i++) {
        int row = i * at_once + lane / UNITS;
        int64_t at = __shfl_sync(ALL, own, row);
#pragma unroll
        for (int j = 0; j < parts; j++) {
            int unit = lane % UNITS + j * LANES;
            uint32_t to = unit_at(tile, row, unit);
            int64_t from = (at < 0 ? 0 : at) + unit * 8;
            load_unit(to, (const uint16_t *)x.k + from, at >= 0, l->aligned);
            load_unit(to + HALF_BYTES, (const uint16_t *)x.v + from, at >= 0, l->aligned);
        }
    }
    l->next += STEP;
    look_up(x, w, l);
}

/* ---- a warp's tokens ------------------------------------------------------------------------- */

/* Of rows g and g + 8. */
struct lane_sums {
    float most[2], sum[2]; /* sum: of this lane's tokens */
    float of[COLUMNS][4];
};

/* Which tokens a row sees: not in registers, of which there are none to spare. */
struct sight {
    int from[IMX_ROWS], to[IMX_ROWS];
};

/* score[n]: of tokens 8 n up to 8 n + 8. */
ATTEND_FN void multiply_k(uint32_t tile, uint32_t q, const uint32_t (&kept)[K_STEPS][4],
                          float (&score)[2][4])
{
    int lane = (int)threadIdx.x % LANES, row = lane / 16 * 8 + lane % 8, half = lane / 8 % 2;
#pragma unroll(KEEPS_Q ? K_STEPS : 4)
    for (int step = 0; step < K_STEPS; step++) {
        uint32_t a[4], b[4];
        load_matrices(b, unit_at(tile, row, 2 * step + half));
        if (KEEPS_Q) {
            multiply(score[0], kept[step], b[0], b[1]);
            multiply(score[1], kept[step], b[2], b[3]);
        } else {
            load_q_step(a, q, 0, step);
            multiply(score[0], a, b[0], b[1]);
            multiply(score[1], a, b[2], b[3]);
        }
    }
}

/* Products become scores; first: the tile's first token. */
ATTEND_FN void see(const imx_attend_args &x, const sight *s, int first, float (&score)[2][4])
{
    int t = first + (int)threadIdx.x % 4 * 2, row = (int)threadIdx.x % LANES / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int from = s->from[row + i / 2 * 8], to = s->to[row + i / 2 * 8];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            int at = t + n * 8 + i % 2;
            score[n][i] = at >= from && at < to ? score_of(x, score[n][i]) : NONE;
        }
    }
}

/* Scores become weights. */
ATTEND_FN void weigh(lane_sums *s, float (&score)[2][4])
{
    float by[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = fmaxf(fmaxf(score[0][2 * r], score[0][2 * r + 1]),
                           fmaxf(score[1][2 * r], score[1][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
        most = fmaxf(s->most[r], fmaxf(most, __shfl_xor_sync(ALL, most, 2)));
        by[r] = most == s->most[r] ? 1 : weight(s->most[r], most);
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
    if (__any_sync(ALL, by[0] != 1 || by[1] != 1)) {
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            s->of[i][0] *= by[0];
            s->of[i][1] *= by[0];
            s->of[i][2] *= by[1];
            s->of[i][3] *= by[1];
        }
    }
}

ATTEND_FN void multiply_v(uint32_t tile, const float (&weights)[2][4], lane_sums *s)
{
    int lane = (int)threadIdx.x % LANES, row = lane % 16, half = lane / 16;
    const uint32_t a[4] = { imx_vector_word(IMX_DTYPE, weights[0][0], weights[0][1]),
                            imx_vector_word(IMX_DTYPE, weights[0][2], weights[0][3]),
                            imx_vector_word(IMX_DTYPE, weights[1][0], weights[1][1]),
                            imx_vector_word(IMX_DTYPE, weights[1][2], weights[1][3]) };
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) {
        uint32_t b[4];
        load_matrices_turned(b, unit_at(tile, row, 2 * i + half));
        multiply(s->of[2 * i], a, b[0], b[1]);
        multiply(s->of[2 * i + 1], a, b[2], b[3]);
    }
}

/* ---- four warps' ----------------------------------------------------------------------------- */

/* most and sum of all warps' tokens; of is scaled to go with them. */
ATTEND_FN void agree(lane_sums *s)
{
    __shared__ float2 room[WARPS][IMX_ROWS];
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        s->sum[r] += __shfl_xor_sync(ALL, s->sum[r], 1);
        s->sum[r] += __shfl_xor_sync(ALL, s->sum[r], 2);
        if (lane % 4 == 0)
            room[warp][lane / 4 + 8 * r] = make_float2(s->most[r], s->sum[r]);
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = NONE, sum = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            most = fmaxf(most, room[i][lane / 4 + 8 * r].x);
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            float2 one = room[i][lane / 4 + 8 * r];
            sum += one.y * weight(one.x, most);
        }
        float by = weight(s->most[r], most);
        s->most[r] = most;
        s->sum[r] = sum;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) {
            s->of[i][2 * r] *= by;
            s->of[i][2 * r + 1] *= by;
        }
    }
}

/* By warp after warp; the last one has the sums of all. */
ATTEND_FN void add_warps(float *sums, int rows, lane_sums *s)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    for (int turn = 0; turn < WARPS; turn++) {
        if (turn)
            __syncthreads();
        if (warp != turn)
            continue;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = lane / 4 + 8 * r;
            float2 *at = (float2 *)(sums + row * SUM_PITCH + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                float2 have = turn && 8 * r < rows ? at[i * 4] : make_float2(0, 0);
                s->of[i][2 * r] += have.x;
                s->of[i][2 * r + 1] += have.y;
                if (turn < WARPS - 1 && 8 * r < rows)
                    at[i * 4] = make_float2(s->of[i][2 * r], s->of[i][2 * r + 1]);
            }
        }
    }
}

ATTEND_FN void put_part(const imx_attend_args &x, const work &w, const lane_sums &s)
{
    int lane = (int)threadIdx.x % LANES;
    if ((int)threadIdx.x / LANES != WARPS - 1)
        return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        if (row >= rows_of(x, w))
            continue;
        int64_t state = state_of(x, w, row);
        float2 *part = (float2 *)(part_of(x, state, w.split) + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            part[i * 4] = make_float2(s.of[i][2 * r], s.of[i][2 * r + 1]);
        if (lane % 4 == 0)
            *(float2 *)weight_of(x, state, w.split) = make_float2(s.most[r], s.sum[r]);
    }
}

/* ---- a split --------------------------------------------------------------------------------- */

/* Fills in which tokens rows see; returns w without those that none does. */
ATTEND_FN work look(const imx_attend_args &x, const work &w, sight *s)
{
    int row = (int)threadIdx.x % LANES % IMX_ROWS;
    int64_t query = query_of(x, w, row);
    bool is_one = row < rows_of(x, w);
    int from = is_one && x.hidden ? x.hidden[query] : 0;
    int to = !is_one ? 0 : x.visible ? x.visible[query] : w.end;
    to = to < w.end ? to : w.end;
    s->from[row] = from; /* all warps write the same */
    s->to[row] = to;
    bool sees = from < to;
    from = sees ? from : w.end;
    to = sees ? to : w.first;
#pragma unroll
    for (int step = 8; step; step /= 2) {
        int other_from = __shfl_xor_sync(ALL, from, step);
        int other_to = __shfl_xor_sync(ALL, to, step);
        from = other_from < from ? other_from : from;
        to = other_to > to ? other_to : to;
    }
    return narrow(w, from, to, STEP);
}

ATTEND_FN void attend_split(const imx_attend_args &x, const imbrexd_watch &watch, const work &all)
{
    uint32_t shared = (uint32_t)__cvta_generic_to_shared(imx_attend_shared);
    uint32_t q = shared + WARPS * RING_BYTES;
    float *sums = (float *)((char *)imx_attend_shared + WARPS * RING_BYTES + Q_BYTES);
    int warp = (int)threadIdx.x / LANES;
    __shared__ sight sights;
    const work w = look(x, all, &sights);
    bool aligned = (((uintptr_t)x.k | (uintptr_t)x.v | (uintptr_t)(x.cache_stride * 2)) & 15) == 0;
    loader l = { shared + (uint32_t)(warp * RING_BYTES), w.first + warp * TOKENS, 0, aligned };
    int steps = w.end > w.first ? (w.end - w.first + STEP - 1) / STEP : 0;
    lane_sums own = { { NONE, NONE }, { 0, 0 }, {} };
    uint32_t kept[K_STEPS][4];
    look_up(x, w, &l);
    for (int i = 0; i < IMX_STAGES - 1; i++) {
        if (i < steps)
            load_tile(x, watch, w, &l, i);
        commit();
    }
    load_q(x, all, q);
    __syncthreads();
    if (KEEPS_Q) {
#pragma unroll
        for (int step = 0; step < K_STEPS; step++)
            load_q_step(kept[step], q, 0, step);
    }
    int stage = 0, into = IMX_STAGES - 1;
    for (int i = 0; i < steps; i++) {
        wait_stage();
        __syncwarp();
        if (i + IMX_STAGES - 1 < steps)
            load_tile(x, watch, w, &l, into);
        commit();
        uint32_t tile = l.ring + (uint32_t)(stage * STAGE_BYTES);
        float score[2][4] = {};
        multiply_k(tile, q, kept, score);
        see(x, &sights, w.first + i * STEP + warp * TOKENS, score);
        weigh(&own, score);
        multiply_v(tile + HALF_BYTES, score, &own);
        stage = stage + 1 == IMX_STAGES ? 0 : stage + 1;
        into = into + 1 == IMX_STAGES ? 0 : into + 1;
    }
    agree(&own);
    add_warps(sums, rows_of(x, all), &own);
    put_part(x, all, own);
}

#endif /* IMX_ATTEND_SM80_TENSOR_CUH */
