/* test_nccl.c - the engine between nodes of GPUs over a fake NCCL on a fake driver: what is found
 * and what is refused, what the operators compute over it, and how it ends when it breaks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_nccl.h"
#include "fake_ranks.h"
#include "fake_stream.h"
#include "imbrex_device.h"
#include "kernels/kernels.h"
#include "op_cases.h"
#include "plan/plan.h"
#include "scratch.h"
#include "transport/nccl.h"

static fake_nccl_state *nccl;

/* ---- finding it ------------------------------------------------------------------------------ */

static void is_refused(const char *file, const char *why)
{
    const imx_nccl_calls *calls = NULL;
    assert_int_equal(imx_nccl_open(file, &calls), IMBREX_UNSUPPORTED);
    assert_null(calls);
    if (!strstr(imbrex_error(), why))
        fail_msg("'%s' is not in '%s'", why, imbrex_error());
}

static void a_file_that_is_none_is_named(void **state)
{
    (void)state;
    is_refused("/nowhere/libnccl.so.2", "IMBREX_NCCL is /nowhere/libnccl.so.2");
    is_refused("libm.so.6", "lacks ncclGetVersion");
}

static void an_old_one_is_refused(void **state)
{
    (void)state;
    nccl->version = 21713;
    is_refused(getenv("IMBREX_NCCL"), "is NCCL 2.17.13: imbrex needs 2.18 or newer");
    char info[16384];
    imbrex_info(info, sizeof info);
    assert_non_null(strstr(info, "between nodes of gpus: none: "));
    assert_non_null(strstr(info, "libfake_nccl.so is NCCL 2.17.13: imbrex needs 2.18 or newer\n"));
    nccl->version = 22809;
    imbrex_info(info, sizeof info);
    assert_non_null(strstr(info, "between nodes of gpus: NCCL 2.28.9, /"));
}

/* What imbrex loads goes through here.  While `looks`, the loader knows no NCCL of its own, and the
 * one beside PyTorch is loaded where another thread may use the loader. */
static bool looks;
static int held_up; /* threads that had to wait for that */

static int see_one(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)info, (void)size, (void)ctx;
    return 1;
}

static void *walk(void *arg)
{
    dl_iterate_phdr(see_one, NULL);
    return arg;
}

static pthread_t walker;

static void walk_meanwhile(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    pthread_create(&walker, NULL, walk, NULL);
    held_up += pthread_timedjoin_np(walker, NULL, &until) != 0;
}

void *dlopen(const char *file, int mode)
{
    static void *(*real)(const char *file, int mode);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    if (looks && file && strcmp(file, "libnccl.so.2") == 0)
        return NULL;
    if (looks && file && strstr(file, "/nvidia/nccl/lib/"))
        walk_meanwhile();
    return real(file, mode);
}

static void the_one_beside_pytorch_is_found(void **state)
{
    (void)state;
    static const char *const folders[] = { "torch", "torch/lib", "nvidia", "nvidia/nccl",
                                           "nvidia/nccl/lib" };
    static char copy[1 << 22]; /* of the fake; its version is 0 */
    FILE *fake = fopen(getenv("IMBREX_NCCL"), "r");
    assert_non_null(fake);
    size_t bytes = fread(copy, 1, sizeof copy, fake);
    assert_in_range(bytes, 1, sizeof copy - 1);
    fclose(fake);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        scratch_directory(folders[i]);
    scratch_write("torch/lib/libtorch_cpu.so", copy, bytes);
    scratch_write("nvidia/nccl/lib/libnccl.so.2", copy, bytes);
    void *torch = dlopen(scratch_path("torch/lib/libtorch_cpu.so"), RTLD_NOW | RTLD_LOCAL);
    assert_non_null(torch);
    looks = true;
    is_refused("", "/nvidia/nccl/lib/libnccl.so.2 is NCCL 0.0.0");
    looks = false;
    dlclose(torch);
    if (held_up)
        pthread_join(walker, NULL);
    assert_int_equal(held_up, 0);
}

/* ---- operators ------------------------------------------------------------------------------- */

static int run_with(int ranks, int per_node, int64_t timeout_ms, rank_main run, void *ctx)
{
    ranks_desc desc = { .size = ranks, .node_ranks = per_node, .timeout_ms = timeout_ms };
    nccl = fake_nccl_install();
    int failed = fake_ranks_run(&desc, 2, run, ctx);
    assert_int_equal(nccl->live, 0);
    return failed;
}

