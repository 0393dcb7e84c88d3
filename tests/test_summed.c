/* test_summed.c - where a gemm_rs of many rows is made in tiles of several ranks' rows, which its
 * kernel adds up, and where one of some rows is made alone, and added up behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tuned.h"

enum { SMS = 132 };

/* As measured on two and four H200s: tiles of one rank's rows, whose last ones leave late, where k
 * is long and they waste little, as in most rows of docs/results.md. */
static void many_rows_are_summed_where_k_is_short(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int scatters, ranks, arch, summed;
    } rows[] = {
        { 1100, 8192, 1280, 1, 4, 90, 1 },  { 1483, 8192, 1280, 1, 4, 90, 1 },
        { 2111, 8192, 1280, 1, 4, 90, 1 },  { 4096, 8192, 1280, 1, 4, 90, 1 },
        { 8192, 8192, 1280, 1, 4, 90, 1 },  { 1300, 8192, 2560, 1, 4, 90, 1 },
        { 2111, 8192, 3584, 1, 4, 90, 1 },  { 1300, 8192, 7168, 1, 4, 90, 1 },
        { 1300, 4096, 1792, 1, 4, 90, 1 },  { 2048, 8192, 7168, 1, 4, 90, 0 },
        { 4096, 8192, 3584, 1, 4, 90, 0 },  { 8192, 4096, 3584, 1, 4, 90, 0 },
        { 4096, 8192, 7168, 1, 4, 90, 0 },  { 8192, 8192, 7168, 1, 4, 90, 0 },
        { 1300, 8192, 1280, 1, 2, 90, 1 },  { 2111, 8192, 2560, 1, 2, 90, 1 },
        { 1300, 8192, 3584, 1, 2, 90, 0 },  { 2048, 8192, 3584, 1, 2, 90, 0 },
        { 1500, 8192, 14336, 1, 2, 90, 0 }, { 2048, 8192, 14336, 1, 2, 90, 0 },
        { 8192, 4096, 7168, 1, 2, 90, 0 },  { 16384, 12288, 12288, 1, 4, 90, 0 },
        { 8193, 8192, 1280, 1, 4, 90, 0 }, /* not tried */
        { 2111, 8192, 1280, 0, 4, 90, 0 },  { 2111, 8192, 1280, 1, 17, 90, 0 },
        { 2111, 8192, 1280, 1, 4, 80, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        imx_config c = tuned_on(rows[i].m, rows[i].n, rows[i].k, rows[i].scatters, rows[i].ranks,
                                rows[i].arch, SMS);
        imx_choice chosen = tuned_choice(rows[i].m, rows[i].n, rows[i].k, rows[i].scatters,
                                         rows[i].ranks, rows[i].arch, SMS);
        if (c.reduce_push != rows[i].summed ||
            c.reduce_push != (strcmp(chosen.algorithm, "reduce_push") == 0))
            fail_msg("row %zu: %s, summed %d (%s)", i, chosen.algorithm, c.reduce_push, chosen.why);
    }
    imx_tune_input in = { .shape = { 2111, 8192, 1280, IMBREX_BF16, IMBREX_BF16, IMBREX_NK,
                                     IMBREX_UNSCALED, false },
                          .product = true,
                          .scatters = true,
                          .ranks = 4,
                          .arch = 90,
                          .rates = tuned_rates(),
                          .workers = SMS,
                          .alike = true };
    assert_true(imx_tune_config(&in).reduce_push);
    in.chunk_rows = 512; /* as asked for: of one rank's rows */
    assert_false(imx_tune_config(&in).spanning);
}

/* As measured on two H200s; and where no kernel may reach so many ranks. */
static void some_rows_are_made_alone(void **state)
{
    (void)state;
    const imx_op *op = &imx_op_gemm_rs;
    static const int64_t alone[][3] = {
        { 296, 8192, 14336 }, { 304, 7168, 9216 }, { 392, 8192, 14336 }, { 536, 7168, 9216 }
    };
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        assert_true(tuned_takes(op, alone[i][0], alone[i][1], alone[i][2], 2, false, "ll"));
    assert_true(tuned_takes(op, 184, 7168, 9216, 2, false, "reduce_push"));
    assert_true(tuned_takes(op, 296, 8192, 14336, 17, false, "copy"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_rows_are_summed_where_k_is_short),
        cmocka_unit_test(some_rows_are_made_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
