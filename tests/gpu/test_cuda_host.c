/* test_cuda_host.c - the CUDA backend's host side on a fake driver: what it says when something is
 * missing, which GPU it takes, that nothing leaks whichever call fails, that a run can be captured.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dlfcn.h>

#include "backends/backend.h"
#include "backends/cuda/nvrtc.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "fake_stream.h"
#include "reference.h"

/* ---- what it says ---------------------------------------------------------------------------- */

static imbrex_status create(const char *device, imbrex_group **group)
{
    static const imbrex_bootstrap alone = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &alone, .device = device, .timeout_ms = 2000 };
    return imbrex_group_create(&desc, group);
}

static void expect(const char *device, imbrex_status status, const char *word)
{
    imbrex_group *group = NULL;
    imbrex_status got = create(device, &group);
    if (got == IMBREX_OK)
        imbrex_group_destroy(group);
    if (got != status || (word && !strstr(imbrex_error(), word)))
        fail_msg("%s: %s, want %s with \"%s\"", imbrex_status_name(got), imbrex_error(),
                 imbrex_status_name(status), word ? word : "");
    assert_int_equal(fake_driver_live(), 0);
}

static void without_a_driver(void **state)
{
    (void)state;
    void *real = dlopen("libcuda.so.1", RTLD_NOW);
    if (real) {
        dlclose(real);
        skip();
    }
    fake_driver_install(1);
    imx_driver = NULL;
    expect("cuda", IMBREX_UNSUPPORTED, "libcuda.so.1");
    expect(NULL, IMBREX_OK, NULL); /* the CPU */
}

static void without_a_compiler(void **state)
{
    (void)state;
    fake_driver_install(1);
    imx_nvrtc = NULL;
    setenv("IMBREX_NVRTC", "/nowhere/libnvrtc.so", 1);
    expect("cuda", IMBREX_UNSUPPORTED, "/nowhere/libnvrtc.so");
    expect(NULL, IMBREX_UNSUPPORTED, "/nowhere/libnvrtc.so"); /* not the CPU, in silence */
    unsetenv("IMBREX_NVRTC");
}

static void gpus_that_lack_something(void **state)
{
    (void)state;
    static const struct {
        int attribute, value;
        const char *word;
    } rows[] = {
        { CU_COMPUTE_CAPABILITY_MAJOR, 7, "8.0" },
        { CU_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0, "host memory" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fake_driver_install(1);
        fake_driver_set(rows[i].attribute, rows[i].value);
        expect("cuda", IMBREX_UNSUPPORTED, rows[i].word);
        expect(NULL, IMBREX_OK, NULL);
        char info[4096];
        imbrex_info(info, sizeof info);
        if (!strstr(info, rows[i].word) || !strstr(info, "0 of 1 GPUs"))
            fail_msg("info does not say \"%s\":\n%s", rows[i].word, info);
    }
}

static void drivers_that_do_not_do(void **state)
{
    (void)state;
    fake_driver_install(0);
    expect("cuda", IMBREX_UNSUPPORTED, "no GPU");
    fake_driver_install(1);
    fake_driver_set(0, 11080); /* the driver's version */
    expect("cuda", IMBREX_UNSUPPORTED, "CUDA 11.8");
    fake_driver_install(1);
    fake_driver_fail(1);
    expect("cuda", IMBREX_DEVICE, "CUDA_ERROR_OUT_OF_MEMORY");
}

static void which_gpu(void **state)
{
    (void)state;
    fake_driver_install(2);
    expect("cuda:1", IMBREX_OK, NULL);
    expect("cuda:2", IMBREX_INVALID, "2 GPUs");
    expect("cuda:x", IMBREX_INVALID, "cuda:x");
    imbrex_group *group;
    assert_int_equal(create(NULL, &group), IMBREX_OK);
    imbrex_plan *plan;
    assert_int_equal(imbrex_plan_all_gather(group, &(imbrex_coll_desc){ .m = 1, .n = 1 }, &plan),
                     IMBREX_OK);
    assert_string_equal(imbrex_group_device(group), "cuda:0");
    imbrex_group_destroy(group);
}

static int two_on_one(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cuda:0", .timeout_ms = 2000 };
    imbrex_group *group;
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status == IMBREX_INVALID || status == IMBREX_PEER, "rank %d: %s: %s", rank,
               imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "CUDA_DEVICE_MAX_CONNECTIONS=32"), "%s", imbrex_error());
    return 0;
}

