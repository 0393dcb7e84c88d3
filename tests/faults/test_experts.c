/* test_experts.c - ag_moe, moe_rs, dispatch and combine when something goes wrong around them: a
 * rank that dies, stops or stays away, on one node and over nodes; ranks that sleep at random; a
 * wait or a post that is left out, beneath the checker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experts.h"
#include "imbrex_device.h"
#include "net_threads.h"
#include "plan/plan.h"
#include "ranks.h"

/* Of the layer's two operators, i is the one that a test is about. */
typedef struct way {
    bool dispatches;
    int i;
    const char *algorithm;
} way;

static const way one_node[] = {
    { false, 0, "copy" },      { false, 0, "ll" },         { false, 0, "sequential" },
    { false, 1, "store" },     { false, 1, "sequential" }, { true, 0, "store" },
    { true, 0, "sequential" }, { true, 1, "store" },       { true, 1, "sequential" },
    { false, 1, "ll" },        { true, 0, "ll" },          { true, 1, "ll" },
};
static const way several_nodes[] = {
    { false, 0, "hierarchical" },
    { false, 1, "hierarchical" },
    { true, 0, "hierarchical" },
    { true, 1, "hierarchical" },
};
enum {
    ONE = sizeof one_node / sizeof *one_node,
    SEVERAL = sizeof several_nodes / sizeof *several_nodes
};

static const char *name_of(const way *w)
{
    return w->dispatches ? (w->i ? "combine" : "dispatch") : w->i ? "moe_rs" : "ag_moe";
}

static int begin(imbrex_group *group, const way *w, experts *e)
{
    const char *algorithms[2] = { NULL, NULL };
    algorithms[w->i] = w->algorithm;
    return experts_begin(group, w->dispatches, algorithms, e);
}

/* Both operators, once, with tokens that choose as `set`. */
static int run_once(const experts *e, char *room, int set)
{
    experts_fill(e, set, room);
    for (int i = 0; i < 2; i++)
        RANK_OK(experts_run(e, i, room, 0, NULL));
    RANK_OK(imbrex_stream_sync(e->group, NULL));
    return 0;
}

/* ---- a rank that is gone --------------------------------------------------------------------- */

enum { RANKS = 4, VICTIM = 2, TIMEOUT_MS = 500, RUNS = 4 };
enum { MIDDLE_US = 60000 }; /* with LINK, in a run's middle */
#define LINK "0.00002"      /* GB/s */

typedef enum fate { KILLED, STOPPED, ABSENT } fate;

/* In memory that all ranks share. */
typedef struct stage {
    way w;
    fate fate;
    pid_t victim;
    int64_t gone_ns;
    int ready, done; /* survivors at the start, and that have seen the failure; atomic */
} stage;

static stage *shared;

static void await(const int *count)
{
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < RANKS - 1)
        usleep(1000);
}

static imbrex_status enqueue(const experts *e, char *room)
{
    imbrex_status status = IMBREX_OK;
    for (int run = 0; run < RUNS && status == IMBREX_OK; run++)
        status = experts_run(e, shared->w.i, room, 0, NULL);
    return status;
}

static int go(const experts *e, char *room)
{
    await(&shared->ready);
    if (getenv("IMBREX_CPU_LINK") && shared->fate != ABSENT) {
        RANK_OK(enqueue(e, room));
        usleep(MIDDLE_US);
    }
    shared->victim = getpid();
    __atomic_store_n(&shared->gone_ns, imbrexd_now_ns(), __ATOMIC_RELAXED);
    if (shared->fate == KILLED)
        kill(getpid(), SIGKILL);
    if (shared->fate == STOPPED)
        raise(SIGSTOP); /* the last survivor kills it */
    await(&shared->done);
    return 0;
}

static int survive(const experts *e, char *room)
{
    const char *op = name_of(&shared->w), *algorithm = shared->w.algorithm;
    const char *why = shared->fate == KILLED ? "ended without" : "waits for nobody";
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_ACQ_REL);
    imbrex_status status = enqueue(e, room);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(e->group, NULL);
    int64_t gone_ns = __atomic_load_n(&shared->gone_ns, __ATOMIC_RELAXED);
    int64_t took_ms = (imbrexd_now_ns() - gone_ns) / 1000000;
    RANK_CHECK(status == IMBREX_PEER || status == IMBREX_TIMEOUT, "%s %s: %s", op, algorithm,
               imbrex_status_name(status));
    bool told = strstr(imbrex_error(), "rank 2") && strstr(imbrex_error(), why);
    if (imbrex_group_node(e->group, VICTIM) > 0) /* an engine sees a rank of that node */
        told = strstr(imbrex_error(), "rank 2") || strstr(imbrex_error(), "rank 3");
    RANK_CHECK(told, "%s %s: '%s', want rank 2 and %s", op, algorithm, imbrex_error(), why);
    RANK_CHECK(took_ms <= patient(TIMEOUT_MS + 1000), "%s %s: heard of it after %lld ms", op,
               algorithm, (long long)took_ms);
    RANK_CHECK(enqueue(e, room) == status, "a later run: %s", imbrex_error());
    return 0;
}

