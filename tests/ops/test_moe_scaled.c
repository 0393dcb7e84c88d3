/* test_moe_scaled.c - ag_moe and moe_rs of 8-bit elements and scales on CPU ranks, and through the
 * CUDA backend on a fake driver: bit for bit what docs/numerics.md says, by all algorithms, on one
 * node and over nodes; and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "moe_scaled_cases.h"
#include "net_threads.h"
#include "ranks.h"

static void bit_for_bit(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3 };
    moe_scaled_walk walk = { SANITIZED ? 3 + 2 * SANITIZED : 1 };
    assert_int_equal(ranks_run(&desc, moe_scaled_cases, &walk), 0);
    imx_net_of_test = &net_threads;
    net_threads_reset();
    desc = (ranks_desc){ .size = 4, .node_ranks = 2 };
    walk.step = SANITIZED ? 7 : 5;
    int failed = ranks_run(&desc, moe_scaled_cases, &walk);
    imx_net_of_test = NULL;
    assert_int_equal(failed, 0);
}

/* ---- what is refused ------------------------------------------------------------------------- */

#define REFUSED(change, status, says)                                                       \
    do {                                                                                    \
        imbrex_moe_desc desc = good;                                                        \
        change;                                                                             \
        imbrex_status was_ = imbrex_plan_ag_moe(group, &desc, &plan);                       \
        RANK_CHECK(was_ == (status) && strstr(imbrex_error(), says), "%s", imbrex_error()); \
    } while (0)

static int mistakes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    const imbrex_moe_desc good = { .tokens = 8,
                                   .n = 8,
                                   .k = 32,
                                   .experts = 3,
                                   .top_k = 2,
                                   .dtype = IMBREX_E4M3,
                                   .scaling = IMBREX_PER_ROW };
    imbrex_plan *plan = NULL;
    REFUSED(desc.scaling = IMBREX_PER_TENSOR, IMBREX_UNSUPPORTED, "want PER_ROW or PER_BLOCK");
    REFUSED(desc.layout = IMBREX_KN, IMBREX_UNSUPPORTED, "desc.layout is IMBREX_KN");
    REFUSED(desc.k = 24, IMBREX_UNSUPPORTED, "desc.k is 24");
    REFUSED(desc.dtype = IMBREX_BF16, IMBREX_INVALID, "desc.scaling is 2");
    REFUSED((desc.dtype = IMBREX_BF16, desc.scaling = IMBREX_UNSCALED, desc.out = IMBREX_F32),
            IMBREX_UNSUPPORTED, "desc.out is f32");
    RANK_OK(imbrex_plan_ag_moe(group, &good, &plan));
    static float room[1024];
    static int32_t ids[16];
    const imbrex_routing routing = { .expert_begin = ids,
                                     .expert_rows = ids,
                                     .row_pair = ids,
                                     .pair_row = ids,
                                     .pair_expert = ids,
                                     .weights = room };
    imbrex_args args = {
        .a = room, .b = room, .c = room, .ids = ids, .routing = &routing, .scale_a = room
    };
    RANK_CHECK(imbrex_plan_run(plan, &args, NULL) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "args.scale_b is NULL: want 24 elements"),
               "%s", imbrex_error());
    imbrex_plan_destroy(plan);
    return 0;
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, mistakes, NULL), 0);
}

static void on_gpus(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    moe_scaled_walk walk = { SANITIZED ? 5 : 2 };
    assert_int_equal(fake_ranks_run(&desc, 2, moe_scaled_cases_device, &walk), 0);
    walk.step = 5;
    assert_int_equal(fake_ranks_run(&desc, 1, moe_scaled_cases_wide, &walk), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bit_for_bit),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(on_gpus),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests_name("moe scaled", tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
