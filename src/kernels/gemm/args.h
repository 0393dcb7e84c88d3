/* args.h - the contract of the GEMM kernel: c[m, n] = a[m, k] * b, tile by tile in the schedule's
 * order, with room for communication on both sides.  Every hook is off while its pointer is NULL.
 *
 *   a       rows of rank `own` come from `a` (own rows only, [rows, k]), all others from `gathered`
 * ([m, k]).  own = -1: all rows come from `a` ([m, k]). ready   before the first load of a tile of
 * a chunk that is not own: wait for ready[chunk] >= *use. done    after a tile: counters[chunk]
 * counts it; the chunk's last tile posts done[chunk] = *use.
 *
 * Products accumulate in float32; bias, if any, is added in float32; one rounding to dtype.
 */
#ifndef IMX_GEMM_ARGS_H
#define IMX_GEMM_ARGS_H

#include "../sites.h"
#include "imbrex_device.h"
#include "schedule.h"

typedef struct imx_gemm_args {
    imx_schedule schedule;
    int64_t k;
    int dtype, layout; /* imbrex_dtype, imbrex_layout */
    int own;
    int plan; /* for the site of a wait */
    const void *a, *gathered, *b, *bias;
    void *c;
    const uint64_t *use; /* value that ready is compared with and that done gets */
    const uint64_t *ready;
    uint64_t *done;
    uint32_t *counters;
} imx_gemm_args;

#endif /* IMX_GEMM_ARGS_H */
