/* test_dispatch.c - dispatch and combine on CPU ranks and fake GPUs: the table, the checker, chaos;
 * moe_rs's bits; what fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dispatch_cases.h"
#include "fake_ranks.h"
#include "net_threads.h"
#include "ranks.h"
#include "reference.h"
#include "sanitized.h"

static void on_ranks(int size, rank_main main, void *ctx)
{
    ranks_desc desc = { .size = size };
    assert_int_equal(ranks_run(&desc, main, ctx), 0);
}

static void cpu_ranks(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks++)
        on_ranks(ranks, exchange_every_case,
                 &(int){ ranks == 3 ? 1 + 3 * SANITIZED : 5 + 6 * SANITIZED });
}

/* Nodes of so many ranks. */
static int on_nodes(int ranks, int node_ranks, rank_main main, void *ctx)
{
    ranks_desc desc = { .size = ranks, .node_ranks = node_ranks };
    imx_net_of_test = &net_threads;
    net_threads_reset();
    int failed = ranks_run(&desc, main, ctx);
    imx_net_of_test = NULL;
    return failed;
}

static void over_nodes(void **state)
{
    (void)state;
    int often = 1 + 2 * SANITIZED;
    assert_int_equal(on_nodes(4, 2, exchange_every_case, &(int){ 2 * often + 1 }), 0);
    assert_int_equal(on_nodes(6, 3, exchange_every_case, &(int){ 5 * often }), 0);
    assert_int_equal(on_nodes(6, 2, exchange_every_case, &(int){ 7 * often }), 0);
    assert_int_equal(on_nodes(3, 1, exchange_every_case, &(int){ 5 * often }), 0);
}

/* More than a kernel's arguments have room for. */
static void many_ranks(void **state)
{
    exchange x = { .desc = {
                       .rank_tokens = 2, .n = 3, .experts = 20, .top_k = 3, .dtype = IMBREX_F32 } };
    (void)state;
    on_ranks(17, (rank_main)exchange_run_all, &x);
}

static void processes(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3, .processes = true };
    if (!RANKS_PROCESSES)
        skip();
    assert_int_equal(ranks_run(&desc, exchange_every_case, &(int){ 7 + 8 * SANITIZED }), 0);
}

static void under(const char *name, const char *value, int step)
{
    setenv(name, value, 1);
    setenv("IMBREX_CPU_THREADS", "3", 1);
    ranks_desc desc = { .size = 3 };
    int failed = ranks_run(&desc, exchange_every_case, &step) ||
                 on_nodes(4, 2, exchange_every_case, &(int){ 3 * step });
    unsetenv("IMBREX_CPU_THREADS");
    unsetenv(name);
    assert_int_equal(failed, 0);
}

/* Each access is looked at: every so-many-th case. */
static void checked(void **state)
{
    (void)state;
    if (SANITIZED_THREADS)
        skip(); /* the checker's locks hide from it what operators do */
    under("IMBREX_CHECK", "1", 5 + 18 * SANITIZED);
}

/* More runs of combine than it has places for lines, in which one rank sends and gets nothing. */
static int one_sends(imbrex_group *group, void *ctx)
{
    const exchange x = { .desc = { .rank_tokens = 3,
                                   .n = 5,
                                   .experts = 6,
                                   .top_k = 2,
                                   .dtype = IMBREX_F32,
                                   .algorithm = "ll" },
                         .ids = DISPATCH_TO_ONE };
    imbrex_plan *dispatch = NULL, *combine = NULL;
    lent l = { .group = group };
    (void)ctx;
    RANK_OK(imbrex_plan_dispatch(group, &x.desc, &dispatch));
    RANK_OK(imbrex_plan_combine(group, &x.desc, &combine));
    exchange_run b = exchange_take(&x, 0, group, imbrex_plan_rows(dispatch));
    const imbrex_args out = exchange_dispatch_args(&b, &l), back = exchange_combine_args(&b, &l);
    RANK_OK(imbrex_plan_run(dispatch, &out, NULL));
    for (int i = 0; i < 9; i++)
        RANK_OK(imbrex_plan_run(combine, &back, NULL));
    RANK_OK(lent_settle(&l));
    exchange_drop(&b);
    imbrex_plan_destroy(dispatch);
    imbrex_plan_destroy(combine);
    return 0;
}

