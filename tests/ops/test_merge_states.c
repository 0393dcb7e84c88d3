/* test_merge_states.c - merge_states on CPU ranks, on fake GPUs, over nodes, under the checker and
 * with sleeps; and what is wrong with a desc or args. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "merge_cases.h"
#include "net_threads.h"
#include "plan/plan.h"
#include "ranks.h"

static void cpu_ranks(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++) {
        ranks_desc desc = { .size = size };
        assert_int_equal(ranks_run(&desc, merge_cases, NULL), 0);
    }
}

static void cpu_processes(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3, .processes = true };
    if (!RANKS_PROCESSES)
        skip();
    assert_int_equal(ranks_run(&desc, merge_cases, NULL), 0);
}

static void fake_gpus(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++) {
        ranks_desc desc = { .size = size };
        assert_int_equal(fake_ranks_run(&desc, size, merge_cases, NULL), 0);
    }
}

static void over_nodes(void **state)
{
    static const int shapes[][2] = { { 4, 2 }, { 6, 2 }, { 3, 1 }, { 6, 3 } };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        ranks_desc desc = { .size = shapes[i][0], .node_ranks = shapes[i][1] };
        imx_net_of_test = &net_threads;
        net_threads_reset();
        if (i == 0)
            setenv("IMBREX_CHECK", "1", 1);
        int failed = ranks_run(&desc, merge_cases, NULL);
        unsetenv("IMBREX_CHECK");
        imx_net_of_test = NULL;
        assert_int_equal(failed, 0);
    }
}

static void with_env(const char *name, const char *value)
{
    ranks_desc desc = { .size = 3 };
    setenv(name, value, 1);
    int failed = ranks_run(&desc, merge_cases, NULL);
    unsetenv(name);
    assert_int_equal(failed, 0);
}

static void checked(void **state)
{
    (void)state;
    if (SANITIZED_THREADS)
        skip(); /* the checker's locks hide from it what operators do */
    with_env("IMBREX_CHECK", "1");
}

static void with_sleeps(void **state)
{
    (void)state;
    with_env("IMBREX_CHAOS", "1");
}

/* ---- bits that depend on a row alone --------------------------------------------------------- */

enum { ROWS = 40, HEADS = 2, VALUES = 16 };