static void operators_of_2_by_2(void **state)
{
    (void)state;
    op_walk walk; /* an even shape and an uneven one: the others are tested where it is quick */
    op_walk_short(&walk);
    walk.to *= 2;
    assert_int_equal(run_with(4, 2, 0, op_cases_device_over_nodes, &walk), 0);
    assert_int_equal(nccl->aborts, 0);
}

static float memory[16][3][4096]; /* of each rank: a, c, and what it exchanges */

static imbrex_args args_of(int rank)
{
    return (imbrex_args){ .a = memory[rank][0], .c = memory[rank][1] };
}

static imbrex_status make_sum(imbrex_group *group, imbrex_plan **plan)
{
    imbrex_coll_desc desc = { .m = 24, .n = 16, .dtype = IMBREX_F32 };
    return imbrex_plan_reduce_scatter(group, &desc, plan);
}

/* Barriers among leaders alone, and sums over three nodes: the engine counts what the formula
 * says. */
static int sums(imbrex_group *group, void *ctx)
{
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    int nodes = *(const int *)ctx;
    imbrex_plan *plan;
    RANK_OK(make_sum(group, &plan));
    for (int i = 0; i < 24 * 16; i++)
        memory[rank][0][i] = (float)(i + 1000 * rank);
    imbrex_args args = args_of(rank);
    for (int i = 0; i < 3; i++) {
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
        RANK_OK(imbrex_barrier(group, NULL));
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int i = 0; i < 24 * 16 / ranks; i++) {
        float want = (float)(ranks * (i + 24 * 16 / ranks * rank) + 500 * ranks * (ranks - 1));
        RANK_CHECK(memory[rank][1][i] == want, "rank %d: element %d is %g, not %g", rank, i,
                   (double)memory[rank][1][i], (double)want);
    }
    const imx_plan_facts facts = imx_describe_facts(plan);
    uint64_t want = (uint64_t)(24 * 16 * 4 / ranks * (nodes - 1));
    RANK_CHECK(facts.sent_between == want && strcmp(facts.net, "NCCL 2.28.9") == 0,
               "%llu bytes over %s, want %llu", (unsigned long long)facts.sent_between, facts.net,
               (unsigned long long)want);
    if (!imx_kernel_gemm.cuda_config)
        return 0;
    const imbrex_gemm_desc product = { .m = 300, .n = 24, .k = 16 };
    RANK_OK(imbrex_plan_gemm_rs(group, &product, &plan));
    int fewer = imx_describe_facts(plan).fewer_count;
    RANK_CHECK(fewer == 0, "%d variants for fewer rows on several nodes", fewer);
    return 0;
}

static void sums_and_barriers_of_3_by_2(void **state)
{
    (void)state;
    int nodes = 3;
    assert_int_equal(run_with(6, 2, 0, sums, &nodes), 0);
    /* the words that made the connections; three runs; three barriers, two words a leader */
    uint64_t want = 6 * 2 * 8 + 3 * 2 * 24 * 16 * 4 + 3 * 3 * 2 * 8;
    assert_int_equal(nccl->sent, want);
}

static int only_meets(imbrex_group *group, void *ctx)
{
    int *here = ctx;
    for (int round = 1; round <= 10; round++) {
        __atomic_add_fetch(here, 1, __ATOMIC_SEQ_CST);
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        int seen = __atomic_load_n(here, __ATOMIC_SEQ_CST);
        RANK_CHECK(seen >= round * 5, "%d ranks came to barrier %d", seen, round);
    }
    return 0;
}

static void barriers_of_3_and_2_ranks(void **state)
{
    (void)state;
    int here = 0;
    assert_int_equal(run_with(5, 3, 0, only_meets, &here), 0);
    assert_int_equal(nccl->named, 2); /* the third of a node has nobody to talk to */
}

static int is_made(imbrex_group *group, void *ctx)
{
    (void)group, (void)ctx;
    return 0;
}

