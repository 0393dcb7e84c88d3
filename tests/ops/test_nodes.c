/* test_nodes.c - several logical nodes on this machine: who is on which, what the operators compute
 * over them, how much travels between them, and what happens when it cannot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "exchange_cases.h"
#include "group/nodes.h"
#include "net_threads.h"
#include "op_cases.h"
#include "plan/plan.h"
#include "ranks.h"

/* ---- the map --------------------------------------------------------------------------------- */

/* hosts and names: a letter a rank; '-': no name. */
static imbrex_status find(const char *hosts, const char *names, int rank, int64_t per_node,
                          imx_nodes *nodes)
{
    imx_identity all[16] = { 0 };
    int size = (int)strlen(hosts);
    for (int r = 0; r < size; r++) {
        all[r].host[0] = hosts[r];
        strcpy(all[r].name, "host");
        all[r].node[0] = names[r] == '-' ? '\0' : names[r];
    }
    *nodes = (imx_nodes){ 0 };
    return imx_nodes_find(all, rank, size, per_node, nodes);
}

static void is_map(const char *hosts, const char *names, int64_t per_node, const char *of,
                   const char *sizes)
{
    imx_nodes nodes;
    int size = (int)strlen(hosts);
    for (int r = 0; r < size; r++) {
        assert_int_equal(find(hosts, names, r, per_node, &nodes), IMBREX_OK);
        for (int q = 0; q < size; q++)
            assert_int_equal(nodes.of[q], of[q] - '0');
        assert_int_equal(nodes.own, of[r] - '0');
        assert_int_equal(nodes.count, of[size - 1] - '0' + 1);
        assert_int_equal(nodes.first[nodes.own] + nodes.local, r);
        assert_int_equal(nodes.ranks, imx_nodes_size(&nodes, nodes.own));
        char text[64] = "";
        imx_nodes_sizes(&nodes, &(imx_text){ .at = text, .size = sizeof text });
        assert_string_equal(text, sizes);
        imx_nodes_free(&nodes);
    }
}

static void ranks_of_one_host_and_name_are_a_node(void **state)
{
    (void)state;
    is_map("aaaa", "----", 0, "0000", "1 x 4");
    is_map("aabb", "----", 0, "0011", "2 x 2");
    is_map("aabb", "xxxx", 0, "0011", "2 x 2"); /* a name does not join hosts */
    is_map("aaaa", "xxyy", 0, "0011", "2 x 2");
    is_map("aaab", "x---", 0, "0112", "1 + 2 + 1");
    is_map("aaaaa", "-----", 2, "00112", "2 + 2 + 1");
    is_map("aaabbb", "------", 2, "001223", "2 + 1 + 2 + 1");
    is_map("a", "-", 0, "0", "1 x 1");
}

