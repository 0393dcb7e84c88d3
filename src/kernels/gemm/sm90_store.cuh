/* sm90_store.cuh - the way of sm90.cu's tiles from the registers of its consumers to where they
 * belong: c, or where the epilogue has them go.
 *
 * A warp has 16 rows of every 64.  They go through buffers in shared memory, a piece at a time, or
 * where there is but one buffer a block's last tile through what were the stages:
 *
 *     registers | stmatrix | piece | copy engine | c, or a slot at the owner
 */
#ifndef IMX_SM90_STORE_CUH
#define IMX_SM90_STORE_CUH

#include "sm90_layout.cuh"
#include "team.cuh"

/* ---- sums become c --------------------------------------------------------------------------- */

/* Volatile, so that the loads stay where they are: all of them at once want too many registers. */
IMX_FN uint16_t bits_at(const uint16_t *row, int at, int n)
{
    uint16_t element = 0;
    if (at < n)
        asm volatile("ld.global.u16 %0, [%1];" : "=h"(element) : "l"(row + at) : "memory");
    return element;
}

IMX_FN float bias_at(const uint16_t *bias, int at, int n)
{
    return unpack(bits_at(bias, at, n));
}

enum { UNIT_COLS = 8 }; /* elements of 16 bytes, a unit */

/* sum = units of all ranks' parts, in rank order: load(r, u) is unit u of rank r's, and take(u)
 * comes when that is done.  What holds a sum up is the way to memory, so the loads of `at_once`
 * parts are under way before the first is added. */
template <int parts, int at_once, int units, class loader, class taker>
IMX_FN void sum_parts(float (&sum)[units][UNIT_COLS], loader load, taker take)
{
#pragma unroll
    for (int r = 0; r < parts; r += at_once) {
        uint4 part[at_once][units];
#pragma unroll
        for (int p = 0; p < at_once && r + p < parts; p++) {
#pragma unroll
            for (int u = 0; u < units; u++)
                part[p][u] = load(r + p, u);
        }
#pragma unroll
        for (int u = 0; u < units; u++) {
#pragma unroll
            for (int p = 0; p < at_once && r + p < parts; p++)
                imx_vector_add(DTYPE, sum[u], part[p][u], r + p == 0);
            if (r + at_once >= parts)
                take(u);
        }
    }
}

/* Unit `at` of c, which begins in column col: the sum, bias and residual. */
IMX_FN void sum_put(const imx_gemm_args &args, uint32_t at, uint32_t col, float (&sum)[UNIT_COLS])
{
#pragma unroll
    for (int e = 0; e < UNIT_COLS && args.bias; e++)
        sum[e] += bias_at((const uint16_t *)args.bias, (int)col + e, (int)args.schedule.n);
    if (args.residual)
        imx_vector_add(DTYPE, sum, imx_vector_load((const uint4 *)args.residual + at), false);
    ((uint4 *)args.c)[at] = imx_vector_narrow(DTYPE, sum);
}

/* d's columns from col on, as products leave them: a row's elements 4j and 4j + 1 are beside each
 * other, 4j + 2 and 4j + 3 eight rows below.  Beyond n it does not matter. */
template <int count>
IMX_FN void add_bias(float (&d)[HALVES][count], const imx_gemm_args &args, int col)
{
    const uint16_t *bias = (const uint16_t *)args.bias;
    int n = (int)args.schedule.n, at = col + lane_here() % 4 * 2;
#pragma unroll
    for (int j = 0; j < count && bias; j += 4, at += 8) {
        float b0 = bias_at(bias, at, n), b1 = bias_at(bias, at + 1, n);
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            d[h][j] += b0, d[h][j + 1] += b1;
            d[h][j + 2] += b0, d[h][j + 3] += b1;
        }
    }
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Where in its piece of c a row's 16-byte unit lies, as the copy engine will read it: swizzled
 * where rows are 128 or 64 bytes; else rows of an odd number of units mostly, which meet no bank
 * twice. */
