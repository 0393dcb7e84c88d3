/* sm90_last.cuh - with IMX_FOLD: a block's last tile, where it is of own rows, becomes c straight
 * from the registers of those who made it, since nothing is left to hide a way through the slots.
 *
 *     consumer warp, its 16 rows   | own, rounded, to shared memory
 *                                  | sum = rank 0's part | += rank 1's | ... | bias | c
 *
 * Half of three parts is under way at once.  They come out of this rank's slots, one's own out of
 * the stages, which are free by then.  Where rows are not whole units it takes the way through the
 * slots all the same.
 */
#ifndef IMX_SM90_LAST_CUH
#define IMX_SM90_LAST_CUH

#include "sm90_fold.cuh"
#include "sm90_store.cuh"

#if defined(IMX_FOLD) && !defined(IMX_C_PLAIN)

#define NO_UNIT 0xffffffffu

enum {
    LAST_STORED = 0, /* whether an own tile that is the last is stored like any other */
    LAST_ROWS = 16,
    LAST_PITCH = IMX_TILE_N * 2 + 16, /* an odd number of units: rows meet in no bank */
    LAST_BYTES = LAST_ROWS * LAST_PITCH,
    LAST_UNITS = LAST_ROWS * UNITS / 32, /* a lane's: number lane, lane + 32, ... of the rows' */
    LAST_AT_ONCE = (LAST_UNITS + 1) / 2, /* of so many parts: for more there are no registers */
    LAST_PARTS = 3,
};
static_assert(CONSUMERS * 4 * LAST_BYTES <= C_AT, "own rows lie in the stages");

/* All consumers: nobody reads the stages any more. */
IMX_FN void last_meet(void)
{
    asm volatile("bar.sync 4, %0;" : : "n"(CONSUMERS * 128) : "memory");
}

/* This warp's rows, rounded, row by row. */
IMX_FN void last_put(const uint32_t (&packed)[IMX_ACC / 2], uint32_t own)
{
    int lane = lane_here();
    const uint32_t *x = packed;
    own += (lane & 15) * LAST_PITCH + (lane >> 4) * 16;
#pragma unroll
    for (int unit = 0; unit < UNITS; unit += 2, x += 4)
        st_matrix4(own + unit * 16, x[0], x[1], x[2], x[3]);
}

/* Unit i of the rows: where it is among units of c, or NO_UNIT. */
IMX_FN uint32_t last_at(uint32_t begin, uint32_t across, int rows, int columns, int i)
{
    int row = i / UNITS, unit = i - row * UNITS;
    if (row >= LAST_ROWS || row >= rows || unit >= columns)
        return NO_UNIT;
    return begin + (uint32_t)row * across + (uint32_t)unit;
}

IMX_FN uint4 last_own(uint32_t own, int i)
{
    return ld_shared(own + i / UNITS * LAST_PITCH + i % UNITS * 16);
}

/* The sum of units `first` and on of a lane; the rows are those from row, col of own rows on. */
IMX_FN void last_fold(const imx_gemm_args &args, int row, int rows, int col, uint32_t own,
                      int first)
{
    const imx_team &team = args.team;
    uint32_t across = (uint32_t)args.schedule.n / FOLD_COLS;
    uint32_t begin = (uint32_t)row * across + (uint32_t)col / FOLD_COLS;
    int columns = (int)across - col / FOLD_COLS;
    first = first * 32 + lane_here();
    const char *slot = imx_team_data(&team, team.rank);
    float sum[LAST_AT_ONCE][FOLD_COLS];
#pragma unroll 1
    for (int r = 0; r < team.size; r += LAST_PARTS) {
        uint4 part[LAST_PARTS][LAST_AT_ONCE];
#pragma unroll
        for (int p = 0; p < LAST_PARTS; p++) {
#pragma unroll
            for (int j = 0; j < LAST_AT_ONCE; j++) {
                uint32_t at = last_at(begin, across, rows, columns, first + 32 * j);
                part[p][j] = make_uint4(0, 0, 0, 0);
                if (r + p < team.size && at != NO_UNIT)
                    part[p][j] = r + p == team.rank ? last_own(own, first + 32 * j)
                                                    : imx_vector_load(slot + (int64_t)at * 16);
            }
            slot += args.slot_bytes;
        }
#pragma unroll
        for (int p = 0; p < LAST_PARTS; p++)
#pragma unroll
            for (int j = 0; j < LAST_AT_ONCE; j++)
                if (r + p < team.size)
                    add_part(sum[j], part[p][j], r + p == 0);
    }
#pragma unroll
    for (int j = 0; j < LAST_AT_ONCE; j++) {
        uint32_t at = last_at(begin, across, rows, columns, first + 32 * j);
        if (at != NO_UNIT)
            fold_put(args, at, sum[j]);
    }
}

/* One consumer warp.  0: gave up. */
IMX_FN int last_tile(const uint32_t (&packed)[HALVES][IMX_ACC / 2], const imx_gemm_args &args,
                     const imbrexd_watch *watch, const tile_info *note, int first_row)
{
    uint32_t own = shared_base() + (threadIdx.x / 32 - 4) * LAST_BYTES;
    last_meet(); /* those that give up, too */
    if (note->chunk == GAVE_UP || !team_parts(args, watch, note->chunk))
        return 0;
    imx_trace_begin(IMX_TRACE_FOLD);
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        int first = first_row + h * 64;
        __syncwarp();
        last_put(packed[h], own);
        __syncwarp();
#pragma unroll 1
        for (int unit = 0; unit < LAST_UNITS; unit += LAST_AT_ONCE)
            last_fold(args, note->row + first, note->rows - first, note->col, own, unit);
    }
    imx_trace_end(IMX_TRACE_FOLD, args.team.rank, -1);
    return 1;
}

#elif defined(IMX_FOLD)

enum { LAST_STORED = 1 };

/* The same, which this warp has stored. */
IMX_FN int last_tile(const uint32_t (&)[HALVES][IMX_ACC / 2], const imx_gemm_args &args,
                     const imbrexd_watch *watch, const tile_info *note, int first_row)
{
    __syncwarp(); /* what its first lane has seen stored, the others read */
    if (note->chunk == GAVE_UP || !team_parts(args, watch, note->chunk))
        return 0;
    imx_trace_begin(IMX_TRACE_FOLD);
#pragma unroll 1
    for (int h = 0; h < HALVES; h++) {
        int rows = note->rows - first_row - h * 64;
        fold_units(args, note->row + first_row + h * 64, rows < 16 ? rows : 16, note->col,
                   (int)threadIdx.x % 32, 32);
    }
    imx_trace_end(IMX_TRACE_FOLD, args.team.rank, -1);
    return 1;
}

#endif

#endif /* IMX_SM90_LAST_CUH */
