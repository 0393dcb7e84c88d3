/* test_scaled.c - products of 8-bit numbers on CPU ranks, and what of them is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "group/group.h"
#include "net_threads.h"
#include "ranks.h"
#include "scaled_cases.h"

static void products(void **state)
{
    (void)state;
    int first = SANITIZED_THREADS ? 4 : 1, step = 1 + SANITIZED; /* they are slow */
    for (int size = first; size <= 4; size += step) {
        ranks_desc desc = { .size = size };
        assert_int_equal(ranks_run(&desc, scaled_cases, NULL), 0);
    }
}

static void products_of_processes(void **state)
{
    (void)state;
    if (SANITIZED)
        skip(); /* calls and kernels are those of threads */
    ranks_desc desc = { .size = 3, .processes = true };
    assert_int_equal(ranks_run(&desc, scaled_cases, NULL), 0);
}

static void products_over_nodes(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 4, .node_ranks = 2 };
    imx_net_of_test = &net_threads;
    net_threads_reset();
    assert_int_equal(ranks_run(&desc, scaled_cases_over_nodes, NULL), 0);
    imx_net_of_test = NULL;
}

static void the_checker_sees_no_mistake(void **state)
{
    (void)state;
    if (SANITIZED_THREADS)
        skip(); /* the checker's locks hide from it what operators do */
    ranks_desc desc = { .size = 2 };
    setenv("IMBREX_CHECK", "1", 1);
    assert_int_equal(ranks_run(&desc, scaled_cases, NULL), 0);
    unsetenv("IMBREX_CHECK");
}

/* ---- what is refused ------------------------------------------------------------------------- */

typedef struct mistake {
    imbrex_gemm_desc desc;
    imbrex_status status;
    const char *says;
} mistake;

#define DESC .m = 8, .n = 8, .k = 32

static const mistake mistakes[] = {
    { { DESC, .dtype = (imbrex_dtype)6 },
      IMBREX_INVALID,
      "desc.dtype is 6: want IMBREX_BF16, F16, " },
    { { DESC, .dtype = IMBREX_E4M3, .out = IMBREX_E4M3 },
      IMBREX_INVALID,
      "desc.out is 4: want IMBREX_BF16, F16 or F32" },
    { { DESC, .dtype = IMBREX_E4M3, .scaling = (imbrex_scaling)4 },
      IMBREX_INVALID,
      "desc.scaling is 4: want from 0 to 3" },
    { { DESC, .dtype = IMBREX_E4M3, .fast_accumulation = 2 },
      IMBREX_INVALID,
      "desc.fast_accumulation is 2: want from 0 to 1" },
    { { DESC, .dtype = IMBREX_E4M3, .scaling = IMBREX_PER_BLOCK, .fast_accumulation = 1 },
      IMBREX_INVALID,
      "desc.fast_accumulation is 1 and desc.scaling PER_BLOCK: want 0" },
    { { DESC, .scaling = IMBREX_PER_ROW },
      IMBREX_INVALID,
      "desc.scaling is 2 and desc.dtype bf16: want 0" },
    { { DESC, .dtype = IMBREX_F32, .fast_accumulation = 1 },
      IMBREX_INVALID,
      "desc.fast_accumulation is 1 and desc.dtype f32: want 0" },
    { { DESC, .dtype = IMBREX_F16, .out = IMBREX_F32 },
      IMBREX_UNSUPPORTED,
      "desc.out is f32 and desc.dtype f16: want the same" },
    { { DESC, .dtype = IMBREX_E4M3, .layout = IMBREX_KN },
      IMBREX_UNSUPPORTED,
      "desc.layout is IMBREX_KN and desc.dtype e4m3: want IMBREX_NK" },
    { { .m = 8, .n = 8, .k = 40, .dtype = IMBREX_E5M2 },
      IMBREX_UNSUPPORTED,
      "desc.k is 40 and desc.dtype e5m2: want a multiple of 16" },
};