IMX_FN uint32_t piece_offset(int row, int unit)
{
    if (PIECE_SWIZZLE == 3)
        return row * 128 + ((unit ^ (row & 7)) << 4);
    if (PIECE_SWIZZLE == 2)
        return row * 64 + ((unit ^ (row >> 1 & 3)) << 4);
    return row * PIECE_COLS * 2 + (unit << 4);
}

/* One warp's piece by ordinary stores, with an eye to both edges. */
IMX_FN void store_plain(const imx_gemm_args &args, uint16_t *home, int row, int rows, int col,
                        uint32_t piece)
{
    int lane = lane_here(), n = (int)args.schedule.n;
#pragma unroll 1
    for (int r = 0; r < 16 && r < rows; r++) {
#pragma unroll 1
        for (int c = lane; c < PIECE_COLS && col + c < n; c += 32) {
            uint16_t element;
            uint32_t from = piece + piece_offset(r, c / 8) + c % 8 * 2;
            asm volatile("ld.shared.u16 %0, [%1];" : "=h"(element) : "r"(from) : "memory");
            home[(int64_t)(row + r) * n + col + c] = element;
        }
    }
}

/* The same where rows are whole units of 16 bytes. */
IMX_FN void store_units(const imx_gemm_args &args, uint16_t *home, int row, int rows, int col,
                        uint32_t piece)
{
    enum { UNITS = PIECE_COLS / 8 };
    int n = (int)args.schedule.n;
#pragma unroll 1
    for (int i = lane_here(); i < 16 * UNITS && i < rows * UNITS; i += 32) {
        int r = i / UNITS, unit = i % UNITS, at = col + unit * 8;
        if (at < n)
            *(uint4 *)&home[(int64_t)(row + r) * n + at] = ld_shared(piece + piece_offset(r, unit));
    }
}

/* This warp's buffer for piece p of a tile: whatever was in it has left. */
IMX_FN uint32_t take_buffer(uint32_t base, int p)
{
    /* With an odd number of pieces the first follows the last tile's last in the same buffer. */
    bool other = IMX_BUFFERS == 2 && (p > 0 || PIECES % 2 == 0);
    if (lane_here() == 0) {
        if (other)
            bulk_wait_read(1);
        else
            bulk_wait_read(0);
    }
    __syncwarp();
    return base + C_AT + ((threadIdx.x / 32 - 4) * IMX_BUFFERS + p % IMX_BUFFERS) * PIECE_BYTES;
}

/* This warp's place for piece p where the stages were, which no consumer reads any more. */
IMX_FN uint32_t take_stages(uint32_t base, int p)
{
    return base + ((threadIdx.x / 32 - 4) * PIECES + p) * PIECE_BYTES;
}

/* A piece's words, as they lie in registers: x[2i] of columns 8i + 2 * (lane % 4) and row lane / 4,
 * x[2i + 1] of eight rows below. */
IMX_FN void fill_buffer(uint32_t piece, const uint32_t *x)
{
    int lane = lane_here(); /* addresses made of it are not worth a register through the loops */
    int own_row = lane & 15, right = lane >> 4;
#pragma unroll
    for (int unit = 0; unit < PIECE_COLS / 8; unit += 2, x += 4) {
        if (unit + 2 <= PIECE_COLS / 8)
            st_matrix4(piece + piece_offset(own_row, unit + right), x[0], x[1], x[2], x[3]);
        else
            st_matrix2(piece + piece_offset(own_row, unit), x[0], x[1]);
    }
}

/* By the copy engine; the map ends where the rows do. */
IMX_FN void send_buffer(const imx_tma_map *to, uint32_t piece, int col, int row, bool any)
{
    tma_fence_shared();
    __syncwarp();
    if (lane_here() == 0) {
        if (any)
            tma_store(to, col, row, piece);
        bulk_commit();
    }
}

#endif /* IMX_SM90_STORE_CUH */
