/* tile.h - the product of examples 07 to 09: small, plain, on CPUs and GPUs alike.  How fast it is
 * matters little there; what runs beneath it does. */
#ifndef TILE_H
#define TILE_H

#include "imbrex_device.h"

enum { TILE = 16, ROWS = 64, N = 64, K = 64 }; /* ROWS: of one rank's share */

/* c[TILE, N] from column col to col + TILE = a[TILE, K] * b[N, K]^T; by all threads of a block. */
IMBREXD_FN void tile_product(float *c, const float *a, const float *b, int col)
{
    for (int i = (int)imbrexd_thread(); i < TILE * TILE; i += (int)imbrexd_threads()) {
        const float *row = a + i / TILE * K, *other = b + (col + i % TILE) * K;
        float sum = 0;
        for (int k = 0; k < K; k++)
            sum += row[k] * other[k];
        c[i / TILE * N + col + i % TILE] = sum;
    }
}

#ifndef KERNEL
/* Element i of a row of a matrix: small whole numbers, so that sums are exact. */
static inline float tile_value(int matrix, int row, int i)
{
    return (float)((row * 3 + matrix * 5 - i) % 7);
}

static inline void tile_fill(float *at, int matrix, int first, int rows)
{
    for (int i = 0; i < rows * K; i++)
        at[i] = tile_value(matrix, first + i / K, i % K);
}

/* What row of matrix a and row `col` of matrix b make. */
static inline float tile_wanted(int a, int row, int b, int col)
{
    float sum = 0;
    for (int k = 0; k < K; k++)
        sum += tile_value(a, row, k) * tile_value(b, col, k);
    return sum;
}
#endif

#endif /* TILE_H */
