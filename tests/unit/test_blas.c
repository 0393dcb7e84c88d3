/* test_blas.c - the product of the build and the plain one against float64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/gemm/blas.h"
#include "kernels/gemm/rooms.h"

typedef void product(imbrex_layout layout, int64_t m, int64_t n, int64_t k, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float *c, int64_t ldc);

static float *random_new(int64_t count)
{
    float *x = malloc((size_t)count * sizeof *x + 1);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(rand() % 2001 - 1000) / 1000;
    return x;
}

/* Rows are further apart than they are long; c holds NaN before, and between its rows after. */
static void check(const char *name, product *f, imbrex_layout layout, int64_t m, int64_t n,
                  int64_t k)
{
    int64_t lda = k + 3, ldb = (layout == IMBREX_NK ? k : n) + 5, ldc = n + 2;
    float *a = random_new(m * lda), *b = random_new((n + k) * ldb), *c = random_new(m * ldc);
    for (int64_t i = 0; i < m * ldc; i++)
        c[i] = NAN;
    f(layout, m, n, k, a, lda, b, ldb, c, ldc);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < ldc; j++) {
            double want = 0, have = c[i * ldc + j];
            for (int64_t x = 0; j < n && x < k; x++)
                want += (double)a[i * lda + x] * b[layout == IMBREX_NK ? j * ldb + x : x * ldb + j];
            if (j >= n)
                assert_true(isnan(have));
            else if (!(fabs(have - want) <= (double)k * 0x1p-21))
                fail_msg("%s, layout %d, m %d n %d k %d: c[%d, %d] is %.9g, not %.9g", name,
                         (int)layout, (int)m, (int)n, (int)k, (int)i, (int)j, have, want);
        }
    free(a);
    free(b);
    free(c);
}

static void products_are_right(void **state)
{
    (void)state;
    char why[300];
    assert_true(imx_gemm_rooms_ready(why, sizeof why));
    static const int64_t shapes[][3] = { { 1, 1, 1 },      { 1, 300, 40 }, { 300, 1, 40 },
                                         { 4, 16, 8 },     { 5, 17, 9 },   { 33, 129, 257 },
                                         { 64, 128, 128 }, { 7, 5, 0 },    { 31, 200, 127 },
                                         { 0, 3, 3 },      { 3, 0, 3 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int layout = 0; layout < 2; layout++) {
            int64_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
            check(imx_blas_name(), imx_blas_sgemm, (imbrex_layout)layout, m, n, k);
            check("plain", imx_blas_plain, (imbrex_layout)layout, m, n, k);
        }
}

static void the_product_has_a_name(void **state)
{
    (void)state;
    imx_blas_threads(1);
    assert_non_null(imx_blas_name());
    assert_true(imx_blas_name()[0] != '\0');
#ifdef IMX_IS_PLAIN /* built to have no other */
    assert_memory_equal(imx_blas_name(), "plain", 5);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_right),
        cmocka_unit_test(the_product_has_a_name),
    };
    return cmocka_run_group_tests_name("blas", tests, NULL, NULL);
}
