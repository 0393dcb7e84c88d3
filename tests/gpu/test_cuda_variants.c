/* test_cuda_variants.c - what the variants of one plan share and what each has of its own, on a
 * fake driver: one meeting of the ranks, one number, one allocation, but an epoch each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_ranks.h"
#include "kernels/kernels.h"
#include "plan/plan.h"

enum { M = 2800, N = 64, K = 64 };

static const imbrex_gemm_desc with = { .m = M, .n = N, .k = K };
static const imbrex_gemm_desc without = { .m = M, .n = N, .k = K, .m_least = M };

/* ---- what they share ------------------------------------------------------------------------- */

static _Thread_local int meetings;

static int count_meeting(void *ctx, const void *send, void *recv, size_t bytes)
{
    const imbrex_bootstrap *through = ctx;
    meetings++;
    return through->allgather(through->ctx, send, recv, bytes);
}

static int pieces(const imbrex_group *group)
{
    int count = 0;
    for (const imx_symmetric *m = group->memories; m; m = m->next)
        count++;
    return count;
}

/* Their number, what they take, and how often the ranks meet. */
static int meet_once(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    const imbrex_bootstrap counting = { .rank = rank,
                                        .size = bootstrap->size,
                                        .allgather = count_meeting,
                                        .ctx = (void *)(uintptr_t)bootstrap };
    const imbrex_group_desc desc = { .bootstrap = &counting, .device = "cuda" };
    const imbrex_gemm_desc *descs[] = { &without, &with };
    int met[2];
    imbrex_group *group;
    imbrex_plan *plan;
    RANK_OK(imbrex_group_create(&desc, &group));
    for (int i = 0; i < 2; i++) {
        int before = pieces(group);
        meetings = 0;
        RANK_OK(imbrex_plan_gemm_rs(group, descs[i], &plan));
        met[i] = meetings;
        RANK_CHECK(plan->object.number == 1 + i, "number %d", plan->object.number);
        RANK_CHECK(plan->variant_count == (i ? IMX_VARIANTS : 1), "%d", plan->variant_count);
        RANK_CHECK(pieces(group) == before + 1, "%d pieces of memory", pieces(group) - before);
    }
    RANK_CHECK(met[0] == met[1] && met[0] > 0, "%d meetings, %d with variants", met[0], met[1]);
    imbrex_group_destroy(group);
    return 0;
}

static void one_agreement_one_number_one_allocation(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    if (!imx_kernel_gemm.cuda_config)
        skip();
    fake_driver_install(2);
    assert_int_equal(ranks_run_bare(&desc, meet_once, NULL), 0);
    assert_int_equal(fake_driver_live(), 0);
}

/* ---- what each has --------------------------------------------------------------------------- */

static uint64_t *epoch(const imbrex_plan *plan, const imx_variant *v, int buffer)
{
    char *local = plan->local->base;
    return (uint64_t *)(void *)(local + v->local_at + (size_t)buffer * v->offsets.local_bytes);
}

/* Regions lie behind each other and fill the plan's memory. */
static int check_regions(const imbrex_plan *plan)
{
    size_t shared = 0, local = 0;
    for (int i = 0; i < plan->variant_count; i++) {
        const imx_variant *v = &plan->variants[i];
        RANK_CHECK(v->shared_at == shared && v->local_at == local, "variant %d", i);
        RANK_CHECK(shared % 256 == 0 && local % 256 == 0, "variant %d", i);
        RANK_CHECK(v->offsets.buffer_bytes && v->offsets.local_bytes, "variant %d has none", i);
        shared += 2 * v->offsets.buffer_bytes;
        local += 2 * v->offsets.local_bytes;
    }
    RANK_CHECK(plan->shared->bytes == shared && plan->local->bytes >= local,
               "%zu and %zu bytes, want %zu and %zu", plan->shared->bytes, plan->local->bytes,
               shared, local);
    RANK_CHECK(imbrex_plan_memory(plan) == shared + local, "%zu", imbrex_plan_memory(plan));
    return 0;
}

/* Variant i runs i times, in an order in which each has runs of others in between. */
static int count_apart(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan;
    char *memory;
    RANK_OK(imbrex_plan_gemm_rs(group, &with, &plan));
    RANK_OK(imbrex_mem_alloc(group, (M * K + N * K + M * N) * 2, (void **)&memory));
    if (check_regions(plan))
        return 1;
    for (int round = 1; round < IMX_VARIANTS; round++) {
        for (int i = IMX_VARIANTS - 1; i >= round; i--) {
            const imbrex_args args = { .a = memory,
                                       .b = memory + M * K * 2,
                                       .c = memory + (M + N) * K * 2,
                                       .m = plan->variants[i].shape.m };
            RANK_OK(imbrex_plan_run(plan, &args, NULL));
        }
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int i = 0; i < 2 * IMX_VARIANTS; i++) {
        const imx_variant *v = &plan->variants[i / 2];
        int buffer = i % 2, want = (i / 2 + 1 - buffer) / 2;
        RANK_CHECK(v->runs == (uint64_t)(i / 2), "variant %d: %d runs", i / 2, (int)v->runs);
        RANK_CHECK(*epoch(plan, v, buffer) == (uint64_t)want,
                   "variant %d, buffer %d: epoch %d, not %d", i / 2, buffer,
                   (int)*epoch(plan, v, buffer), want);
    }
    return 0;
}

