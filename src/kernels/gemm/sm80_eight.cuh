/* sm80_eight.cuh - what sm80.cu does with a and b of 8 bits: widens their codes to float16, and
 * scales sums, those of a stage or of a whole tile; see args.h. */
#ifndef IMX_SM80_EIGHT_CUH
#define IMX_SM80_EIGHT_CUH

#include "sm80_store.cuh"

#ifdef IMX_EIGHT

/* Two codes in bytes 1 and 3 as float16, exactly: those of E5M2 are float16's upper halves; those
 * of E4M3, moved by a bit, are 2^-8 times their values, but for NaN's. */
IMX_FN uint32_t widen_codes(int dtype, uint32_t codes)
{
    if (dtype == IMBREX_E5M2)
        return codes;
    uint32_t size = codes >> 1 & 0x3f803f80, nan = (size + 0x40804080) & 0x80008000;
    return (codes & 0x80008000) | size | nan >> 1;
}

/* The first two of a word's four codes, and the others. */
IMX_FN uint32_t widen_low(int dtype, uint32_t word)
{
    return widen_codes(dtype, __byte_perm(word, 0, 0x1404));
}

IMX_FN uint32_t widen_high(int dtype, uint32_t word)
{
    return widen_codes(dtype, __byte_perm(word, 0, 0x3424));
}

/* What the tensor cores' sums are too small by, since E4M3 is widened to 2^-8 of it. */
#define IMX_WIDENED (IMX_EIGHT == 4 ? 65536.0f : 256.0f)
static_assert(IMBREX_E4M3 == 4, "the preprocessor knows no enumerators");

#if IMX_SCALING
IMX_FN float scale_at(const float *scales, int64_t i)
{
    return imx_vector_get(IMBREX_F32, scales, i);
}

#endif

#if IMX_SCALING >= 2
/* The scales of the tile's rows of a. */
IMX_FN const float *row_scales(const imx_gemm_args &args, const imx_tile &tile)
{
    const float *scales = args.scale_a;
    int64_t row = tile.row;
#ifdef IMX_GATHER
    if (tile.rank == args.own)
        row = tile.rank_row;
    else
        scales = args.gathered_scales;
#endif
    return scales + row * args.row_scales;
}
#endif

/* sum += part, under the scales of the stage where each has some, and part begins again. */
IMX_FN void add_scaled(sums &sum, sums &part, const imx_gemm_args &args, const imx_tile &tile,
                       int stage)
{
#if IMX_SCALING == 3
    if (stage >= args.row_scales) /* k is 0: nothing was multiplied, and there are none */
        return;
    const float *scales = row_scales(args, tile);
    float of_b = scale_at(args.scale_b, tile.col / 128 * args.row_scales + stage);
#endif
#pragma unroll
    for (int i = 0; i < PARTS_M * 2; i++) {
#if IMX_SCALING == 3
        int row = warp_row() + lane_of() / 4 + i * 8;
        float s = row < tile.rows ? scale_at(scales, row * args.row_scales + stage) * of_b : 0;
#endif
#pragma unroll
        for (int j = 0; j < PARTS_N * 2; j++) {
            float &from = part[i / 2][j / 2][i % 2 * 2 + j % 2];
            float &to = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
#if IMX_SCALING == 3
            to = __fmaf_rn(s, from * IMX_WIDENED, to);
#else
            to += from;
#endif
            from = 0;
        }
    }
}
static_assert(IMBREX_PER_BLOCK == 3 && IMBREX_PER_ROW == 2 && IMBREX_PER_TENSOR == 1,
              "the preprocessor knows no enumerators");

/* Scales of whole sums.  Those of rows and columns that are not there do not matter. */
IMX_FN void scale_tile(sums &c, const imx_gemm_args &args, const imx_tile &tile)
{
#if IMX_SCALING < 3
    float s = 1;
#if IMX_SCALING == 1
    s = scale_at(args.scale_a, 0) * scale_at(args.scale_b, 0);
#elif IMX_SCALING == 2
    const float *scales = row_scales(args, tile);
#endif
#pragma unroll
    for (int i = 0; i < PARTS_M * 2; i++) {
#if IMX_SCALING == 2
        int row = warp_row() + lane_of() / 4 + i * 8;
        float of_a = row < tile.rows ? scale_at(scales, row) : 0;
#endif
#pragma unroll
        for (int j = 0; j < PARTS_N * 2; j++) {
            float &x = c[i / 2][j / 2][i % 2 * 2 + j % 2];
#if IMX_SCALING == 2
            int col = warp_col() + lane_of() % 4 * 2 + j / 2 * 8 + j % 2;
            s = of_a * (col < tile.cols ? scale_at(args.scale_b, tile.col + col) : 0);
#endif
            x = x * IMX_WIDENED * s;
        }
    }
#endif
}

#endif /* IMX_EIGHT */

#endif /* IMX_SM80_EIGHT_CUH */
