/* test_moe.c - ag_moe and moe_rs on CPU ranks: the table of cases, real numbers against float64,
 * the bits of both ways to divide experts, and what fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dispatch_cases.h"
#include "kernels/grouped/order.h"
#include "moe_cases.h"
#include "net_threads.h"
#include "plan/plan.h"
#include "sanitized.h"
#include "scratch.h"

static void on_ranks(int size, rank_main main, void *ctx)
{
    ranks_desc desc = { .size = size };
    assert_int_equal(ranks_run(&desc, main, ctx), 0);
}

static void bit_for_bit(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        on_ranks(ranks, moe_cases_all,
                 &(moe_walk){ .step = (ranks == 3 ? 1 : 3) * (SANITIZED ? 5 : 1) });
}

/* Nodes of so many ranks. */
static int over_nodes(int ranks, int node_ranks, int step)
{
    ranks_desc desc = { .size = ranks, .node_ranks = node_ranks };
    imx_net_of_test = &net_threads;
    net_threads_reset();
    int failed = ranks_run(&desc, moe_cases_all, &(moe_walk){ .step = step });
    imx_net_of_test = NULL;
    return failed;
}

static void bit_for_bit_over_nodes(void **state)
{
    (void)state;
    assert_int_equal(over_nodes(4, 2, SANITIZED ? 7 : 2), 0);
    assert_int_equal(over_nodes(6, 3, SANITIZED ? 13 : 5), 0);
    assert_int_equal(over_nodes(6, 2, SANITIZED ? 17 : 7), 0);
    assert_int_equal(over_nodes(3, 1, SANITIZED ? 13 : 5), 0);
}

/* Under the protocol checker, and with blocks that share the tiles otherwise. */
static void checked(void **state)
{
    moe_walk walk = { .step = SANITIZED ? 11 : 5 }; /* each access is looked at */
    (void)state;
    if (SANITIZED_THREADS)
        skip(); /* the checker's locks hide from it what operators do */
    setenv("IMBREX_CHECK", "1", 1);
    setenv("IMBREX_CPU_THREADS", "3", 1);
    ranks_desc desc = { .size = 3 };
    int failed = ranks_run(&desc, moe_cases_all, &walk) || over_nodes(4, 2, 4 * walk.step);
    unsetenv("IMBREX_CPU_THREADS");
    unsetenv("IMBREX_CHECK");
    assert_int_equal(failed, 0);
}

/* ---- order.h --------------------------------------------------------------------------------- */

/* Pairs of an expert ascend with gaps; own tokens are some in the middle, at an end, all, none. */
static void early_tiles_have_own_tokens_alone(void **state)
{
    enum { MOST = 40, TILE = 4 };
    (void)state;
    for (int rows = 0; rows <= MOST; rows++) {
        for (int own = 0; own < 16 * 16; own++) {
            int32_t pairs[MOST + 1] = { 0 }, first = own / 16 * 3, count = own % 16 * 3;
            for (int i = 0; i < rows; i++)
                pairs[i] = 2 * i + i % 3 / 2;
            uint64_t ready = 0;
            const imx_grouped_args args = { .top_k = 2,
                                            .own_first = first,
                                            .own_rows = count,
                                            .row_pair = pairs,
                                            .ready = &ready };
            imx_grouped_order o = imx_grouped_order_of(&args, 0, rows, TILE);
            bool seen[MOST / TILE + 1] = { false };
            int all = (rows + TILE - 1) / TILE;
            assert_int_equal(o.early + o.late, all);
            for (int i = 0; i < all; i++) {
                bool late = i >= o.early, others = false;
                int64_t at = imx_grouped_tile(o.first, o.early, late, late ? i - o.early : i);
                assert_true(at >= 0 && at < all && !seen[at]);
                seen[at] = true;
                for (int64_t row = at * TILE; row < rows && row < (at + 1) * TILE; row++)
                    others |= pairs[row] / 2 < first || pairs[row] / 2 >= first + count;
                assert_int_equal(late, others);
            }
        }
    }
    const imx_grouped_args here = { .top_k = 2 };
    assert_int_equal(imx_grouped_order_of(&here, 0, 9, TILE).early, 3); /* nothing to wait for */
}

/* Real numbers: [pair, column] as whole experts give it, and as parts of them do. */
enum { TOKENS = 50, N = 96, K = 700, EXPERTS = 6, TOP = 2, RANKS = 3 };
static uint32_t bits[2][TOKENS * TOP * N];

