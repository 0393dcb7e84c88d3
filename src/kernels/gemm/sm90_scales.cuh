/* sm90_scales.cuh - scales of products of 8-bit a and b (args.h), for sm90_eight.cu.
 *
 * A lane has elements of two rows, eight apart.  PER_BLOCK: a step has one scale of each row and,
 * as a tile's columns lie in one or two blocks of 128 of b's rows, one or two of b.  Four lanes
 * share their rows: each loads the scales of one step in four, for all of them, beneath products.
 */
#ifndef IMX_SM90_SCALES_CUH
#define IMX_SM90_SCALES_CUH

#include "sm90_layout.cuh"

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

/* The scales of this lane's upper row, the first of a warp's being first_row of the block's
 * tile. */
IMX_FN const float *row_scales(const imx_gemm_args &args, const tile_info *note, int first_row)
{
    int row = note->a_row;
    const float *from = args.scale_a;
#ifdef IMX_GATHER
    if (row >= 0)
        from = args.gathered_scales;
#endif
    row = (row < 0 ? ~row : row) + first_row + lane_here() / 4;
    return from + (int64_t)row * args.row_scales;
}

#endif

#if IMX_SCALING == 3

enum { BLOCK_COLS = 128, COL_BLOCKS = BLOCK_COLS % IMX_TILE_N ? 2 : 1 };
static_assert(IMX_TILE_N % 32 == 0 && IMX_TILE_N <= 192, "else columns lie in three blocks");

/* Of a step. */
typedef struct block_scales {
    float row[2], col[COL_BLOCKS];
} block_scales;

/* Of step `first` + the lane's number among its four. */
IMX_FN block_scales load_scales(const imx_gemm_args &args, const tile_info *note, int first_row,
                                int first)
{
    int lane = lane_here(), step = first + lane % 4, rows = note->rows - first_row - lane / 4;
    int block = note->col / BLOCK_COLS;
    bool there = step < steps_of(args);
    const float *of_rows = row_scales(args, note, first_row) + step;
    const float *of_cols = args.scale_b + (int64_t)block * args.row_scales + step;
    block_scales s;
#pragma unroll
    for (int h = 0; h < 2; h++)
        s.row[h] = scale_at(of_rows + h * 8 * args.row_scales, there && rows > h * 8);
#pragma unroll
    for (int i = 0; i < COL_BLOCKS; i++)
        s.col[i] = scale_at(of_cols + i * args.row_scales,
                            there && (block + i) * BLOCK_COLS < (int)args.schedule.n);
    return s;
}

/* sum += part, the products of a step; scales: as load_scales gave them. */
IMX_FN void add_scaled(float (&sum)[IMX_ACC], const float (&part)[IMX_ACC],
                       const block_scales &scales, const tile_info *note, int step)
{
    float s[COL_BLOCKS][2];
    int left = BLOCK_COLS - note->col % BLOCK_COLS; /* columns in the first block: 32 or more */
#pragma unroll
    for (int i = 0; i < COL_BLOCKS; i++) {
        float col = __shfl_sync(0xffffffffu, scales.col[i], step, 4);
        s[i][0] = col * __shfl_sync(0xffffffffu, scales.row[0], step, 4);
        s[i][1] = col * __shfl_sync(0xffffffffu, scales.row[1], step, 4);
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

/* Scales of a whole tile's sums; what is not there does not matter. */
IMX_FN void scale_tile(float (&sum)[IMX_ACC], const imx_gemm_args &args, const tile_info *note,
                       int first_row)
{
#if IMX_SCALING == 1
    float s = scale_at(args.scale_a, true) * scale_at(args.scale_b, true);
#pragma unroll
    for (int j = 0; j < IMX_ACC; j++)
        sum[j] *= s;
#elif IMX_SCALING == 2
    int lane = lane_here(), rows = note->rows - first_row - lane / 4;
    int col = note->col + lane % 4 * 2, n = (int)args.schedule.n;
    const float *of_rows = row_scales(args, note, first_row);
    float upper = scale_at(of_rows, rows > 0), lower = scale_at(of_rows + 8, rows > 8);
#pragma unroll
    for (int j = 0; j < IMX_ACC; j += 4, col += 8) {
        float c0 = scale_at(args.scale_b + col, col < n);
        float c1 = scale_at(args.scale_b + col + 1, col + 1 < n);
        sum[j] *= upper * c0, sum[j + 1] *= upper * c1;
        sum[j + 2] *= lower * c0, sum[j + 3] *= lower * c1;
    }
#endif
}

#endif

#endif /* IMX_SM90_SCALES_CUH */
