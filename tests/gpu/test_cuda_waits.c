/* test_cuda_waits.c - what the CUDA backend's calls wait for, on a fake driver: copies of pageable
 * memory for their stream, and launches for nothing; and that nothing is unloaded, which waits for
 * all kernels, where another rank may be the one that lets them end. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_ranks.h"
#include "fake_stream.h"
#include "imbrex_device.h"

static imbrex_status create(imbrex_group **group)
{
    static const imbrex_bootstrap alone = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &alone, .device = "cuda", .timeout_ms = 2000 };
    return imbrex_group_create(&desc, group);
}

enum { ROWS = 48, COLS = 5, RUNS = 5 };

/* ---- copies ---------------------------------------------------------------------------------- */

static int runs_ask_nothing(imbrex_group *group, void *ctx)
{
    (void)ctx;
    float a[ROWS * COLS] = { 0 }, part[ROWS * COLS] = { 0 };
    imbrex_coll_desc desc = { .m = ROWS, .n = COLS, .dtype = IMBREX_F32, .algorithm = "copy" };
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_reduce_scatter(group, &desc, &plan));
    for (int run = 0; run < RUNS; run++)
        RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = part }, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_CHECK(fake_driver_asked() == 0, "%d questions whose memory it is", fake_driver_asked());
    imbrex_plan_destroy(plan);
    return 0;
}

static void runs_ask_for_no_attributes(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(fake_ranks_run(&desc, 1, runs_ask_nothing, NULL), 0);
}

typedef struct gate {
    int64_t limit_ns;
    uint64_t open, passed;
} gate;

static void pass(void *arg)
{
    gate *g = arg;
    int64_t begin_ns = imbrexd_now_ns();
    while (!imbrexd_load_acquire(&g->open) && imbrexd_now_ns() - begin_ns < g->limit_ns)
        usleep(1000);
    imbrexd_store_release(&g->passed, 1);
}

/* Whether a copy behind a gate returns only once the gate has been passed. */
static bool copy_waits(imbrex_group *group, imbrex_stream stream, bool put, void *dst,
                       const void *src, bool want)
{
    gate g = { .limit_ns = want ? 30000000 : 2000000000 };
    assert_int_equal(fake_stream_call(stream, pass, &g), CUDA_SUCCESS);
    assert_int_equal(put ? imbrex_put(group, dst, src, 64, 0, stream)
                         : imbrex_copy(group, dst, src, 64, stream),
                     IMBREX_OK);
    bool waited = imbrexd_load_acquire(&g.passed);
    imbrexd_store_release(&g.open, 1);
    assert_int_equal(imbrex_stream_sync(group, stream), IMBREX_OK);
    return waited;
}

