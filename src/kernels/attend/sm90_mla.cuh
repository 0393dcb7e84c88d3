/* sm90_mla.cuh - splits of MLA on Hopper, or runs of them: a warp brings tokens by the copy engine,
 * two warpgroups multiply.
 *
 * Tokens, and numbers of v, are the 64 rows of a product, rows of q its IMX_ROWS columns, so that
 * few rows cost little:
 *
 *     scores [tokens, rows] = k q^T          sums [numbers of v, rows] += v^T weights
 *
 * The warpgroups score tiles of a split by turns, and each sums half of the numbers of v over all
 * of them.  Weights lie where the last 64 numbers of their tile were, which are no part of v. */
#ifndef IMX_ATTEND_SM90_MLA_CUH
#define IMX_ATTEND_SM90_MLA_CUH

#include "../sm90_wgmma.cuh"
#include "sm90_mla_tree.cuh"

/* ---- products -------------------------------------------------------------------------------- */

#if IMX_IS_BF16
#define MLA_TYPES "k16.f32.bf16.bf16"
#else
#define MLA_TYPES "k16.f32.f16.f16"
#endif
#define MLA_WGMMA(n, s, i, turned) MLA_WGMMA_(n, s, i, turned)
#define MLA_WGMMA_(n, s, operands, add, turned)                                              \
    "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " add ", 0;\n\t"                                   \
    "wgmma.mma_async.sync.aligned.m64n" #n MLA_TYPES " {" s "}, " operands ", 1, 1, " turned \
    ", 0;\n\t}"
#define MLA_PRODUCT(turned)                                                                        \
    asm volatile(MLA_WGMMA(IMX_ROWS, IMX_JOIN(IMX_S, IMX_ROWS), IMX_JOIN(IMX_I, IMX_ROWS), turned) \
                 : IMX_JOIN(IMX_O, IMX_ROWS)                                                       \
                 : "l"(a), "l"(b), "r"(add))

/* d = or += a[64, 16] b[16, IMX_ROWS]; a: of rows, and of columns. */
ATTEND_FN void multiply_rows(float (&d)[SCORES], uint64_t a, uint64_t b, int add)
{
    MLA_PRODUCT("0");
}

ATTEND_FN void multiply_columns(float (&d)[SCORES], uint64_t a, uint64_t b, int add)
{
    MLA_PRODUCT("1");
}

/* Nothing that uses d is moved across. */
ATTEND_FN void hold(float (&d)[SCORES])
{
#pragma unroll
    for (int i = 0; i < SCORES; i++)
        asm volatile("" : "+f"(d[i]) : : "memory");
}

ATTEND_FN void group_barrier(int group)
{
    if (group)
        asm volatile("bar.sync 3, %0;" : : "n"(IMX_THREADS / 2) : "memory");
    else
        asm volatile("bar.sync 2, %0;" : : "n"(IMX_THREADS / 2) : "memory");
}

/* Where a tile's slot is. */
ATTEND_FN uint32_t slot_at(uint32_t shared, const place &tile, int part)
{
    return shared + (uint32_t)(after(tile, part).slot * SLOT_BYTES);
}

ATTEND_FN uint32_t weights_at(uint32_t shared, const place &tile)
{
    return slot_at(shared, tile, TILE_SLOTS - 1) + (SLOT_BLOCKS - 1) * BLOCK_BYTES;
}

/* A warpgroup: the tile's products with q. */
ATTEND_FN void multiply_k(mla_room *room, uint32_t shared, const place &tile,
                          float (&score)[SCORES])
{
    uint64_t b = wgmma_tile(shared + Q_AT, 16);
    hold(score);
#pragma unroll
    for (int part = 0; part < TILE_SLOTS; part++) {
        place p = after(tile, part);
        mbar_wait(at_shared(&room->full[p.slot]), p.parity);
        uint64_t a = wgmma_tile(shared + (uint32_t)(p.slot * SLOT_BYTES), 16);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < SLOT_BLOCKS * 4; i++)
            multiply_rows(
                score, a + (uint64_t)((i / 4 * BLOCK_BYTES + i % 4 * 32) >> 4),
                b + (uint64_t)(((part * SLOT_BLOCKS + i / 4) * Q_BLOCK_BYTES + i % 4 * 32) >> 4),
                part || i);
        wgmma_commit();
    }
    wgmma_wait(0);
    hold(score);
}

