/* sm90_store.cuh - how tiles of the grouped kernels for Hopper leave: piece by piece through shared
 * memory. */
#ifndef IMX_GROUPED_SM90_STORE_CUH
#define IMX_GROUPED_SM90_STORE_CUH

#include "sm90_ring.cuh"

/* Piece q of a tile, 64 columns of this warp's 16 rows, to its room. */
IMX_FN void fill_piece(const uint32_t (&packed)[IMX_ACC / 2], uint32_t buffer, int q)
{
    int lane = lane_here(), r = lane % 16;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t *from = &packed[q * 16 + j * 4];
        int unit = 2 * j + lane / 16;
        st_matrix4(buffer + r * 128 + ((unit ^ (r & 7)) << 4), from[0], from[1], from[2], from[3]);
    }
    __syncwarp();
}

/* From there to where it belongs; the first of the warp's rows is `row`. */
IMX_FN void send_piece(const imx_grouped_args &args, const tile_info &t, int row, uint32_t buffer,
                       int q)
{
    int lane = lane_here();
    int unit = lane % 8, col = t.col + q * 64 + unit * 8;
    uint16_t *c = (uint16_t *)args.c + (t.row + row) * args.n + col;
    bool wide = ((uintptr_t)args.c & 15) == 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int down = lane / 8 + 4 * i;
        uint4 v = ld_shared(buffer + down * 128 + ((unit ^ (down & 7)) << 4));
        uint16_t *to = c + down * args.n;
        if (row + down >= t.rows || col >= args.n)
            continue;
        if (wide) {
            *(uint4 *)to = v;
            continue;
        }
        const uint32_t words[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int w = 0; w < 8; w++)
            to[w] = (uint16_t)(words[w / 2] >> w % 2 * 16);
    }
    __syncwarp();
}

#endif /* IMX_GROUPED_SM90_STORE_CUH */