static void pageable_copies_wait(void **state)
{
    (void)state;
    static char pageable[64], pinned[64];
    imbrex_group *group;
    imbrex_stream stream;
    void *symmetric;
    fake_graph *graph;
    fake_driver_install(1);
    fake_driver_set_pageable(pageable, sizeof pageable);
    assert_int_equal(create(&group), IMBREX_OK);
    assert_int_equal(imbrex_stream_create(group, &stream), IMBREX_OK);
    assert_int_equal(imbrex_mem_alloc(group, 64, &symmetric), IMBREX_OK);
    const struct {
        bool put, waits;
        void *dst;
        const void *src;
    } rows[] = {
        { false, false, symmetric, pinned },  { true, false, symmetric, pinned },
        { false, true, symmetric, pageable }, { false, true, pageable, symmetric },
        { true, true, symmetric, pageable },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool waited =
            copy_waits(group, stream, rows[i].put, rows[i].dst, rows[i].src, rows[i].waits);
        if (waited != rows[i].waits)
            fail_msg("row %zu: waited: %d, want %d", i, waited, rows[i].waits);
    }
    assert_int_equal(fake_graph_begin(stream), 0); /* where nobody can wait */
    assert_int_equal(imbrex_copy(group, symmetric, pageable, 64, stream), IMBREX_OK);
    assert_int_equal(fake_graph_end(stream, &graph), 0);
    fake_graph_destroy(graph);
    imbrex_group_destroy(group);
    assert_int_equal(fake_driver_live(), 0);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* A stream that is given back is somebody else's next, who must not wait for what was in it. */
static void streams_are_given_back_empty(void **state)
{
    (void)state;
    gate g = { .limit_ns = 100000000 };
    imbrex_group *group;
    imbrex_stream stream, again;
    fake_driver_install(1);
    assert_int_equal(create(&group), IMBREX_OK);
    assert_int_equal(imbrex_stream_create(group, &stream), IMBREX_OK);
    assert_int_equal(fake_stream_call(stream, pass, &g), CUDA_SUCCESS);
    imbrex_stream_destroy(group, stream);
    assert_true(imbrexd_load_acquire(&g.passed));
    assert_int_equal(imbrex_stream_create(group, &again), IMBREX_OK);
    assert_ptr_equal(again, stream);
    imbrex_group_destroy(group);
    assert_int_equal(fake_driver_live(), 0);
}

/* ---- launches -------------------------------------------------------------------------------- */

static void run_and_launch(void)
{
    float a[ROWS * COLS] = { 0 }, part[ROWS * COLS] = { 0 };
    imbrex_coll_desc desc = { .m = ROWS, .n = COLS, .dtype = IMBREX_F32 };
    imbrex_group *group;
    imbrex_plan *plan;
    assert_int_equal(create(&group), IMBREX_OK);
    assert_int_equal(imbrex_plan_reduce_scatter(group, &desc, &plan), IMBREX_OK);
    imbrex_args args = { .a = a, .c = part };
    assert_int_equal(imbrex_plan_run(plan, &args, NULL), IMBREX_OK);
    assert_int_equal(imbrex_silu_mul(group, IMBREX_F32, 4, 3, a, part, NULL), IMBREX_OK);
    assert_int_equal(imbrex_barrier(group, NULL), IMBREX_OK);
    assert_int_equal(imbrex_stream_sync(group, NULL), IMBREX_OK);
    imbrex_group_destroy(group);
    assert_int_equal(fake_driver_live(), 0);
}

/* The fake refuses a launch for which a real GPU would have to be idle. */
static void a_launch_has_nothing_to_catch_up_on(void **state)
{
    (void)state;
    fake_driver_install(1);
    fake_driver_set_local(5000);
    run_and_launch();
}

static const imx_driver_calls *newer;

static CUresult get_loaded(CUfunction *function, CUmodule module, const char *name)
{
    CUresult got = newer->cuModuleGetFunction(function, module, name);
    return got == CUDA_SUCCESS ? newer->cuFuncLoad(*function) : got;
}

static void older_drivers_load_what_they_give(void **state)
{
    (void)state;
    fake_driver_install(1);
    newer = imx_driver;
    imx_driver_calls older = *imx_driver;
    older.cuFuncLoad = NULL;
    older.cuModuleGetFunction = get_loaded;
    imx_driver = &older;
    run_and_launch();
    imx_driver = newer;
}

/* ---- modules --------------------------------------------------------------------------------- */

/* Modules that a plan's life leaves, and how many it loads, once all ranks have lived it. */
static int live(imbrex_group *group, int *loads, int *left)
{
    imbrex_gemm_desc desc = { .m = 8, .n = 8, .k = 8, .dtype = IMBREX_BF16 };
    imbrex_plan *plan;
    int before = fake_driver_loads();
    if (ranks_meet(group))
        return 1;
    RANK_OK(imbrex_plan_gemm_rs(group, &desc, &plan));
    imbrex_plan_destroy(plan);
    if (ranks_meet(group))
        return 1;
    *loads = fake_driver_loads() - before;
    *left = fake_driver_modules();
    return ranks_meet(group);
}

static int modules_stay(imbrex_group *group, void *ctx)
{
    bool shared = *(bool *)ctx;
    int loads[4], left[4];
    if (live(group, &loads[0], &left[0]) || live(group, &loads[1], &left[1]))
        return 1;
    RANK_CHECK(loads[0] > 0, "the first plan loads nothing");
    RANK_CHECK(loads[1] == 0 && left[1] == left[0], "the second plan loads %d, of %d %d are left",
               loads[1], left[0], left[1]);
    RANK_OK(imbrex_trace(group, 100)); /* their kernels write where the trace says */
    if (ranks_meet(group) || live(group, &loads[2], &left[2]) || live(group, &loads[3], &left[3]))
        return 1;
    RANK_CHECK(loads[2] > 0 && loads[3] == loads[2], "%d loads, then %d", loads[2], loads[3]);
    RANK_CHECK(left[3] == left[2] + (shared ? loads[3] : 0), "of %d, and %d more, %d are left",
               left[2], loads[3], left[3]);
    return 0;
}

static void modules_are_kept(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    bool shared = true;
    assert_int_equal(fake_ranks_run(&desc, 1, modules_stay, &shared), 0);
    shared = false;
    assert_int_equal(fake_ranks_run(&desc, 2, modules_stay, &shared), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_ask_for_no_attributes),
        cmocka_unit_test(pageable_copies_wait),
        cmocka_unit_test(streams_are_given_back_empty),
        cmocka_unit_test(a_launch_has_nothing_to_catch_up_on),
        cmocka_unit_test(older_drivers_load_what_they_give),
        cmocka_unit_test(modules_are_kept),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
