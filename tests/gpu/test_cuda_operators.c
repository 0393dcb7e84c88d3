/* test_cuda_operators.c - the table of operator cases through the CUDA backend on a fake driver:
 * ranks as threads and as processes, on a GPU each and on one together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/cuda/driver.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "fewer_cases.h"
#include "kernels/kernels.h"
#include "op_cases.h"
#include "plan/plan.h"

static op_part some = SANITIZED ? OP_CASES_NINTH : OP_CASES_THIRD;

/* Threads that share a GPU walk most of the table, others a third, or a ninth where a sanitizer
 * watches threads; processes, whose kernels and calls are the same, a ninth if they are many or a
 * sanitizer watches. */
static void run(int size, bool processes, int gpus)
{
    ranks_desc desc = { .size = size, .processes = processes };
    if (processes && !RANKS_PROCESSES)
        skip();
    rank_main cases = imx_kernel_gemm.cuda_config ? op_cases_all : op_cases_collectives;
    bool few = processes ? size == 4 || SANITIZED : size < 4 && SANITIZED_THREADS;
    bool many = size == 4 && !SANITIZED_THREADS; /* which has had wide shapes from three threads */
    op_part part = few ? OP_CASES_NINTH : many ? OP_CASES_MOST : OP_CASES_THIRD;
    assert_int_equal(fake_ranks_run(&desc, gpus, cases, &part), 0);
}

static void alone(void **state)
{
    (void)state;
    run(1, false, 1);
}

static void threads_with_a_gpu_each(void **state)
{
    (void)state;
    run(2, false, 2);
}

static void threads_on_one_gpu(void **state)
{
    (void)state;
    run(4, false, 1);
}

static void processes_with_a_gpu_each(void **state)
{
    (void)state;
    run(4, true, 4);
}

static void processes_on_one_gpu(void **state)
{
    (void)state;
    run(2, true, 1);
}

/* A Hopper and an Ampere: what passes between them has the form that both know, and both know the
 * slower memory. */
static int of_two_kinds(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = rank == 0 ? "cuda:0" : "cuda:1",
        .timeout_ms = patient(20000),
    };
    imbrex_group *group;
    RANK_OK(imbrex_group_create(&desc, &group));
    for (int r = 0; r < 2; r++)
        RANK_CHECK(group->targets[r].arch == 80, "rank %d plans for an sm_%d on rank %d", rank,
                   group->targets[r].arch, r);
    RANK_CHECK(group->memory_gb_s == 1555, "rank %d plans for memory of %d GB/s", rank,
               group->memory_gb_s);
    int failed = op_cases_all(group, &some);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static void gpus_of_two_kinds(void **state)
{
    (void)state;
    if (!imx_kernel_gemm.cuda_config)
        skip();
    fake_driver_install(2);
    fake_driver_set_from(1, CU_COMPUTE_CAPABILITY_MAJOR, 8);
    fake_driver_set_from(1, CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 101376);
    fake_driver_set(CU_MEMORY_CLOCK_RATE, 2619000);
    fake_driver_set(CU_GLOBAL_MEMORY_BUS_WIDTH, 5120); /* 3352 GB/s */
    fake_driver_set_from(1, CU_MEMORY_CLOCK_RATE, 1215000);
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run_bare(&desc, of_two_kinds, NULL), 0);
    assert_int_equal(fake_driver_live(), 0);
}

/* The widest kernel of a run of ag_gemm; none: it failed. */
static fake_launch widest_of(imbrex_group *group, const char *algorithm, int sms)
{
    enum { M = 512, N = 1024, K = 64 };
    imbrex_gemm_desc desc = { M, N, K, IMBREX_BF16, .algorithm = algorithm, .sms = sms };
    imbrex_plan *plan;
    void *memory;
    if (imbrex_mem_alloc(group, (M * K + N * K + M * N) * 2, &memory) ||
        imbrex_plan_ag_gemm(group, &desc, &plan))
        return (fake_launch){ 0 };
    char *a = memory, *b = a + M * K * 2, *c = b + N * K * 2;
    fake_driver_widest();
    imbrex_status status = imbrex_plan_run(plan, &(imbrex_args){ .a = a, .b = b, .c = c }, NULL);
    fake_launch widest = fake_driver_widest();
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    imbrex_plan_destroy(plan);
    imbrex_mem_free(group, memory);
    return status == IMBREX_OK ? widest : (fake_launch){ 0 };
}

