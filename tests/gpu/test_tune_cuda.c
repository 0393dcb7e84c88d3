/* test_tune_cuda.c - imbrex_tune through the CUDA backend on a fake driver: the host's path, and
 * what a measured choice is filed under. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "kernels/kernels.h"
#include "plan/plan.h"

/* Without a compiler there are kernels for collectives alone. */
static imbrex_status tune_what_compiles(imbrex_group *group, imbrex_tune_progress note, void *ctx)
{
    imbrex_gemm_desc gemm = { 1024, 64, 64, IMBREX_BF16, .sms = 8 };
    imbrex_coll_desc coll = { 1024, 64, IMBREX_BF16, .sms = 8 };
    if (imx_kernel_gemm.cuda_config)
        return imbrex_tune(group, "ag_gemm", &gemm, sizeof gemm, note, ctx);
    return imbrex_tune(group, "all_gather", &coll, sizeof coll, note, ctx);
}

static int tune(imbrex_group *group, void *ctx)
{
    (void)ctx;
    bool product = imx_kernel_gemm.cuda_config != NULL;
    imbrex_gemm_desc desc = { 1024, 64, product ? 64 : 0, IMBREX_BF16, .sms = 8 };
    imbrex_coll_desc coll = { 1024, 64, IMBREX_BF16, .sms = 8 };
    imbrex_plan *plan;
    RANK_OK(tune_what_compiles(group, NULL, NULL));
    RANK_OK(product ? imbrex_plan_ag_gemm(group, &desc, &plan)
                    : imbrex_plan_all_gather(group, &coll, &plan));
    imx_plan_facts facts = imx_describe_facts(plan);
    imbrex_plan_destroy(plan);
    RANK_CHECK(facts.measured, "%s is not measured", facts.algorithm);
    if (!product)
        return 0;
    desc.m = 2000; /* whose runs of up to 1024 rows take it, too, but no others */
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plan));
    facts = imx_describe_facts(plan);
    imbrex_plan_destroy(plan);
    RANK_CHECK(!facts.measured && facts.fewer_count > 1, "measured %d, %d variants for fewer rows",
               facts.measured, facts.fewer_count);
    for (int i = 0; i < facts.fewer_count; i++) {
        const imx_variant_facts *fewer = &facts.fewer[i];
        RANK_CHECK(fewer->measured == (fewer->rows == 1024), "that of %d rows: measured %d",
                   (int)fewer->rows, fewer->measured);
    }
    return 0;
}

static void run(int gpus)
{
    ranks_desc desc = { .size = 2 };
    assert_int_equal(fake_ranks_run(&desc, gpus, tune, NULL), 0);
}

/* What is known of GPUs with links says nothing about ranks on one GPU. */
static void links_are_in_the_key(void **state)
{
    (void)state;
    char info[16000];
    run(2);
    imbrex_info(info, sizeof info);
    assert_non_null(strstr(info, "tuning cache: 1, of this version 1, in "));
    run(1);
    imbrex_info(info, sizeof info);
    assert_non_null(strstr(info, "tuning cache: 2, of this version 2, in "));
}

enum { TIMEOUT_MS = 2000 };

typedef struct hang {
    int rank, late, steps;
} hang;

/* Rank 1 comes to the second timing when the other has given it up. */
static void note(void *ctx, const imbrex_tune_step *step)
{
    hang *h = ctx;
    h->late += step->dropped && strstr(step->dropped, "waited") ? 1 : 0;
    if (!step->dropped && h->steps++ == 0 && h->rank == 1)
        usleep((useconds_t)patient(TIMEOUT_MS) * 700);
}

static int tune_late(imbrex_group *group, void *ctx)
{
    (void)ctx;
    hang h = { .rank = imbrex_group_rank(group) };
    RANK_OK(tune_what_compiles(group, note, &h));
    RANK_CHECK(h.late == 1, "%d were late", h.late);
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static void what_hangs_is_dropped(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .timeout_ms = TIMEOUT_MS };
    assert_int_equal(fake_ranks_run(&desc, 2, tune_late, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_are_in_the_key),
        cmocka_unit_test(what_hangs_is_dropped),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