/* As if the processes were stopped for longer than the limit while NCCL connects them. */
static void a_pause_as_nodes_are_connected_does_not_count(void **state)
{
    (void)state;
    enum { LIMIT_MS = 500 };
    setenv("IMBREX_NODE_RANKS", "1", 1);
    ranks_desc desc = { .size = 2, .timeout_ms = LIMIT_MS };
    nccl = fake_nccl_install();
    nccl->naps_ms = (int)patient(3 * LIMIT_MS);
    int failed = fake_ranks_run(&desc, 2, is_made, NULL);
    unsetenv("IMBREX_NODE_RANKS");
    assert_int_equal(failed, 0);
    assert_int_equal(nccl->live, 0);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static int captures(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan;
    imbrex_stream stream;
    fake_graph *graph;
    RANK_OK(make_sum(group, &plan));
    RANK_OK(imbrex_stream_create(group, &stream));
    imbrex_args args = args_of(imbrex_group_rank(group));
    RANK_CHECK(fake_graph_begin(stream) == 0, "no capture");
    imbrex_status run = imbrex_plan_run(plan, &args, stream);
    RANK_CHECK(run == IMBREX_UNSUPPORTED && strstr(imbrex_error(), "cannot be captured"), "%s: %s",
               imbrex_status_name(run), imbrex_error());
    imbrex_status barrier = imbrex_barrier(group, stream);
    RANK_CHECK(barrier == IMBREX_UNSUPPORTED, "%s", imbrex_status_name(barrier));
    RANK_CHECK(fake_graph_end(stream, &graph) == 0, "the capture fails");
    fake_graph_destroy(graph);
    RANK_OK(imbrex_plan_run(plan, &args, stream)); /* nothing was enqueued: the group is well */
    RANK_OK(imbrex_stream_sync(group, stream));
    imbrex_stream_destroy(group, stream);
    return 0;
}

static void a_capture_is_refused_and_harms_nothing(void **state)
{
    (void)state;
    assert_int_equal(run_with(4, 2, 0, captures, NULL), 0);
}

/* ---- failure --------------------------------------------------------------------------------- */

enum { LIMIT_MS = 500, MOST_MS = 10 * LIMIT_MS }; /* sanitizers and a full machine included */

typedef struct mishap {
    const char *call; /* that fails, with result */
    int result;
    bool cut;
    int broken;
    bool traced, begun;
    const char *says;
    int here; /* ranks that have come to where it happens; atomic */
} mishap;

static int no_group(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const mishap *m = ctx;
    imbrex_group_desc desc = { .bootstrap = bootstrap,
                               .device = "cuda",
                               .timeout_ms = patient(LIMIT_MS) };
    imbrex_group *group = NULL;
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status != IMBREX_OK && !group, "rank %d: %s", rank, imbrex_status_name(status));
    RANK_CHECK(strstr(imbrex_error(), m->says), "rank %d: '%s' is not in '%s'", rank, m->says,
               imbrex_error());
    return 0;
}

static void makes_no_group(mishap m)
{
    ranks_desc desc = { .size = 2, .node_ranks = 1 };
    nccl = fake_nccl_install();
    nccl->fails = m.call;
    nccl->result = m.result;
    nccl->cut = m.cut;
    fake_driver_install(2);
    assert_int_equal(ranks_run_bare(&desc, no_group, &m), 0);
    assert_int_equal(nccl->live, 0);
    assert_int_equal(fake_driver_live(), 0);
}

static void what_fails_as_nodes_are_connected_is_told(void **state)
{
    (void)state;
    static const mishap all[] = {
        { .call = "ncclGetUniqueId", .result = 3, .says = "fake error (3) as asked for" },
        { .call = "ncclCommInitRankConfig", .result = 1, .says = "cannot connect the nodes" },
        { .call = "ncclCommGetAsyncError", .result = 6, .says = "remote error (6)" },
        { .call = "ncclSend", .result = 4, .says = "cannot send and receive: fake error (4)" },
        { .call = "ncclGroupEnd", .result = 2, .says = "cannot send and receive" },
        { .cut = true, .says = "NCCL 2.28.9" },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        makes_no_group(all[i]);
}

static int no_thread(unsigned long *thread, void *(*run)(void *), void *arg)
{
    (void)thread;
    (void)run;
    (void)arg;
    return EAGAIN;
}

static void why_there_is_no_thread_is_told(void **state)
{
    (void)state;
    imx_sys_table real = imx_sys;
    imx_sys.thread_create = no_thread;
    makes_no_group((mishap){ .says = "watches NCCL: Resource temporarily unavailable" });
    imx_sys = real;
}

/* What a rank may lack it lacks before the others rely on it. */
static _Thread_local bool lacks; /* memory for the names of communicators, and threads */
static imx_sys_table real;

static void *lack_memory(size_t count, size_t bytes)
{
    return lacks && bytes == sizeof(ncclUniqueId) ? NULL : real.calloc(count, bytes);
}

static int lack_thread(unsigned long *thread, void *(*run)(void *), void *arg)
{
    return lacks ? EAGAIN : real.thread_create(thread, run, arg);
}

typedef struct lack {
    const char *says; /* of what fails on rank 1 alone */
    int64_t limit_ms;
} lack;

static int lacks_group(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const lack *l = ctx;
    lacks = rank == 1;
    imbrex_group_desc desc = { .bootstrap = bootstrap,
                               .device = "cuda",
                               .timeout_ms = patient(l->limit_ms) };
    imbrex_group *group = NULL;
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status != IMBREX_OK && (status == IMBREX_PEER) == (rank == 0), "rank %d: %s", rank,
               imbrex_status_name(status));
    RANK_CHECK(strstr(imbrex_error(), l->says) &&
                   (rank || strstr(imbrex_error(), "rank 1 failed: ")),
               "rank %d: %s", rank, imbrex_error());
    return 0;
}

