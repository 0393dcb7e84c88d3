/* ring.h - how a's rows travel from rank to rank beneath a product (IMX_GEMM_FORWARDS): pure
 * functions of the schedule, for every target and for the tests.
 *
 * Rank r multiplies its own rows first, then those of r + 1, r + 2, ...  The tiles that read rows
 * first pass them on to rank r - 1, which comes to them one step later:
 *
 *     step          0            1            2            3
 *     rank 2 of 4   | own -> 1   | 3's -> 1   | 0's -> 1   | 1's |
 *     rank 1        | own -> 0   | 2's -> 0   | 3's -> 0   | 0's |
 *     rank 0        | own -> 3   | 1's -> 3   | 2's -> 3   | 3's |
 *
 * Only the last step's rows end here: they began with the rank before.
 *
 * What travels under one signal is one strip, the rows of a tile (on GPUs of each block of its
 * cluster, a lane), and of it one slice of k: a step begins while the last tiles of the one before
 * are still under way, and a tile while its own rows' last columns are.  Tiles side by side pass on
 * a slice each: a block that passes on is slower meanwhile, and one that had a whole strip to pass
 * on would be late for all that comes after.  Tiles of one wave are at the same columns of k at the
 * same time; so that they do not ask all of the link at once, slices side by side are those of
 * different waves, where there are several before the rows are wanted:
 *
 *     columns of c    | 0 1 2 3 4 ...  | 8 9 10 11 12 ... |
 *     slices of k     | 0 2 4 6 8 ...  | 1 3 5  7  9  ... |    in two waves
 *
 * It never locks up.  Blocks take their tiles in order, and a tile of step s waits for nothing but
 * tiles of step s - 1 on the next rank, before which that rank's blocks have only tiles of steps up
 * to s - 1.  So, by induction over s, all tiles of step s - 1 come to their end: those of step 0
 * wait for nobody.  A tile's last slice must therefore be posted without waiting for the next
 * tile's rows.
 */
#ifndef IMX_RING_H
#define IMX_RING_H

#include "schedule.h"

enum {
    IMX_RING_LANES = 2, /* most blocks of a cluster */
    IMX_RING_STEP = 64, /* columns: slices are so many times that */
    /* Of a slice: a post takes a few microseconds, in which loads go on. */
    IMX_RING_STEPS_LEAST = 4,
    IMX_RING_SLICES_MOST = 16,
    /* Tiles side by side in a wave: 66 clusters, eight tile rows. */
    IMX_RING_BESIDE = 8,
    IMX_RING_WAVES_MOST = 4,
};

/* Columns of k in a slice: a multiple of IMX_RING_STEP, or all. */
IMX_SCHEDULE_FN int imx_ring_slice_k(long long k)
{
    long long steps = imx_schedule_ceil(k, IMX_RING_STEP), slices = steps / IMX_RING_STEPS_LEAST;
    if (slices > IMX_RING_SLICES_MOST)
        slices = IMX_RING_SLICES_MOST;
    return (int)(slices < 2 ? k : imx_schedule_ceil(steps, slices) * IMX_RING_STEP);
}

/* At least 1, also where k is 0. */
IMX_SCHEDULE_FN int imx_ring_slices(long long k)
{
    return k ? (int)imx_schedule_ceil(k, imx_ring_slice_k(k)) : 1;
}

/* The rank that gets what this rank, s->first, passes on. */
IMX_SCHEDULE_FN int imx_ring_to(const imx_schedule *s)
{
    return s->first ? s->first - 1 : s->ranks - 1;
}

/* The rank that passes rows on to this one. */
IMX_SCHEDULE_FN int imx_ring_from(const imx_schedule *s)
{
    return s->first + 1 < s->ranks ? s->first + 1 : 0;
}

/* At which step this rank comes to the owner's rows. */
IMX_SCHEDULE_FN int imx_ring_step(const imx_schedule *s, int owner)
{
    return owner < s->first ? owner - s->first + s->ranks : owner - s->first;
}

/* In how many waves rows go on, where there are so many columns of tiles. */
IMX_SCHEDULE_FN int imx_ring_waves(int columns)
{
    int waves = columns / (2 * IMX_RING_BESIDE);
    return waves < 1 ? 1 : waves < IMX_RING_WAVES_MOST ? waves : IMX_RING_WAVES_MOST;
}

/* The column of tiles that passes a slice on. */
IMX_SCHEDULE_FN int imx_ring_column(int columns, int slice)
{
    int waves = imx_ring_waves(columns);
    return waves == 1 ? slice % columns : slice % waves * IMX_RING_BESIDE + slice / waves;
}

/* Whether it has one to pass on. */
IMX_SCHEDULE_FN int imx_ring_takes_part(int columns, int column, int slices)
{
    int waves = imx_ring_waves(columns), wave = column / IMX_RING_BESIDE;
    if (waves == 1)
        return column < slices;
    return wave < waves && column % IMX_RING_BESIDE * waves + wave < slices;
}

/* Whether the tile at that column of c passes a slice of its rows on: whether it is its turn, and
 * they do not end here.  For schedules without bands. */
IMX_SCHEDULE_FN int imx_ring_passes(const imx_schedule *s, int owner, long long col, int slice)
{
    int columns = (int)imx_schedule_ceil(s->n, s->tile_cols);
    return imx_ring_column(columns, slice) == col / s->tile_cols &&
           imx_ring_step(s, owner) < s->ranks - 1;
}

/* Strips of one rank's rows, at most. */
IMX_SCHEDULE_FN int imx_ring_strips(const imx_schedule *s)
{
    return s->chunks * (s->chunk_rows / s->tile_rows) * IMX_RING_LANES;
}

/* Number of the strip of a tile, whose first row is rank_row of the owner's. */
IMX_SCHEDULE_FN int imx_ring_strip(const imx_schedule *s, int owner, int rank_row, int lane)
{
    return owner * imx_ring_strips(s) + rank_row / s->tile_rows * IMX_RING_LANES + lane;
}

/* Of a strip's slice, on the rank that gets it. */
IMX_SCHEDULE_FN long long imx_ring_signal(int strip, int slices, int slice)
{
    return (long long)strip * slices + slice;
}

#endif /* IMX_RING_H */
