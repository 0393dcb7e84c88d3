/* test_norm.c - imbrex_rms_norm and imbrex_quantize on CPU ranks, and what they refuse. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alone_cases.h"
#include "kept_cases.h"
#include "norm_cases.h"
#include "op_cases.h"
#include "ranks.h"
#include "reference.h"
#include "sanitized.h"

static void norms(void **state)
{
    (void)state;
    static const char *const threads[] = { "1", "3" };
    for (int i = 0; i < 2; i++) {
        ranks_desc desc = { .size = 1 + i };
        setenv("IMBREX_CPU_THREADS", threads[i], 1);
        assert_int_equal(ranks_run(&desc, norm_cases, NULL), 0);
    }
    unsetenv("IMBREX_CPU_THREADS");
}

typedef struct mistake {
    imbrex_norm norm;
    int64_t cols;
    const char *says;
} mistake;

enum { ROWS = 2, COLS = 8 };

static _Alignas(64) char memory[16][ROWS * COLS * 4];

static imbrex_args operands(const imbrex_norm *norm)
{
    return (imbrex_args){ .a = memory[0],
                          .c = memory[1],
                          .gamma = norm->rms ? memory[2] : NULL,
                          .scale_c = norm->quant ? (float *)(void *)memory[3] : NULL };
}

static int wrong_norms(imbrex_group *group)
{
    static const mistake all[] = {
        { { .rms = 2 }, COLS, "norm.rms is 2: want 0 or 1" },
        { { .shard_residual = 1 }, COLS, "norm.shard_residual is 1: want 0" },
        { { .rms = 1, .eps = -1 }, COLS, "norm.eps is -1: want a number from 0" },
        { { .rms = 1, .eps = NAN }, COLS, "norm.eps is nan: want a number from 0" },
        { { .eps = 1 }, COLS, "norm.eps is 1 and norm.rms 0" },
        { { .gamma_offset = 1 }, COLS, "norm.gamma_offset is 1 and norm.rms 0" },
        { { .rms = 1, .gamma_offset = INFINITY }, COLS, "norm.gamma_offset is inf: want a finite" },
        { { .quant = (imbrex_scaling)4 }, COLS, "norm.quant is 4: want IMBREX_UNSCALED, PER_TEN" },
        { { .power_of_two = 1 }, COLS, "norm.power_of_two is 1 and norm.quant computes no scales" },
        { { .quant = IMBREX_PER_TENSOR, .power_of_two = 1 }, COLS, "norm.power_of_two is 1 and" },
        { { .rms = 1, .reserved = { 0, 1 } }, COLS, "norm.reserved is not 0" },
        { { .rms = 1 }, 32769, "cols is 32769: want at most 32768" },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        imbrex_args args = operands(&all[i].norm);
        imbrex_status status =
            imbrex_rms_norm(group, IMBREX_F32, ROWS, all[i].cols, &all[i].norm, &args, NULL);
        RANK_CHECK(status == IMBREX_INVALID || status == IMBREX_UNSUPPORTED, "%s was taken",
                   all[i].says);
        RANK_CHECK(strstr(imbrex_error(), all[i].says), "%s: %s", all[i].says, imbrex_error());
    }
    return 0;
}

static int refused(imbrex_group *group, const imbrex_norm *norm, const imbrex_args *args,
                   const char *says)
{
    imbrex_status status = imbrex_rms_norm(group, IMBREX_F32, ROWS, COLS, norm, args, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), says), "want %s, have %d: %s",
               says, (int)status, imbrex_error());
    return 0;
}

static int wrong_args(imbrex_group *group)
{
    const imbrex_norm rms = { .rms = 1 }, quant = { .quant = IMBREX_PER_ROW }, none = { 0 };
    imbrex_args args = operands(&rms);
    args.gamma = NULL;
    if (refused(group, &rms, &args, "args.gamma is NULL: want 8 elements, since norm.rms is 1"))
        return 1;
    args = operands(&none);
    args.gamma = memory[2];
    if (refused(group, &none, &args, "args.gamma must be NULL: norm.rms is 0"))
        return 1;
    args = operands(&quant);
    args.scale_c = NULL;
    if (refused(group, &quant, &args, "args.scale_c is NULL: want 2 elements, since norm.quant"))
        return 1;
    args = operands(&none);
    args.scale_c = (float *)(void *)memory[3];
    if (refused(group, &none, &args, "args.scale_c must be NULL: norm.quant is 0"))
        return 1;
    args = operands(&none);
    args.normed = memory[4];
    if (refused(group, &none, &args, "args.normed must be NULL: norm.quant is 0"))
        return 1;
    args = operands(&quant);
    args.c = memory[0]; /* elements of another size */
    if (refused(group, &quant, &args, "args.c overlaps args.a"))
        return 1;
    args = operands(&rms);
    args.h = memory[5] + 4;
    args.residual = memory[5];
    if (refused(group, &rms, &args, "args.h overlaps args.residual"))
        return 1;
    args = operands(&rms);
    args.b = memory[5];
    if (refused(group, &rms, &args, "args.b must be NULL for rms_norm"))
        return 1;
    args = operands(&rms);
    args.m = 1;
    if (refused(group, &rms, &args, "args.m is 1: want 0"))
        return 1;
    args = operands(&rms);
    args.residual = memory[5] + 2;
    return refused(group, &rms, &args, "is not 4-byte aligned");
}