static void ranks_of_a_node_follow_each_other(void **state)
{
    (void)state;
    imx_nodes nodes;
    assert_int_equal(find("abab", "----", 0, 0, &nodes), IMBREX_UNSUPPORTED);
    assert_non_null(strstr(imx_status_detail(), "ranks 0 and 2 are on one node"));
    imx_nodes_free(&nodes);
    assert_int_equal(find("aaaa", "xyyx", 1, 0, &nodes), IMBREX_UNSUPPORTED);
    imx_nodes_free(&nodes);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int held; /* net_threads_hold, of the next run */

static int run_with(int ranks, int per_node, int64_t timeout_ms, rank_main run, void *ctx)
{
    ranks_desc desc = { .size = ranks, .node_ranks = per_node, .timeout_ms = timeout_ms };
    net_threads_reset();
    net_threads_hold(held);
    held = 0;
    return ranks_run(&desc, run, ctx);
}

static op_part third = SANITIZED_THREADS ? OP_CASES_NINTH : OP_CASES_THIRD;
static op_part some = SANITIZED ? OP_CASES_NINTH : OP_CASES_THIRD;

static void operators_of_2_by_2(void **state)
{
    (void)state;
    assert_int_equal(run_with(4, 2, 0, op_cases_over_nodes, &third), 0);
}

static void operators_of_3_by_2(void **state)
{
    (void)state;
    assert_int_equal(run_with(6, 2, 0, op_cases_over_nodes, &some), 0);
}

static void operators_of_2_by_3(void **state)
{
    (void)state;
    assert_int_equal(run_with(6, 3, 0, op_cases_over_nodes, NULL), 0);
}

static void operators_of_4_by_1(void **state)
{
    (void)state;
    assert_int_equal(run_with(4, 1, 0, op_cases_over_nodes, &some), 0);
}

/* ---- steps that are under way at once -------------------------------------------------------- */

/* The engine sends nothing before a rank has a step in each of its lanes. */
static int steps_overlap(imbrex_group *group, void *ctx)
{
    const op_case *c = ctx;
    imbrex_plan *plan;
    float *memory = calloc(3 * 4096, sizeof *memory);
    imbrex_args args = { .a = memory, .c = memory + 8192 };
    if (c->k)
        args.b = memory + 4096;
    RANK_OK(case_plan(group, c, &plan));
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_OK(imbrex_group_status(group));
    imbrex_plan_destroy(plan);
    free(memory);
    return 0;
}

static void a_step_begins_before_the_last_one_is_over(void **state)
{
    (void)state;
    static op_case cases[] = {
        { .op = "all_gather", .m = 64, .n = 16, .dtype = IMBREX_F32, .chunk_rows = 4 },
        { .op = "reduce_scatter", .m = 64, .n = 16, .dtype = IMBREX_F32, .chunk_rows = 4 },
        { .op = "ag_gemm", .m = 64, .n = 16, .k = 8, .dtype = IMBREX_F32, .chunk_rows = 4 },
        { .op = "gemm_rs", .m = 64, .n = 16, .k = 8, .dtype = IMBREX_F32, .chunk_rows = 4 },
        { .op = "gemm_ar", .m = 64, .n = 16, .k = 8, .dtype = IMBREX_F32, .chunk_rows = 4 },
        /* a chunk a rank: the next one is of the next node */
        { .op = "all_gather", .m = 6, .n = 16, .dtype = IMBREX_F32, .chunk_rows = 4 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int nodes = cases[i].m < 8 ? 3 : 2;
        held = IMX_NET_LANES;
        assert_int_equal(run_with(2 * nodes, 2, 2000, steps_overlap, &cases[i]), 0);
    }
}

/* ---- the order of sums ----------------------------------------------------------------------- */

enum { SUM_M = 30, SUM_N = 40, SUM_LOCAL = 3, SUM_NODES = 2, SUM_RANKS = SUM_LOCAL * SUM_NODES };

static float rounded(float value)
{
    uint16_t word;
    element_set(IMBREX_BF16, &word, 0, (double)value);
    return (float)element_get(IMBREX_BF16, &word, 0);
}

static float sum_by_nodes(int64_t at)
{
    float sum = 0;
    for (int node = 0; node < SUM_NODES; node++) {
        float part = 0;
        for (int i = 0; i < SUM_LOCAL; i++)
            part += (float)input_value(IMBREX_BF16, node * SUM_LOCAL + i, at);
        sum += rounded(part);
    }
    return rounded(sum);
}

static int sums_are_by_rank_then_by_node(imbrex_group *group, void *ctx)
{
    (void)ctx;
    static const char *const algorithms[] = { "hierarchical", "sequential" };
    int rank = imbrex_group_rank(group);
    uint16_t a[SUM_M * SUM_N], c[SUM_M / SUM_RANKS * SUM_N];
    input_fill(IMBREX_BF16, rank, 0, a, SUM_M * SUM_N);
    for (int i = 0; i < 2; i++) {
        imbrex_coll_desc desc = {
            .m = SUM_M, .n = SUM_N, .dtype = IMBREX_BF16, .algorithm = algorithms[i]
        };
        imbrex_plan *plan;
        RANK_OK(imbrex_plan_reduce_scatter(group, &desc, &plan));
        RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = c }, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        for (int64_t j = 0; j < SUM_M / SUM_RANKS * SUM_N; j++) {
            double want = (double)sum_by_nodes(rank * (SUM_M / SUM_RANKS) * SUM_N + j);
            double have = element_get(IMBREX_BF16, c, j);
            RANK_CHECK(have == want, "%s: element %lld of rank %d is %.9g, not %.9g", algorithms[i],
                       (long long)j, rank, have, want);
        }
        imbrex_plan_destroy(plan);
    }
    return 0;
}

static void the_order_of_sums_is_fixed(void **state)
{
    (void)state;
    assert_int_equal(run_with(SUM_RANKS, SUM_LOCAL, 0, sums_are_by_rank_then_by_node, NULL), 0);
}

/* ---- volume ---------------------------------------------------------------------------------- */

enum { VOLUME_M = 72, VOLUME_N = 10, VOLUME_K = 6 };

/* What a rank sends to other nodes: a gather, its rows to each of them; a scatter, the rows of its
 * counterpart on each; a sum that all get, both. */
static uint64_t volume_of(const op_case *c, int ranks, int local, int rank)
{
    bool both = strcmp(c->op, "all_reduce") == 0 || strcmp(c->op, "gemm_ar") == 0;
    bool gathers = strcmp(c->op, "all_gather") == 0 || strcmp(c->op, "ag_gemm") == 0;
    int64_t width = strcmp(c->op, "ag_gemm") == 0 ? c->k : c->n, rows = 0;
    for (int other = rank % local; other < ranks; other += local) {
        if (other != rank && (gathers || both))
            rows += rank_row(c->m, ranks, rank + 1) - rank_row(c->m, ranks, rank);
        if (other != rank && !gathers)
            rows += rank_row(c->m, ranks, other + 1) - rank_row(c->m, ranks, other);
    }
    return (uint64_t)(rows * width) * element_bytes(c->dtype);
}

static int volume_is_the_formula(imbrex_group *group, void *ctx)
{
    int local = *(const int *)ctx, ranks = imbrex_group_size(group);
    int rank = imbrex_group_rank(group);
    static const char *const ops[] = { "all_gather", "reduce_scatter", "all_reduce",
                                       "ag_gemm",    "gemm_rs",        "gemm_ar" };
    char *memory = calloc(4, 4 * VOLUME_M * VOLUME_N);
    for (int i = 0; i < 12; i++) {
        op_case c = { .op = ops[i / 2],
                      .m = VOLUME_M + 5 * (i % 2),
                      .n = VOLUME_N,
                      .k = i / 2 > 2 ? VOLUME_K : 0,
                      .dtype = i % 2 ? IMBREX_BF16 : IMBREX_F32,
                      .chunk_rows = 3 };
        imbrex_args args = { .a = memory, .c = memory + 8 * VOLUME_M * VOLUME_N };
        if (i / 2 > 2)
            args.b = memory + 4 * VOLUME_M * VOLUME_N;
        imbrex_plan *plan;
        RANK_OK(case_plan(group, &c, &plan));
        uint64_t before = net_threads_sent(rank), want = volume_of(&c, ranks, local, rank);
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        uint64_t sent = net_threads_sent(rank) - before;
        RANK_CHECK(sent == want, "%s m=%d: rank %d of %d sent %llu bytes between nodes, not %llu",
                   c.op, (int)c.m, rank, ranks, (unsigned long long)sent, (unsigned long long)want);
        uint64_t said = imx_describe_facts(plan).sent_between;
        RANK_CHECK(said == want, "the plan says %llu bytes", (unsigned long long)said);
        imbrex_plan_destroy(plan);
    }
    free(memory);
    return 0;
}

static void what_leaves_a_node_leaves_it_once(void **state)
{
    (void)state;
    static const int shapes[][2] = { { 4, 2 }, { 6, 3 }, { 6, 2 }, { 8, 2 } };
    for (int i = 0; i < 4; i++) {
        int local = shapes[i][1];
        assert_int_equal(run_with(shapes[i][0], local, 0, volume_is_the_formula, &local), 0);
    }
}

/* ---- what is refused, and barriers ----------------------------------------------------------- */

static int nodes_part_memory(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group), other = (rank + 2) % 4, local_peer = rank ^ 1;
    uint64_t *words;
    void *memory, *peer;
    RANK_OK(imbrex_mem_alloc(group, 64, &memory));
    words = memory;
    RANK_OK(imbrex_mem_peer(group, words, local_peer, &peer));
    RANK_CHECK(peer, "rank %d cannot reach rank %d of its node", rank, local_peer);
    RANK_OK(imbrex_mem_peer(group, words, other, &peer));
    RANK_CHECK(!peer, "rank %d reaches rank %d of another node", rank, other);
    imbrex_status status = imbrex_put(group, words, words + 1, 8, other, NULL);
    RANK_CHECK(status == IMBREX_UNSUPPORTED, "%s", imbrex_status_name(status));
    status = imbrex_signal_post(group, words, 1, other, NULL);
    RANK_CHECK(status == IMBREX_UNSUPPORTED, "%s", imbrex_status_name(status));
    imbrex_plan *plan;
    imbrex_coll_desc desc = { .m = 8, .n = 8, .algorithm = "copy" };
    status = imbrex_plan_all_gather(group, &desc, &plan);
    RANK_CHECK(status == IMBREX_UNSUPPORTED && strstr(imbrex_error(), "hierarchical"), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    imbrex_mem_free(group, memory);
    return 0;
}

static void memory_is_reached_within_a_node(void **state)
{
    (void)state;
    assert_int_equal(run_with(4, 2, 0, nodes_part_memory, NULL), 0);
}

static int wants_equal_nodes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan;
    imbrex_gemm_desc desc = { .m = 8, .n = 8, .k = 8 };
    imbrex_status status = imbrex_plan_gemm_rs(group, &desc, &plan);
    RANK_CHECK(status == IMBREX_UNSUPPORTED && strstr(imbrex_error(), "2 + 2 + 1"), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    for (int i = 0; i < 3; i++)
        RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static int wants_several_nodes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan;
    imbrex_gemm_desc desc = { .m = 8, .n = 8, .k = 8, .algorithm = "hierarchical" };
    imbrex_status status = imbrex_plan_ag_gemm(group, &desc, &plan);
    RANK_CHECK(status == IMBREX_UNSUPPORTED && strstr(imbrex_error(), "on one"), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    return 0;
}

static void one_node_has_no_hierarchy(void **state)
{
    (void)state;
    assert_int_equal(run_with(2, 0, 0, wants_several_nodes, NULL), 0);
}

static void unequal_nodes_are_refused_by_name(void **state)
{
    (void)state;
    assert_int_equal(run_with(5, 2, 0, wants_equal_nodes, NULL), 0);
}

/* Every rank counts itself in before a barrier; after it, all are there. */
static int barriers_hold(imbrex_group *group, void *ctx)
{
    int *here = ctx, size = imbrex_group_size(group);
    for (int round = 1; round <= 20; round++) {
        __atomic_add_fetch(here, 1, __ATOMIC_SEQ_CST);
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        int seen = __atomic_load_n(here, __ATOMIC_SEQ_CST);
        RANK_CHECK(seen >= round * size, "%d of %d ranks came to barrier %d", seen, size, round);
    }
    return 0;
}

static void barriers_span_nodes(void **state)
{
    (void)state;
    int here = 0;
    assert_int_equal(run_with(7, 3, 0, barriers_hold, &here), 0);
    assert_int_equal(here, 140);
}

/* ---- plans' numbers -------------------------------------------------------------------------- */

enum { PLAN_M = 64, PLAN_N = 16, PLAN_SIZE = PLAN_M * PLAN_N, AHEAD_US = 20000 };

/* A gathering in many chunks, which all of them have in one order. */
static int make_plan(imbrex_group *group, imbrex_plan **plan)
{
    imbrex_coll_desc desc = { .m = PLAN_M, .n = PLAN_N, .dtype = IMBREX_F32, .chunk_rows = 4 };
    RANK_OK(imbrex_plan_all_gather(group, &desc, plan));
    return 0;
}

/* at[2 * PLAN_SIZE]: what is gathered, and from where. */
static int run_plan(imbrex_plan *plan, float value, float *at, imbrex_stream stream)
{
    for (int i = 0; i < PLAN_SIZE; i++)
        at[PLAN_SIZE + i] = value;
    RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = at + PLAN_SIZE, .c = at }, stream));
    return 0;
}

