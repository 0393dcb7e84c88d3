/* sm90_split.cuh - a tile that the SPLIT blocks of a cluster make together, each of every SPLIT-th
 * step of k.  Where few rows are multiplied, time goes into reading b: two blocks read half as much
 * of a for the same columns of b as two that stand side by side, wait for nobody else's loads, and
 * divide b evenly where whole tiles would not.  Where tiles are few and k is long, four or eight
 * give work to blocks that would have none.
 *
 *     block 0 | k 0 |     | k 2 |     | ... | sums of piece 1 to block 1 | + , store piece 0
 *     block 1 |     | k 1 |     | k 3 | ... | sums of piece 0 to block 0 | + , store piece 1
 *
 * Whoever adds up a piece adds the blocks' sums in the order of the blocks.
 */
#ifndef IMX_SM90_SPLIT_CUH
#define IMX_SM90_SPLIT_CUH

#include "sm90_layout.cuh"

static_assert(SPLIT == 1 || PIECES == SPLIT, "each block stores a piece");

enum { PIECE_SUMS = IMX_ACC / SPLIT }; /* a thread's */

/* Where block `to` keeps what block `from` sends of a warp's sums: this lane's first four. */
IMX_FN uint32_t sums_room(uint32_t base, uint32_t warp, int to, int from)
{
    uint32_t place = warp * (SPLIT - 1) + from - (from > to);
    return base + EXCHANGE_AT + place * EXCHANGE_BYTES + threadIdx.x % 32 * 16;
}

/* This warp's sums of piece p to the same warp of block p, a lane's in fours. */
IMX_FN void send_sums(const float (&d)[IMX_ACC], int p, uint32_t to, uint32_t bar)
{
#pragma unroll
    for (int i = 0; i < PIECE_SUMS; i += 4)
        cluster_store(to + i / 4 * 512, bar, &d[p * PIECE_SUMS + i]);
}

/* Own sums of piece p become those of all blocks. */
IMX_FN void add_sums(float (&d)[IMX_ACC], int p, uint32_t base, uint32_t warp)
{
#pragma unroll
    for (int i = 0; i < PIECE_SUMS; i += 4) {
        float *own = &d[p * PIECE_SUMS + i], sum[4] = {};
#pragma unroll
        for (int from = 0; from < SPLIT; from++) {
            uint4 v = {};
            if (from != p)
                v = ld_shared(sums_room(base, warp, p, from) + i / 4 * 512);
            const float part[4] = { __uint_as_float(v.x), __uint_as_float(v.y),
                                    __uint_as_float(v.z), __uint_as_float(v.w) };
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = from == p ? own[e] : part[e];
                sum[e] = from == 0 ? x : sum[e] + x;
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            own[e] = sum[e];
    }
}

/* A tile's end: makes this block's piece of d whole.  parity: of the tiles so far. */
IMX_FN void exchange(float (&d)[IMX_ACC], uint32_t base, uint32_t *parity)
{
    uint32_t warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    int own = split_block();
    mbar_wait_cluster(room_of(base, warp), *parity ^ 1);
    if (lane == 0)
        mbar_expect(sums_of(base, warp), (SPLIT - 1) * EXCHANGE_BYTES);
#pragma unroll
    for (int p = 0; p < SPLIT; p++) {
        if (p != own)
            send_sums(d, p, cluster_address(sums_room(base, warp, p, own), (uint32_t)p),
                      cluster_address(sums_of(base, warp), (uint32_t)p));
    }
    mbar_wait_cluster(sums_of(base, warp), *parity);
#pragma unroll
    for (int p = 0; p < SPLIT; p++) {
        if (p == own)
            add_sums(d, p, base, warp);
    }
    __syncwarp();
    if (lane < SPLIT && (int)lane != own)
        mbar_release_at(room_of(base, warp), lane);
    *parity ^= 1;
}

#endif /* IMX_SM90_SPLIT_CUH */
