/* args.h - the contract of the reduce kernel: c[rows, n] = parts added in rank order, in float32,
 * then bias, then residual[rows, n], then one rounding.  c may be residual.
 *
 * Part r, [rows, n], lies at slots + r * slot_bytes; part `own` lies at own_part instead.  With
 * arrived != NULL, chunk q of part r != own is read only after arrived[r * chunks + q] >= *epoch: a
 * chunk is reduced as soon as its last part is there.
 *
 * For people, when a wait goes on too long: part r is what rank from + r * every sent, and chunk 0
 * here is number `chunk` of its rank's.
 */
#ifndef IMX_REDUCE_ARGS_H
#define IMX_REDUCE_ARGS_H

#include "../wait_points.h"
#include "imbrex_device.h"

typedef struct imx_reduce_args {
    int64_t rows, n;
    int dtype; /* imbrex_dtype */
    int ranks, own;
    int chunk_rows, chunks; /* chunks: stride of chunk numbers, as in gemm/schedule.h */
    int plan;               /* for the wait point, as are... */
    int from, every, chunk; /* ...these */
    const void *slots, *own_part;
    int64_t slot_bytes;
    const void *bias, *residual; /* NULL: none */
    void *c;
    const uint64_t *epoch, *arrived;
} imx_reduce_args;

#endif /* IMX_REDUCE_ARGS_H */