static void sharing_needs_connections(void **state)
{
    (void)state;
    fake_driver_install(1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8", 1);
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run_bare(&desc, two_on_one, NULL), 0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    assert_int_equal(fake_driver_live(), 0);
}

static int nothing(imbrex_group *group, void *ctx)
{
    (void)group;
    (void)ctx;
    return 0;
}

static int unreachable(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cuda", .timeout_ms = 2000 };
    imbrex_group *group = NULL;
    void *memory;
    imbrex_status status = imbrex_group_create(&desc, &group);
    if (status == IMBREX_OK)
        status = imbrex_mem_alloc(group, 100, &memory);
    RANK_CHECK(status == IMBREX_UNSUPPORTED || status == IMBREX_PEER, "rank %d: %s: %s", rank,
               imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), "cannot reach each other"), "%s", imbrex_error());
    imbrex_group_destroy(group);
    return 0;
}

static void gpus_without_links(void **state)
{
    (void)state;
    fake_driver_install(2);
    fake_driver_set_links(0);
    /* GPU 1 may not even use its own memory in this fake: what matters is the sentence. */
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run_bare(&desc, unreachable, NULL), 0);
    assert_int_equal(fake_driver_live(), 0);
    char info[4096];
    imbrex_info(info, sizeof info);
    assert_non_null(strstr(info, "gpu 0 to: 1 NOT REACHED\n"));
    fake_driver_set_links(1);
    imbrex_info(info, sizeof info);
    assert_non_null(strstr(info, "gpu 1 to: 0 NVLink\n"));
    desc.size = 1;
    assert_int_equal(fake_ranks_run(&desc, 1, nothing, NULL), 0);
}

/* ---- barriers -------------------------------------------------------------------------------- */

/* Everyone's word is here after a barrier: one kernel, as long as its signals fit in one. */
static int barriers(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int ranks = imbrex_group_size(group), rank = imbrex_group_rank(group);
    int want = 1 + 2 * (ranks - 1) > IMX_SIGNALS_MOST ? 2 : 1;
    uint64_t *words, here[16];
    RANK_OK(imbrex_mem_alloc(group, sizeof here, (void **)&words));
    for (uint64_t i = 1; i <= 20; i++) {
        for (int to = 0; to < ranks; to++)
            RANK_OK(imbrex_put(group, words + rank, &i, sizeof i, to, NULL));
        int before = fake_driver_launched();
        RANK_OK(imbrex_barrier(group, NULL));
        int launched = fake_driver_launched() - before;
        RANK_CHECK(launched == want, "%d ranks: %d kernels, want %d", ranks, launched, want);
        RANK_OK(imbrex_copy(group, here, words, sizeof here, NULL));
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        for (int r = 0; r < ranks; r++)
            RANK_CHECK(here[r] == i, "barrier %d: rank %d's word is %d", (int)i, r, (int)here[r]);
    }
    imbrex_mem_free(group, words);
    return 0;
}

static void a_barrier_is_one_kernel(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 4, 8, 9 };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ranks_desc desc = { .size = sizes[i] };
        assert_int_equal(fake_ranks_run(&desc, 4, barriers, NULL), 0);
    }
}

/* ---- whatever fails -------------------------------------------------------------------------- */