/* A product that other kernels run beside has fewer blocks than it could. */
static int leave_room(imbrex_group *group, void *ctx)
{
    (void)ctx;
    fake_launch all = widest_of(group, "sequential", 12), beside = widest_of(group, "pull", 12);
    RANK_CHECK(all.blocks == 12, "%d blocks of 12 where nothing runs beside: %s", all.blocks,
               imbrex_error());
    RANK_CHECK(beside.blocks == 8, "%d blocks of 12 beside others: %s", beside.blocks,
               imbrex_error());
    return 0;
}

/* Blocks that come early take multiprocessors: where those are others', nobody may.  And clusters
 * are whole, also of odd budgets: the fake takes no others. */
static int come_early(imbrex_group *group, void *ctx)
{
    static const char *const algorithms[] = { "sequential", "store" }; /* which pushes by all */
    (void)ctx;
    for (int i = 0; i < 2; i++) {
        int uneven = 0;
        for (int sms = 1; sms <= 12; sms++) {
            fake_launch widest = widest_of(group, algorithms[i], sms);
            RANK_CHECK(widest.blocks && widest.early == (sms == 12),
                       "%s: %d blocks of %d: early %d: %s", algorithms[i], widest.blocks, sms,
                       widest.early, imbrex_error());
            uneven += sms % 2 && widest.cluster == 2;
        }
        RANK_CHECK(uneven, "%s: no clusters of 2 on an odd budget", algorithms[i]);
    }
    return 0;
}

static void products_of_a_part_do_not_come_early(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    if (!imx_kernel_gemm.cuda_config)
        skip();
    assert_int_equal(fake_ranks_run(&desc, 2, come_early, NULL), 0);
}

static void products_leave_room(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    if (!imx_kernel_gemm.cuda_config)
        skip();
    assert_int_equal(fake_ranks_run(&desc, 2, leave_room, NULL), 0);
}

/* What the product itself stores at its rows' owners, and adds up there, wants neither room on this
 * rank nor another kernel. */
static int take_no_room(imbrex_group *group, void *ctx)
{
    (void)ctx;
    const char *algorithms[] = { "copy", "scatter_push" };
    imbrex_plan *plans[2];
    for (int i = 0; i < 2; i++) {
        imbrex_gemm_desc desc = {
            .m = 1024, .n = 256, .k = 64, .algorithm = algorithms[i], .chunk_rows = 128
        };
        RANK_OK(imbrex_plan_gemm_rs(group, &desc, &plans[i]));
    }
    size_t product = 1024 * 256 * 2;
    size_t with = plans[0]->local_bytes, without = plans[1]->local_bytes;
    RANK_CHECK(with >= product && without <= with - product,
               "%zu bytes, and %zu with \"scatter_push\"", with, without);
    RANK_CHECK(plans[0]->variants[0].kernels[1] && !plans[1]->variants[0].kernels[1],
               "a kernel that nobody launches");
    return 0;
}

static void stores_take_no_room(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, take_no_room, NULL), 0);
    if (imx_kernel_gemm.cuda_config)
        assert_int_equal(fake_ranks_run(&desc, 2, take_no_room, NULL), 0);
}

/* ---- rows that are normed where they are added ----------------------------------------------- */

static imbrex_status plan_normed(imbrex_group *group, imbrex_coll_desc desc, bool normed,
                                 const char *algorithm, imbrex_plan **plan)
{
    desc.norm.rms = normed;
    desc.algorithm = algorithm;
    return imbrex_plan_all_reduce(group, &desc, plan);
}

