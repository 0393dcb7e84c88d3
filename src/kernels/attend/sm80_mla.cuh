/* sm80_mla.cuh - a split of MLA by tensor cores: IMX_ROWS rows of q against 32 tokens at once, by a
 * block of eight or sixteen warps.
 *
 *     ring      IMX_STAGES tiles: k [32, IMX_DIM], of which v is the beginning
 *     products  [parts][rows, 32]: a warp multiplies 16 rows by 16 tokens, or a part of that sum
 *     weights   [rows, 32] of dtype: a warp has some of the rows, and a lane a token
 *     sums      in registers: a warp has some of the numbers of v, of all rows
 */
#ifndef IMX_ATTEND_SM80_MLA_CUH
#define IMX_ATTEND_SM80_MLA_CUH

#include "sm80_units.cuh"

enum {
    TOKENS = 32,
    TILES = IMX_ROWS / 16,
    PARTS = WARPS / (2 * TILES), /* of a product's K_STEPS */
    OWN_ROWS = IMX_ROWS / WARPS, /* of a warp, when it weighs */
    OWN_VALUES = IMX_VALUES / WARPS,
    COLUMNS = OWN_VALUES / 8,
    STAGE_BYTES = TOKENS * ROW_BYTES,
    LOADS = (TOKENS * UNITS + IMX_THREADS - 1) / IMX_THREADS, /* of a thread */
    PRODUCT_PITCH = TOKENS + 8,                               /* floats */
    WEIGHT_PITCH = TOKENS * 2 + 16,                           /* bytes */
    Q_AT = IMX_STAGES * STAGE_BYTES,
    PRODUCTS_AT = Q_AT + IMX_ROWS * ROW_BYTES,
    WEIGHTS_AT = PRODUCTS_AT + PARTS * IMX_ROWS * PRODUCT_PITCH * 4
};
static_assert(PARTS * TILES * 2 == WARPS && K_STEPS % PARTS == 0 && OWN_ROWS * WARPS == IMX_ROWS,
              "warps share everything evenly");

/* What all warps see of a piece. */
struct mla_room {
    int from[IMX_ROWS], to[IMX_ROWS];    /* tokens that a row sees */
    float *parts[IMX_ROWS];              /* where its sums go; NULL: there is no such row */
    float most[IMX_ROWS], sum[IMX_ROWS]; /* its largest score, the sum of its weights, */
    float by[IMX_ROWS];                  /* and what its sums are to be multiplied by */
    int64_t tokens[2][TOKENS];           /* where tokens of a tile lie; -1: there is none */
};

/* ---- loads ----------------------------------------------------------------------------------- */

/* By the first warp, for the tile of tokens from `first` on. */
ATTEND_FN void find_tokens(const imx_attend_args &x, const imbrexd_watch &watch, const work &w,
                           int first, int64_t *tokens)
{
    int t = first + (int)threadIdx.x;
    tokens[threadIdx.x] =
        t < w.end ? token_in(x, watch, w, page_of(x, w, t), x.page ? t % x.page : t) : -1;
}

ATTEND_FN void load_tile(const imx_attend_args &x, const int64_t *tokens, uint32_t tile,
                         bool aligned)
{
#pragma unroll 1
    for (int i = 0; i < LOADS; i++) {
        int at = (int)threadIdx.x + i * IMX_THREADS, row = at / UNITS, unit = at % UNITS;
        if (TOKENS * UNITS % IMX_THREADS && at >= TOKENS * UNITS)
            break;
        int64_t from = tokens[row];
        load_unit(unit_at(tile, row, unit),
                  (const uint16_t *)x.k + (from < 0 ? 0 : from) + unit * 8, from >= 0, aligned);
    }
}

/* All threads: q of the piece's rows; others are zeros. */
ATTEND_FN void load_q(const imx_attend_args &x, const work &w, uint32_t q)
{
    for (int i = (int)threadIdx.x; i < IMX_ROWS * UNITS; i += IMX_THREADS) {
        int row = i / UNITS, unit = i % UNITS;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row < rows_of(x, w))
            v = imx_vector_load_any(IMX_DTYPE, (const uint16_t *)x.q +
                                                   state_of(x, w, row) * IMX_DIM + unit * 8);
        shared_store(unit_at(q, row, unit), v);
    }
}

