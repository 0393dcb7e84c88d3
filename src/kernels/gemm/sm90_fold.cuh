/* sm90_fold.cuh - with IMX_STORE: tiles of a rank's own rows become c, once all parts of them lie
 * in its slots.
 *
 *     consumers     | products of own tile 0 | of own tile 1       | of own tile 2       | fold 2
 *                                            | store 0 to own slot | store 1             |
 *     idle warps of the producer                                   | fold 0 | ...        | fold 1
 *
 * A block folds the tiles that it made, so that nobody else need know of them.  Its last one is
 * folded by those who made it: every warp its own rows, at once.
 */
#ifndef IMX_SM90_FOLD_CUH
#define IMX_SM90_FOLD_CUH

#include "sm90_layout.cuh"
#include "sm90_tile.h"
#include "team.cuh"

#ifdef IMX_BIAS
/* Volatile, so that the loads stay where they are: all of them at once want too many registers. */
IMX_FN float bias_at(const uint16_t *bias, int at, int n)
{
    uint16_t element = 0;
    if (at < n)
        asm volatile("ld.global.u16 %0, [%1];" : "=h"(element) : "l"(bias + at) : "memory");
    return unpack(element);
}
#endif

#ifdef IMX_STORE

enum {
    FOLD_COLS = 8, /* elements of 16 bytes, a unit */
    UNITS = IMX_TILE_N / FOLD_COLS,
    PARTS_AT_ONCE = 4,
};

/* ---- who may read an own tile ---------------------------------------------------------------- */

/* How many warps have stored how many own tiles, in all. */
IMX_FN uint32_t &stored_own(void)
{
    return *(uint32_t *)(shared + STORED_AT);
}

/* One lane of a warp: its share of an own tile lies in this rank's slot.  Release: the slot's data
 * comes first. */
IMX_FN void count_own(void)
{
    asm volatile("red.release.cta.shared.add.u32 [%0], 1;" : : "r"(shared_base() + STORED_AT)
                 : "memory");
}

/* One warp: until all warps have stored `tiles` own tiles, which nothing holds up but other blocks'
 * loads; 0: they gave up. */
IMX_FN int own_stored(uint32_t tiles)
{
    uint32_t stored;
    do {
        asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
                     : "=r"(stored)
                     : "r"(shared_base() + STORED_AT)
                     : "memory");
        if (gave_up_here())
            return 0;
        if (stored < tiles * CONSUMERS * 4)
            __nanosleep(500);
    } while (stored < tiles * CONSUMERS * 4);
    return 1;
}

/* ---- sums ------------------------------------------------------------------------------------ */

#ifndef IMX_C_PLAIN

/* sum = part, or += if this is not the first one (which is not 0 + part: -0 stays -0). */
IMX_FN void add_part(float (&sum)[FOLD_COLS], uint4 part, bool first)
{
    const uint32_t words[] = { part.x, part.y, part.z, part.w };
#pragma unroll
    for (int i = 0; i < FOLD_COLS; i++) {
        float x = unpack((uint16_t)(words[i / 2] >> i % 2 * 16));
        sum[i] = first ? x : sum[i] + x;
    }
}

/* Unit number `at` of c: the parts, in rank order, and bias. */
IMX_FN void fold_unit(const imx_gemm_args &args, uint32_t at)
{
    int size = args.team.size;
    const char *from = imx_team_data(&args.team, args.team.rank) + (int64_t)at * 16;
    float sum[FOLD_COLS];
#pragma unroll 1
    for (int r = 0; r < size; r += PARTS_AT_ONCE) {
        uint4 part[PARTS_AT_ONCE]; /* all under way before the first is added */
#pragma unroll
        for (int j = 0; j < PARTS_AT_ONCE; j++, from += args.slot_bytes)
            part[j] = r + j < size ? imx_vector_load(from) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < PARTS_AT_ONCE; j++)
            if (r + j < size)
                add_part(sum, part[j], r + j == 0);
    }
    if (args.bias) {
        int n = (int)args.schedule.n, col = (int)(at % ((uint32_t)n / FOLD_COLS)) * FOLD_COLS;
#pragma unroll
        for (int e = 0; e < FOLD_COLS; e++)
            sum[e] += bias_at((const uint16_t *)args.bias, col + e, n);
    }
    ((uint4 *)args.c)[at] = make_uint4(pack(sum[0], sum[1]), pack(sum[2], sum[3]),
                                        pack(sum[4], sum[5]), pack(sum[6], sum[7]));
}

