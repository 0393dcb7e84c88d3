/* blas.h - one float32 product on one core: from the BLAS of this build, or a plain one of our own.
 *
 * Equal shapes and values give equal bits, whoever calls and whenever.  Any thread may call.
 */
#ifndef IMX_BLAS_H
#define IMX_BLAS_H

#include <stdint.h>

#include "imbrex.h"

/* c[m, n] = a[m, k] * b, with rows lda, ldb, ldc elements apart.  layout says how b lies: [n, k] or
 * [k, n].  What c held is overwritten, not read; k = 0 gives zeros.  After imx_gemm_rooms_ready. */
void imx_blas_sgemm(imbrex_layout layout, int64_t m, int64_t n, int64_t k, const float *a,
                    int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc);

/* The same, never from a BLAS. */
void imx_blas_plain(imbrex_layout layout, int64_t m, int64_t n, int64_t k, const float *a,
                    int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc);

/* What imx_blas_sgemm computes with, for people. */
const char *imx_blas_name(void);

/* Threads that one product may take, for the whole process.  Only OpenBLAS is told; other BLASes
 * have environment variables of their own.  Not while a product runs. */
void imx_blas_threads(int threads);

#endif /* IMX_BLAS_H */
