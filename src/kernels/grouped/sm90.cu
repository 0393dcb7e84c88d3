/* sm90.cu - the grouped kernel for Hopper of a and b of 16 bits: products of warpgroups out of
 * sm90_ring.cuh's stages.
 *
 *     producers   | load 0 | load 1 | load 2 | ... | tile 1: load 0 | ...
 *     consumers            | mul 0  | mul 1  | ...      | tile 1: mul 0 | mul 1 | ...
 *                                                         | pieces of tile 0 leave |
 *
 * An element adds up k in steps of 16, in their order, whatever the tile.
 */
#include "sm90_store.cuh"

/* d (+)= 64 rows of a stage's a, times b. */
IMX_FN void multiply(float (&d)[IMX_ACC], uint32_t stage_address, int first_row, int add)
{
    uint64_t a = wgmma_tile(stage_address + first_row * 128, 16);
#ifdef IMX_B_KN
    uint64_t b = wgmma_tile(stage_address + A_BYTES, B_ATOM);
    const uint32_t b_step = 16 * 128 >> 4;
#else
    uint64_t b = wgmma_tile(stage_address + A_BYTES, 16);
    const uint32_t b_step = 32 >> 4;
#endif
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++)
        wgmma(d, a + i * (32 >> 4), b + i * b_step, i > 0 || add);
    wgmma_commit();
}

/* Pieces from `from` on, below `to`. */
IMX_FN void store_pieces(const uint32_t (&packed)[IMX_ACC / 2], const imx_grouped_args &args,
                         const tile_info &t, int row, uint32_t buffer, int from, int to)
{
#pragma unroll
    for (int q = 0; q < PIECES; q++)
        if (q >= from && q < to && row < t.rows) {
            fill_piece(packed, buffer, q);
            send_piece(args, t, row, buffer, q);
        }
}

IMX_FN void consume(const imx_grouped_args &args, uint32_t tiles)
{
    uint32_t base = shared_base();
    int warp = (int)threadIdx.x / 32 - PRODUCERS / 32, steps = steps_of(args);
    int first_row = warp / 4 * 64, row = warp * 16;
    uint32_t buffer = base + PIECES_AT + warp * IMX_GROUPED_PIECE;
    float d[IMX_ACC];
    uint32_t packed[IMX_ACC / 2]; /* the tile before, which leaves beneath this one's products */
    tile_info last = { 0, 0, 0, 0 };
    place at = { 0, 0 };
#pragma unroll 1
    for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        mbar_wait(full_of(base, at.stage), at.phase);
        tma_fence_shared(); /* a was written by ordinary copies */
        multiply(d, base + at.stage * STAGE_BYTES, first_row, 0);
        const tile_info now = *info_of(at.stage);
        uint32_t before = at.stage;
        step(&at);
#pragma unroll 1
        for (int s = 1; s < steps; s++) {
            mbar_wait(full_of(base, at.stage), at.phase);
            tma_fence_shared();
            multiply(d, base + at.stage * STAGE_BYTES, first_row, 1);
            if (s <= PIECES)
                store_pieces(packed, args, last, row, buffer, s - 1, s);
            wgmma_wait(1);
            release(base, before);
            before = at.stage;
            step(&at);
        }
        if (steps <= PIECES)
            store_pieces(packed, args, last, row, buffer, steps - 1, PIECES);
        wgmma_wait(0);
        release(base, before);
#pragma unroll
        for (int j = 0; j < IMX_ACC / 2; j++)
            packed[j] = pack(d[2 * j], d[2 * j + 1]);
        last = now;
    }
    store_pieces(packed, args, last, row, buffer, 0, PIECES);
}

#include "sm90_entry.cuh"
