/* test_flash_decode.c - flash_decode on CPU ranks against float64: pages and none, both orders of
 * heads, grouped heads, MLA, an E4M3 cache, caps, windows, sinks; ranks without tokens; bits;
 * lengths and pages that are out of range; and tuning. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "batch_cases.h"
#include "decode_cases.h"
#include "fake_ranks.h"
#include "kernels/attend/args.h"
#include "net_threads.h"
#include "plan/plan.h"
#include "ranks.h"
#include "seen_cases.h"

static void on_ranks(int size, int node_ranks)
{
    ranks_desc desc = { .size = size, .node_ranks = node_ranks };
    imx_net_of_test = node_ranks ? &net_threads : NULL;
    net_threads_reset();
    int failed = ranks_run(&desc, decode_cases, NULL);
    imx_net_of_test = NULL;
    assert_int_equal(failed, 0);
}

static void one_rank(void **state)
{
    (void)state;
    on_ranks(1, 0);
}

static void three_ranks(void **state)
{
    (void)state;
    on_ranks(3, 0);
}

static void over_nodes(void **state)
{
    (void)state;
    on_ranks(4, 2);
}

static void fake_gpus(void **state)
{
    (void)state;
    for (int size = 1; size <= 2; size++) {
        ranks_desc desc = { .size = size };
        assert_int_equal(fake_ranks_run(&desc, size, decode_cases, NULL), 0);
    }
}

static void checked(void **state)
{
    (void)state;
    if (SANITIZED_THREADS)
        skip(); /* the checker's locks hide from it what operators do */
    setenv("IMBREX_CHECK", "1", 1);
    on_ranks(2, 0);
    unsetenv("IMBREX_CHECK");
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, decode_mistakes, NULL), 0);
}

static void names_what_is_out_of_range(void **state)
{
    (void)state;
    for (int which = 0; which < DECODE_OUT_OF_RANGE; which++) {
        ranks_desc desc = { .size = 2 };
        assert_int_equal(ranks_run(&desc, decode_out_of_range, &which), 0);
    }
}

static void what_is_no_number_shows(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, decode_not_a_number, NULL), 0);
}

static void others_see_less(void **state)
{
    (void)state;
    int heads = 3;
    ranks_desc desc = { .size = 1 };
    assert_int_equal(ranks_run(&desc, seen_cases, &heads), 0);
}

static void has_its_bits_among_others(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    assert_int_equal(ranks_run(&desc, batch_cases, NULL), 0);
}

/* Lengths and pages of runs that are timed are as large as they can be, and in range: else the
 * group would fail.  With other pages it is another case. */
static int tunes(imbrex_group *group, void *ctx)
{
    imbrex_decode_desc desc = { .batch = 2,
                                .context = 70,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .value_dim = 64,
                                .page = 16,
                                .dtype = IMBREX_F32 };
    imbrex_plan *plan;
    (void)ctx;
    RANK_OK(imbrex_tune(group, "flash_decode", &desc, sizeof desc, NULL, NULL));
    RANK_OK(imbrex_plan_flash_decode(group, &desc, &plan));
    RANK_CHECK(imx_describe_facts(plan).measured, "with pages it is not measured");
    imbrex_plan_destroy(plan);
    desc.page = 0;
    RANK_OK(imbrex_plan_flash_decode(group, &desc, &plan));
    RANK_CHECK(!imx_describe_facts(plan).measured, "without pages it is measured");
    imbrex_plan_destroy(plan);
    RANK_OK(imbrex_tune(group, "flash_decode", &desc, sizeof desc, NULL, NULL));
    RANK_OK(imbrex_tune(group, "merge_states", &desc, sizeof desc, NULL, NULL));
    RANK_OK(imbrex_plan_merge_states(group, &desc, &plan));
    RANK_CHECK(imx_describe_facts(plan).measured, "merge_states is not measured");
    imbrex_plan_destroy(plan);
    return 0;
}

static void is_tuned(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, tunes, NULL), 0);
}

/* What a plan has room for is enough for any length; splits are whole tiles and cover it. */
static void splits_have_room(void **state)
{
    (void)state;
    static const int kv_heads[] = { 1, 2, 3, 4, 5, 8, 64 };
    for (size_t i = 0; i < sizeof kv_heads / sizeof kv_heads[0]; i++) {
        int heads = kv_heads[i], longer = 0;
        for (int length = 0; length < 300000; length += length < 5000 ? 1 : 997) {
            int each = imx_attend_split(length, heads), splits = imx_attend_splits(length, heads);
            assert_in_range(splits, 1, imx_attend_splits_room(length, heads));
            assert_int_equal(each % IMX_ATTEND_TILE, 0);
            assert_true((int64_t)each * splits >= length && each >= longer);
            assert_true(length == 0 || (int64_t)each * (splits - 1) < length);
            longer = each;
        }
        assert_int_equal(imx_attend_splits(1 << 20, heads), imx_attend_splits_most(heads));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(three_ranks),
        cmocka_unit_test(over_nodes),
        cmocka_unit_test(fake_gpus),
        cmocka_unit_test(checked),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(names_what_is_out_of_range),
        cmocka_unit_test(what_is_no_number_shows),
        cmocka_unit_test(others_see_less),
        cmocka_unit_test(has_its_bits_among_others),
        cmocka_unit_test(is_tuned),
        cmocka_unit_test(splits_have_room),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests_name("flash_decode", tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
