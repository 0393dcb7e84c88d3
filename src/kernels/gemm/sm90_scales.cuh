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

enum { PRODUCTS = IMX_TILE_N / IMX_PRODUCT_N }; /* side by side in a tile */

#if IMX_SCALING

/* Past the L1 cache, which does not hear of what peers bring.  0: there is none. */
IMX_FN float scale_at(const float *scale, bool there)
{
    float x;
    asm volatile("{\n\t.reg .pred there;\n\t"
                 "setp.ne.b32 there, %2, 0;\n\t"
                 "mov.f32 %0, 0f00000000;\n\t"
                 "@there ld.global.cg.f32 %0, [%1];\n\t}"
                 : "=f"(x)
                 : "l"(scale), "r"((int)there)
                 : "memory");
    return x;
}

#endif

#if IMX_SCALING == 3

enum { BLOCK_COLS = 128, COL_BLOCKS = BLOCK_COLS % IMX_TILE_N ? 2 : 1 };
static_assert(PRODUCTS > 1 ? IMX_PRODUCT_N == BLOCK_COLS
                           : IMX_TILE_N % 32 == 0 && IMX_TILE_N <= 192,
              "else columns lie in three blocks");

/* Of a step, as they come; of b's blocks one, which neighbours in the tile have in turns. */
typedef struct block_scales {
    float row[2], col;
} block_scales;

/* Which of b's blocks this lane loads the scale of. */
IMX_FN int block_here(void)
{
    return COL_BLOCKS > 1 ? lane_here() / 4 % 2 : 0;
}

/* Of a step's products: of each of b's blocks and of each row. */
typedef struct product_scales {
    float of[COL_BLOCKS][2];
} product_scales;

/* Here a lane waits for its loads, before the next ones begin: what they come to is in other
 * registers. */
IMX_FN product_scales arrived(const block_scales &s)
{
    product_scales p;
#pragma unroll
    for (int i = 0; i < COL_BLOCKS; i++) {
        float of_b = s.col;
        if (COL_BLOCKS > 1)
            of_b = __shfl_sync(0xffffffffu, s.col, i * 4 + lane_here() % 4);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            p.of[i][h] = of_b * s.row[h];
            asm volatile("" : "+f"(p.of[i][h]) : : "memory");
        }
    }
    return p;
}

/* Of product q of that step.  scales: of it and the three beside it, a lane's own. */
IMX_FN product_scales scales_of(const product_scales &scales, int step, int q)
{
    product_scales s;
#pragma unroll
    for (int i = 0; i < COL_BLOCKS; i++) {
        if (PRODUCTS > 1 && i != q)
            continue;
        s.of[i][0] = __shfl_sync(0xffffffffu, scales.of[i][0], step, 4);
        s.of[i][1] = __shfl_sync(0xffffffffu, scales.of[i][1], step, 4);
    }
    return s;
}

/* sum += part, product q of a step of a tile whose columns begin at col. */
IMX_FN void add_scaled(float (&sum)[IMX_ACC], const float (&part)[IMX_PRODUCT_ACC],
                       const product_scales &s, int col, int q)
{
    int left = BLOCK_COLS - col % BLOCK_COLS; /* columns in the first block: 32 or more */
#pragma unroll
    for (int j = 0; j < IMX_PRODUCT_ACC; j++) {
        bool is_first = PRODUCTS > 1 ? q == 0 : j / 16 * 32 < left;
        float scale = is_first ? s.of[0][j / 2 % 2] : s.of[COL_BLOCKS - 1][j / 2 % 2];
        float *to = &sum[q * IMX_PRODUCT_ACC + j];
        *to = __fmaf_rn(scale, part[j], *to);
    }
}

#else

/* sum += part, a step's product q. */
IMX_FN void add_part(float (&sum)[IMX_ACC], const float (&part)[IMX_PRODUCT_ACC], int q)
{
#pragma unroll
    for (int j = 0; j < IMX_PRODUCT_ACC; j++)
        sum[q * IMX_PRODUCT_ACC + j] += part[j];
}

#endif

#if IMX_SCALING == 2

static_assert(IMX_TILE_N % 32 == 0, "each lane has as many columns");

/* Of a whole tile: of this lane's two rows, and of every 32nd of the columns. */
typedef struct tile_scales {
    float row[2], col[IMX_TILE_N / 32];
} tile_scales;

/* `cols` has those of n columns, of which the tile's begin at col.  What is not there does not
 * matter. */
IMX_FN void load_cols(tile_scales *s, const float *cols, int col, int n)
{
    col += lane_here();
#pragma unroll
    for (int i = 0; i < IMX_TILE_N / 32; i++)
        s->col[i] = scale_at(cols + col + i * 32, col + i * 32 < n);
}

IMX_FN void scale_sums(float (&sum)[IMX_ACC], const tile_scales &s)
{
    float upper = s.row[0], lower = s.row[1];
#pragma unroll
    for (int j = 0; j < IMX_ACC; j += 4) {
        int from = j / 4 % 4 * 8 + lane_here() % 4 * 2;
        float c0 = __shfl_sync(0xffffffffu, s.col[j / 16], from);
        float c1 = __shfl_sync(0xffffffffu, s.col[j / 16], from + 1);
        sum[j] *= upper * c0, sum[j + 1] *= upper * c1;
        sum[j + 2] *= lower * c0, sum[j + 3] *= lower * c1;
    }
}

#endif

#endif /* IMX_SM90_SCALES_CUH */