static int play(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    experts e;
    if (begin(group, &shared->w, &e))
        return 1;
    char *room = calloc(1, e.room_bytes);
    int failed = run_once(&e, room, 0);
    if (!failed)
        failed = rank == VICTIM ? go(&e, room) : survive(&e, room);
    imbrex_status idle = imbrex_stream_sync(group, NULL); /* nobody writes to the room any more */
    (void)idle;
    if (rank != VICTIM && __atomic_add_fetch(&shared->done, 1, __ATOMIC_ACQ_REL) == RANKS - 1 &&
        shared->fate == STOPPED)
        kill(shared->victim, SIGKILL);
    free(room);
    return failed;
}

static void play_all(const way *w, fate how, int node_ranks)
{
    ranks_desc desc = { .size = RANKS,
                        .processes = how != ABSENT,
                        .node_ranks = node_ranks,
                        .timeout_ms = TIMEOUT_MS };
    *shared = (stage){ .w = *w, .fate = how };
    assert_int_equal(ranks_run(&desc, play, NULL), how != ABSENT);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    assert_int_equal(errno, ECHILD);
}

/* Copies are slowed, so that it happens in the middle of a run; kernels of the others wait for what
 * the victim never stores. */
static void with_fate(const way *w, fate how)
{
    bool copies = strcmp(w->algorithm, "copy") == 0 || strcmp(w->algorithm, "sequential") == 0;
    if (copies && w->i == 0 && !w->dispatches)
        copies = strcmp(w->algorithm, "sequential") == 0; /* copy's ids go by a kernel */
    if (copies)
        setenv("IMBREX_CPU_LINK", LINK, 1);
    play_all(w, how, 0);
    unsetenv("IMBREX_CPU_LINK");
}

static void killed(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    for (int i = 0; i < ONE; i++)
        with_fate(&one_node[i], KILLED);
}

static void stopped(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    for (int i = 1; i < ONE; i += 2)
        with_fate(&one_node[i], STOPPED);
}

static void absent(void **state)
{
    (void)state;
    if (RANKS_PROCESSES)
        skip(); /* stopped ones are the same to the others */
    for (int i = 0; i < ONE; i++)
        play_all(&one_node[i], ABSENT, 0);
}

static void absent_over_nodes(void **state)
{
    (void)state;
    imx_net_of_test = &net_threads;
    for (int i = 0; i < SEVERAL; i++) {
        net_threads_reset();
        play_all(&several_nodes[i], ABSENT, 2);
    }
    imx_net_of_test = NULL;
}

/* ---- sleeps ---------------------------------------------------------------------------------- */

enum { LAYERS = 8 };
static char *quiet[RANKS][LAYERS];

static int fewer_of(int run)
{
    return run % 5 == 4 ? 3 : 0;
}

/* Layers back to back, each with tokens, ids and a count of its own; or one after the other. */
static int layers(imbrex_group *group, const way *w, bool keeps)
{
    int rank = imbrex_group_rank(group), failed = 0;
    char *rooms[LAYERS];
    experts e;
    if (begin(group, w, &e))
        return 1;
    for (int run = 0; run < LAYERS; run++) {
        rooms[run] = calloc(1, e.room_bytes);
        experts_fill(&e, run, rooms[run]);
        for (int i = 0; i < 2; i++)
            RANK_OK(experts_run(&e, i, rooms[run], fewer_of(run), NULL));
        if (keeps)
            RANK_OK(imbrex_stream_sync(group, NULL));
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int run = 0; run < LAYERS; run++) {
        if (keeps)
            quiet[rank][run] = memcpy(malloc(e.out_bytes), rooms[run] + e.out_at, e.out_bytes);
        else
            failed |= memcmp(quiet[rank][run], rooms[run] + e.out_at, e.out_bytes) != 0;
        free(rooms[run]);
        if (!keeps)
            free(quiet[rank][run]);
    }
    RANK_CHECK(!failed, "%s %s: other bits than in quiet", name_of(w), w->algorithm);
    experts_end(&e);
    return 0;
}

static int keep(imbrex_group *group, void *ctx)
{
    return layers(group, ctx, true);
}

static int compare(imbrex_group *group, void *ctx)
{
    return layers(group, ctx, false);
}

static void in_chaos(const way *w, int node_ranks)
{
    ranks_desc desc = { .size = RANKS, .node_ranks = node_ranks };
    way same = *w;
    net_threads_reset();
    assert_int_equal(ranks_run(&desc, keep, &same), 0);
    setenv("IMBREX_CHAOS", "1", 1);
    net_threads_reset();
    int failed = ranks_run(&desc, compare, &same);
    unsetenv("IMBREX_CHAOS");
    assert_int_equal(failed, 0);
}