static int both_ways(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    for (int whole = 0; whole < 2; whole++) {
        moe_case c = { .desc = { .tokens = TOKENS,
                                 .n = whole ? N : N / RANKS,
                                 .k = K,
                                 .experts = EXPERTS,
                                 .top_k = TOP,
                                 .parallel = (imbrex_experts)whole,
                                 .dtype = IMBREX_F32,
                                 .layout = whole ? IMBREX_KN : IMBREX_NK },
                       .real = 1 };
        imbrex_plan *plan = NULL;
        RANK_OK(imbrex_plan_ag_moe(group, &c.desc, &plan));
        moe_bench b = moe_take(&c, rank, RANKS, TOKENS, imbrex_plan_rows(plan));
        if (moe_run_ag(group, plan, &b) || moe_check_routing(&b) || moe_check_products(&b))
            return 1;
        int64_t first = whole ? 0 : rank * c.desc.n;
        for (int64_t i = 0; i < b.capacity * c.desc.n; i++) {
            int64_t pair = b.routing.row_pair[i / c.desc.n];
            if (pair >= 0)
                memcpy(&bits[whole][pair * N + first + i % c.desc.n], b.out + 4 * i, 4);
        }
        moe_drop(&b);
        imbrex_plan_destroy(plan);
    }
    return 0;
}

static void divided_either_way(void **state)
{
    (void)state;
    on_ranks(RANKS, both_ways, NULL);
    assert_memory_equal(bits[0], bits[1], sizeof bits[0]);
}

/* ---- what fails ------------------------------------------------------------------------------ */

/* All pairs on rank 1, which has no room for them. */
static int too_many_rows(imbrex_group *group, void *ctx)
{
    (void)ctx;
    moe_case c = { .desc = { .tokens = 12,
                             .n = 4,
                             .k = 4,
                             .experts = 3,
                             .top_k = 2,
                             .rows = 20,
                             .parallel = IMBREX_EXPERTS_WHOLE,
                             .dtype = IMBREX_F32 },
                   .ids = TO_ONE };
    imbrex_plan *plan = NULL;
    RANK_OK(imbrex_plan_ag_moe(group, &c.desc, &plan));
    RANK_CHECK(imbrex_plan_rows(plan) == 20, "%d rows", (int)imbrex_plan_rows(plan));
    moe_bench b = moe_take(&c, imbrex_group_rank(group), imbrex_group_size(group), 12, 20);
    imbrex_args args = {
        .a = b.a, .b = b.b, .c = b.out, .ids = b.ids, .routing = &b.routing, .m = 12
    };
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    imbrex_status status = imbrex_stream_sync(group, NULL);
    while (status == IMBREX_OK) /* the others hear of it a little later */
        status = imbrex_group_status(group);
    RANK_CHECK(status == IMBREX_NO_MEMORY && strstr(imbrex_error(), "rank 1") &&
                   strstr(imbrex_error(), "have 24 rows there, and desc.rows is 20"),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(lent_is_intact(b.out, 20 * 4, 4) && lent_is_intact(b.routing.row_pair, 20, 4) &&
                   lent_is_intact(b.routing.pair_row, 24, 4),
               "something was written beyond the capacity");
    moe_drop(&b);
    return 0;
}

static void fails_on_too_many_rows(void **state)
{
    (void)state;
    on_ranks(3, too_many_rows, NULL);
}

#define WRONG_DESC(field, value, status, says)                             \
    do {                                                                   \
        imbrex_moe_desc wrong = good;                                      \
        wrong.field = (value);                                             \
        RANK_CHECK(imbrex_plan_moe_rs(group, &wrong, &plan) == (status) && \
                       strstr(imbrex_error(), says),                       \
                   "%s", imbrex_error());                                  \
    } while (0)

#define WRONG_ARGS(change, says)                                      \
    do {                                                              \
        imbrex_args args = fine;                                      \
        imbrex_routing routing = b.routing;                           \
        args.routing = &routing;                                      \
        change;                                                       \
        RANK_CHECK(imbrex_plan_run(plan, &args, NULL) != IMBREX_OK && \
                       strstr(imbrex_error(), says),                  \
                   "%s", imbrex_error());                             \
    } while (0)

static int mistakes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan = NULL;
    bool odd = imbrex_group_rank(group) == 1;
    const imbrex_moe_desc good = {
        .tokens = 8, .n = 4, .k = 4, .experts = 3, .top_k = 2, .dtype = IMBREX_F32
    };
    const moe_case c = { .desc = good };
    WRONG_DESC(experts, 0, IMBREX_INVALID, "desc.experts is 0: want from 1 to");
    WRONG_DESC(experts, 2049, IMBREX_UNSUPPORTED, "want at most 2048 on a rank");
    WRONG_DESC(top_k, 65, IMBREX_INVALID, "desc.top_k is 65: want from 1 to 64");
    WRONG_DESC(parallel, (imbrex_experts)2, IMBREX_INVALID, "desc.parallel is 2: want from 0 to 1");
    WRONG_DESC(align, 24, IMBREX_INVALID, "desc.align is 24: want a power of two up to 512");
    WRONG_DESC(rows, -1, IMBREX_INVALID, "desc.rows is -1");
    WRONG_DESC(tokens, 1 << 30, IMBREX_UNSUPPORTED, "want at most 2^30 pairs");
    WRONG_DESC(reserved[8], 1, IMBREX_UNSUPPORTED, "desc.reserved is not 0");
    WRONG_DESC(algorithm, "ring", IMBREX_UNSUPPORTED, "has \"store\", \"ll\", \"sequential\" here");
    WRONG_DESC(top_k, odd ? 1 : 2, IMBREX_PEER, "desc.top_k differs between ranks");
    WRONG_DESC(parallel, odd ? IMBREX_EXPERTS_WHOLE : IMBREX_EXPERTS_TENSOR, IMBREX_PEER,
               "desc.parallel differs between ranks: EXPERTS_TENSOR on rank 0, EXPERTS_WHOLE on");
    RANK_CHECK(imbrex_plan_rows(NULL) == 0, "NULL has rows");
    RANK_OK(imbrex_plan_ag_moe(group, &good, &plan));
    RANK_CHECK(imbrex_plan_rows(plan) == 16 + 3 * 15, "%d rows", (int)imbrex_plan_rows(plan));
    moe_bench b =
        moe_take(&c, imbrex_group_rank(group), imbrex_group_size(group), 8, imbrex_plan_rows(plan));
    const imbrex_args fine = { .a = b.a, .b = b.b, .c = b.out, .ids = b.ids, .m = 8 };
    WRONG_ARGS(args.routing = NULL, "args.routing is NULL: want where pairs lie");
    WRONG_ARGS(routing.row_pair = NULL, "args.routing.row_pair is NULL: want 61 elements");
    WRONG_ARGS(routing.weights = NULL, "args.routing.weights is NULL: want 16 elements");
    WRONG_ARGS(routing.reserved[3] = 1, "args.routing.reserved");
    WRONG_ARGS(routing.pair_row = routing.pair_expert, "overlaps args.routing.pair_row");
    WRONG_ARGS(routing.expert_rows = (int32_t *)(void *)b.out, "args.routing.expert_rows overlaps");
    WRONG_ARGS(routing.expert_rows = (int32_t *)(void *)((char *)b.routing.expert_rows + 2),
               "is not 4-byte aligned");
    WRONG_ARGS(args.ids = NULL, "args.ids is NULL: want ");
    WRONG_ARGS(args.bias = b.bias, "args.bias must be NULL for ag_moe");
    imbrex_plan_destroy(plan);
    imbrex_moe_desc everywhere = good;
    everywhere.replicate = 1;
    RANK_OK(imbrex_plan_ag_moe(group, &everywhere, &plan));
    WRONG_ARGS(args.gathered = b.gathered, "args.gathered must be NULL: desc.replicate is 1, so");
    imbrex_plan_destroy(plan);
    RANK_CHECK(imbrex_plan_rows(plan) == 0, "a destroyed plan has rows");
    moe_drop(&b);
    return 0;
}

