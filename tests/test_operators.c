/* test_operators.c - the table of operator cases on CPU ranks, as threads and as processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "op_cases.h"
#include "ranks.h"

static void run(int size, bool processes)
{
    if (processes && !RANKS_PROCESSES)
        skip();
    ranks_desc desc = { .size = size, .processes = processes };
    assert_int_equal(ranks_run(&desc, op_cases_all, NULL), 0);
}

static void threads_1(void **state)
{
    (void)state;
    run(1, false);
}

static void threads_2(void **state)
{
    (void)state;
    run(2, false);
}

static void threads_3(void **state)
{
    (void)state;
    run(3, false);
}

static void threads_4(void **state)
{
    (void)state;
    run(4, false);
}

static void threads_8(void **state)
{
    (void)state;
    run(8, false);
}

static void processes_1(void **state)
{
    (void)state;
    run(1, true);
}

static void processes_2(void **state)
{
    (void)state;
    run(2, true);
}

static void processes_3(void **state)
{
    (void)state;
    run(3, true);
}

static void processes_4(void **state)
{
    (void)state;
    run(4, true);
}

static void processes_8(void **state)
{
    (void)state;
    run(8, true);
}

/* Whether a rank wants all of a is its own affair, also where there is nothing to multiply. */
static int gathered_by_one(imbrex_group *group, void *ctx)
{
    static const char *const algorithms[] = { "copy", "sequential", "store", "pull", "ll", "ring" };
    enum { M = 6, N = 5, K = 3 };
    float a[M * K] = { 0 }, b[N * K] = { 0 }, c[M * N], gathered[M * K];
    (void)ctx;
    for (int i = 0; i < 44; i++) {
        imbrex_gemm_desc desc = { .m = i & 1 ? M : 0,
                                  .n = i & 2 ? N : 0,
                                  .k = K,
                                  .dtype = IMBREX_F32,
                                  .algorithm = algorithms[i / 4 % 6],
                                  .chunk_rows = i < 24 ? 2 : 0 }; /* which "ring" wants */
        imbrex_plan *plan;
        RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plan));
        imbrex_args args = { .a = a, .b = b, .c = c };
        args.gathered = imbrex_group_rank(group) ? NULL : gathered;
        for (int round = 0; round < 4; round++)
            RANK_OK(imbrex_plan_run(plan, &args, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        RANK_OK(imbrex_barrier(group, NULL));
        imbrex_plan_destroy(plan);
    }
    return 0;
}

static void a_gathered_output_on_one_rank(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3 };
    assert_int_equal(ranks_run(&desc, gathered_by_one, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_1),
        cmocka_unit_test(threads_2),
        cmocka_unit_test(threads_3),
        cmocka_unit_test(threads_4),
        cmocka_unit_test(threads_8),
        cmocka_unit_test(processes_1),
        cmocka_unit_test(processes_2),
        cmocka_unit_test(processes_3),
        cmocka_unit_test(processes_4),
        cmocka_unit_test(processes_8),
        cmocka_unit_test(a_gathered_output_on_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