/* A bit of everything, in one rank. */
static imbrex_status epoch(imbrex_group *group)
{
    static _Thread_local float a[24], c[24], out[24];
    imbrex_plan *plan;
    imbrex_stream stream;
    void *memory;
    IMX_TRY(imbrex_mem_alloc(group, 100, &memory));
    IMX_TRY(imbrex_stream_create(group, &stream));
    imbrex_coll_desc desc = { .m = 8, .n = 3, .dtype = IMBREX_F32 };
    IMX_TRY(imbrex_plan_reduce_scatter(group, &desc, &plan));
    IMX_TRY(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = c }, stream));
    IMX_TRY(imbrex_silu_mul(group, IMBREX_F32, 4, 3, a, out, NULL));
    IMX_TRY(imbrex_put(group, memory, a, sizeof a[0], imbrex_group_rank(group), NULL));
    IMX_TRY(imbrex_barrier(group, NULL));
    IMX_TRY(imbrex_stream_sync(group, stream));
    IMX_TRY(imbrex_stream_sync(group, NULL));
    imbrex_plan_destroy(plan);
    imbrex_mem_free(group, memory);
    return IMBREX_OK;
}

static void any_call_fails(void **state)
{
    (void)state;
    int n = 1;
    setenv("IMBREX_CACHE_DIR", "/dev/null/none", 1); /* so that each compiles */
    for (bool failed = true; failed && n < 1000; n++) {
        fake_driver_install(1);
        imbrex_group *group = NULL;
        fake_driver_fail(n);
        imbrex_status status = create("cuda", &group);
        if (status == IMBREX_OK)
            status = epoch(group);
        const char *call = fake_driver_failed();
        fake_driver_fail(0);
        failed = call != NULL;
        bool compiler = call && strncmp(call, "nvrtc", 5) == 0;
        bool right = status == IMBREX_NO_MEMORY;
        if (!call)
            right = status == IMBREX_OK;
        else if (strcmp(call, "cuInit") == 0)
            right = status == IMBREX_DEVICE;
        else if (compiler)
            right = right || status == IMBREX_INTERNAL;
        else if (status == IMBREX_OK) /* in a destroy, which cannot say it */
            right =
                strcmp(call, "cuStreamWaitEvent") == 0 || strcmp(call, "cuStreamSynchronize") == 0;
        if (!right || (status != IMBREX_OK && !compiler && !strstr(imbrex_error(), call)))
            fail_msg("call %d, %s: %s: %s", n, call ? call : "none", imbrex_status_name(status),
                     imbrex_error());
        imbrex_group_destroy(group);
        if (fake_driver_live())
            fail_msg("call %d, %s: %d objects are left", n, call, fake_driver_live());
    }
    assert_in_range(n, 50, 999);
}

static int use_among(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx, (void)rank;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cuda" };
    desc.timeout_ms = patient(100);
    imbrex_group *group = NULL;
    imbrex_status status = imbrex_group_create(&desc, &group);
    if (status == IMBREX_OK)
        status = epoch(group);
    imbrex_group_destroy(group);
    return status != IMBREX_OK; /* the other rank then does not wait for this one to meet */
}