static int has_all(imbrex_group *group, imbrex_stream stream, float value, const float *at)
{
    RANK_OK(imbrex_stream_sync(group, stream));
    for (int i = 0; i < PLAN_SIZE; i++)
        RANK_CHECK(at[i] == value, "element %d is %g, not %g", i, (double)at[i], (double)value);
    return 0;
}

/* A plan of this number waits on rank 0 while rank 1 has sent all that it can of it: meanwhile
 * `first`, an exchange and a barrier get what is theirs.  go: a signal of rank 0's. */
static int stays_apart(imbrex_group *group, imbrex_plan *first, int number, uint64_t *go,
                       float *memory)
{
    int rank = imbrex_group_rank(group);
    float *early = memory, *late = early + 2 * PLAN_SIZE, *swapped = late + 2 * PLAN_SIZE;
    imbrex_transfer swap[] = { { .rank = !rank, .send = early + PLAN_SIZE, .bytes = 256 },
                               { .rank = !rank, .recv = swapped, .bytes = 256 } };
    imbrex_stream stream;
    imbrex_plan *plan;
    group->objects[IMX_OF_LIBRARY].count = number - 1;
    if (make_plan(group, &plan))
        return 1;
    RANK_OK(imbrex_stream_create(group, &stream));
    if (rank == 0)
        RANK_OK(imbrex_signal_wait(group, go, (uint64_t)number, stream));
    if (run_plan(plan, 2, late, stream))
        return 1;
    usleep(AHEAD_US);
    if (run_plan(first, 1, early, NULL))
        return 1;
    RANK_OK(imbrex_exchange(group, swap, 2, NULL));
    RANK_OK(imbrex_barrier(group, NULL));
    int failed = has_all(group, NULL, 1, early);
    RANK_CHECK(failed || swapped[0] == 1, "%g was exchanged", (double)swapped[0]);
    if (rank == 0)
        RANK_OK(imbrex_signal_post(group, go, (uint64_t)number, 0, NULL));
    failed += has_all(group, stream, 2, late);
    imbrex_stream_destroy(group, stream);
    imbrex_plan_destroy(plan);
    return failed;
}

