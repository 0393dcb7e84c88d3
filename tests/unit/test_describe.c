/* test_describe.c - what imbrex_plan_describe and imbrex_plan_facts say, word for word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/live.h"
#include "plan/plan.h"

static const char *kernel_says(const imx_prepared *p)
{
    (void)p;
    return "gemm: compiled";
}

static const imx_backend silent = { .name = "cpu" };
static const imx_backend speaks = { .name = "cuda", .prepared_describe = kernel_says };
static const imx_target usual, by_ipc = { .memory = "cudaIpc, because \"so\"" };

static void says(const imbrex_plan *plan, const char *want)
{
    char text[1024];
    assert_true(!plan || imx_live_add(IMX_LIVE_PLAN, plan) == IMBREX_OK);
    size_t length = imbrex_plan_describe(plan, text, sizeof text);
    imx_live_remove(IMX_LIVE_PLAN, plan);
    assert_string_equal(text, want);
    assert_int_equal(length, strlen(want));
}

static void no_plan(void **state)
{
    (void)state;
    says(NULL, "no plan");
}

/* One of everything. */
static void a_collective(void **state)
{
    (void)state;
    imbrex_group group = { .size = 1, .backend = &silent, .target = &usual, .nodes.count = 1 };
    imbrex_plan plan = {
        .group = &group,
        .op = &imx_op_all_gather,
        .shape = { .m = 1, .n = 5, .dtype = IMBREX_BF16 },
        .variants[0] = { .plan = &plan,
                         .called = "copy",
                         .config = { .chunk_rows = 1, .tile_rows = 1, .tile_cols = 1, .blocks = 1 },
                         .why = "there is no peer to send to" },
        .variant_count = 1,
    };
    says(&plan, "all_gather m=1 n=5 bf16, 1 rank on cpu: copy (there is no peer to send to); "
                "chunks of 1 row; 0.00 MiB symmetric, 0.00 MiB local");
}

static void product(imbrex_group *group, imbrex_plan *plan)
{
    *plan = (imbrex_plan){
        .group = group,
        .op = &imx_op_ag_gemm,
        .shape = { .m = 400, .n = 48, .k = 24, .dtype = IMBREX_F16, .layout = IMBREX_KN },
        .variant_count = 1,
        .shared_bytes = 3 << 20,
        .local_bytes = 1 << 19,
    };
    plan->variants[0] = (imx_variant){
        .plan = plan,
        .called = "store",
        .config = { .chunk_rows = 64, .tile_rows = 32, .tile_cols = 16, .blocks = 3 },
        .why = "desc.algorithm",
    };
}

static void a_product_with_variants(void **state)
{
    (void)state;
    imbrex_group group = { .size = 4, .backend = &speaks, .target = &by_ipc, .nodes.count = 1 };
    imbrex_plan plan;
    product(&group, &plan);
    imx_variant *few = &plan.variants[1], *some = &plan.variants[2];
    int prepared;
    *few = *some = plan.variants[0];
    few->shape.m = 64;
    few->measured = true;
    some->shape.m = 128;
    some->called = "copy";
    plan.variant_count = 3;
    plan.variants[0].kernels[1] = (imx_prepared *)&prepared;
    says(&plan, "ag_gemm m=400 n=48 k=24 b=[k,n] f16, 4 ranks on cuda: store (desc.algorithm); "
                "chunks of 64 rows, tiles of 32x16, 3 blocks; gemm: compiled; runs of up to "
                "64 rows: store (measured) 32x16, 128 rows: copy 32x16; 3.00 MiB symmetric, "
                "0.50 MiB local; symmetric memory: cudaIpc, because \"so\"");
    char json[1000];
    assert_int_equal(imx_live_add(IMX_LIVE_PLAN, &plan), IMBREX_OK);
    size_t length = imbrex_plan_facts(&plan, json, sizeof json);
    imx_live_remove(IMX_LIVE_PLAN, &plan);
    assert_string_equal(
        json, "{\"op\": \"ag_gemm\", \"dtype\": \"f16\", \"device\": \"cuda\", \"ranks\": 4, "
              "\"rows\": 400, \"algorithm\": \"store\", \"why\": \"desc.algorithm\", "
              "\"measured\": false, \"chunk_rows\": 64, \"tile_rows\": 32, \"tile_cols\": 16, "
              "\"spans_ranks\": false, \"made_alone\": false, \"blocks\": 3, \"at_once\": 0, "
              "\"memory_bytes\": 3670016, \"symmetric_bytes\": 3145728, "
              "\"local_bytes\": 524288, \"symmetric_kind\": \"cudaIpc, because \\\"so\\\"\", "
              "\"net\": null, \"sent_inside\": 0, \"sent_between\": 0, \"fewer\": ["
              "{\"rows\": 64, \"algorithm\": \"store\", \"measured\": true, "
              "\"tile_rows\": 32, \"tile_cols\": 16}, "
              "{\"rows\": 128, \"algorithm\": \"copy\", \"measured\": false, "
              "\"tile_rows\": 32, \"tile_cols\": 16}]}");
    assert_int_equal(length, strlen(json));
    imx_plan_facts facts = imx_describe_facts(&plan);
    assert_int_equal(facts.fewer_count, 2);
    assert_int_equal(facts.fewer[1].rows, 128);
    assert_false(facts.spanning || facts.measured);
    plan.variants[0].config.spanning = plan.variants[0].config.alone = true;
    assert_int_equal(imx_live_add(IMX_LIVE_PLAN, &plan), IMBREX_OK);
    imbrex_plan_facts(&plan, json, sizeof json);
    imx_live_remove(IMX_LIVE_PLAN, &plan);
    assert_non_null(strstr(json, "\"spans_ranks\": true, \"made_alone\": true, "));
}

