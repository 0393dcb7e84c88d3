/* sm90_split.cuh - a tile that the two blocks of a cluster make together, each of every second step
 * of k.  Where few rows are multiplied, time goes into reading b: two blocks read half as much of a
 * for the same columns of b as two that stand side by side, wait for nobody else's loads, and
 * divide b evenly where whole tiles would not.
 *
 *     block 0 | k 0 |     | k 2 |     | ... | sums of piece 1 to block 1 | + , store piece 0
 *     block 1 |     | k 1 |     | k 3 | ... | sums of piece 0 to block 0 | + , store piece 1
 *
 * A sum of two has one value whoever adds it up, so the result does not depend on the block.
 */
#ifndef IMX_SM90_SPLIT_CUH
#define IMX_SM90_SPLIT_CUH

#include "sm90_layout.cuh"

static_assert(SPLIT == 1 || PIECES == 2, "each block stores a piece");

/* This warp's sums of piece p to the same warp of the other block, a lane's in fours. */
IMX_FN void send_sums(const float (&d)[IMX_ACC], int p, uint32_t to, uint32_t bar)
{
#pragma unroll
    for (int i = 0; i < IMX_ACC / 2; i += 4)
        cluster_store(to + i / 4 * 512, bar, &d[p * IMX_ACC / 2 + i]);
}

IMX_FN void add_sums(float (&d)[IMX_ACC], int p, uint32_t from)
{
#pragma unroll
    for (int i = 0; i < IMX_ACC / 2; i += 4) {
        uint4 v = ld_shared(from + i / 4 * 512);
        float *sum = &d[p * IMX_ACC / 2 + i];
        sum[0] += __uint_as_float(v.x), sum[1] += __uint_as_float(v.y);
        sum[2] += __uint_as_float(v.z), sum[3] += __uint_as_float(v.w);
    }
}

/* A tile's end: makes this block's piece of d whole.  parity: of the tiles so far. */
IMX_FN void exchange(float (&d)[IMX_ACC], uint32_t base, uint32_t *parity)
{
    uint32_t warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    uint32_t other = (uint32_t)split_block() ^ 1;
    uint32_t room = base + EXCHANGE_AT + warp * EXCHANGE_BYTES + lane * 16;
    uint32_t to = cluster_address(room, other), bar = cluster_address(halves_of(base, warp), other);
    mbar_wait_cluster(room_of(base, warp), *parity ^ 1);
    if (lane == 0)
        mbar_expect(halves_of(base, warp), EXCHANGE_BYTES);
    if (other)
        send_sums(d, 1, to, bar);
    else
        send_sums(d, 0, to, bar);
    mbar_wait_cluster(halves_of(base, warp), *parity);
    if (other)
        add_sums(d, 0, room);
    else
        add_sums(d, 1, room);
    __syncwarp();
    if (lane == 0)
        mbar_release_at(room_of(base, warp), other);
    *parity ^= 1;
}

#endif /* IMX_SM90_SPLIT_CUH */