static int numbers_stay_apart(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { ALL = 5 * PLAN_SIZE };
    imbrex_plan *first;
    float *memory;
    RANK_OK(imbrex_mem_alloc(group, ALL * sizeof *memory + sizeof(uint64_t), (void **)&memory));
    uint64_t *go = (uint64_t *)(memory + ALL);
    if (make_plan(group, &first))
        return 1;
    int failed = stays_apart(group, first, 16384, go, memory) ||
                 stays_apart(group, first, 32767, go, memory);
    imbrex_plan_destroy(first);
    return failed;
}

static void plans_of_any_number_stay_apart(void **state)
{
    (void)state;
    assert_int_equal(run_with(2, 1, 0, numbers_stay_apart, NULL), 0);
}

/* ---- failure --------------------------------------------------------------------------------- */

enum { CUT_MS = 700, CUT_MOST_MS = 4 * CUT_MS };

static int ends_at_the_cut(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    imbrex_gemm_desc desc = { .m = 64, .n = 16, .k = 16, .dtype = IMBREX_F32 };
    float *memory = calloc(4096, sizeof *memory);
    imbrex_args args = { .a = memory, .b = memory + 1024, .c = memory + 2048 };
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_gemm_rs(group, &desc, &plan));
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (rank == 0)
        net_threads_cut(0, 2);
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_status status = IMBREX_OK;
    for (int i = 0; i < 8 && status == IMBREX_OK; i++) {
        status = imbrex_plan_run(plan, &args, NULL);
        if (status == IMBREX_OK)
            status = imbrex_stream_sync(group, NULL);
    }
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(status == IMBREX_TIMEOUT || status == IMBREX_PEER, "rank %d: %s", rank,
               imbrex_status_name(status));
    RANK_CHECK(took_ms < patient(CUT_MOST_MS), "rank %d: it took %lld ms", rank,
               (long long)took_ms);
    RANK_CHECK(strstr(imbrex_error(), "on node "), "rank %d: no node in '%s'", rank,
               imbrex_error());
    imbrex_plan_destroy(plan);
    free(memory);
    return 0;
}

