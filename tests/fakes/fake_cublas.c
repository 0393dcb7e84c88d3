/* fake_cublas.c - descriptors are plain structs; a product is what the manual says, by columns. */
#include "fake_cublas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
} layout;

fake_cublas_state fake_cublas;

static size_t version(void)
{
    return 130000;
}

static int blas_create(cublasLtHandle_t *handle)
{
    *handle = (cublasLtHandle_t)&fake_cublas;
    fake_cublas.live++;
    return 0;
}

static int blas_destroy(cublasLtHandle_t handle)
{
    assert_ptr_equal(handle, &fake_cublas);
    fake_cublas.live--;
    return 0;
}

static int desc_create(cublasLtMatmulDesc_t *desc, int compute, int scale)
{
    assert_int_equal(compute, 68); /* CUBLAS_COMPUTE_32F */
    assert_int_equal(scale, 0);    /* CUDA_R_32F */
    *desc = calloc(1, sizeof(int));
    fake_cublas.live++;
    return 0;
}

static int desc_set(cublasLtMatmulDesc_t desc, int which, const void *value, size_t bytes)
{
    assert_int_equal(which, 3); /* CUBLASLT_MATMUL_DESC_TRANSA */
    assert_int_equal(bytes, 4);
    memcpy(desc, value, bytes);
    return 0;
}

static int layout_create(cublasLtMatrixLayout_t *out, int type, uint64_t rows, uint64_t cols,
                         int64_t ld)
{
    layout *l = malloc(sizeof *l);
    *l = (layout){ type, rows, cols, ld };
    *out = (cublasLtMatrixLayout_t)l;
    fake_cublas.live++;
    return 0;
}

static int desc_destroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    fake_cublas.live--;
    return 0;
}

static int layout_destroy(cublasLtMatrixLayout_t l)
{
    free(l);
    fake_cublas.live--;
    return 0;
}

static int preference_create(cublasLtMatmulPreference_t *preference)
{
    *preference = malloc(1);
    fake_cublas.live++;
    return 0;
}

static int preference_destroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    fake_cublas.live--;
    return 0;
}

static int preference_set(cublasLtMatmulPreference_t preference, int which, const void *value,
                          size_t bytes)
{
    assert_non_null(preference);
    assert_int_equal(which, 1); /* CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES */
    assert_int_equal(bytes, 8);
    assert_int_equal(*(const uint64_t *)value, CUDA_BLAS_WORKSPACE_BYTES);
    return 0;
}

/* Of the ways proposed every second cannot be used. */
static int heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                     cublasLtMatmulPreference_t preference, int wanted,
                     cublasLtMatmulHeuristicResult_t *results, int *found)
{
    assert_true(handle && desc && a && b && c && d && preference);
    assert_true(fake_cublas.ways <= wanted);
    memset(results, 0, (size_t)wanted * sizeof *results);
    for (int i = 0; i < fake_cublas.ways; i++) {
        results[i].algo.data[0] = (uint64_t)i;
        results[i].state = i % 2;
    }
    *found = fake_cublas.ways;
    return 0;
}

/* What the library's manual says, column by column, for float32. */
static int matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                  const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                  cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                  cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                  const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                  imbrex_stream stream)
{
    const layout *la = (const layout *)a_layout, *lb = (const layout *)b_layout;
    const layout *ld = (const layout *)d_layout;
    int transposed = *(const int *)desc;
    uint64_t inner = transposed ? la->rows : la->cols;
    (void)stream;
    assert_true(handle && workspace && c == d && c_layout == d_layout);
    assert_int_equal(workspace_bytes, CUDA_BLAS_WORKSPACE_BYTES);
    assert_true(*(const float *)alpha == 1 && *(const float *)beta == 0);
    assert_int_equal(inner, lb->rows);
    assert_int_equal(ld->rows, transposed ? la->cols : la->rows);
    assert_int_equal(ld->cols, lb->cols);
    fake_cublas.last_way = algo->data[0];
    fake_cublas.type = ld->type;
    if (ld->type != 0)
        return 0;
    for (uint64_t row = 0; row < ld->rows; row++)
        for (uint64_t col = 0; col < ld->cols; col++) {
            float sum = 0;
            for (uint64_t i = 0; i < inner; i++) {
                uint64_t at = transposed ? i + row * (uint64_t)la->ld : row + i * (uint64_t)la->ld;
                sum += ((const float *)a)[at] * ((const float *)b)[i + col * (uint64_t)lb->ld];
            }
            ((float *)d)[row + col * (uint64_t)ld->ld] = sum;
        }
    return 0;
}

const cuda_blas_calls fake_cublas_calls = {
    version,        blas_create,   blas_destroy,   desc_create,       desc_destroy,
    desc_set,       layout_create, layout_destroy, preference_create, preference_destroy,
    preference_set, heuristic,     matmul,
};