/* A row among others and alone. */
static int alone(imbrex_group *group, void *ctx)
{
    static const char *const algorithms[] = { "sequential", "store", "ll" };
    float o_partial[ROWS * HEADS * VALUES], lse[ROWS * HEADS], all[ROWS * HEADS * VALUES];
    float one[HEADS * VALUES];
    int rank = imbrex_group_rank(group);
    (void)ctx;
    for (int i = 0; i < ROWS * HEADS * VALUES; i++)
        o_partial[i] = (float)((i * 37 + rank * 11) % 101) / 7;
    for (int i = 0; i < ROWS * HEADS; i++)
        lse[i] = (float)((i * 13 + rank * 29) % 17) / 3;
    for (int a = 0; a < 3; a++) {
        imbrex_decode_desc desc = { .batch = ROWS,
                                    .heads = HEADS,
                                    .value_dim = VALUES,
                                    .dtype = IMBREX_F32,
                                    .replicate = 1,
                                    .algorithm = algorithms[a] };
        imbrex_plan *plan;
        RANK_OK(imbrex_plan_merge_states(group, &desc, &plan));
        imbrex_decode_args args = { .o_partial = o_partial, .lse_partial = lse, .o = all };
        RANK_OK(imbrex_plan_run_decode(plan, &args, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        for (int row = 0; row < ROWS; row += 13) {
            args = (imbrex_decode_args){ .batch = 1,
                                         .o_partial = o_partial + row * HEADS * VALUES,
                                         .lse_partial = lse + row * HEADS,
                                         .o = one };
            RANK_OK(imbrex_plan_run_decode(plan, &args, NULL));
            RANK_OK(imbrex_stream_sync(group, NULL));
            RANK_CHECK(memcmp(one, all + row * HEADS * VALUES, sizeof one) == 0, "row %d by %s",
                       row, algorithms[a]);
        }
        imbrex_plan_destroy(plan);
    }
    return 0;
}

static void a_row_by_itself(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3 };
    assert_int_equal(ranks_run(&desc, alone, NULL), 0);
}

/* ---- what is wrong --------------------------------------------------------------------------- */

#define REFUSED(call, status, part)                                                    \
    do {                                                                               \
        imbrex_status was_ = (call);                                                   \
        RANK_CHECK(was_ == (status) && strstr(imbrex_error(), (part)), "%s: %s",       \
                   imbrex_status_name(was_), was_ == IMBREX_OK ? "" : imbrex_error()); \
    } while (0)

static int mistakes(imbrex_group *group, void *ctx)
{
    static _Alignas(16) char memory[3][4096];
    char *at = memory[imbrex_group_rank(group)];
    const imbrex_decode_desc good = { .batch = 2, .heads = 3, .value_dim = 8, .dtype = IMBREX_F32 };
    imbrex_decode_desc bad = good;
    imbrex_plan *plan, *other;
    (void)ctx;
    bad.heads = 0;
    REFUSED(imbrex_plan_merge_states(group, &bad, &plan), IMBREX_INVALID,
            "desc.heads is 0: want from 1 to 65536");
    bad = good;
    bad.value_dim = 1025;
    REFUSED(imbrex_plan_merge_states(group, &bad, &plan), IMBREX_INVALID,
            "desc.value_dim is 1025: want from 1 to 1024");
    bad = good;
    bad.queries = 9;
    REFUSED(imbrex_plan_merge_states(group, &bad, &plan), IMBREX_INVALID,
            "desc.queries is 9: want from 0 to 8");
    bad = good;
    bad.heads = imbrex_group_rank(group) ? 4 : 3;
    REFUSED(imbrex_plan_merge_states(group, &bad, &plan), IMBREX_PEER,
            "desc.heads differs between ranks: 3 on rank 0, 4 on rank 1");
    bad = good;
    bad.reserved[7] = 1;
    REFUSED(imbrex_plan_merge_states(group, &bad, &plan), IMBREX_UNSUPPORTED,
            "desc.reserved is not 0");
    RANK_OK(imbrex_plan_merge_states(group, &good, &plan));
    const imbrex_decode_args right = { .o_partial = at,
                                       .lse_partial = (float *)(void *)(at + 1024),
                                       .o = at + 2048 };
    imbrex_decode_args wrong = right;
    wrong.lse_partial = NULL;
    REFUSED(imbrex_plan_run_decode(plan, &wrong, NULL), IMBREX_INVALID,
            "args.lse_partial is NULL: want 6 elements");
    wrong = right;
    wrong.o = at + 100;
    REFUSED(imbrex_plan_run_decode(plan, &wrong, NULL), IMBREX_INVALID,
            "args.o overlaps args.o_partial");
    wrong = right;
    wrong.batch = 3;
    REFUSED(imbrex_plan_run_decode(plan, &wrong, NULL), IMBREX_INVALID,
            "args.batch is 3: want at most desc.batch, 2");
    wrong = right;
    wrong.reserved[5] = 1;
    REFUSED(imbrex_plan_run_decode(plan, &wrong, NULL), IMBREX_UNSUPPORTED,
            "args.reserved is not 0");
    REFUSED(imbrex_plan_run(plan, &(imbrex_args){ .a = at }, NULL), IMBREX_INVALID,
            "plan is merge_states's, which imbrex_plan_run_decode runs");
    const imbrex_coll_desc gather = { .m = 2, .n = 2, .dtype = IMBREX_F32 };
    RANK_OK(imbrex_plan_all_gather(group, &gather, &other));
    REFUSED(imbrex_plan_run_decode(other, &right, NULL), IMBREX_INVALID,
            "plan is all_gather's, which imbrex_plan_run runs");
    char line[400];
    imbrex_plan_describe(plan, line, sizeof line);
    RANK_CHECK(strstr(line, "merge_states batch=2 heads=3 value_dim=8 f32, 3 ranks on cpu: store"),
               "%s", line);
    return 0;
}

static int batches_differ(imbrex_group *group, void *ctx)
{
    float o_partial[4] = { 0 }, lse[2] = { 0 }, o[4];
    const imbrex_decode_desc desc = {
        .batch = 2, .heads = 1, .value_dim = 2, .dtype = IMBREX_F32, .replicate = 1
    };
    const imbrex_decode_args args = { .batch = imbrex_group_rank(group) ? 1 : 2,
                                      .o_partial = o_partial,
                                      .lse_partial = lse,
                                      .o = o };
    imbrex_plan *plan;
    (void)ctx;
    RANK_OK(imbrex_plan_merge_states(group, &desc, &plan));
    imbrex_status status = imbrex_plan_run_decode(plan, &args, NULL);
    if (status == IMBREX_OK) /* here before the others, which see it */
        status = imbrex_stream_sync(group, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "args.batch differs between"),
               "%s", imbrex_error());
    return 0;
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3 };
    assert_int_equal(ranks_run(&desc, mistakes, NULL), 0);
    assert_int_equal(ranks_run(&desc, batches_differ, NULL), 0);
}

/* A rank that does not come: the others' waits end, and say for whom. */
static int one_is_missing(imbrex_group *group, void *ctx)
{
    float o_partial[8] = { 0 }, lse[1] = { 0 }, o[8];
    const imbrex_decode_desc desc = { .batch = 1,
                                      .heads = 1,
                                      .value_dim = 8,
                                      .dtype = IMBREX_F32,
                                      .algorithm = ctx,
                                      .replicate = 1 };
    const imbrex_decode_args args = { .o_partial = o_partial, .lse_partial = lse, .o = o };
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_merge_states(group, &desc, &plan));
    for (int i = 0; imbrex_group_rank(group) == 1; i++) {
        if (imbrex_group_status(group) != IMBREX_OK)
            return 0;
        RANK_CHECK(i < 20000, "nobody has noticed");
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    RANK_OK(imbrex_plan_run_decode(plan, &args, NULL));
    return ranks_expect(group, "rank 1's part of ");
}

static void waits_end(void **state)
{
    static const char *const algorithms[] = { "sequential", "store", "ll" };
    (void)state;
    for (int i = 0; i < 3; i++) {
        ranks_desc desc = { .size = 2, .timeout_ms = 300 };
        assert_int_equal(ranks_run(&desc, one_is_missing, (void *)(uintptr_t)algorithms[i]), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_ranks),       cmocka_unit_test(cpu_processes),
        cmocka_unit_test(fake_gpus),       cmocka_unit_test(over_nodes),
        cmocka_unit_test(checked),         cmocka_unit_test(with_sleeps),
        cmocka_unit_test(a_row_by_itself), cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(waits_end),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests_name("merge_states", tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