static void memory_and_threads_are_taken_before_ranks_connect(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .node_ranks = 1, .meeting_s = 3 };
    lack all[] = { { "2 times 128 bytes", LIMIT_MS },
                   { "watches NCCL: Resource temporarily", LIMIT_MS } };
    real = imx_sys;
    for (int i = 0; i < 2; i++) {
        nccl = fake_nccl_install();
        fake_driver_install(2);
        if (i == 0)
            imx_sys.calloc = lack_memory;
        else
            imx_sys.thread_create = lack_thread;
        int failed = ranks_run_bare(&desc, lacks_group, &all[i]);
        imx_sys = real;
        assert_int_equal(failed, 0);
        assert_int_equal(nccl->named, 0);
        assert_int_equal(fake_driver_live(), 0);
    }
}

/* Who waits for a rank that cannot be connected is in time for the meeting that hears why. */
static void why_one_rank_is_not_connected_is_told(void **state)
{
    (void)state;
    static const char *const calls[] = { "ncclCommInitRankConfig", "ncclSend" };
    lack all[] = { { "cannot connect the nodes: fake error", 6000 },
                   { "cannot send and receive: fake error", 6000 } };
    for (int i = 0; i < 2; i++) {
        ranks_desc desc = { .size = 2, .node_ranks = 1, .meeting_s = (int)patient(4) };
        nccl = fake_nccl_install();
        nccl->fails = calls[i];
        nccl->result = 1;
        nccl->spared = 1;
        fake_driver_install(2);
        assert_int_equal(ranks_run_bare(&desc, lacks_group, &all[i]), 0);
        assert_int_equal(nccl->live, 0);
        assert_int_equal(fake_driver_live(), 0);
    }
}

static int ends(imbrex_group *group, void *ctx)
{
    mishap *m = ctx;
    int rank = imbrex_group_rank(group);
    imbrex_plan *plan;
    RANK_OK(make_sum(group, &plan));
    imbrex_args args = args_of(rank);
    RANK_OK(imbrex_trace(group, m->traced ? 1000 : 0));
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    __atomic_add_fetch(&m->here, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&m->here, __ATOMIC_SEQ_CST) < imbrex_group_size(group))
        usleep(1000);
    __atomic_store_n(&nccl->cut, true, __ATOMIC_RELAXED);
    __atomic_store_n(&nccl->broken, m->broken, __ATOMIC_RELAXED);
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_status status = imbrex_plan_run(plan, &args, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(status == IMBREX_TIMEOUT || status == IMBREX_PEER || status == IMBREX_DEVICE,
               "rank %d: %s", rank, imbrex_status_name(status));
    RANK_CHECK(took_ms < patient(MOST_MS), "rank %d: it took %lld ms", rank, (long long)took_ms);
    status = imbrex_group_status(group);
    RANK_CHECK(status != IMBREX_OK && strstr(imbrex_error(), m->says), "rank %d: '%s' is not in %s",
               rank, m->says, imbrex_error());
    return 0;
}

static void what_breaks_in_a_run_ends_on_every_rank(void **state)
{
    (void)state;
    mishap all[] = { { .says = "on node " },
                     { .broken = NCCL_REMOTE_ERROR, .says = "on node " },
                     { .traced = true, .says = "on node " } };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run_with(4, 2, LIMIT_MS, ends, &all[i]), 0);
        assert_int_equal(nccl->aborts, 4);
    }
}

enum { HOLD_MS = 3 * LIMIT_MS };

static void hold(void *ctx)
{
    (void)ctx;
    usleep((useconds_t)patient(HOLD_MS) * 1000);
}

/* A run behind long work of its stream's, and an exchange on a stream that is idle, issued after
 * it: NCCL keeps it waiting for the run, and that is nobody's fault.  Cut, the run is stuck when
 * its turn has come, and the exchange behind it hides nothing, also if the run has begun. */