/* ---- tuning ---------------------------------------------------------------------------------- */

enum { WAYS = 4 };

typedef struct seen {
    bool ways[WAYS]; /* that were timed */
    int dropped;
    char why[256];
} seen;

static const char *const all_ways[] = { "copy", "ll", "sequential", "store" };

static void note(void *ctx, const imbrex_tune_step *step)
{
    seen *s = ctx;
    if (step->dropped)
        snprintf(s->why, sizeof s->why, "%s", step->dropped);
    s->dropped += step->dropped != NULL;
    for (int i = 0; i < WAYS; i++)
        s->ways[i] |= strcmp(step->algorithm, all_ways[i]) == 0 && step->us > 0;
}

/* Every way is timed with tokens that choose experts, and plans take what was found. */
static int tuned(imbrex_group *group, void *ctx)
{
    (void)ctx;
    static const struct {
        const char *op;
        bool ways[WAYS];
    } ops[] = { { "ag_moe", { 1, 1, 1 } },
                { "moe_rs", { 0, 1, 1, 1 } },
                { "dispatch", { 0, 1, 1, 1 } },
                { "combine", { 0, 1, 1, 1 } } };
    for (int i = 0; i < 4; i++) {
        const imbrex_moe_desc moe = { .tokens = 30, .n = 8, .k = 8, .experts = 7, .top_k = 2 };
        const imbrex_dispatch_desc tokens = {
            .rank_tokens = 10, .n = 8, .experts = 7, .top_k = 2, .expert_capacity = i & 1 ? 30 : 0
        };
        const void *desc = i < 2 ? (const void *)&moe : &tokens;
        size_t bytes = i < 2 ? sizeof moe : sizeof tokens;
        imbrex_plan *plan;
        seen s = { .dropped = 0 };
        RANK_OK(imbrex_tune(group, ops[i].op, desc, bytes, note, &s));
        RANK_CHECK(!s.dropped, "%s: %s", ops[i].op, s.why);
        RANK_CHECK(memcmp(s.ways, ops[i].ways, sizeof s.ways) == 0, "%s: other ways were timed",
                   ops[i].op);
        RANK_OK(imbrex_plan_create(group, ops[i].op, desc, bytes, &plan));
        RANK_CHECK(imx_describe_facts(plan).measured, "%s: nothing is known of it", ops[i].op);
        imbrex_plan_destroy(plan);
    }
    return 0;
}

