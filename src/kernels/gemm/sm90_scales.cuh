/* sm90_scales.cuh - scales of sums of products of 8-bit a and b (args.h), whoever's they are.
 *
 * A lane has elements of two rows, eight apart.  PER_BLOCK: a step has one scale of each row and,
 * as a tile's columns lie in one or two blocks of 128 of b's rows, one or two of b.  Four lanes
 * share their rows: each loads the scales of one step in four, for all of them.
 */
#ifndef IMX_SM90_SCALES_CUH
#define IMX_SM90_SCALES_CUH

#include "sm90_ptx.cuh"

static_assert(IMBREX_E4M3 == 4 && IMBREX_PER_TENSOR == 1 && IMBREX_PER_ROW == 2 &&
                  IMBREX_PER_BLOCK == 3,
              "the preprocessor knows no enumerators");

#if IMX_SCALING

/* Past the L1 cache, which does not hear of what peers bring.  0: there is none. */
IMX_FN float scale_at(const float *scale, bool there)
{
    float x = 0;
    if (there)
        asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(scale) : "memory");
    return x;
}

#endif

#if IMX_SCALING == 3

enum { BLOCK_COLS = 128, COL_BLOCKS = BLOCK_COLS % IMX_TILE_N ? 2 : 1 };
static_assert(IMX_TILE_N % 32 == 0 && IMX_TILE_N <= 192, "else columns lie in three blocks");

/* Of a step. */
typedef struct block_scales {
    float row[2], col[COL_BLOCKS];
} block_scales;

/* sum += part, the products of a step of a tile whose columns begin at col; scales: of that step
 * and the three beside it, a lane's own. */
IMX_FN void add_scaled(float (&sum)[IMX_ACC], const float (&part)[IMX_ACC],
                       const block_scales &scales, int col, int step)
{
    float s[COL_BLOCKS][2];
    int left = BLOCK_COLS - col % BLOCK_COLS; /* columns in the first block: 32 or more */
#pragma unroll
    for (int i = 0; i < COL_BLOCKS; i++) {
        float of_b = __shfl_sync(0xffffffffu, scales.col[i], step, 4);
        s[i][0] = of_b * __shfl_sync(0xffffffffu, scales.row[0], step, 4);
        s[i][1] = of_b * __shfl_sync(0xffffffffu, scales.row[1], step, 4);
    }
#pragma unroll
    for (int j = 0; j < IMX_ACC; j++) {
        const float of_first = s[0][j / 2 % 2], of_second = s[COL_BLOCKS - 1][j / 2 % 2];
        sum[j] = __fmaf_rn(j / 16 * 32 < left ? of_first : of_second, part[j], sum[j]);
    }
}

#else

/* sum += part. */
IMX_FN void add_part(float (&sum)[IMX_ACC], const float (&part)[IMX_ACC])
{
#pragma unroll
    for (int j = 0; j < IMX_ACC; j++)
        sum[j] += part[j];
}

#endif

#if IMX_SCALING == 2

/* A whole tile's sums, times their rows' scales, and their columns': `cols` has those of n columns,
 * of which the tile's begin at col.  What is not there does not matter. */
IMX_FN void scale_sums(float (&sum)[IMX_ACC], float upper, float lower, const float *cols, int col,
                       int n)
{
    col += lane_here() % 4 * 2;
#pragma unroll
    for (int j = 0; j < IMX_ACC; j += 4, col += 8) {
        float c0 = scale_at(cols + col, col < n), c1 = scale_at(cols + col + 1, col + 1 < n);
        sum[j] *= upper * c0, sum[j + 1] *= upper * c1;
        sum[j + 2] *= lower * c0, sum[j + 3] *= lower * c1;
    }
}

#endif

#endif /* IMX_SM90_SCALES_CUH */