static void an_epoch_each(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    if (imx_kernel_gemm.cuda_config)
        assert_int_equal(fake_ranks_run(&desc, 2, count_apart, NULL), 0);
}

/* ---- whatever fails -------------------------------------------------------------------------- */

static const char makes_none[] =
    "(the plan has 11 variants for fewer rows; desc.m_least = desc.m makes none)";

/* The n-th call of the driver. */
static void any_call_fails(void **state)
{
    (void)state;
    static const imbrex_bootstrap alone = { .rank = 0, .size = 1 };
    const imbrex_group_desc desc = { .bootstrap = &alone, .device = "cuda" };
    imbrex_group *group;
    imbrex_plan *plan = NULL;
    int n = 1;
    if (!imx_kernel_gemm.cuda_config)
        skip();
    fake_driver_install(1);
    assert_int_equal(imbrex_group_create(&desc, &group), IMBREX_OK);
    assert_int_equal(imbrex_plan_gemm_rs(group, &with, &plan), IMBREX_OK); /* compiles */
    imbrex_plan_destroy(plan);
    for (int live = fake_driver_live(); n < 1000; n++) {
        fake_driver_fail(n);
        imbrex_status status = imbrex_plan_gemm_rs(group, &with, &plan);
        const char *call = fake_driver_failed();
        fake_driver_fail(0);
        if (!call && status == IMBREX_OK)
            break;
        if (!call || status != IMBREX_NO_MEMORY || !strstr(imbrex_error(), makes_none))
            fail_msg("call %d, %s: %s: %s", n, call ? call : "none", imbrex_status_name(status),
                     imbrex_error());
        if (fake_driver_live() != live || group->objects[IMX_OF_LIBRARY].first)
            fail_msg("call %d, %s: %d objects are left", n, call, fake_driver_live() - live);
    }
    assert_in_range(n, 20, 999);
    assert_int_equal(plan->object.number, 2); /* none that failed has one */
    imbrex_group_destroy(group);
    assert_int_equal(fake_driver_live(), 0);
}

static imx_sys_table real;
static _Thread_local int countdown; /* 0: no call of this thread fails */

static void *fail_calloc(size_t count, size_t bytes)
{
    return countdown > 0 && --countdown == 0 ? NULL : real.calloc(count, bytes);
}

typedef struct tries {
    int failures;
    bool over; /* rank 1 makes no more allocations */
} tries;

/* The n-th allocation of rank 1: where that matters, no rank has the plan then, and all may try
 * again. */
static int allocate(imbrex_group *group, void *ctx)
{
    tries *t = ctx;
    int rank = imbrex_group_rank(group), failures = 0;
    for (int n = 1; !t->over; n++) {
        imbrex_plan *plan;
        countdown = rank == 1 ? n : 0;
        imbrex_status status = imbrex_plan_gemm_rs(group, &with, &plan);
        bool over = countdown > 0;
        countdown = 0;
        RANK_CHECK(status == IMBREX_OK || status == (rank == 1 ? IMBREX_NO_MEMORY : IMBREX_PEER),
                   "allocation %d: rank %d: %s: %s", n, rank, imbrex_status_name(status),
                   imbrex_error());
        failures += status != IMBREX_OK;
        if (status == IMBREX_OK) {
            RANK_CHECK(plan->object.number == n - failures, "number %d", plan->object.number);
            imbrex_plan_destroy(plan);
        }
        RANK_CHECK(!group->objects[IMX_OF_LIBRARY].first, "allocation %d: rank %d has a plan", n,
                   rank);
        if (ranks_meet(group))
            return 1;
        if (rank == 1)
            *t = (tries){ failures, over };
        if (ranks_meet(group))
            return 1;
    }
    return 0;
}

static void any_allocation_fails(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    tries t = { 0 };
    if (!imx_kernel_gemm.cuda_config)
        skip();
    real = imx_sys;
    imx_sys.calloc = fail_calloc;
    int failed = fake_ranks_run(&desc, 2, allocate, &t);
    imx_sys = real;
    assert_int_equal(failed, 0);
    assert_true(t.failures > 2); /* of the plan, of its memory */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_agreement_one_number_one_allocation),
        cmocka_unit_test(an_epoch_each),
        cmocka_unit_test(any_call_fails),
        cmocka_unit_test(any_allocation_fails),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