static void any_call_fails_among_two(void **state)
{
    (void)state;
    bool failed = true;
    for (int n = 1; failed && n < 1000; n += 3) {
        fake_driver_install(1);
        fake_driver_fail(n);
        ranks_desc desc = { .size = 2 };
        int ranks_failed = ranks_run_bare(&desc, use_among, NULL);
        failed = fake_driver_failed() != NULL;
        if (!failed)
            assert_int_equal(ranks_failed, 0);
        if (fake_driver_live())
            fail_msg("call %d, %s: %d objects are left", n, failed ? fake_driver_failed() : "none",
                     fake_driver_live());
    }
    assert_false(failed);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static void the_callers_context_stays(void **state)
{
    (void)state;
    imbrex_group *group;
    CUcontext theirs, now;
    fake_driver_install(2);
    assert_int_equal(imx_driver->cuDevicePrimaryCtxRetain(&theirs, 1), 0);
    assert_int_equal(imx_driver->cuCtxSetCurrent(theirs), 0);
    assert_int_equal(create("cuda:0", &group), IMBREX_OK);
    assert_int_equal(epoch(group), IMBREX_OK);
    imbrex_group_destroy(group);
    assert_int_equal(imx_driver->cuCtxGetCurrent(&now), 0);
    assert_ptr_equal(now, theirs);
    assert_int_equal(imx_driver->cuCtxSetCurrent(NULL), 0);
    assert_int_equal(imx_driver->cuDevicePrimaryCtxRelease(1), 0);
    assert_int_equal(create("cuda:0", &group), IMBREX_OK);
    assert_int_equal(imx_driver->cuCtxGetCurrent(&now), 0);
    assert_null(now); /* and one that is made current meanwhile stays, too */
    assert_int_equal(imx_driver->cuDevicePrimaryCtxRetain(&theirs, 0), 0);
    assert_int_equal(imx_driver->cuCtxSetCurrent(theirs), 0);
    assert_int_equal(epoch(group), IMBREX_OK);
    imbrex_group_destroy(group);
    assert_int_equal(imx_driver->cuCtxGetCurrent(&now), 0);
    assert_ptr_equal(now, theirs);
    assert_int_equal(imx_driver->cuCtxSetCurrent(NULL), 0);
    assert_int_equal(imx_driver->cuDevicePrimaryCtxRelease(0), 0);
    assert_int_equal(fake_driver_live(), 0);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

enum { ROWS = 48, COLS = 5, REPLAYS = 5, CAPTURES = 3 };

/* A reduce_scatter and an all_gather, in turn. */
typedef struct pair {
    imbrex_group *group;
    imbrex_plan *scatter, *gather;
    float a[ROWS * COLS], part[ROWS * COLS], all[ROWS * COLS];
} pair;

static int pair_run(pair *p, imbrex_stream stream)
{
    RANK_OK(imbrex_plan_run(p->scatter, &(imbrex_args){ .a = p->a, .c = p->part }, stream));
    RANK_OK(imbrex_plan_run(p->gather, &(imbrex_args){ .a = p->part, .c = p->all }, stream));
    return 0;
}

/* Runs them outside of graphs, or as a graph, with inputs that are new each time. */
static int pair_check(pair *p, fake_graph *graph, imbrex_stream stream, int round)
{
    int rank = imbrex_group_rank(p->group), ranks = imbrex_group_size(p->group);
    for (int i = 0; i < ROWS * COLS; i++)
        p->a[i] = (float)(round + 1) * (float)(rank + 1) + (float)i;
    if (graph)
        fake_graph_launch(graph, stream);
    else if (pair_run(p, stream))
        return 1;
    RANK_OK(imbrex_stream_sync(p->group, stream));
    for (int i = 0; i < ROWS * COLS; i++) {
        float want = (float)((round + 1) * ranks * (ranks + 1) / 2 + ranks * i);
        RANK_CHECK(p->all[i] == want, "rank %d, round %d: element %d is %g, want %g", rank, round,
                   i, p->all[i], want);
    }
    return 0;
}

/* Captured on streams that the plans have not run on, while their latest runs were elsewhere, in
 * another capture or in none. */
static int captured(imbrex_group *group, void *ctx)
{
    (void)ctx;
    pair p = { .group = group };
    imbrex_coll_desc desc = {
        .m = ROWS, .n = COLS, .dtype = IMBREX_F32, .algorithm = "copy", .chunk_rows = 4
    };
    RANK_OK(imbrex_plan_reduce_scatter(group, &desc, &p.scatter));
    RANK_OK(imbrex_plan_all_gather(group, &desc, &p.gather));
    imbrex_stream streams[CAPTURES];
    fake_graph *graphs[CAPTURES];
    int round = 0;
    for (int i = 0; i < CAPTURES; i++) {
        RANK_OK(imbrex_stream_create(group, &streams[i]));
        RANK_CHECK(i == 1 || pair_check(&p, NULL, NULL, round++) == 0, "outside of graphs");
        RANK_CHECK(imbrex_plan_captured(p.gather) == (i > 0), "before capture %d", i);
        RANK_CHECK(fake_graph_begin(streams[i]) == 0, "no capture");
        int failed = pair_run(&p, streams[i]) || pair_run(&p, streams[i]); /* both buffers */
        int ended = fake_graph_end(streams[i], &graphs[i]);
        RANK_CHECK(ended == 0 && !failed, "capture %d ends with %d", i, ended);
    }
    for (int replay = 0; replay < REPLAYS; replay++) {
        for (int i = 0; i < CAPTURES; i++)
            RANK_CHECK(pair_check(&p, graphs[i], streams[i], round++) == 0, "graph %d", i);
        RANK_CHECK(pair_check(&p, NULL, NULL, round++) == 0, "after replay %d", replay);
    }
    imbrex_plan_destroy(p.scatter);
    imbrex_plan_destroy(p.gather);
    RANK_CHECK(!imbrex_plan_captured(p.gather), "a destroyed plan is captured");
    for (int i = 0; i < CAPTURES; i++)
        fake_graph_destroy(graphs[i]);
    return 0;
}

static void runs_are_captured(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        ranks_desc desc = { .size = ranks };
        assert_int_equal(fake_ranks_run(&desc, ranks, captured, NULL), 0);
    }
}

/* ---- CUDA's default stream ------------------------------------------------------------------- */

/* Each run's input comes to be on the stream itself, right before the run. */
static int on_the_default_stream(imbrex_group *group, void *ctx)
{
    float a[ROWS * COLS], staged[ROWS * COLS], all[ROWS * COLS] = { 0 };
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    imbrex_coll_desc desc = { .m = ROWS, .n = COLS, .dtype = IMBREX_F32 };
    imbrex_stream standard = ctx;
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_all_gather(group, &desc, &plan));
    for (int run = 0; run < REPLAYS; run++) {
        for (int i = 0; i < ROWS * COLS; i++)
            staged[i] = (float)(run * ranks + rank);
        RANK_OK(imbrex_copy(group, a, staged, sizeof a, standard));
        imbrex_args args = { .a = a, .c = all };
        RANK_OK(imbrex_plan_run(plan, &args, standard));
        RANK_OK(imbrex_stream_sync(group, standard));
        for (int r = 0; r < ranks; r++) {
            float got = all[r * ROWS / ranks * COLS], want = (float)(run * ranks + r);
            RANK_CHECK(got == want, "rank %d, run %d: %g, want %g", rank, run, got, want);
        }
    }
    int captured_it = fake_graph_begin(standard);
    RANK_CHECK(captured_it == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "capture: %d", captured_it);
    imbrex_plan_destroy(plan);
    return 0;
}

static void the_default_stream_is_a_stream(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1, .processes = RANKS_PROCESSES };
    assert_int_equal(fake_ranks_run(&desc, 1, on_the_default_stream, (void *)1), 0);
    assert_int_equal(fake_ranks_run(&desc, 1, on_the_default_stream, (void *)2), 0);
    desc.size = 2; /* not threads: they would share it */
    if (RANKS_PROCESSES)
        assert_int_equal(fake_ranks_run(&desc, 1, on_the_default_stream, (void *)1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_driver),
        cmocka_unit_test(without_a_compiler),
        cmocka_unit_test(gpus_that_lack_something),
        cmocka_unit_test(drivers_that_do_not_do),
        cmocka_unit_test(which_gpu),
        cmocka_unit_test(sharing_needs_connections),
        cmocka_unit_test(gpus_without_links),
        cmocka_unit_test(the_callers_context_stays),
        cmocka_unit_test(runs_are_captured),
        cmocka_unit_test(the_default_stream_is_a_stream),
        cmocka_unit_test(a_barrier_is_one_kernel),
        cmocka_unit_test(any_call_fails_among_two),
        cmocka_unit_test(any_call_fails),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