static void a_cut_ends_on_every_rank(void **state)
{
    (void)state;
    assert_int_equal(run_with(4, 2, CUT_MS, ends_at_the_cut, NULL), 0);
}

/* ---- one rank of several processes, for test_network.py and test_wires.py -------------------- */

enum { VOLUME_RUNS = 100, MODE_CUT_MS = 3000 };

static int with_group(rank_main run, int64_t timeout_ms)
{
    imbrex_group_desc desc = { .device = "cpu", .timeout_ms = timeout_ms };
    imbrex_group *group;
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = run(group, NULL);
    imbrex_group_destroy(group);
    return failed;
}

/* Prints what all runs together have to send to other nodes. */
static int mode_volume(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_coll_desc desc = { .m = 1024, .n = 256, .dtype = IMBREX_F32 };
    float *memory = calloc(2 * 1024 * 256, sizeof *memory);
    imbrex_args args = { .a = memory, .c = memory + 1024 * 256 };
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_reduce_scatter(group, &desc, &plan));
    for (int i = 0; i < VOLUME_RUNS; i++)
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    uint64_t sent = VOLUME_RUNS * imx_describe_facts(plan).sent_between;
    printf("sent %llu\n", (unsigned long long)sent);
    free(memory);
    return 0;
}

/* Runs until something fails, and says when it does run, and then what failed, and how long after
 * the run before that was over. */
