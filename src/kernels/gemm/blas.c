/* blas.c - the CBLAS of this build behind one function, and the plain product that replaces it.
 *
 * The plain product cuts k and n into panels of b that stay in cache, packs them and blocks of rows
 * of a so that the innermost loop reads both in order, and keeps a small block of c in registers:
 *
 *     for columns in steps of STEP_N        b[STEP_K, STEP_N] packed, 64 KB
 *         for k in steps of STEP_K
 *             for rows in steps of STEP_M   a[STEP_M, STEP_K] packed, 16 KB
 *                 c[ROWS, 2 vectors] in registers, over STEP_K
 *
 * The order in which one element's products are added depends on k alone.
 */
#include "blas.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>

enum { ROWS = 4, MOST_COLS = 16, STEP_M = 32, STEP_N = 128, STEP_K = 128 };

/* c[ROWS, 2 vectors] = a * b; a is packed [k, ROWS], b [k, 2 vectors]. */
typedef void block_product(int64_t k, const float *a, const float *b, float *c);

#define BLOCK_PRODUCT(attributes, name, vector)                                             \
    attributes static void name(int64_t k, const float *a, const float *b_packed, float *c) \
    {                                                                                       \
        const vector *b = (const vector *)b_packed;                                         \
        vector c00 = { 0 }, c01 = { 0 }, c10 = { 0 }, c11 = { 0 };                          \
        vector c20 = { 0 }, c21 = { 0 }, c30 = { 0 }, c31 = { 0 };                          \
        for (; k > 0; k--, a += ROWS, b += 2) {                                             \
            vector b0 = b[0], b1 = b[1];                                                    \
            c00 += a[0] * b0, c01 += a[0] * b1;                                             \
            c10 += a[1] * b0, c11 += a[1] * b1;                                             \
            c20 += a[2] * b0, c21 += a[2] * b1;                                             \
            c30 += a[3] * b0, c31 += a[3] * b1;                                             \
        }                                                                                   \
        vector *to = (vector *)c;                                                           \
        to[0] = c00, to[1] = c01, to[2] = c10, to[3] = c11;                                 \
        to[4] = c20, to[5] = c21, to[6] = c30, to[7] = c31;                                 \
    }

typedef float vector4 __attribute__((vector_size(16), may_alias));
BLOCK_PRODUCT(, block_product_4, vector4)

#if defined(__x86_64__)
typedef float vector8 __attribute__((vector_size(32), may_alias));
BLOCK_PRODUCT(__attribute__((target("avx2,fma"))), block_product_8, vector8)

static bool wide(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define block_product_8 block_product_4
static bool wide(void)
{
    return false;
}
#endif

/* What a block of the plain product works with: on the stack, 80 KB. */
typedef struct packed {
    _Alignas(64) float a[STEP_M * STEP_K];
    _Alignas(64) float b[STEP_K * STEP_N];
    _Alignas(64) float c[ROWS * MOST_COLS];
    block_product *product;
    int cols; /* that product computes */
} packed;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* to[count / group][steps][group], zeros where from has no more vectors: vector i, step p of from
 * lies at i * between + p * along. */
static void pack(const float *from, int64_t between, int64_t along, int64_t count, int64_t steps,
                 int group, float *to)
{
    for (int64_t i = 0; i < count; i += group) {
        int64_t full = least(group, count - i);
        for (int64_t p = 0; p < steps; p++, to += group) {
            const float *at = from + i * between + p * along;
            for (int64_t j = 0; j < full; j++)
                to[j] = at[j * between];
            for (int64_t j = full; j < group; j++)
                to[j] = 0;
        }
    }
}

/* Stores or adds what p->c has for rows x cols of c. */
static void put(const packed *p, bool first, int64_t rows, int64_t cols, float *c, int64_t ldc)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            c[i * ldc + j] = (first ? 0 : c[i * ldc + j]) + p->c[i * p->cols + j];
}

/* c[m, n] from packed a and b, m and n at most a step. */
static void packed_product(packed *p, bool first, int64_t m, int64_t n, int64_t k, float *c,
                           int64_t ldc)
{
    for (int64_t j = 0; j < n; j += p->cols)
        for (int64_t i = 0; i < m; i += ROWS) {
            p->product(k, p->a + i * k, p->b + j * k, p->c);
            put(p, first, least(ROWS, m - i), least(p->cols, n - j), c + i * ldc + j, ldc);
        }
}

void imx_blas_plain(imbrex_layout layout, int64_t m, int64_t n, int64_t k, const float *a,
                    int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc)
{
    packed p;
    p.product = wide() ? block_product_8 : block_product_4;
    p.cols = wide() ? MOST_COLS : MOST_COLS / 2;
    int64_t b_row = layout == IMBREX_NK ? 1 : ldb;
    int64_t b_col = layout == IMBREX_NK ? ldb : 1;

    for (int64_t i = 0; k == 0 && i < m; i++)
        memset(c + i * ldc, 0, (size_t)n * sizeof *c);
    for (int64_t j = 0; j < n; j += STEP_N) {
        int64_t cols = least(STEP_N, n - j);
        for (int64_t q = 0; q < k; q += STEP_K) {
            int64_t depth = least(STEP_K, k - q);
            pack(b + q * b_row + j * b_col, b_col, b_row, cols, depth, p.cols, p.b);
            for (int64_t i = 0; i < m; i += STEP_M) {
                int64_t rows = least(STEP_M, m - i);
                pack(a + i * lda + q, lda, 1, rows, depth, ROWS, p.a);
                packed_product(&p, q == 0, rows, cols, depth, c + i * ldc + j, ldc);
            }
        }
    }
}

#ifdef IMX_HAVE_CBLAS
#include <cblas.h>
#include <pthread.h>
#include <stdio.h>

#include "rooms.h"

/* OpenBLAS has these; weak, so that any other CBLAS links too. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));
extern char *openblas_get_config(void) __attribute__((weak));

void imx_blas_sgemm(imbrex_layout layout, int64_t m, int64_t n, int64_t k, const float *a,
                    int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc)
{
    /* A CBLAS counts in int. */
    int64_t most = lda > ldb ? lda : ldb;
    most = most > ldc ? most : ldc;
    if (k == 0 || k > INT_MAX || m > INT_MAX || n > INT_MAX || most > INT_MAX) {
        imx_blas_plain(layout, m, n, k, a, lda, b, ldb, c, ldc);
        return;
    }
    imx_gemm_rooms_enter();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, layout == IMBREX_NK ? CblasTrans : CblasNoTrans,
                (int)m, (int)n, (int)k, 1, a, (int)lda, b, (int)ldb, 0, c, (int)ldc);
    imx_gemm_rooms_leave();
}

static char name[160] = "CBLAS";

static void ask_name(void)
{
    if (openblas_get_config)
        snprintf(name, sizeof name, "%s", openblas_get_config());
}

/* Asked once: OpenBLAS puts the words together in one place, under the eyes of other threads. */
const char *imx_blas_name(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, ask_name);
    return name;
}

void imx_blas_threads(int threads)
{
    if (openblas_set_num_threads)
        openblas_set_num_threads(threads);
}

#else

void imx_blas_sgemm(imbrex_layout layout, int64_t m, int64_t n, int64_t k, const float *a,
                    int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc)
{
    imx_blas_plain(layout, m, n, k, a, lda, b, ldb, c, ldc);
}

const char *imx_blas_name(void)
{
    return wide() ? "plain blocked product, AVX2" : "plain blocked product";
}

void imx_blas_threads(int threads)
{
    (void)threads; /* a plain product takes none but the caller's */
}

#endif