static void overwrites_nothing(void **state)
{
    (void)state;
    if (SANITIZED_THREADS)
        skip(); /* as above */
    setenv("IMBREX_CHECK", "1", 1);
    ranks_desc desc = { .size = 3 };
    int failed = ranks_run(&desc, one_sends, NULL);
    unsetenv("IMBREX_CHECK");
    assert_int_equal(failed, 0);
}

static void in_chaos(void **state)
{
    (void)state;
    under("IMBREX_CHAOS", "5", 11);
}

static void fake_gpus(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) {
        ranks_desc desc = { .size = size };
        assert_int_equal(fake_ranks_run(&desc, size == 4 ? 1 : size, exchange_every_case,
                                        &(int){ 7 + 8 * SANITIZED }),
                         0);
    }
}

/* ---- moe_rs's bits --------------------------------------------------------------------------- */

/* As many tokens on each rank, and experts whose products are the rows themselves: moe_rs and
 * combine then add the same. */
enum { RS_TOKENS = 11, RS_N = 24, RS_EXPERTS = 7, RS_TOP = 4 };

static char *identities(const exchange *x, int here)
{
    size_t e = element_bytes(x->desc.dtype);
    char *b = lent_room((int64_t)here * RS_N * RS_N, e);
    for (int64_t i = 0; i < (int64_t)here * RS_N * RS_N; i++)
        element_set(x->desc.dtype, b, i, i / RS_N % RS_N == i % RS_N);
    return b;
}

