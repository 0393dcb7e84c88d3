/* row.cuh - eight columns of a row at a time on a GPU, wherever the row begins and ends. */
#ifndef IMX_ROW_CUH
#define IMX_ROW_CUH

#include "scale.h"
#include "vector.cuh"

enum {
    IMX_ROW_COLS = 8,                                /* 16 bytes of two of the dtypes */
    IMX_ROW_HALF = IMX_SCALE_BLOCK / IMX_ROW_COLS, /* lanes whose columns are under one scale */
};

/* x = the columns from `column` on that a row of n has, others 0. */
IMX_VECTOR_FN void imx_row_load(int dtype, const void *row, int column, int n, float *x)
{
    const char *at = (const char *)row + column * imx_vector_bytes(dtype);
    if (n - column >= IMX_ROW_COLS && imx_vector_aligned(at)) {
        uint4 first = imx_vector_load(at);
        if (dtype == IMBREX_F32) {
            imx_vector_add(IMBREX_F32, x, first, true);
            imx_vector_add(IMBREX_F32, x + 4, imx_vector_load(at + 16), true);
        } else if (dtype == IMBREX_BF16) {
            imx_vector_add(IMBREX_BF16, x, first, true);
        } else {
            imx_vector_add(IMBREX_F16, x, first, true);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < IMX_ROW_COLS; i++)
        x[i] = column + i < n ? imx_vector_get(dtype, row, column + i) : 0.0f;
}

IMX_VECTOR_FN void imx_row_store_e4m3(char *row, int column, int n, const float *x)
{
    uint64_t bytes = 0;
#pragma unroll
    for (int i = 0; i < IMX_ROW_COLS; i += 2)
        bytes |= (uint64_t)imx_vector_e4m3(x[i], x[i + 1]) << 8 * i;
    if (n - column >= IMX_ROW_COLS && ((uintptr_t)(row + column) & 7) == 0) {
        *(uint64_t *)(row + column) = bytes;
        return;
    }
#pragma unroll
    for (int i = 0; i < IMX_ROW_COLS; i++) {
        if (column + i < n)
            row[column + i] = (char)(bytes >> 8 * i);
    }
}

IMX_VECTOR_FN void imx_row_round(int dtype, float *x)
{
#pragma unroll
    for (int i = 0; i < IMX_ROW_COLS; i++) {
        if (dtype != IMBREX_F32)
            x[i] = imx_vector_widen16(dtype, imx_vector_narrow16(dtype, x[i]));
    }
}

/* The largest that counts for a scale. */
IMX_VECTOR_FN float imx_row_largest(const float *x)
{
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < IMX_ROW_COLS; i++)
        largest = fmaxf(largest, imx_scale_size(x[i]));
    return largest;
}

/* Of `lanes` neighbouring lanes. */
IMX_VECTOR_FN float imx_row_largest_of(float mine, int lanes)
{
    for (int d = lanes / 2; d; d /= 2)
        mine = fmaxf(mine, __shfl_xor_sync(0xffffffffu, mine, d));
    return mine;
}

#endif /* IMX_ROW_CUH */