/* Both, when tile i is weighed: make sums smaller as its largest scores want it, add it, and give
 * its slots back. */
ATTEND_FN void multiply_v(mla_room *room, uint32_t shared, const place &tile, int i, group_sums *s)
{
    int lane = (int)threadIdx.x % LANES, group = group_here();
    mbar_wait(at_shared(&room->weighed[i % 2]), (uint32_t)(i / 2 & 1));
#pragma unroll
    for (int part = 0; part < TILE_SLOTS; part++) {
        place p = after(tile, part);
        mbar_wait(at_shared(&room->full[p.slot]), p.parity);
    }
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
        float2 by = *(const float2 *)&room->by[i % 2][n * 8 + lane % 4 * 2];
#pragma unroll
        for (int m = 0; m < OWN_BLOCKS; m++) {
            s->of[m][4 * n] *= by.x;
            s->of[m][4 * n + 1] *= by.y;
            s->of[m][4 * n + 2] *= by.x;
            s->of[m][4 * n + 3] *= by.y;
        }
    }
    uint64_t b = wgmma_tile(weights_at(shared, tile), 16);
#pragma unroll
    for (int m = 0; m < OWN_BLOCKS; m++)
        hold(s->of[m]);
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < OWN_BLOCKS; m++) {
        int block = group * OWN_BLOCKS + m;
        uint32_t at = slot_at(shared, tile, block / SLOT_BLOCKS) +
                      (uint32_t)(block % SLOT_BLOCKS * BLOCK_BYTES);
        uint64_t a = wgmma_tile(at, BLOCK_BYTES);
#pragma unroll
        for (int step = 0; step < TILE / 16; step++)
            multiply_columns(s->of[m], a + (uint64_t)(step * 16 * 128 >> 4),
                             b + (uint64_t)(step * 32 >> 4), 1);
    }
    wgmma_commit();
    wgmma_wait(0);
#pragma unroll
    for (int m = 0; m < OWN_BLOCKS; m++)
        hold(s->of[m]);
    if (lane == 0) {
#pragma unroll
        for (int part = 0; part < TILE_SLOTS; part++)
            mbar_arrive(at_shared(&room->empty[after(tile, part).slot]));
    }
    __syncwarp();
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Rows of v from `there` on, which no token of the split is of, become zeros: weights of 0 do not
 * make one that is no number harmless. */
ATTEND_SELDOM void clear_rows(uint32_t shared, int first_slot, int there)
{
    there = there > 0 ? there : 0;
    for (int i = (int)threadIdx.x % GROUP_THREADS; i < (TILE - there) * V_BLOCKS * 8;
         i += GROUP_THREADS) {
        int row = there + i / (V_BLOCKS * 8), unit = i % (V_BLOCKS * 8), block = unit / 8;
        shared_store(slot_at(shared, { first_slot, 0 }, block / SLOT_BLOCKS) +
                         (uint32_t)(block % SLOT_BLOCKS * BLOCK_BYTES + row * 128 + unit % 8 * 16),
                     make_uint4(0, 0, 0, 0));
    }
}

/* Products become scores; first: the tile's first token. */
ATTEND_FN void see(const imx_attend_args &x, const mla_room *room, int first, bool whole,
                   float (&score)[SCORES])
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES % GROUP_WARPS;
    if (x.soft_cap > 0) {
#pragma unroll
        for (int i = 0; i < SCORES; i++)
            score[i] = score_of(x, x.scale, score[i]);
    } else {
#pragma unroll
        for (int i = 0; i < SCORES; i++)
            score[i] *= x.scale * LOG2E;
    }
    if (whole)
        return;
#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        int row = i / 4 * 8 + lane % 4 * 2 + i % 2,
            t = first + warp * 16 + lane / 4 + i % 4 / 2 * 8;
        bool seen = t >= room->from[row] && t < room->to[row];
        score[i] = seen ? score[i] : NONE;
    }
}

