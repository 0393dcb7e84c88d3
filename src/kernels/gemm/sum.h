/* sum.h - where parts of a tile travel to, if the product's kernel adds them up
 * (IMX_GEMM_REDUCE_PUSH): pure functions, for every target and for the operator.
 *
 * All ranks cut the product into the same tiles.  Who has made a tile sends each rank its rows of
 * it.  Own rows are added up by who made them, too, or, on GPUs, by all warps, which share them
 * out, since a tile has own rows or none.  Slot r of a rank's data is for what comes from rank
 * r.  What lies where in it is the kernel's own matter, but all ranks' kernels are of the same
 * form, and as many blocks make a tile.  On GPUs rows travel in groups of IMX_SUM_ROWS, which begin
 * at multiples of that in the whole matrix: a rank's rows are some of the first group's, all of the
 * next, and so on; on CPUs a slot is [own rows, n], and signal tile * ranks + r says that rank r's
 * part is there.
 */
#ifndef IMX_SUM_H
#define IMX_SUM_H

#include "schedule.h"

enum {
    IMX_SUM_ROWS = 16,
    IMX_SUM_COLS = 64, /* on GPUs a tile takes a multiple of so many columns */
};

/* Most groups that a rank's rows lie in. */
IMX_SCHEDULE_FN int imx_sum_groups(int m, int ranks)
{
    unsigned rows = ((unsigned)m + (unsigned)ranks - 1) / (unsigned)ranks;
    return (int)((rows + IMX_SUM_ROWS - 2) / IMX_SUM_ROWS + 1);
}

IMX_SCHEDULE_FN long long imx_sum_tiles(long long m, long long n, int tile_rows, int tile_cols)
{
    return imx_schedule_ceil(m, tile_rows) * imx_schedule_ceil(n, tile_cols);
}

/* Of a slot; element: bytes. */
IMX_SCHEDULE_FN long long imx_sum_slot_bytes(long long m, long long n, int ranks, int tile_cols,
                                             int element)
{
    long long cols = imx_schedule_ceil(tile_cols, IMX_SUM_COLS) * IMX_SUM_COLS;
    return imx_schedule_ceil(n, tile_cols) * cols * imx_sum_groups((int)m, ranks) * IMX_SUM_ROWS *
           element;
}

#endif /* IMX_SUM_H */
