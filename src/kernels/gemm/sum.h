/* sum.h - where parts of a tile travel to, if whoever made it adds it up (IMX_GEMM_SUMS): pure
 * functions, for every target and for the operator.
 *
 * All ranks cut the product into the same tiles, one row of them.  Who has made a tile sends each
 * rank its rows of it, and adds to its own rows what the peers send of the same tile.  Slot r of a
 * rank's data is for what comes from rank r.  What lies where in it is the kernel's own matter, but
 * all ranks' kernels are of the same form, and as many blocks make a tile.  On GPUs rows travel in
 * groups of IMX_SUM_ROWS, which begin at multiples of that in the whole matrix: a rank's rows are
 * some of the first group's, all of the next, and so on; on CPUs a slot is [own rows, n], and
 * signal r * tiles + tile says that rank r's part is there.
 */
#ifndef IMX_SUM_H
#define IMX_SUM_H

#include "schedule.h"

enum {
    IMX_SUM_ROWS = 16,
    IMX_SUM_SHARE = 2, /* times its bytes that an element may take, with what flags it carries */
};

/* Most groups that a rank's rows lie in. */
IMX_SCHEDULE_FN int imx_sum_groups(long long m, int ranks)
{
    return (int)((imx_schedule_ceil(m, ranks) + IMX_SUM_ROWS - 2) / IMX_SUM_ROWS + 1);
}

IMX_SCHEDULE_FN int imx_sum_tiles(long long n, int tile_cols)
{
    return (int)imx_schedule_ceil(n, tile_cols);
}

/* Of a slot; element: bytes. */
IMX_SCHEDULE_FN long long imx_sum_slot_bytes(long long m, long long n, int ranks, int tile_cols,
                                             int element)
{
    return (long long)imx_sum_tiles(n, tile_cols) * tile_cols * imx_sum_groups(m, ranks) *
           IMX_SUM_ROWS * element * IMX_SUM_SHARE;
}

#endif /* IMX_SUM_H */
