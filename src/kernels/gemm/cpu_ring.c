/* cpu_ring.c - rows of a go on from rank to rank beneath a product, on CPU ranks; see ring.h. */
#include <stdbool.h>
#include <string.h>

#include "cpu_team.h"
#include "kernels/dtype.h"

/* Columns [from, from + cols) of the tile's rows. */
static void copy_slice(const imx_gemm_args *args, const imx_tile *tile, const char *rows,
                       int64_t from, int64_t cols)
{
    size_t element = (size_t)imx_dtype_size(args->dtype), row_bytes = (size_t)args->k * element;
    size_t at = (size_t)from * element, bytes = (size_t)cols * element;
    char *theirs = imx_team_data(&args->team, imx_ring_to(&args->schedule)) +
                   (size_t)tile->row * row_bytes + at;
    imbrexd_check_read(rows + at, bytes, row_bytes, (size_t)tile->rows);
    imbrexd_check_write(theirs, bytes, row_bytes, (size_t)tile->rows);
    for (int row = 0; row < tile->rows && bytes; row++)
        memcpy(theirs + (size_t)row * row_bytes, rows + (size_t)row * row_bytes + at, bytes);
}

/* The scales of the tile's rows, with the first slice. */
static void copy_scales(const imx_gemm_args *args, const imx_tile *tile)
{
    size_t row_bytes = (size_t)args->row_scales * sizeof(float);
    size_t bytes = (size_t)tile->rows * row_bytes;
    if (!bytes)
        return;
    const float *mine = imx_cpu_team_scales(args, tile, 0);
    char *theirs = imx_team_data(&args->team, imx_ring_to(&args->schedule)) + args->scales +
                   (size_t)tile->row * row_bytes;
    imbrexd_check_read(mine, bytes, bytes, 1);
    imbrexd_check_write(theirs, bytes, bytes, 1);
    memcpy(theirs, mine, bytes);
}

int imx_cpu_ring_pass(const imx_gemm_args *args, const imbrexd_block *block, const imx_tile *tile,
                      const void *rows)
{
    const imx_schedule *s = &args->schedule;
    int to = imx_ring_to(s), strip = imx_ring_strip(s, tile->rank, (int)tile->rank_row, 0);
    bool asked = false;
    for (int i = 0; i < args->slices; i++) {
        int64_t from = (int64_t)i * args->slice_k, left = args->k - from;
        if (!imx_ring_passes(s, tile->rank, tile->col, i))
            continue;
        if (!asked && !imx_cpu_team_credit(args, block, to))
            return 0;
        asked = true;
        copy_slice(args, tile, rows, from, left < args->slice_k ? left : args->slice_k);
        if (!i)
            copy_scales(args, tile);
        imbrexd_signal_post(
            imx_team_signal(&args->team, to, imx_ring_signal(strip, args->slices, i)),
            imx_cpu_team_epoch(args));
    }
    return 1;
}