static int like_moe_rs(imbrex_group *group, void *ctx)
{
    lent host = { .group = group };
    for (int i = 0; i < 3; i++) {
        exchange x = { .desc = { .rank_tokens = RS_TOKENS,
                                 .n = RS_N,
                                 .experts = RS_EXPERTS,
                                 .top_k = RS_TOP,
                                 .algorithm = ctx,
                                 .dtype = (imbrex_dtype)(IMBREX_BF16 + i) },
                       .ids = i == 2 ? DISPATCH_TWICE : DISPATCH_ANY_NUMBER,
                       .weights = 1 };
        const imbrex_moe_desc moe = { .tokens = RS_TOKENS * imbrex_group_size(group),
                                      .n = RS_N,
                                      .k = RS_N,
                                      .experts = RS_EXPERTS,
                                      .top_k = RS_TOP,
                                      .parallel = IMBREX_EXPERTS_WHOLE,
                                      .dtype = x.desc.dtype };
        imbrex_plan *dispatch = NULL, *combine = NULL, *rs = NULL;
        RANK_OK(imbrex_plan_dispatch(group, &x.desc, &dispatch));
        RANK_OK(imbrex_plan_combine(group, &x.desc, &combine));
        RANK_OK(imbrex_plan_moe_rs(group, &moe, &rs));
        RANK_CHECK(imbrex_plan_rows(dispatch) == imbrex_plan_rows(rs), "capacities differ");
        exchange_run b = exchange_take(&x, 0, group, imbrex_plan_rows(dispatch));
        char *weights = identities(&x, b.here);
        char *other = lent_room(b.own * RS_N, element_bytes(x.desc.dtype));
        const imbrex_args out = exchange_dispatch_args(&b, &host),
                          back = exchange_combine_args(&b, &host);
        const imbrex_args rs_args = {
            .a = b.rows, .b = weights, .c = other, .routing = &b.routing
        };
        RANK_OK(imbrex_plan_run(dispatch, &out, NULL));
        RANK_OK(imbrex_plan_run(combine, &back, NULL));
        RANK_OK(imbrex_plan_run(rs, &rs_args, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        RANK_CHECK(memcmp(b.sum, other, (size_t)(b.own * RS_N) * element_bytes(x.desc.dtype)) == 0,
                   "combine and moe_rs differ, dtype %d", (int)x.desc.dtype);
        free(weights);
        free(other);
        exchange_drop(&b);
        imbrex_plan_destroy(dispatch);
        imbrex_plan_destroy(combine);
        imbrex_plan_destroy(rs);
    }
    return 0;
}

static void has_bits_of_moe_rs(void **state)
{
    (void)state;
    on_ranks(3, like_moe_rs, "store");
    on_ranks(4, like_moe_rs, "sequential");
    assert_int_equal(on_nodes(4, 2, like_moe_rs, "hierarchical"), 0);
}

/* ---- what fails ------------------------------------------------------------------------------ */

/* All pairs to expert 1, rank 1's, which has no room for them: 3 * 4 * 2. */
static int too_many_rows(imbrex_group *group, void *ctx)
{
    bool masked = ctx != NULL;
    exchange x = { .desc = { .rank_tokens = 4,
                             .n = 5,
                             .experts = 3,
                             .top_k = 2,
                             .rows = masked ? 0 : 20,
                             .expert_capacity = masked ? 20 : 0,
                             .dtype = IMBREX_F32 },
                   .ids = DISPATCH_TO_ONE };
    const char *says = masked ? "expert 1 has 24 rows in a run of plan 1, and "
                                "desc.expert_capacity is 20"
                              : "have 24 rows there, and desc.rows is 20";
    imbrex_plan *plan = NULL;
    RANK_OK(imbrex_plan_dispatch(group, &x.desc, &plan));
    RANK_CHECK(imbrex_plan_rows(plan) == 20, "%d rows", (int)imbrex_plan_rows(plan));
    exchange_run b = exchange_take(&x, 0, group, 20);
    lent host = { .group = group };
    const imbrex_args args = exchange_dispatch_args(&b, &host);
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    imbrex_status status = imbrex_stream_sync(group, NULL);
    while (status == IMBREX_OK) /* the others hear of it a little later */
        status = imbrex_group_status(group);
    RANK_CHECK(status == IMBREX_NO_MEMORY && strstr(imbrex_error(), "rank 1") &&
                   strstr(imbrex_error(), says),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(lent_is_intact(b.c, 20 * 5, 4) && lent_is_intact(b.routing.row_pair, 20, 4) &&
                   lent_is_intact(b.routing.pair_row, 24, 4) &&
                   lent_is_intact(b.routing.expert_rows, 1, 4),
               "something was written beyond the capacity");
    exchange_drop(&b);
    return 0;
}

static void fails_on_too_many_rows(void **state)
{
    (void)state;
    on_ranks(3, too_many_rows, NULL);
    on_ranks(3, too_many_rows, "masked");
}

#define WRONG_DESC(field, value, status, says)                               \
    do {                                                                     \
        imbrex_dispatch_desc wrong = good;                                   \
        wrong.field = (value);                                               \
        RANK_CHECK(imbrex_plan_combine(group, &wrong, &plan) == (status) &&  \
                       strstr(imbrex_error(), says),                         \
                   "%s", imbrex_error());                                    \
        RANK_CHECK(imbrex_plan_dispatch(group, &wrong, &plan) == (status) && \
                       strstr(imbrex_error(), says),                         \
                   "%s", imbrex_error());                                    \
    } while (0)

#define WRONG_ARGS(plan, fine, change, says)                          \
    do {                                                              \
        imbrex_args args = fine;                                      \
        imbrex_routing routing = b.routing;                           \
        args.routing = &routing;                                      \
        change;                                                       \
        RANK_CHECK(imbrex_plan_run(plan, &args, NULL) != IMBREX_OK && \
                       strstr(imbrex_error(), says),                  \
                   "%s", imbrex_error());                             \
    } while (0)

static int wrong_args(imbrex_group *group, const exchange *x)
{
    imbrex_plan *dispatch = NULL, *combine = NULL;
    RANK_OK(imbrex_plan_dispatch(group, &x->desc, &dispatch));
    RANK_OK(imbrex_plan_combine(group, &x->desc, &combine));
    RANK_CHECK(imbrex_plan_rows(dispatch) == imbrex_plan_rows(combine), "capacities differ");
    exchange_run b = exchange_take(x, 0, group, imbrex_plan_rows(dispatch));
    lent host = { .group = group };
    const imbrex_args out = exchange_dispatch_args(&b, &host),
                      back = exchange_combine_args(&b, &host);
    WRONG_ARGS(dispatch, out, args.own = 9, "args.own is 9: want at most desc.rank_tokens, 8");
    WRONG_ARGS(dispatch, out, args.m = 8,
               "args.m is 8: must be 0 for dispatch, which has args.own");
    WRONG_ARGS(dispatch, out, args.ids = NULL, "args.ids is NULL: want 16 elements");
    WRONG_ARGS(dispatch, out, args.routing = NULL, "args.routing is NULL: want where pairs lie");
    WRONG_ARGS(dispatch, out, args.scale_c = b.scales, "args.scale_c must be NULL: desc.wire is");
    WRONG_ARGS(dispatch, out, args.bias = b.a, "args.bias must be NULL for dispatch");
    WRONG_ARGS(dispatch, out, args.c = b.a, "args.c overlaps args.a");
    WRONG_ARGS(dispatch, out, routing.pair_row = routing.pair_expert,
               "overlaps args.routing.pair_");
    WRONG_ARGS(combine, back, args.ids = b.ids, "args.ids must be NULL for combine");
    WRONG_ARGS(combine, back, routing.pair_row = NULL, "args.routing.pair_row is NULL: want 32 el");
    WRONG_ARGS(combine, back, args.c = b.rows, "args.c overlaps args.a");
    imbrex_plan_destroy(dispatch);
    imbrex_plan_destroy(combine);
    exchange_drop(&b);
    return 0;
}

static int mistakes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan = NULL;
    bool odd = imbrex_group_rank(group) == 1;
    const imbrex_dispatch_desc good = {
        .rank_tokens = 8, .n = 4, .experts = 3, .top_k = 2, .dtype = IMBREX_F32
    };
    const exchange x = { .desc = good };
    WRONG_DESC(experts, 0, IMBREX_INVALID, "desc.experts is 0: want from 1 to");
    WRONG_DESC(experts, 4097, IMBREX_UNSUPPORTED, "want at most 2048 on a rank");
    WRONG_DESC(top_k, 65, IMBREX_INVALID, "desc.top_k is 65: want from 1 to 64");
    WRONG_DESC(align, 24, IMBREX_INVALID, "desc.align is 24: want a power of two up to 512");
    WRONG_DESC(rows, -1, IMBREX_INVALID, "desc.rows is -1");
    WRONG_DESC(rank_tokens, 1 << 29, IMBREX_UNSUPPORTED, "want at most 2^30 pairs");
    WRONG_DESC(wire, IMBREX_BF16, IMBREX_INVALID, "desc.wire is bf16: want e4m3, or f32");
    WRONG_DESC(wire, (imbrex_dtype)7, IMBREX_INVALID, "desc.wire is 7: want IMBREX_E4M3");
    WRONG_DESC(reserved[8], 1, IMBREX_UNSUPPORTED, "desc.reserved is not 0");
    WRONG_DESC(algorithm, "ring", IMBREX_UNSUPPORTED, "has \"store\", \"ll\", \"sequential\" here");
    WRONG_DESC(top_k, odd ? 1 : 2, IMBREX_PEER, "desc.top_k differs between ranks");
    WRONG_DESC(wire, odd ? IMBREX_E4M3 : IMBREX_F32, IMBREX_PEER,
               "desc.wire differs between ranks");
    imbrex_dispatch_desc both = good;
    both.expert_capacity = both.rows = 64;
    RANK_CHECK(imbrex_plan_dispatch(group, &both, &plan) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "desc.expert_capacity is 64, and desc.rows 64: want 0"),
               "%s", imbrex_error());
    return wrong_args(group, &x);
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    on_ranks(2, mistakes, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_ranks),
        cmocka_unit_test(many_ranks),
        cmocka_unit_test(processes),
        cmocka_unit_test(checked),
        cmocka_unit_test(overwrites_nothing),
        cmocka_unit_test(in_chaos),
        cmocka_unit_test(has_bits_of_moe_rs),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(fails_on_too_many_rows),
        cmocka_unit_test(over_nodes),
        cmocka_unit_test(fake_gpus),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests_name("dispatch", tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