/* A warpgroup: tile i, the split's tile `at`: scores become weights, which both are told of.  */
ATTEND_FN void weigh(mla_room *room, uint32_t shared, const place &tile, int i, int at, int there,
                     float (&score)[SCORES], group_sums *s)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES % GROUP_WARPS;
    int group = group_here(), column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
        float2 most = make_float2(fmaxf(score[4 * n], score[4 * n + 2]),
                                  fmaxf(score[4 * n + 1], score[4 * n + 3]));
#pragma unroll
        for (int step = 4; step < LANES; step *= 2) {
            most.x = fmaxf(most.x, __shfl_xor_sync(ALL, most.x, step));
            most.y = fmaxf(most.y, __shfl_xor_sync(ALL, most.y, step));
        }
        if (lane < 4)
            *(float2 *)&room->own[group][warp][n * 8 + column] = most;
    }
    group_barrier(group); /* and all have multiplied by k, whose place weights take */
#pragma unroll
    for (int n = 0; n < EIGHTS; n++) {
        int row = n * 8 + column;
        float2 before = make_float2(NONE, NONE), mine = before;
        if (at > 0)
            before = *(const float2 *)&room->most[(i + 3) % 4][row];
        if (at > 1)
            mine = *(const float2 *)&room->most[(i + 2) % 4][row];
        float2 most = before;
#pragma unroll
        for (int j = 0; j < GROUP_WARPS; j++) {
            float2 one = *(const float2 *)&room->own[group][j][row];
            most.x = fmaxf(most.x, one.x);
            most.y = fmaxf(most.y, one.y);
        }
        if (warp == 0 && lane < 4) {
            *(float2 *)&room->most[i % 4][row] = most;
            *(float2 *)&room->by[i % 2][row] =
                make_float2(most.x == before.x ? 1 : weight(before.x, most.x),
                            most.y == before.y ? 1 : weight(before.y, most.y));
        }
        float *w = &score[4 * n];
        w[0] = weight(w[0], most.x), w[1] = weight(w[1], most.y);
        w[2] = weight(w[2], most.x), w[3] = weight(w[3], most.y);
        s->sum[n][0] = s->sum[n][0] * weight(mine.x, most.x) + (w[0] + w[2]);
        s->sum[n][1] = s->sum[n][1] * weight(mine.y, most.y) + (w[1] + w[3]);
    }
    if (there < TILE)
        clear_rows(shared, tile.slot, there);
    uint32_t to = weights_at(shared, tile);
    int unit = warp * 2 + lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < EIGHTS; n += 2) {
        const float *w = &score[4 * n];
        int row = n * 8 + lane / 16 * 8 + lane % 8;
        st_matrix4_turned(
            to + (uint32_t)(row * 128 + ((unit ^ (row & 7)) << 4)),
            imx_vector_word(IMX_DTYPE, w[0], w[1]), imx_vector_word(IMX_DTYPE, w[2], w[3]),
            imx_vector_word(IMX_DTYPE, w[4], w[5]), imx_vector_word(IMX_DTYPE, w[6], w[7]));
    }
    tma_fence_shared();
    mbar_arrive(at_shared(&room->weighed[i % 2]));
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* The tokens that rows see. */
ATTEND_FN void look_all(const imx_attend_args &x, const work &w, mla_room *room)
{
    for (int row = (int)threadIdx.x; row < IMX_ROWS; row += WARPS * LANES)
        look(x, w, row, &room->from[row], &room->to[row]);
}

/* Who weighs the tile from a token on. */
ATTEND_FN int turn_of(int first)
{
    return first / TILE & 1;
}