/* A fragment of q: rows of tile `rows` of 16. */
ATTEND_FN void load_q_step(uint32_t (&to)[4], uint32_t q, int rows, int step)
{
    int lane = (int)threadIdx.x % LANES;
    load_matrices(to, unit_at(q, rows * 16 + lane % 16, 2 * step + lane / 16));
}

/* ---- a tile ---------------------------------------------------------------------------------- */

ATTEND_FN void multiply_k(uint32_t tile, uint32_t q, float *products)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    int half = warp % 2, rows = warp / 2 % TILES, part = warp / 2 / TILES;
    int token = half * 16 + lane / 16 * 8 + lane % 8;
    float sum[2][4] = {};
#pragma unroll 3
    for (int i = 0; i < K_STEPS / PARTS; i++) {
        int step = i * PARTS + part;
        uint32_t a[4], b[4];
        load_q_step(a, q, rows, step);
        load_matrices(b, unit_at(tile, token, 2 * step + lane / 8 % 2));
        multiply(sum[0], a, b[0], b[1]);
        multiply(sum[1], a, b[2], b[3]);
    }
    float *to = products + (part * IMX_ROWS + rows * 16 + lane / 4) * PRODUCT_PITCH + half * 16 +
                lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        *(float2 *)(to + n * 8) = make_float2(sum[n][0], sum[n][1]);
        *(float2 *)(to + 8 * PRODUCT_PITCH + n * 8) = make_float2(sum[n][2], sum[n][3]);
    }
}

/* t: this lane's token.  Row by row: most registers hold sums. */
ATTEND_FN void weigh(const imx_attend_args &x, mla_room *room, const float *products, char *weights,
                     int t)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
#pragma unroll 1
    for (int row = warp * OWN_ROWS; row < (warp + 1) * OWN_ROWS; row++) {
        float product = 0, before = room->most[row];
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            product += products[(part * IMX_ROWS + row) * PRODUCT_PITCH + lane];
        bool seen = t >= room->from[row] && t < room->to[row];
        float score = seen ? score_of(x, x.scale, product) : NONE, most = score;
#pragma unroll
        for (int step = 16; step; step /= 2)
            most = fmaxf(most, __shfl_xor_sync(ALL, most, step));
        most = fmaxf(most, before);
        float by = most == before ? 1 : weight(before, most), with = weight(score, most);
        float sum = with;
#pragma unroll
        for (int step = 16; step; step /= 2)
            sum += __shfl_xor_sync(ALL, sum, step);
        imx_vector_put(IMX_DTYPE, weights + row * WEIGHT_PITCH, lane, with);
        if (lane == 0) {
            room->most[row] = most;
            room->sum[row] = room->sum[row] * by + sum;
            room->by[row] = by;
        }
    }
    __syncwarp();
}

ATTEND_FN void multiply_v(uint32_t tile, const mla_room *room, uint32_t weights,
                          float (&sum)[TILES][COLUMNS][4])
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
#pragma unroll
    for (int rows = 0; rows < TILES; rows++) {
        float low = room->by[rows * 16 + lane / 4], high = room->by[rows * 16 + lane / 4 + 8];
        if (__any_sync(ALL, low != 1 || high != 1)) {
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                sum[rows][i][0] *= low;
                sum[rows][i][1] *= low;
                sum[rows][i][2] *= high;
                sum[rows][i][3] *= high;
            }
        }
    }
#pragma unroll 1
    for (int step = 0; step < TOKENS / 16; step++) {
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) {
            uint32_t b[4];
            load_matrices_turned(
                b, unit_at(tile, step * 16 + lane % 16, warp * COLUMNS + 2 * i + lane / 16));
#pragma unroll
            for (int rows = 0; rows < TILES; rows++) {
                uint32_t a[4]; /* again for each i: else there are too few registers */
                load_matrices(a, weights + (uint32_t)((rows * 16 + lane % 16) * WEIGHT_PITCH +
                                                      (step * 2 + lane / 16) * 16));
                multiply(sum[rows][2 * i], a, b[0], b[1]);
                multiply(sum[rows][2 * i + 1], a, b[2], b[3]);
            }
        }
    }
}