static int mode_cut(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_gemm_desc desc = { .m = 256, .n = 256, .k = 64, .dtype = IMBREX_F32 };
    float *memory = calloc(3 * 256 * 256, sizeof *memory);
    imbrex_args args = { .a = memory, .b = memory + 65536, .c = memory + 2 * 65536 };
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_gemm_rs(group, &desc, &plan));
    imbrex_status status = IMBREX_OK;
    int64_t begin_ns = imbrexd_now_ns(), last_ns = begin_ns;
    for (int i = 0; status == IMBREX_OK && last_ns - begin_ns < 60000000000; i++) {
        if (i == 1) {
            printf("rank %d runs\n", imbrex_group_rank(group));
            fflush(stdout);
        }
        last_ns = imbrexd_now_ns();
        status = imbrex_plan_run(plan, &args, NULL);
        if (status == IMBREX_OK)
            status = imbrex_stream_sync(group, NULL);
    }
    printf("rank %d %s after %lld ms: %s\n", imbrex_group_rank(group), imbrex_status_name(status),
           (long long)(imbrexd_now_ns() - last_ns) / 1000000, imbrex_error());
    fflush(stdout);
    free(memory);
    return 0;
}

static int rank_of_processes(const char *mode)
{
    if (strcmp(mode, "table") == 0)
        return with_group(op_cases_over_nodes, 0);
    if (strcmp(mode, "exchange") == 0)
        return with_group(exchange_cases, 0);
    if (strcmp(mode, "numbers") == 0)
        return with_group(numbers_stay_apart, 0);
    if (strcmp(mode, "volume") == 0)
        return with_group(mode_volume, 0);
    return with_group(mode_cut, MODE_CUT_MS);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return rank_of_processes(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_one_host_and_name_are_a_node),
        cmocka_unit_test(ranks_of_a_node_follow_each_other),
        cmocka_unit_test(operators_of_2_by_2),
        cmocka_unit_test(operators_of_3_by_2),
        cmocka_unit_test(operators_of_2_by_3),
        cmocka_unit_test(operators_of_4_by_1),
        cmocka_unit_test(a_step_begins_before_the_last_one_is_over),
        cmocka_unit_test(the_order_of_sums_is_fixed),
        cmocka_unit_test(what_leaves_a_node_leaves_it_once),
        cmocka_unit_test(memory_is_reached_within_a_node),
        cmocka_unit_test(unequal_nodes_are_refused_by_name),
        cmocka_unit_test(one_node_has_no_hierarchy),
        cmocka_unit_test(barriers_span_nodes),
        cmocka_unit_test(plans_of_any_number_stay_apart),
        cmocka_unit_test(a_cut_ends_on_every_rank),
    };
    imx_net_of_test = &net_threads;
    return cmocka_run_group_tests_name("nodes", tests, NULL, NULL);
}