/* Whether the algorithm is chosen or named, but of many rows.  Short rows take no more memory. */
static int norm_with_sums(imbrex_group *group, void *ctx)
{
    static const char *const names[] = { NULL, "ll", "ll2" };
    const imbrex_coll_desc few = { .m = 4, .n = 4096 }, narrow = { .m = 512, .n = 64 };
    const imbrex_coll_desc many = { .m = 1024, .n = 8192 };
    imbrex_plan *plan, *normed;
    (void)ctx;
    for (int i = 0; i < 3; i++) {
        RANK_OK(plan_normed(group, few, true, names[i], &plan));
        const char *algorithm = imx_describe_facts(plan).algorithm;
        bool apart = plan->variants[0].kernels[IMX_KERNELS - 1] != NULL;
        RANK_CHECK(strncmp(algorithm, "ll", 2) == 0 && !apart,
                   "\"%s\", %s: norms rows behind the sum", algorithm, i ? "named" : "chosen");
        imbrex_plan_destroy(plan);
    }
    for (int i = 1; i < 3; i++) {
        RANK_OK(plan_normed(group, many, true, names[i], &plan));
        RANK_CHECK(plan->variants[0].kernels[IMX_KERNELS - 1], "\"%s\": norms many rows, too",
                   names[i]);
        imbrex_plan_destroy(plan);
        RANK_OK(plan_normed(group, narrow, false, names[i], &plan));
        RANK_OK(plan_normed(group, narrow, true, names[i], &normed));
        size_t without = imx_describe_facts(plan).symmetric_bytes;
        size_t with = imx_describe_facts(normed).symmetric_bytes;
        RANK_CHECK(with <= 3 * without, "\"%s\": %zu bytes, and %zu with a norm", names[i], without,
                   with);
        imbrex_plan_destroy(plan);
        imbrex_plan_destroy(normed);
    }
    return op_cases_normed(group, NULL);
}

static void rows_are_normed_where_they_are_added(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3 };
    assert_int_equal(fake_ranks_run(&desc, 1, norm_with_sums, NULL), 0);
}

/* ---- one rank alone -------------------------------------------------------------------------- */

/* Kernels of a run; -1: it failed. */
static int launches_of(imbrex_group *group, imbrex_plan *plan, imbrex_args args)
{
    int before = fake_driver_launched();
    imbrex_status status = imbrex_plan_run(plan, &args, NULL);
    int launches = fake_driver_launched() - before;
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    return status == IMBREX_OK ? launches : -1;
}

/* One kernel makes a sum of what nobody else has a part of, and its norm one more. */
static int launch_few(imbrex_group *group, void *ctx)
{
    enum { N = 64, BYTES = N * N * 2 };
    const imbrex_coll_desc rows = { .m = N, .n = N }, normed = { .m = N, .n = N, .norm.rms = 1 };
    const imbrex_gemm_desc product = { .m = N, .n = N, .k = N };
    imbrex_gemm_desc both = product;
    imbrex_plan *plans[6];
    void *memory;
    (void)ctx;
    both.norm.rms = 1;
    RANK_OK(imbrex_plan_all_reduce(group, &rows, &plans[0]));
    RANK_OK(imbrex_plan_all_reduce(group, &normed, &plans[1]));
    RANK_OK(imbrex_plan_gemm_rs(group, &product, &plans[2]));
    RANK_OK(imbrex_plan_gemm_ar(group, &product, &plans[3]));
    RANK_OK(imbrex_plan_gemm_rs(group, &both, &plans[4]));
    RANK_OK(imbrex_plan_gemm_ar(group, &both, &plans[5]));
    RANK_OK(imbrex_mem_alloc(group, 6 * BYTES, &memory));
    char *a = memory, *b = a + BYTES, *c = b + BYTES, *h = c + BYTES, *gamma = h + BYTES;
    for (int i = 0; i < 6; i++) {
        bool norms = i == 1 || i > 3;
        imbrex_args args = { .a = a, .b = i > 1 ? b : NULL, .c = c };
        if (norms)
            args = (imbrex_args){ a, args.b, .c = c, .residual = h, .h = h, .gamma = gamma };
        int want = i > 3 ? 2 : 1, got = launches_of(group, plans[i], args);
        RANK_CHECK(got == want, "plan %d: %d kernels, want %d: %s", i, got, want, imbrex_error());
        args.bias = gamma; /* the norm's kernel adds it */
        want = i > 1 ? 2 : 1;
        got = launches_of(group, plans[i], args);
        RANK_CHECK(got == want, "plan %d: %d kernels with a bias, want %d: %s", i, got, want,
                   imbrex_error());
    }
    RANK_CHECK(launches_of(group, plans[0], (imbrex_args){ .a = a, .c = a }) == 0,
               "what is in its place is moved: %s", imbrex_error());
    return 0;
}

