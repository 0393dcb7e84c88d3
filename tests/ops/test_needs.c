/* test_needs.c - what a plan of ag_gemm lays out holds what its kernel is told to use: a signal for
 * every chunk and every slice of every rank.  A few too few would lie in what comes next, which 256
 * bytes between the regions hide. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gemm/args.h"
#include "kernels/kernels.h"
#include "plan/plan.h"
#include "tuned.h"

static imx_gemm_args told; /* the product's kernel, at most */

static imbrex_status note(imx_device *device, const imx_kernel *kernel, const void *largest,
                          int blocks, imx_prepared **out)
{
    (void)device, (void)blocks, (void)out;
    if (kernel == &imx_kernel_gemm)
        told = *(const imx_gemm_args *)largest;
    return IMBREX_OK;
}

static const imx_backend backend = { .name = "cuda", .prepare = note };
static const imx_target target = { .arch = 90 };

/* Returns the slices of the plan's kernel. */
static int check(const imx_algorithm *a, int64_t m, int64_t n, int64_t k, int ranks)
{
    enum { SMS = 132 };
    imbrex_group group = {
        .size = ranks,
        .backend = &backend,
        .target = &target,
        .nodes = { .count = 1, .ranks = ranks, .equal = true },
    };
    imbrex_plan plan = { .group = &group, .op = &imx_op_ag_gemm };
    imx_variant *variant = &plan.variants[0];
    *variant = (imx_variant){
        .plan = &plan,
        .algorithm = a,
        .shape = { m, n, k, IMBREX_BF16, IMBREX_BF16, IMBREX_NK, IMBREX_UNSCALED, false },
        .config = tuned_on(m, n, k, 0, ranks, 90, SMS),
    };
    const imx_tune_input in = { .shape = variant->shape, .ranks = ranks };
    const imx_problem problem = { .in = &in, .config = &variant->config };
    imx_needs needs = { 0 };
    char why[256] = "";
    if (a->can && !a->can(&problem, &(imx_text){ .at = why, .size = sizeof why }))
        return 0;
    a->layout(variant, &needs);
    assert_int_equal(a->prepare(variant), IMBREX_OK);
    size_t slices = (size_t)ranks * (size_t)told.slices;
    size_t chunks = (size_t)ranks * (size_t)variant->config.chunks;
    if (needs.signals && (needs.signals < slices || needs.signals < chunks))
        fail_msg("%s, m=%d n=%d k=%d, %d ranks: %zu signals for %zu slices, %zu chunks", a->name,
                 (int)m, (int)n, (int)k, ranks, needs.signals, slices, chunks);
    return told.slices;
}

static void every_slice_has_a_signal(void **state)
{
    (void)state;
    static const int64_t ms[] = { 1, 64, 200, 512, 1000, 1024, 1025, 4096, 8192 };
    static const int64_t sizes[][2] = {
        { 28672, 8192 }, { 7168, 8192 }, { 8192, 28672 }, { 4096, 1544 }, { 520, 264 }
    };
    int most = 0;
    for (const imx_algorithm *a = imx_op_ag_gemm.algorithms; a->name; a++) {
        for (int ranks = 2; ranks <= 8 && !a->over_nodes; ranks++) {
            for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
                for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
                    int slices = check(a, ms[i], sizes[j][0], sizes[j][1], ranks);
                    most = slices > most ? slices : most;
                }
            }
        }
    }
    assert_true(most > 2); /* or nothing is tried here */
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_slice_has_a_signal) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
