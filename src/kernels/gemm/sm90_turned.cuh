/* sm90_turned.cuh - with IMX_TURNED: a tile that is made as its transpose, and how it leaves.
 *
 * wgmma multiplies 64 rows by any multiple of 8 columns.  Where a tile of whole 64s of rows would
 * stay half empty, b's columns take the 64s and a's rows the 8s: the sums are those of c', and each
 * product and their order in k are the same.
 *
 *     c' in registers: 64 columns of c a warpgroup, 16 a warp | all rows of the tile
 *     registers | stmatrix.trans | piece [16 rows, 64 columns] of c | ordinary stores | c
 *
 * A warpgroup fills a piece together, so that what it stores are 128 bytes of a row.
 */
#ifndef IMX_SM90_TURNED_CUH
#define IMX_SM90_TURNED_CUH

#include "sm90_layout.cuh"
#include "sm90_store.cuh"

enum { TURNED_COLS = 64, TURNED_UNITS = TURNED_COLS / 8 };

/* col: the first of this warp's 16 columns of c, which are its rows of d. */
IMX_FN void add_bias_turned(float (&d)[IMX_ACC], const imx_gemm_args &args, int col)
{
    const uint16_t *bias = (const uint16_t *)args.bias;
    int n = (int)args.schedule.n, at = col + lane_here() / 4;
    if (!bias)
        return;
    float upper = bias_at(bias, at, n), lower = bias_at(bias, at + 8, n);
#pragma unroll
    for (int j = 0; j < IMX_ACC; j += 4) {
        d[j] += upper, d[j + 1] += upper;
        d[j + 2] += lower, d[j + 3] += lower;
    }
}

/* Where a row's 16-byte unit lies in a piece. */
IMX_FN uint32_t turned_offset(int row, int unit)
{
    return row * (TURNED_COLS * 2) + ((unit ^ (row & 7)) << 4);
}

/* This warp's 16 columns of `rows` rows; x: as products leave them, x[2i] of rows 8i + 2 * (lane %
 * 4) and the next and of column lane / 4, x[2i + 1] of eight columns further. */
template <int rows> IMX_FN void fill_turned(uint32_t piece, const uint32_t *x)
{
    int lane = lane_here(), row = lane / 16 * 8 + lane % 8;
    int unit = (int)thread_here() / 32 % 4 * 2 + lane / 8 % 2;
#pragma unroll
    for (int first = 0; first < rows; first += 16, x += 4) {
        if (first + 16 <= rows)
            st_matrix4_turned(piece + turned_offset(first + row, unit), x[0], x[1], x[2], x[3]);
        else
            st_matrix2_turned(piece + turned_offset(first + lane % 8, unit), x[0], x[1]);
    }
}

/* One of a warpgroup's threads: its share of a piece of `rows` rows to row, col of c. */
IMX_FN void send_turned(const imx_gemm_args &args, int row, int rows, int col, uint32_t piece)
{
    int n = (int)args.schedule.n, thread = (int)thread_here() % 128;
    uint16_t *c = (uint16_t *)args.c;
#pragma unroll 1
    for (int i = thread; C_PLAIN && i < rows * TURNED_COLS; i += 128) {
        int r = i / TURNED_COLS, at = i % TURNED_COLS;
        uint16_t element;
        uint32_t from = piece + turned_offset(r, at / 8) + at % 8 * 2;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(element) : "r"(from) : "memory");
        if (col + at < n)
            c[(int64_t)(row + r) * n + col + at] = element;
    }
#pragma unroll 1
    for (int i = thread; !C_PLAIN && i < rows * TURNED_UNITS; i += 128) {
        int r = i / TURNED_UNITS, unit = i % TURNED_UNITS, at = col + unit * 8;
        if (at < n)
            *(uint4 *)&c[(int64_t)(row + r) * n + at] = ld_shared(piece + turned_offset(r, unit));
    }
}

/* Piece p of the tile, which the whole warpgroup stores.  Of two buffers, one meeting a piece keeps
 * who fills from who still reads, but for the first piece of a tile. */
IMX_FN void store_turned(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                         const tile_info *note, uint32_t base, int p)
{
    enum { LAST = IMX_SUMS_N - (PIECES - 1) * PIECE_COLS };
    int consumer = (int)thread_here() / 128 - 1, first = p * PIECE_COLS;
    uint32_t piece = base + C_AT + (consumer * IMX_BUFFERS + p % IMX_BUFFERS) * 4 * PIECE_BYTES;
    if (p == 0 || IMX_BUFFERS == 1)
        consumers_meet(consumer);
    if (p < PIECES - 1)
        fill_turned<PIECE_COLS>(piece, &packed[p * PIECE_COLS / 4]);
    else
        fill_turned<LAST>(piece, &packed[p * PIECE_COLS / 4]);
    consumers_meet(consumer);
    int rows = note->rows - first, most = p < PIECES - 1 ? PIECE_COLS : LAST;
    send_turned(args, note->row + first, rows < most ? rows : most, note->col + consumer * 64,
                piece);
}

#endif /* IMX_SM90_TURNED_CUH */