static void one_rank_launches_few_kernels(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    if (!imx_kernel_gemm.cuda_config)
        skip();
    assert_int_equal(fake_ranks_run(&desc, 1, launch_few, NULL), 0);
}

/* ---- runs of few rows ------------------------------------------------------------------------ */

static void few_rows_have_variants_of_their_own(void **state)
{
    (void)state;
    if (!imx_kernel_gemm.cuda_config)
        skip();
    for (int size = 1; size <= 4; size++) {
        ranks_desc desc = { .size = size };
        assert_int_equal(fake_ranks_run(&desc, size == 3 ? 1 : size, fewer_cases, NULL), 0);
    }
}

/* The same algorithm on both, but one has no choice. */
static int named_on_one(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    if (rank == 1)
        setenv("IMBREX_ALGORITHM", "ll", 1);
    imbrex_group_desc group_desc = {
        .bootstrap = bootstrap,
        .device = "cuda:0",
        .timeout_ms = patient(20000),
    };
    imbrex_gemm_desc desc = { .m = 300, .n = 72, .k = 64 };
    imbrex_group *group;
    imbrex_plan *plan;
    RANK_OK(imbrex_group_create(&group_desc, &group));
    imbrex_status status = imbrex_plan_ag_gemm(group, &desc, &plan);
    RANK_CHECK(status == IMBREX_PEER &&
                   strstr(imbrex_error(),
                          "room for variants for fewer rows (0 or 1) differs between ranks: "
                          "1 on rank 0, 0 on rank 1"),
               "%s", imbrex_error());
    desc.m_least = desc.m; /* so they agree */
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plan));
    imbrex_group_destroy(group);
    return 0;
}

static void few_rows_go_alike_on_all_ranks(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .processes = true };
    if (!imx_kernel_gemm.cuda_config || !RANKS_PROCESSES)
        skip();
    fake_driver_install(1);
    assert_int_equal(ranks_run_bare(&desc, named_on_one, NULL), 0);
    assert_int_equal(fake_driver_live(), 0);
}

/* What is said of a run that waits in vain names the caller's plan and the rows. */
static int wait_in_vain(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { M = 300, FEW = 10, N = 72, K = 64 };
    const imbrex_gemm_desc desc = { .m = M, .n = N, .k = K };
    imbrex_plan *plans[2];
    char *memory;
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plans[0]));
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plans[1]));
    RANK_OK(imbrex_mem_alloc(group, (M * K + N * K + M * N) * 2, (void **)&memory));
    if (imbrex_group_rank(group) == 0) {
        const imbrex_args args = {
            .a = memory, .b = memory + M * K * 2, .c = memory + (M + N) * K * 2, .m = FEW
        };
        RANK_OK(imbrex_plan_run(plans[1], &args, NULL));
    }
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    if (imbrex_group_rank(group) == 0) {
        imbrex_status status = imbrex_stream_sync(group, NULL);
        RANK_CHECK(status == IMBREX_TIMEOUT &&
                       strstr(imbrex_error(), "ag_gemm (plan 2, of up to 64 rows)"),
                   "%s", imbrex_error());
    }
    return 0;
}

static void few_rows_that_wait_in_vain_are_named(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .timeout_ms = 300 };
    if (!imx_kernel_gemm.cuda_config)
        skip();
    assert_int_equal(fake_ranks_run(&desc, 2, wait_in_vain, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(threads_with_a_gpu_each),
        cmocka_unit_test(threads_on_one_gpu),
        cmocka_unit_test(processes_with_a_gpu_each),
        cmocka_unit_test(processes_on_one_gpu),
        cmocka_unit_test(gpus_of_two_kinds),
        cmocka_unit_test(products_leave_room),
        cmocka_unit_test(products_of_a_part_do_not_come_early),
        cmocka_unit_test(stores_take_no_room),
        cmocka_unit_test(rows_are_normed_where_they_are_added),
        cmocka_unit_test(one_rank_launches_few_kernels),
        cmocka_unit_test(few_rows_have_variants_of_their_own),
        cmocka_unit_test(few_rows_go_alike_on_all_ranks),
        cmocka_unit_test(few_rows_that_wait_in_vain_are_named),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