static int plans_wrong(imbrex_group *group)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        imbrex_plan *plan;
        imbrex_status status = imbrex_plan_ag_gemm(group, &mistakes[i].desc, &plan);
        RANK_CHECK(status == mistakes[i].status && strstr(imbrex_error(), mistakes[i].says),
                   "mistake %zu: %d, %s", i, (int)status, imbrex_error());
    }
    return 0;
}

static int refused(imbrex_plan *plan, const imbrex_args *args, imbrex_status want, const char *says)
{
    imbrex_status status = imbrex_plan_run(plan, args, NULL);
    RANK_CHECK(status == want && strstr(imbrex_error(), says), "%d, %s", (int)status,
               imbrex_error());
    return 0;
}

static int runs_wrong(imbrex_group *group)
{
    static _Alignas(64) char a[8 * 32], b[8 * 144], c[8 * 8 * 4];
    float scales[2][16] = { { 0 } };
    int own = imbrex_group_rank(group) ? 4 : 4; /* rows of each of two */
    imbrex_gemm_desc desc = {
        .m = 8, .n = 8, .k = 144, .dtype = IMBREX_E4M3, .scaling = IMBREX_PER_BLOCK
    };
    imbrex_args args = { .a = a, .b = b, .c = c, .scale_a = scales[0], .scale_b = scales[1] };
    static _Alignas(64) char wide[8 * 144];
    imbrex_plan *plan;
    char says[80];
    int64_t shape[4];
    imbrex_dtype dtype;
    args.a = wide;
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plan));
    imbrex_args bad = args;
    bad.scale_a = NULL;
    snprintf(says, sizeof says, "args.scale_a is NULL: want %d elements, since desc.scaling",
             2 * own);
    if (refused(plan, &bad, IMBREX_INVALID, says))
        return 1;
    bad = args;
    bad.scale_b = NULL;
    if (refused(plan, &bad, IMBREX_INVALID, "args.scale_b is NULL: want 2 elements"))
        return 1;
    bad = args;
    bad.scale_b = (const float *)(const void *)((const char *)scales[1] + 2);
    if (refused(plan, &bad, IMBREX_INVALID, "args.scale_b, "))
        return 1;
    bad = args;
    bad.scale_a = (const float *)(const void *)(c + 64);
    if (refused(plan, &bad, IMBREX_INVALID, "args.c overlaps args.scale_a"))
        return 1;
    const imbrex_op_info *op = NULL;
    for (int i = 0; (op = imbrex_op(i)) && strcmp(op->name, "ag_gemm") != 0; i++)
        ;
    for (int i = 0; i < op->args_fields; i++) {
        if (strcmp(op->args[i].name, "scale_a") != 0 && strcmp(op->args[i].name, "c") != 0)
            continue;
        bool is_c = strcmp(op->args[i].name, "c") == 0;
        RANK_OK(imbrex_plan_operand(plan, i, 0, shape, &dtype));
        RANK_CHECK(shape[0] == (is_c ? 8 : own) && shape[1] == (is_c ? 8 : 2) &&
                       dtype == (is_c ? IMBREX_BF16 : IMBREX_F32),
                   "%s is [%d, %d] of %d", op->args[i].name, (int)shape[0], (int)shape[1],
                   (int)dtype);
    }
    RANK_OK(imbrex_barrier(group, NULL));
    imbrex_plan_destroy(plan);
    desc.scaling = IMBREX_UNSCALED;
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plan));
    if (refused(plan, &args, IMBREX_INVALID, "args.scale_a must be NULL: desc.scaling is 0"))
        return 1;
    imbrex_plan_destroy(plan);
    return 0;
}

static int wrong(imbrex_group *group, void *ctx)
{
    (void)ctx;
    return plans_wrong(group) || runs_wrong(group);
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, wrong, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),
        cmocka_unit_test(products_of_processes),
        cmocka_unit_test(products_over_nodes),
        cmocka_unit_test(the_checker_sees_no_mistake),
        cmocka_unit_test(says_what_is_wrong),
    };
    return cmocka_run_group_tests_name("scaled", tests, NULL, NULL);
}