static int wrong_quantize(imbrex_group *group)
{
    float *scales = (float *)(void *)memory[3];
    imbrex_status status = imbrex_quantize(group, IMBREX_F32, IMBREX_UNSCALED, ROWS, COLS,
                                           memory[0], memory[1], scales, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "scaling is 0: want"), "%s",
               imbrex_error());
    status = imbrex_quantize(group, IMBREX_E4M3, IMBREX_PER_ROW, ROWS, COLS, memory[0], memory[1],
                             scales, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "dtype is "), "%s",
               imbrex_error());
    status = imbrex_quantize(group, IMBREX_F32, IMBREX_PER_ROW, ROWS, COLS, memory[0], memory[1],
                             NULL, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "scales is NULL"), "%s",
               imbrex_error());
    status = imbrex_quantize(group, IMBREX_F32, IMBREX_PER_ROW, ROWS, COLS, memory[0],
                             memory[0] + ROWS * COLS * 4 - 1, scales, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "out, "), "%s", imbrex_error());
    RANK_OK(imbrex_quantize(group, IMBREX_F32, IMBREX_PER_ROW, 0, COLS, NULL, NULL, NULL, NULL));
    return 0;
}

static int mistakes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    return wrong_norms(group) || wrong_args(group) || wrong_quantize(group);
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    assert_int_equal(ranks_run(&desc, mistakes, NULL), 0);
}

/* ---- in operators ---------------------------------------------------------------------------- */

enum { M = 11, N = 70 };

static void rows_do_not_depend_on_m(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        ranks_desc desc = { .size = ranks };
        assert_int_equal(ranks_run(&desc, alone_cases, NULL), 0);
    }
}

static int refused_of(imbrex_group *group, const char *op, const void *desc, size_t bytes,
                      const char *says)
{
    imbrex_plan *plan = NULL;
    imbrex_status status = imbrex_plan_create(group, op, desc, bytes, &plan);
    RANK_CHECK(status != IMBREX_OK && strstr(imbrex_error(), says), "want %s, have %d: %s", says,
               (int)status, imbrex_error());
    return 0;
}

static int plan_refused(imbrex_group *group, const char *op, const imbrex_coll_desc *desc,
                        const char *says)
{
    return refused_of(group, op, desc, sizeof *desc, says);
}

static int product_refused(imbrex_group *group, const char *op, const imbrex_gemm_desc *desc,
                           const char *says)
{
    return refused_of(group, op, desc, sizeof *desc, says);
}

static int products_wrong(imbrex_group *group)
{
    const imbrex_gemm_desc good = { .m = M, .n = N, .k = 8, .norm = { .rms = 1 } };
    imbrex_gemm_desc bad = good;
    bad.norm.quant = (imbrex_scaling)4;
    if (product_refused(group, "gemm_rs", &bad, "desc.norm.quant is 4: want from 0 to 3"))
        return 1;
    bad = good;
    bad.norm.gamma_offset = (float)imbrex_group_rank(group);
    if (product_refused(group, "gemm_ar", &bad, "desc.norm.gamma_offset differs between ranks"))
        return 1;
    bad = good;
    bad.norm.reserved[3] = 1;
    if (product_refused(group, "gemm_ar", &bad, "desc.norm.reserved"))
        return 1;
    bad = good;
    bad.norm.shard_residual = 1;
    bad.algorithm = "ll";
    return product_refused(group, "gemm_ar", &bad, "desc.norm.shard_residual gives a rank") ||
           product_refused(group, "ag_gemm", &good, "desc.norm must be 0 for ag_gemm") ||
           product_refused(group, "gemm", &good, "desc.norm must be 0 for gemm");
}