/* ---- a split --------------------------------------------------------------------------------- */

/* Fills in which tokens rows see; returns w without those that none does. */
ATTEND_FN work look_all(const imx_attend_args &x, const work &w, mla_room *room)
{
    int from = w.end, to = w.first;
    for (int row = (int)threadIdx.x; row < IMX_ROWS; row += IMX_THREADS) {
        look(x, w, row, &room->from[row], &room->to[row]);
        room->most[row] = NONE;
        room->sum[row] = 0;
        room->parts[row] = row < rows_of(x, w) ? part_of(x, state_of(x, w, row), w.split) : NULL;
    }
    __syncthreads();
    for (int row = (int)threadIdx.x % LANES; row < IMX_ROWS; row += LANES) {
        int own_from = room->from[row], own_to = room->to[row];
        from = own_from < own_to && own_from < from ? own_from : from;
        to = own_from < own_to && own_to > to ? own_to : to;
    }
    join<LANES>(&from, &to);
    return narrow(w, from, to, TOKENS);
}

ATTEND_FN void put_part(const imx_attend_args &x, const work &w, const mla_room *room,
                        const float (&sum)[TILES][COLUMNS][4])
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    for (int row = (int)threadIdx.x; row < rows_of(x, w); row += IMX_THREADS)
        *(float2 *)weight_of(x, state_of(x, w, row), w.split) =
            make_float2(room->most[row], room->sum[row]);
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        float *part = room->parts[i * 8 + lane / 4];
        if (!part)
            continue;
        part += warp * OWN_VALUES + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            *(float2 *)(part + j * 8) =
                make_float2(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
    }
}

ATTEND_FN void attend_split(const imx_attend_args &x, const imbrexd_watch &watch, const work &all)
{
    __shared__ mla_room room;
    uint32_t shared = (uint32_t)__cvta_generic_to_shared(imx_attend_shared);
    float *products = (float *)((char *)imx_attend_shared + PRODUCTS_AT);
    char *weights = (char *)imx_attend_shared + WEIGHTS_AT;
    bool first_warp = threadIdx.x < LANES;
    bool aligned = (((uintptr_t)x.k | (uintptr_t)(x.cache_stride * 2)) & 15) == 0;
    const work w = look_all(x, all, &room);
    int steps = w.end > w.first ? (w.end - w.first + TOKENS - 1) / TOKENS : 0;
    float sum[TILES][COLUMNS][4] = {};
    load_q(x, all, shared + Q_AT);
    for (int i = 0; i < IMX_STAGES; i++) { /* of the last one, only where its tokens are */
        if (first_warp)
            find_tokens(x, watch, w, w.first + i * TOKENS, room.tokens[i % 2]);
        __syncthreads();
        if (i < IMX_STAGES - 1) {
            if (i < steps)
                load_tile(x, room.tokens[i % 2], shared + (uint32_t)(i * STAGE_BYTES), aligned);
            commit();
        }
    }
    int stage = 0, into = IMX_STAGES - 1, ahead = IMX_STAGES - 1;
    for (int i = 0; i < steps; i++, ahead++) {
        uint32_t tile = shared + (uint32_t)(stage * STAGE_BYTES);
        wait_but<IMX_STAGES - 2>();
        __syncthreads(); /* tile i is here, and all are done with the one before */
        if (ahead < steps)
            load_tile(x, room.tokens[ahead % 2], shared + (uint32_t)(into * STAGE_BYTES), aligned);
        commit();
        multiply_k(tile, shared + Q_AT, products);
        if (first_warp && ahead + 1 < steps)
            find_tokens(x, watch, w, w.first + (ahead + 1) * TOKENS, room.tokens[(ahead + 1) % 2]);
        __syncthreads();
        weigh(x, &room, products, weights, w.first + i * TOKENS + (int)threadIdx.x % LANES);
        __syncthreads();
        multiply_v(tile, &room, shared + WEIGHTS_AT, sum);
        stage = stage + 1 == IMX_STAGES ? 0 : stage + 1;
        into = into + 1 == IMX_STAGES ? 0 : into + 1;
    }
    put_part(x, all, &room, sum);
    __syncthreads(); /* q and the room are the next split's */
}

#endif /* IMX_ATTEND_SM80_MLA_CUH */