static void sleeps_change_no_bits(void **state)
{
    (void)state;
    for (int i = 0; i < ONE; i++)
        in_chaos(&one_node[i], 0);
    imx_net_of_test = &net_threads;
    for (int i = 0; i < SEVERAL; i++)
        in_chaos(&several_nodes[i], 2);
    imx_net_of_test = NULL;
}

/* ---- mistakes -------------------------------------------------------------------------------- */

typedef struct mistake {
    way w;
    bool posts; /* else a wait is left out */
    char said[RANKS][900];
} mistake;

static _Thread_local const mistake *here;
static _Thread_local const imbrex_plan *of; /* the plan with the mistake */

static bool is_left_out(const imx_signal_op *op)
{
    int own = of->group->rank;
    bool part = op->point.what == IMX_POINT_CHUNK || op->point.what == IMX_POINT_PART;
    if (imx_variant_plan_number(op->point.plan) != of->object.number)
        return false;
    if (!here->posts)
        return op->kind == IMX_WAIT && part;
    return op->kind == IMX_POST && op->point.rank != own;
}

static imbrex_status signals(imx_device *device, const imx_signal_op *ops, int count,
                             imbrex_stream stream)
{
    for (int i = 0; i < count; i++) {
        if (!is_left_out(&ops[i]))
            IMX_TRY(imx_backend_cpu.signals(device, &ops[i], 1, stream));
    }
    return IMBREX_OK;
}

static int seeded(imbrex_group *group, void *ctx)
{
    mistake *m = ctx;
    int rank = imbrex_group_rank(group);
    imx_backend device = imx_backend_cpu;
    imbrex_status status = IMBREX_OK;
    experts e;
    if (begin(group, &m->w, &e))
        return 1;
    char *room = calloc(1, e.room_bytes);
    experts_fill(&e, 0, room);
    device.signals = signals;
    here = m;
    of = e.plans[m->w.i];
    group->backend = &device;
    for (int run = 0; run < RUNS && status == IMBREX_OK; run++) {
        for (int i = 0; i < 2 && status == IMBREX_OK; i++)
            status = experts_run(&e, i, room, 0, NULL);
    }
    imbrex_status synced = imbrex_stream_sync(group, NULL);
    status = status == IMBREX_OK ? synced : status;
    while (status == IMBREX_OK) /* another rank has noticed, or will */
        status = imbrex_group_status(group);
    group->backend = &imx_backend_cpu;
    snprintf(m->said[rank], sizeof m->said[rank], "%s", imbrex_error());
    free(room);
    return 0; /* the group has failed: its plans go with it */
}

static void check_mistake(const way *w, bool posts, int node_ranks)
{
    mistake m = { .w = *w, .posts = posts };
    ranks_desc desc = { .size = RANKS, .node_ranks = node_ranks };
    net_threads_reset();
    assert_int_equal(ranks_run(&desc, seeded, &m), 0);
    int told = 0;
    for (int r = 0; r < RANKS; r++) {
        bool fits = posts ? strstr(m.said[r], "that nobody will satisfy") != NULL
                          : strstr(m.said[r], "orders it after that") ||
                                strstr(m.said[r], "which nobody has written");
        told += fits;
        if (!strstr(m.said[r], "IMBREX_CHECK: ") || (!fits && !node_ranks))
            fail_msg("%s %s without its %s: rank %d has \"%s\"", name_of(w), w->algorithm,
                     posts ? "posts" : "waits", r, m.said[r]);
    }
    assert_true(told > 0); /* another node hears that there is a mistake, and who noticed */
}

static void the_checker_sees_what_is_left_out(void **state)
{
    (void)state;
    if (SANITIZED_THREADS)
        skip(); /* which calls it a data race */
    setenv("IMBREX_CHECK", "1", 1);
    for (int i = 0; i < ONE; i++) {
        if (strcmp(one_node[i].algorithm, "ll") == 0)
            continue; /* no signals: words carry their flags */
        if (strcmp(one_node[i].algorithm, "copy") != 0)
            check_mistake(&one_node[i], false, 0);
        check_mistake(&one_node[i], true, 0);
    }
    imx_net_of_test = &net_threads;
    for (int i = 0; i < SEVERAL; i++) /* a post might still come from another node */
        check_mistake(&several_nodes[i], false, 2);
    imx_net_of_test = NULL;
    unsetenv("IMBREX_CHECK");
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),
        cmocka_unit_test(stopped),
        cmocka_unit_test(absent),
        cmocka_unit_test(absent_over_nodes),
        cmocka_unit_test(sleeps_change_no_bits),
        cmocka_unit_test(the_checker_sees_what_is_left_out),
    };
    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