static int plans_wrong(imbrex_group *group)
{
    const imbrex_coll_desc good = { .m = M, .n = N, .norm = { .rms = 1 } };
    imbrex_coll_desc bad = good;
    bad.norm.rms = 2;
    if (plan_refused(group, "all_reduce", &bad, "desc.norm.rms is 2: want from 0 to 1"))
        return 1;
    bad.norm.rms = 0;
    bad.norm.eps = 1;
    if (plan_refused(group, "reduce_scatter", &bad, "desc.norm.eps is 1 and desc.norm.rms 0"))
        return 1;
    bad = good;
    bad.norm.eps = (float)(1 + imbrex_group_rank(group));
    if (plan_refused(group, "all_reduce", &bad, "desc.norm.eps differs between ranks: 1 on rank"))
        return 1;
    bad = good;
    bad.norm.quant = (imbrex_scaling)9;
    if (plan_refused(group, "all_reduce", &bad, "desc.norm.quant is 9"))
        return 1;
    bad = good;
    bad.n = 40000;
    if (plan_refused(group, "all_reduce", &bad, "rows of 40000 columns are normed"))
        return 1;
    bad = good;
    bad.norm.shard_residual = 1;
    bad.algorithm = "ll";
    return plan_refused(group, "all_reduce", &bad, "desc.norm.shard_residual gives a rank") ||
           plan_refused(group, "all_gather", &good, "desc.norm must be 0 for all_gather") ||
           plan_refused(group, "all_to_all", &good, "desc.norm must be 0 for all_to_all");
}

static int run_refused(imbrex_plan *plan, const imbrex_args *args, const char *says)
{
    imbrex_status status = imbrex_plan_run(plan, args, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), says), "want %s, have %d: %s",
               says, (int)status, imbrex_error());
    return 0;
}

static int runs_wrong(imbrex_group *group)
{
    imbrex_coll_desc desc = {
        .m = ROWS, .n = COLS, .dtype = IMBREX_F32, .norm = { .rms = 1, .quant = IMBREX_PER_ROW }
    };
    imbrex_plan *plan;
    int64_t shape[4];
    imbrex_dtype dtype;
    RANK_OK(imbrex_plan_all_reduce(group, &desc, &plan));
    RANK_OK(imbrex_plan_operand(plan, 2, 0, shape, &dtype));
    RANK_CHECK(dtype == IMBREX_E4M3 && shape[0] == ROWS && shape[1] == COLS, "c is of %d",
               (int)dtype);
    imbrex_args args = operands(&desc.norm);
    args.gamma = NULL;
    if (run_refused(plan, &args, "args.gamma is NULL: want 8 elements, since norm.rms is 1"))
        return 1;
    args = operands(&desc.norm);
    args.scale_c = NULL;
    if (run_refused(plan, &args, "args.scale_c is NULL: want 2 elements, since norm.quant"))
        return 1;
    args = operands(&desc.norm);
    args.c = memory[0];
    if (run_refused(plan, &args, "args.c overlaps args.a"))
        return 1;
    imbrex_plan_destroy(plan);
    desc.norm = (imbrex_norm){ 0 };
    RANK_OK(imbrex_plan_all_reduce(group, &desc, &plan));
    args = operands(&desc.norm);
    args.gamma = memory[2];
    if (run_refused(plan, &args, "args.gamma must be NULL: norm.rms is 0"))
        return 1;
    imbrex_plan_destroy(plan);
    return 0;
}

static int operators_wrong(imbrex_group *group, void *ctx)
{
    (void)ctx;
    return plans_wrong(group) || products_wrong(group) || runs_wrong(group);
}

/* Which threads of three ranks share unevenly. */
static void rows_of_models(void **state)
{
    (void)state;
    for (int size = SANITIZED ? 3 : 1; size <= 3; size++) {
        ranks_desc desc = { .size = size };
        assert_int_equal(ranks_run(&desc, op_cases_normed, NULL), 0);
    }
}

static void operators_say_what_is_wrong(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, operators_wrong, NULL), 0);
}

/* Also as the protocol checker sees it. */
static void sums_that_nobody_wants(void **state)
{
    (void)state;
    int failed = 0;
    for (int checked = 0; checked <= !SANITIZED_THREADS; checked++) {
        ranks_desc desc = { .size = 3 };
        setenv("IMBREX_CHECK", checked ? "1" : "0", 1);
        failed += ranks_run(&desc, kept_cases, NULL);
    }
    unsetenv("IMBREX_CHECK");
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(rows_do_not_depend_on_m),
        cmocka_unit_test(rows_of_models),
        cmocka_unit_test(operators_say_what_is_wrong),
        cmocka_unit_test(sums_that_nobody_wants),
    };
    return cmocka_run_group_tests_name("norm", tests, NULL, NULL);
}