#else

/* The same of as many as there are before column n, one by one. */
IMX_FN void fold_unit(const imx_gemm_args &args, int row, int col)
{
    int n = (int)args.schedule.n;
    int64_t at = (int64_t)row * n + col;
    const char *from = imx_team_data(&args.team, args.team.rank) + at * 2;
    for (int e = 0; e < FOLD_COLS && col + e < n; e++) {
        float sum = unpack(((const volatile uint16_t *)from)[e]);
        for (int r = 1; r < args.team.size; r++)
            sum += unpack(((const volatile uint16_t *)(from + r * args.slot_bytes))[e]);
        if (args.bias)
            sum += bias_at((const uint16_t *)args.bias, col + e, n);
        ((uint16_t *)args.c)[at + e] = (uint16_t)pack(sum, 0);
    }
}

#endif

/* One lane's units of [rows, IMX_TILE_N] from row, col of own rows on: number `first` and every
 * step-th from there. */
IMX_FN void fold_units(const imx_gemm_args &args, int row, int rows, int col, int first, int step)
{
    int n = (int)args.schedule.n;
#ifndef IMX_C_PLAIN
    uint32_t at = (uint32_t)row * (uint32_t)(n / FOLD_COLS) + (uint32_t)col / FOLD_COLS;
    int columns = (n - col) / FOLD_COLS;
#endif
#pragma unroll 1
    for (int i = first; i < rows * UNITS; i += step) {
        int r = i / UNITS, unit = i - r * UNITS;
#ifndef IMX_C_PLAIN
        if (unit < columns)
            fold_unit(args, at + (uint32_t)(r * (n / FOLD_COLS) + unit));
#else
        if (col + unit * FOLD_COLS < n)
            fold_unit(args, row + r, col + unit * FOLD_COLS);
#endif
    }
}

/* ---- who folds ------------------------------------------------------------------------------- */

/* The thread, worked out where it stands: a volatile read that the compiler does not move. */
IMX_FN int thread_here(void)
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* One of the idle warps, which are those of the producer but its first: its share of this block's
 * own tiles, but for the block's last.  0: gave up. */
IMX_FN int fold_tiles(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    enum { LANES = 96 };
    unsigned stride = gridDim.x / CLUSTER;
    uint32_t tiles = 0;
#pragma unroll 1
    for (unsigned index = blockIdx.x / CLUSTER; index + stride < tiles_of(); index += stride) {
        imx_sm90_tile t = imx_sm90_tile_at(&args.schedule, TILE_ROWS, TILE_COLS, index);
        if (t.rank != args.team.rank)
            continue;
        int row = t.rank_row + block_m() * IMX_TILE_M, rows = t.rows - block_m() * IMX_TILE_M;
        int col = t.col + block_n() * IMX_TILE_N;
        rows = rows < IMX_TILE_M ? rows : IMX_TILE_M;
        /* In this order: so many warps that look for the peers' signals would hold them up. */
        if (!own_stored(++tiles) || !team_parts(args, watch, t.chunk))
            return 0;
        imx_trace_begin(IMX_TRACE_FOLD);
        fold_units(args, row, rows, col, thread_here() - 32, LANES);
        imx_trace_end(IMX_TRACE_FOLD, t.rank, t.chunk);
    }
    return 1;
}

/* One consumer warp, which has stored its rows of this tile, the block's last, if it is of own
 * rows: `rows` from first_row of the block's tile on.  0: gave up. */
IMX_FN int fold_last(const imx_gemm_args &args, const imbrexd_watch *watch, const tile_info *note,
                     int first_row, int halves)
{
    if (note->owner != args.team.rank || note->chunk == GAVE_UP)
        return note->chunk != GAVE_UP;
    if (!team_parts(args, watch, note->chunk))
        return 0;
    imx_trace_begin(IMX_TRACE_FOLD);
#pragma unroll 1
    for (int h = 0; h < halves; h++) {
        int rows = note->rows - first_row - h * 64;
        fold_units(args, note->row + first_row + h * 64, rows < 16 ? rows : 16, note->col,
                   (int)threadIdx.x % 32, 32);
    }
    imx_trace_end(IMX_TRACE_FOLD, note->owner, note->chunk);
    return 1;
}

#endif

#endif /* IMX_SM90_FOLD_CUH */
