/* test_operators.c - the table of operator cases on CPU ranks, as threads and as processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "op_cases.h"
#include "ranks.h"

#ifdef IMX_IS_PLAIN
enum { IS_PLAIN = 1 };
#else
enum { IS_PLAIN = 0 };
#endif

/* Three ranks, whose rows are uneven, walk most of the table, others a third; many processes, whose
 * kernels and calls are those of threads, a ninth, and where a sanitizer watches eight threads and
 * all processes but three, too; where it watches threads, all but three.  Only the product is
 * another without BLAS: it does not know of ranks. */
static void run(int size, bool processes)
{
    if (processes ? IS_PLAIN || !RANKS_PROCESSES : IS_PLAIN && size != 3)
        skip();
    ranks_desc desc = { .size = size, .processes = processes };
    bool many = processes ? size > 3 || (SANITIZED && size != 3)
                          : SANITIZED_THREADS || (SANITIZED && size > 4);
    op_part part = size == 3 && !processes ? OP_CASES_MOST : many ? OP_CASES_NINTH : OP_CASES_THIRD;
    assert_int_equal(ranks_run(&desc, op_cases_all, &part), 0);
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

/* A run of fewer rows may have longer chunks than one of all of the plan's: 3072 rows of a rank are
 * one, 3073 two of 2048 or less. */
static int ring_of_longer_chunks(imbrex_group *group, void *ctx)
{
    enum { RANKS = 4, CHUNK = 3072, M = RANKS * (CHUNK + 1), FEWER = RANKS * CHUNK, N = 4, K = 64 };
    static const char *const algorithms[] = { "sequential", "ring" };
    static float c[RANKS][2][FEWER * N], a[RANKS][CHUNK * K];
    int rank = imbrex_group_rank(group);
    float b[N * K];
    imbrex_plan *plans[2];
    (void)ctx;
    for (int i = 0; i < 2; i++) {
        imbrex_gemm_desc desc = { .m = M,
                                  .n = N,
                                  .k = K,
                                  .dtype = IMBREX_F32,
                                  .algorithm = algorithms[i],
                                  .chunk_rows = CHUNK };
        RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plans[i]));
    }
    for (int i = 0; i < N * K; i++)
        b[i] = (float)(i % 7 - 3);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < CHUNK * K; i++)
            a[rank][i] = (float)((i + 5 * rank + 3 * round) % 11 - 5);
        for (int i = 0; i < 2; i++) {
            imbrex_args args = { .a = a[rank], .b = b, .c = c[rank][i], .m = FEWER };
            RANK_OK(imbrex_plan_run(plans[i], &args, NULL));
        }
        RANK_OK(imbrex_stream_sync(group, NULL));
        RANK_CHECK(memcmp(c[rank][0], c[rank][1], sizeof c[rank][0]) == 0, "round %d", round);
    }
    RANK_OK(imbrex_barrier(group, NULL));
    imbrex_plan_destroy(plans[0]);
    imbrex_plan_destroy(plans[1]);
    return 0;
}

static void fewer_rows_in_longer_chunks(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 4 };
    assert_int_equal(ranks_run(&desc, ring_of_longer_chunks, NULL), 0);
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
        cmocka_unit_test(fewer_rows_in_longer_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