/* On a GPU, of an algorithm whose blocks wait for each other. */
static void a_product_that_needs_all(void **state)
{
    (void)state;
    static const imx_target gpu = { .arch = 90 };
    static const imx_algorithm waits = { .name = "store", .at_once = true },
                               goes_on = { .name = "copy" };
    imbrex_group group = { .size = 4, .backend = &speaks, .target = &gpu, .nodes.count = 1 };
    imbrex_plan plan;
    product(&group, &plan);
    plan.variants[0].algorithm = &waits;
    says(&plan, "ag_gemm m=400 n=48 k=24 b=[k,n] f16, 4 ranks on cuda: store (desc.algorithm); "
                "chunks of 64 rows, tiles of 32x16, 3 blocks; needs all 3 SMs at once; "
                "3.00 MiB symmetric, 0.50 MiB local");
    plan.variants[0].algorithm = &goes_on;
    assert_int_equal(imx_describe_facts(&plan).at_once, 0);
    group.target = &usual;
    plan.variants[0].algorithm = &waits;
    assert_int_equal(imx_describe_facts(&plan).at_once, 0);
}

static void a_product_over_nodes(void **state)
{
    (void)state;
    int first[] = { 0, 2 };
    imbrex_group group = { .size = 4,
                           .backend = &silent,
                           .target = &usual,
                           .nodes = { .count = 2, .ranks = 2, .equal = true, .first = first },
                           .net_facts.text = "NCCL 2.28.3" };
    imbrex_plan plan;
    product(&group, &plan);
    says(&plan, "ag_gemm m=400 n=48 k=24 b=[k,n] f16, 4 ranks on cpu: store (desc.algorithm); "
                "chunks of 64 rows, tiles of 32x16, 3 blocks; nodes of 2 x 2 ranks over "
                "NCCL 2.28.3; 3.00 MiB symmetric, 0.50 MiB local");
    plan.variants[0].runs = 1;
    plan.sent_inside = 17;
    plan.sent_between = (uint64_t)1 << 40;
    says(&plan, "ag_gemm m=400 n=48 k=24 b=[k,n] f16, 4 ranks on cpu: store (desc.algorithm); "
                "chunks of 64 rows, tiles of 32x16, 3 blocks; nodes of 2 x 2 ranks over "
                "NCCL 2.28.3; the latest run sent 17 bytes within the node, 1099511627776 to "
                "others; 3.00 MiB symmetric, 0.50 MiB local");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_plan),
        cmocka_unit_test(a_collective),
        cmocka_unit_test(a_product_with_variants),
        cmocka_unit_test(a_product_that_needs_all),
        cmocka_unit_test(a_product_over_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