static int takes_turns(imbrex_group *group, void *ctx)
{
    const mishap *m = ctx;
    int rank = imbrex_group_rank(group);
    imbrex_stream busy, idle;
    imbrex_plan *plan;
    void *inbox;
    RANK_OK(make_sum(group, &plan));
    RANK_OK(imbrex_mem_alloc(group, 64, &inbox));
    RANK_OK(imbrex_stream_create(group, &busy));
    RANK_OK(imbrex_stream_create(group, &idle));
    imbrex_args args = args_of(rank);
    imbrex_transfer swap[] = { { .rank = !rank, .send = memory[rank][2], .bytes = 64 },
                               { .rank = !rank, .recv = inbox, .bytes = 64 } };
    int64_t begin_ns = imbrexd_now_ns(); /* before any rank's run begins, from which limits count */
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (m->cut)
        __atomic_store_n(&nccl->cut, true, __ATOMIC_RELAXED);
    RANK_CHECK(m->begun || fake_stream_call(busy, hold, NULL) == 0, "the stream cannot be held");
    RANK_OK(imbrex_plan_run(plan, &args, busy));
    if (m->begun)
        usleep(1000 * LIMIT_MS / 10);
    RANK_OK(imbrex_exchange(group, swap, 2, idle));
    imbrex_status status = imbrex_stream_sync(group, idle);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK((status != IMBREX_OK) == m->cut, "rank %d: %s", rank, imbrex_error());
    RANK_CHECK(took_ms >= patient(m->begun ? LIMIT_MS : HOLD_MS) &&
                   took_ms < patient(HOLD_MS + MOST_MS),
               "rank %d: it took %lld ms", rank, (long long)took_ms);
    RANK_CHECK(imbrex_stream_sync(group, busy) == status, "rank %d: %s", rank, imbrex_error());
    RANK_CHECK(!m->cut || strstr(imbrex_error(), "reduce_scatter (plan 1)"), "rank %d: %s", rank,
               imbrex_error());
    imbrex_stream_destroy(group, busy);
    imbrex_stream_destroy(group, idle);
    return 0;
}

static void a_step_that_waits_its_turn_is_not_stuck(void **state)
{
    (void)state;
    mishap all[] = { { .cut = false }, { .cut = true }, { .cut = true, .begun = true } };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run_with(2, 1, LIMIT_MS, takes_turns, &all[i]), 0);
        assert_int_equal(nccl->aborts, all[i].cut ? 2 : 0);
    }
}

/* Streams come and go: a slot is used again when its stream's steps have ended. */
static int meets_on_many_streams(imbrex_group *group, void *ctx)
{
    (void)ctx;
    for (int i = 0; i < 1500; i++) {
        imbrex_stream stream;
        RANK_OK(imbrex_stream_create(group, &stream));
        RANK_OK(imbrex_barrier(group, stream));
        RANK_OK(imbrex_stream_sync(group, stream));
        imbrex_stream_destroy(group, stream);
    }
    return 0;
}

static void many_streams_are_watched(void **state)
{
    (void)state;
    assert_int_equal(run_with(2, 1, 0, meets_on_many_streams, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_is_none_is_named),
        cmocka_unit_test(the_one_beside_pytorch_is_found),
        cmocka_unit_test(an_old_one_is_refused),
        cmocka_unit_test(operators_of_2_by_2),
        cmocka_unit_test(sums_and_barriers_of_3_by_2),
        cmocka_unit_test(barriers_of_3_and_2_ranks),
        cmocka_unit_test(a_pause_as_nodes_are_connected_does_not_count),
        cmocka_unit_test(a_capture_is_refused_and_harms_nothing),
        cmocka_unit_test(what_fails_as_nodes_are_connected_is_told),
        cmocka_unit_test(why_there_is_no_thread_is_told),
        cmocka_unit_test(memory_and_threads_are_taken_before_ranks_connect),
        cmocka_unit_test(why_one_rank_is_not_connected_is_told),
        cmocka_unit_test(what_breaks_in_a_run_ends_on_every_rank),
        cmocka_unit_test(a_step_that_waits_its_turn_is_not_stuck),
        cmocka_unit_test(many_streams_are_watched),
    };
    fake_ranks_begin();
    nccl = fake_nccl_install();
    int failed = cmocka_run_group_tests(tests, scratch_make, scratch_remove);
    fake_ranks_end();
    return failed;
}
