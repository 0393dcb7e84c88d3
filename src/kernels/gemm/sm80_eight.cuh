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

enum { ROWS_HERE = PARTS_M * 2 }; /* of this thread: row_of says which */

IMX_FN int row_of(int i)
{
    return warp_row() + lane_of() / 4 + i * 8;
}

/* sum += part, and part begins again; PER_BLOCK: times s, of this thread's rows of a stage. */
IMX_FN void add_stage(sums &sum, sums &part, const float (&s)[ROWS_HERE])
{
#pragma unroll
    for (int i = 0; i < ROWS_HERE; i++) {
#pragma unroll
        for (int j = 0; j < PARTS_N * 2; j++) {
            float &from = part[i / 2][j / 2][i % 2 * 2 + j % 2];
            float &to = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
#if IMX_SCALING == 3
            to = __fmaf_rn(s[i], from * IMX_WIDENED, to);
#else
            to += from;
#endif
            from = 0;
        }
    }
}
static_assert(IMBREX_PER_BLOCK == 3 && IMBREX_PER_ROW == 2 && IMBREX_PER_TENSOR == 1,
              "the preprocessor knows no enumerators");

/* Whole sums under the scales of this thread's rows, PER_TENSOR of all of it; cols: PER_ROW, those
 * of the tile's columns, of which there are `count`. */
IMX_FN void scale_sums(sums &c, const float (&of_rows)[ROWS_HERE], const float *cols, int count)
{
#if IMX_SCALING < 3
#pragma unroll
    for (int i = 0; i < ROWS_HERE; i++) {
#pragma unroll
        for (int j = 0; j < PARTS_N * 2; j++) {
            float &x = c[i / 2][j / 2][i % 2 * 2 + j % 2];
            float s = of_rows[i];
#if IMX_SCALING == 2
            int col = warp_col() + lane_of() % 4 * 2 + j / 2 * 8 + j % 2;
            s *= col < count ? scale_at(cols, col) : 0;
#endif
            x = x * IMX_WIDENED * s;
        }
    }
#endif
}

#endif /* IMX_EIGHT */

#endif /* IMX_SM80_EIGHT_CUH */