static void is_tuned(void **state)
{
    (void)state;
    setenv("IMBREX_CACHE_DIR", scratch_path("kept"), 1);
    on_ranks(3, tuned, NULL);
    unsetenv("IMBREX_CACHE_DIR");
}

/* What random operands choose is as route would place it: every row of every expert. */
static int examples(imbrex_group *group, void *ctx)
{
    const imx_op *op = ctx;
    const imbrex_moe_desc desc = { .tokens = 40,
                                   .n = 4,
                                   .k = 4,
                                   .experts = 5,
                                   .top_k = 3,
                                   .parallel = IMBREX_EXPERTS_WHOLE,
                                   .dtype = IMBREX_F32 };
    const moe_case c = { .desc = desc };
    imbrex_plan *plan = NULL;
    RANK_OK(imbrex_plan_ag_moe(group, &desc, &plan));
    moe_bench b = moe_take(&c, imbrex_group_rank(group), imbrex_group_size(group), desc.tokens,
                           imbrex_plan_rows(plan));
    const imx_request r = imx_request_of(op, &desc);
    const imx_asked asked = { group, op, &r.shape, r.desc, NULL };
    int32_t *want[IMX_OPERANDS] = { 0 };
    for (int i = 0; i < op->info.args_fields; i++) {
        const imbrex_field *field = &op->info.args[i];
        if (field->own[IMX_FIELD_KIND] != IMX_I32)
            continue;
        want[i] = lent_room(imx_args_elements(&asked, field, desc.tokens) + 1, 4);
        op->timed_integers(&asked, field, imx_args_elements(&asked, field, desc.tokens), want[i]);
        if (strcmp(field->name, "ids") == 0)
            memcpy(b.ids, want[i], (size_t)(b.own * desc.top_k) * 4);
    }
    const imbrex_args args = {
        .a = b.a, .b = b.b, .c = b.out, .ids = b.ids, .routing = &b.routing
    };
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int i = 0; i < op->info.args_fields; i++) {
        const imbrex_field *field = &op->info.args[i];
        int64_t count = want[i] ? imx_args_elements(&asked, field, desc.tokens) : 0;
        const void *have = NULL;
        if (want[i] && field->own[IMX_FIELD_IN_ROUTING])
            memcpy(&have, (char *)&b.routing + field->offset, sizeof have);
        RANK_CHECK(!have || memcmp(have, want[i], (size_t)count * 4) == 0, "%s differs",
                   field->name);
        free(want[i]);
    }
    moe_drop(&b);
    imbrex_plan_destroy(plan);
    return 0;
}

static void times_what_route_would_give(void **state)
{
    (void)state;
    on_ranks(3, examples, (void *)(uintptr_t)&imx_op_ag_moe);
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    on_ranks(2, mistakes, NULL);
}

/* A rank of several processes over nodes, for test_network.py. */
static int as_rank(void)
{
    const imbrex_group_desc desc = { .device = "cpu" };
    imbrex_group *group;
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed =
        moe_cases_all(group, &(moe_walk){ .step = 11 }) || exchange_every_case(group, &(int){ 13 });
    imbrex_group_destroy(group);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "rank") == 0)
        return as_rank();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(early_tiles_have_own_tokens_alone),
        cmocka_unit_test(bit_for_bit),
        cmocka_unit_test(bit_for_bit_over_nodes),
        cmocka_unit_test(checked),
        cmocka_unit_test(divided_either_way),
        cmocka_unit_test(fails_on_too_many_rows),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(is_tuned),
        cmocka_unit_test(times_what_route_would_give),
    };
    return cmocka_run_group_tests_name("moe", tests, scratch_make, scratch_remove);
}