/* Both: a run whose first tile is number i, at p; ends: how many splits of the block have ended. */
ATTEND_FN void attend_run(const imx_attend_args &x, const work &w, mla_room *room, int i, place p,
                          int *ends)
{
    uint32_t shared = at_shared(imx_attend_shared);
    const bool all_see = !x.hidden && !x.visible, is_lane_0 = threadIdx.x % LANES == 0;
    int group = group_here(), tiles = tiles_of(w), first = w.first;
    int split = (int)((unsigned)first / (unsigned)w.each), begin = 0; /* begin: its first tile */
    group_sums s = {};
    kept_sums kept;
    kept.levels = 0;
    if (tiles == 1 && turn_of(first) != group && is_lane_0) /* q is not wanted */
        mbar_arrive(at_shared(&room->q_empty));
#pragma unroll 1
    for (int at = 0; at < tiles; at++) {
        if (turn_of(first) == group) {
            float score[SCORES];
            multiply_k(room, shared, p, score);
            if (at + 2 >= tiles && is_lane_0)
                mbar_arrive(at_shared(&room->q_empty));
            see(x, room, first, all_see && first + TILE <= w.end, score);
            weigh(room, shared, p, i + at, at - begin, w.end - first, score, &s);
        }
        multiply_v(room, shared, p, i + at, &s);
        p = after(p, TILE_SLOTS);
        bool is_done = at + 1 == tiles;
        if (LEVELS && (is_done || first + TILE == (split + 1) * w.each)) {
            float(*sums)[IMX_ROWS] = room->sums[*ends & 1];
            leave_sums(room, sums, i + at, at - begin, turn_of(first), s);
            end_split(x, w, room, sums, room->most[(i + at) % 4], split, is_done, &s, &kept);
            ++*ends;
            split++;
            begin = at + 1;
            s = group_sums{};
        }
        first += TILE;
    }
    if (!LEVELS)
        end_only(x, w, room, i + tiles - 1, tiles - 1, turn_of(first - TILE), s);
}

/* Both: the block's runs. */
ATTEND_FN void attend_all(const imx_attend_args &x, mla_room *room)
{
    place p = { 0, 0 };
    uint32_t began, took = 0; /* the latest run */
    int tile = 0, ends = 0;
    for (int i = 0;; i++) {
        mbar_wait(at_shared(&room->q_full), (uint32_t)(i & 1));
        const work w = room->runs[i % 2];
        if (w.sequence < 0)
            break;
        began = clock_now();
        look_all(x, w, room);
        both_barrier();
        attend_run(x, w, room, tile, p, &ends);
        tile += tiles_of(w);
        p = after_tiles(p, tiles_of(w));
        took = clock_now() - began;
    }
    add_all(x, room, took);
}

/* ---- the block ------------------------------------------------------------------------------- */

/* Where threads keep left nodes there are three warpgroups, as registers are theirs: who loads is
 * alone in the last one. */
enum { LOAD_THREADS = LEVELS ? GROUP_THREADS : LANES };
enum { LOAD_REGISTERS = 104, OTHER_REGISTERS = 200 };

extern "C" __global__ void __launch_bounds__(IMX_THREADS + LOAD_THREADS, 1)
    imx_attend(const __grid_constant__ imx_attend_args args,
               const __grid_constant__ imbrexd_watch watch,
               const __grid_constant__ attend_maps maps)
{
    mla_room &room = *(mla_room *)((char *)imx_attend_shared + ROOM_AT);
    int warp = (int)threadIdx.x / LANES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < IMX_SLOTS; i++) {
            mbar_init(at_shared(&room.full[i]), 1);
            mbar_init(at_shared(&room.empty[i]), WARPS);
        }
        mbar_init(at_shared(&room.q_full), 1);
        mbar_init(at_shared(&room.q_empty), WARPS);
        mbar_init(at_shared(&room.weighed[0]), GROUP_THREADS);
        mbar_init(at_shared(&room.weighed[1]), GROUP_THREADS);
        mbar_init_fence();
    }
    if (warp == WARPS && threadIdx.x % LANES < 2)
        tma_prefetch_map(threadIdx.x % LANES ? &maps.q : &maps.k);
    __syncthreads();
    imx_grid_wait();
    imx_grid_let_go();
    if (warp >= WARPS) {
        if (LEVELS)
            reg_less(LOAD_REGISTERS);
        if (warp == WARPS)
            load_all(args, watch, maps, &room);
    } else {
        if (LEVELS)
            reg_more(OTHER_REGISTERS);
        attend_all(args, &room);
    }
}

#endif /* IMX_ATTEND_SM90_MLA_CUH */
