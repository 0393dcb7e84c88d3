/* test_failure.c - a rank that is killed, stopped, exits, leaves or never comes, in the middle of
 * every operator: the others hear who it was in time, clean up, and go on without it. */
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

#include "imbrex_device.h"
#include "meeting.h"
#include "op_norm.h"
#include "pause.h"
#include "plan/plan.h"
#include "ranks.h"

enum { RANKS = 4, VICTIM = 2, TIMEOUT_MS = 700, RUNS = 6 };
#define LINK "0.001" /* GB/s: a run takes 50 ms or more */

typedef enum fate { KILLED, STOPPED, EXITS, LEAVES, ABSENT } fate;
static const char *const fates[] = { "killed", "stopped", "exits", "leaves", "absent" };

/* In memory that all ranks share. */
typedef struct stage {
    op_case c;
    fate fate;
    bool processes;
    pid_t victim;
    int64_t gone_ns; /* when the victim went */
    int ready, done; /* survivors at the start, and that have seen the failure; atomic */
    pause_stage pause;
} stage;

static stage *shared;

/* ---- one run --------------------------------------------------------------------------------- */

static imbrex_status enqueue(imbrex_plan *plan, const op_image *x, int runs)
{
    imbrex_status status = IMBREX_OK;
    imbrex_args args = op_image_args(&shared->c, x, shared->c.m);
    for (int i = 0; i < runs && status == IMBREX_OK; i++)
        status = imbrex_plan_run(plan, &args, NULL);
    return status;
}

static int check_values(imbrex_group *group, const op_image *x)
{
    const op_case *c = &shared->c;
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    reference_error error;
    op_matrix sum = c->norm.rms ? op_image_h(c, x) : x->c;
    int64_t wrong = reference_check(c, c->m, ranks, r, x->host + sum.at, &error);
    RANK_CHECK(wrong < 0, "c[%lld] is %g, want %g", (long long)wrong, error.have, error.want);
    return c->norm.rms ? op_norm_check(group, c, c->m, x) : 0;
}

/* ---- the victim ------------------------------------------------------------------------------ */

static void await_survivors(const int *count)
{
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < RANKS - 1)
        usleep(1000);
}

static int go(imbrex_group *group, imbrex_plan *plan, const op_image *x)
{
    await_survivors(&shared->ready);
    bool slow = getenv("IMBREX_CPU_LINK") != NULL; /* else the wire cannot be slowed */
    if (slow && shared->fate != ABSENT && shared->fate != LEAVES) {
        RANK_OK(enqueue(plan, x, RUNS));
        usleep(60000); /* in the middle of the first or second run */
    }
    shared->victim = getpid();
    __atomic_store_n(&shared->gone_ns, imbrexd_now_ns(), __ATOMIC_RELAXED);
    if (shared->fate == KILLED)
        kill(getpid(), SIGKILL);
    if (shared->fate == STOPPED)
        raise(SIGSTOP); /* a survivor kills it in the end */
    if (shared->fate == EXITS)
        _exit(0);
    if (shared->fate == ABSENT)
        await_survivors(&shared->done);
    imbrex_plan_destroy(plan);
    imbrex_group_destroy(group);
    if (shared->fate == LEAVES)
        await_survivors(&shared->done);
    return 0;
}

/* ---- the survivors --------------------------------------------------------------------------- */

/* The sentence without the name of the function. */
static const char *story(void)
{
    const char *colon = strstr(imbrex_error(), ": ");
    return colon ? colon + 2 : imbrex_error();
}

static int check_story(const op_case *c, imbrex_status status, int64_t took_ms)
{
    char who[32];
    snprintf(who, sizeof who, "rank %d", VICTIM);
    const char *why = shared->fate == LEAVES ? "has destroyed its group"
                      : shared->fate == STOPPED || shared->fate == ABSENT ? "waits for nobody"
                                                                          : "ended without";
    RANK_CHECK(status == IMBREX_PEER || status == IMBREX_TIMEOUT, "%s %s, %s: %s", c->op,
               c->algorithm, fates[shared->fate], imbrex_error());
    RANK_CHECK(strstr(story(), who) && strstr(story(), why), "%s %s, %s: '%s', want %s and %s",
               c->op, c->algorithm, fates[shared->fate], imbrex_error(), who, why);
    RANK_CHECK(took_ms <= patient(TIMEOUT_MS + 1000), "%s %s, %s: heard of it after %lld ms", c->op,
               c->algorithm, fates[shared->fate], (long long)took_ms);
    return 0;
}

/* Every later call fails at once, with the same story. */
static int check_later(imbrex_group *group, imbrex_plan *plan, const op_image *x)
{
    char first[512];
    snprintf(first, sizeof first, "%s", story());
    imbrex_status status = imbrex_group_status(group);
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_plan *other;
    void *memory;
    const imbrex_status later[] = {
        enqueue(plan, x, 1),
        imbrex_mem_alloc(group, 64, &memory),
        case_plan(group, &shared->c, &other),
        imbrex_barrier(group, NULL),
        imbrex_copy(group, x->host + x->c.at, x->host + x->a.at, 1, NULL),
        imbrex_stream_sync(group, NULL),
    };
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        RANK_CHECK(later[i] == status, "later call %zu: %s, status %s", i,
                   imbrex_status_name(later[i]), imbrex_status_name(status));
    RANK_CHECK(strcmp(first, story()) == 0, "first '%s', then '%s'", first, story());
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(took_ms < patient(200), "later calls took %lld ms", (long long)took_ms);
    return 0;
}

static int go_on(int rank)
{
    char number[16];
    snprintf(number, sizeof number, "%d", rank - (rank > VICTIM));
    setenv("RANK", number, 1);
    setenv("LOCAL_RANK", number, 1);
    snprintf(number, sizeof number, "%d", RANKS - 1);
    setenv("WORLD_SIZE", number, 1);
    setenv("LOCAL_WORLD_SIZE", number, 1);
    setenv("IMBREX_LAUNCHER", "torchrun", 1); /* they are not as the launcher set them */
    imbrex_group *group;
    imbrex_plan *plan;
    RANK_OK(imbrex_group_create(&(imbrex_group_desc){ .timeout_ms = 20000 }, &group));
    RANK_OK(case_plan(group, &shared->c, &plan));
    int r = imbrex_group_rank(group);
    op_image x = op_image_take(&shared->c, shared->c.m, RANKS - 1, r, NULL);
    RANK_OK(enqueue(plan, &x, 1));
    RANK_OK(imbrex_stream_sync(group, NULL));
    int failed = check_values(group, &x);
    imbrex_group_destroy(group);
    op_image_drop(&x);
    return failed;
}

/* Nothing that a rank has open or mapped has a name that could outlive it. */
static int check_names(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    RANK_CHECK(maps, "no /proc/self/maps");
    char line[512];
    int memories = 0;
    while (fgets(line, sizeof line, maps)) {
        RANK_CHECK(!strstr(line, " /dev/shm/") && !strstr(line, " /tmp/imbrex"), "%s", line);
        memories += strstr(line, "/memfd:imbrex (deleted)") != NULL;
    }
    fclose(maps);
    RANK_CHECK(memories >= RANKS, "%d pieces of memory are mapped", memories);
    return 0;
}

static int survive(imbrex_group *group, imbrex_plan *plan, const op_image *x)
{
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_ACQ_REL);
    imbrex_status status = enqueue(plan, x, RUNS);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    int64_t took_ms =
        (imbrexd_now_ns() - __atomic_load_n(&shared->gone_ns, __ATOMIC_RELAXED)) / 1000000;
    int failed = check_story(&shared->c, status, took_ms) || check_later(group, plan, x);
    imbrex_plan_destroy(plan);
    imbrex_group_destroy(group);
    return failed;
}

static int play(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    int fds = meeting_count_fds();
    const op_case *c = &shared->c;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .timeout_ms = patient(TIMEOUT_MS) };
    imbrex_group *group;
    imbrex_plan *plan;
    RANK_OK(imbrex_group_create(&desc, &group));
    RANK_OK(case_plan(group, c, &plan));
    op_image x = op_image_take(c, c->m, RANKS, rank, NULL);
    RANK_OK(enqueue(plan, &x, 1));
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (check_names())
        return 1;
    int failed = rank == VICTIM ? go(group, plan, &x) : survive(group, plan, &x);
    op_image_drop(&x);
    if (rank == VICTIM)
        return failed;
    /* The last one to see the failure ends the stopped rank. */
    if (__atomic_add_fetch(&shared->done, 1, __ATOMIC_ACQ_REL) == RANKS - 1 &&
        shared->fate == STOPPED)
        kill(shared->victim, SIGKILL);
    if (!shared->processes || failed)
        return failed;
    failed = go_on(rank);
    RANK_CHECK(meeting_count_fds() == fds, "%d descriptors before, %d after", fds,
               meeting_count_fds());
    return failed;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const char *const ops[] = { "all_gather", "reduce_scatter", "ag_gemm", "gemm_rs",
                                   "gemm_ar" };

enum { OPS = sizeof ops / sizeof *ops };

static void set_stage(const char *op, const char *algorithm, fate how, bool processes)
{
    *shared = (stage){
        .c = { .op = op,
               .m = 256,
               .n = 64,
               .k = strstr(op, "gemm") ? 64 : 0,
               .dtype = IMBREX_F32,
               .algorithm = algorithm,
               .chunk_rows = 16 },
        .fate = how,
        .processes = processes,
    };
}

static void play_all(fate how, bool processes)
{
    ranks_desc desc = { .size = RANKS, .processes = processes };
    bool dies = processes && (how == KILLED || how == STOPPED);
    assert_int_equal(ranks_run_bare(&desc, play, NULL), dies);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    assert_int_equal(errno, ECHILD);
}

static void with_fate(fate how, bool processes)
{
    if (processes && !RANKS_PROCESSES)
        skip();
    static const char *const algorithms[] = { "copy", "sequential" };
    for (int i = 0; i < 2 * OPS; i++) {
        if (how > STOPPED && (i % 4 == 1 || i % 4 == 2))
            continue; /* every operator, one algorithm each */
        set_stage(ops[i / 2], algorithms[i % 2], how, processes);
        play_all(how, processes);
    }
}

/* The victim goes before its first run: kernels of the others wait for what it does not store. */
static void where_kernels_store(void **state)
{
    (void)state;
    static const fate hows[] = { KILLED, STOPPED, KILLED, STOPPED, KILLED };
    static const char *const summing[] = { "all_reduce", "gemm_ar" };
    unsetenv("IMBREX_CPU_LINK");
    for (int i = 0; i < OPS; i++) {
        const char *algorithm = strcmp(ops[i], "gemm_rs") == 0 ? BY_TILES : "store";
        set_stage(ops[i], algorithm, RANKS_PROCESSES ? hows[i] : ABSENT, RANKS_PROCESSES);
        play_all(shared->fate, RANKS_PROCESSES);
    }
    /* Ranks wait for one that waits for the next, and so on to the victim. */
    for (int i = 0; i < 2; i++) {
        set_stage("ag_gemm", "ring", RANKS_PROCESSES ? hows[i] : ABSENT, RANKS_PROCESSES);
        play_all(shared->fate, RANKS_PROCESSES);
    }
    for (int i = 0; i < 3; i++) {
        set_stage(ops[2 + i], "ll", RANKS_PROCESSES ? hows[i] : ABSENT, RANKS_PROCESSES);
        shared->c.m = 64; /* few enough for lines */
        shared->c.chunk_rows = 0;
        play_all(shared->fate, RANKS_PROCESSES);
    }
    /* Rows are normed beneath what is stored to peers. */
    for (int i = 0; i < 4; i++) {
        set_stage(summing[i / 2], "store", RANKS_PROCESSES ? hows[i] : ABSENT, RANKS_PROCESSES);
        shared->c.residual = shared->c.norm.rms = 1;
        play_all(shared->fate, RANKS_PROCESSES);
    }
    setenv("IMBREX_CPU_LINK", LINK, 1);
}

#define FATE(name, how, processes) \
    static void name(void **state) \
    {                              \
        (void)state;               \
        with_fate(how, processes); \
    }

FATE(killed, KILLED, true)
FATE(stopped, STOPPED, true)
FATE(exits, EXITS, true)
FATE(leaves, LEAVES, true)
FATE(absent, ABSENT, true)
FATE(absent_thread, ABSENT, false)
FATE(leaving_thread, LEAVES, false)

/* ---- who holds up whom ----------------------------------------------------------------------- */

/* Rank 0 waits for 1, which waits for 2, which comes to nothing at all. */
static int chain(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int r = imbrex_group_rank(group);
    char a[64], c[256];
    imbrex_coll_desc desc = { .m = 3, .n = 4, .algorithm = "sequential" };
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_all_gather(group, &desc, &plan));
    if (r == 1) {
        usleep((useconds_t)patient(100) * 1000);
        RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = c }, NULL));
    }
    if (r < 2)
        RANK_OK(imbrex_barrier(group, NULL));
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    return ranks_expect(group, "for rank 1 to come to imbrex_barrier") ||
           ranks_expect(group, ", which waits too, in the end for rank 2, which waits for nobody");
}

/* Rank 0 waits for 1 and 1 for 0. */
static int circle(imbrex_group *group, void *ctx)
{
    (void)ctx;
    char a[64], c[256];
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_all_gather(group, &(imbrex_coll_desc){ .m = 2, .n = 4 }, &plan));
    if (imbrex_group_rank(group) == 0)
        RANK_OK(imbrex_barrier(group, NULL));
    else
        RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = c }, NULL));
    return ranks_expect(group, ", which waits too: do all ranks make the same calls?");
}

static void names_the_last_of_a_chain(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3, .timeout_ms = TIMEOUT_MS };
    assert_int_equal(ranks_run(&desc, chain, NULL), 0);
    desc.processes = RANKS_PROCESSES;
    assert_int_equal(ranks_run(&desc, chain, NULL), 0);
}

static void knows_a_circle(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .timeout_ms = TIMEOUT_MS };
    assert_int_equal(ranks_run(&desc, circle, NULL), 0);
}

/* ---- a pause of all -------------------------------------------------------------------------- */

static int paused(imbrex_group *group, void *ctx)
{
    int rank = imbrex_group_rank(group);
    const bool *flags = ctx;
    uint64_t *words;
    RANK_OK(imbrex_mem_alloc(group, 64, (void **)&words));
    __atomic_store_n(&shared->pause.pids[rank], getpid(), __ATOMIC_RELEASE);
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (rank == 0)
        __atomic_store_n(&shared->pause.ready, 1, __ATOMIC_RELEASE);
    else
        pause_await(&shared->pause.over);
    if (*flags) {
        imbrexd_watch watch = group->watch;
        uint32_t data;
        RANK_CHECK(rank ||
                       imbrexd_ll_wait(&watch, words, 7, (imbrexd_wait_point){ .rank = 1 }, &data),
                   "the wait for a flag has given up");
        if (rank)
            RANK_OK(imbrex_signal_post(group, words, (uint64_t)7 << 32, 0, NULL));
    }
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    imbrex_mem_free(group, words);
    return 0;
}

static void a_pause_of_all_is_no_fault(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    for (int flags = 0; flags < 2; flags++) {
        bool by_flag = flags;
        assert_int_equal(pause_run(&shared->pause, 1, TIMEOUT_MS, paused, &by_flag), 0);
    }
}

/* ---- other causes ---------------------------------------------------------------------------- */

static imbrex_status break_down(const imx_run *run)
{
    return imx_fail(IMBREX_DEVICE, "rank %d's device is on fire", run->rank);
}

/* All ranks: rank 0 could enqueue only a part, and why. */
static int hears_who_gave_up(imbrex_group *group, imbrex_status why, const char *part)
{
    bool first = imbrex_group_rank(group) == 0;
    char words[160];
    imbrex_status status = imbrex_stream_sync(group, NULL);
    snprintf(words, sizeof words, "rank 0%s could enqueue only a part of %s: %s there",
             first ? " (this rank)" : "", part, imbrex_status_name(why));
    RANK_CHECK(status == (first ? why : IMBREX_PEER), "%s", imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), words), "%s", imbrex_error());
    return 0;
}

/* Rank 0 cannot enqueue the rest of its run. */
static int half_a_run(imbrex_group *group, void *ctx)
{
    (void)ctx;
    static const imx_algorithm broken = { .name = "broken", .run = break_down };
    bool first = imbrex_group_rank(group) == 0;
    char a[64] = "", c[64];
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_all_gather(group, &(imbrex_coll_desc){ .m = 2, .n = 4 }, &plan));
    if (first)
        plan->variants[0].algorithm = &broken;
    imbrex_status status = imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = c }, NULL);
    RANK_CHECK(!first || (status == IMBREX_DEVICE && strstr(imbrex_error(), "is on fire")), "%s",
               imbrex_error());
    return hears_who_gave_up(group, IMBREX_DEVICE, "its run of all_gather (plan 1)");
}

static void names_who_gave_up(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, half_a_run, NULL), 0);
}

static const imx_backend *whole;
static int parts; /* of rank 0's barrier, that were enqueued */

static imbrex_status break_second(imx_device *device, const imx_signal_op *signals, int count,
                                  imbrex_stream stream)
{
    return parts++ ? imx_fail(IMBREX_NO_MEMORY, "no memory for signals")
                   : whole->signals(device, signals, count, stream);
}

/* Rank 0 cannot enqueue the rest of its barrier, which takes two parts of so many ranks. */
static int half_a_barrier(imbrex_group *group, void *ctx)
{
    (void)ctx;
    bool first = imbrex_group_rank(group) == 0;
    imx_backend broken = *group->backend;
    broken.signals = break_second;
    if (first) {
        whole = group->backend;
        parts = 0;
        group->backend = &broken;
    }
    imbrex_status status = imbrex_barrier(group, NULL);
    RANK_CHECK(!first || (status == IMBREX_NO_MEMORY && strstr(imbrex_error(), "for signals")),
               "%s", imbrex_error());
    if (first)
        group->backend = whole;
    return hears_who_gave_up(group, IMBREX_NO_MEMORY, "imbrex_barrier");
}

static void names_who_left_a_barrier(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 10 };
    assert_int_equal(ranks_run(&desc, half_a_barrier, NULL), 0);
}

/* ---- an abort while the emulations sleep ----------------------------------------------------- */

/* Both ranks sleep ten seconds and more before, or after, the copy. */
static int sleeper(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { BYTES = 10000 };
    void *memory;
    static const char bytes[BYTES];
    int rank = imbrex_group_rank(group);
    RANK_OK(imbrex_mem_alloc(group, BYTES, &memory));
    RANK_OK(imbrex_put(group, memory, bytes, BYTES, 1 - rank, NULL));
    usleep(50000);
    if (rank == 0)
        imbrex_group_abort(group);
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_status status = imbrex_stream_sync(group, NULL);
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    RANK_CHECK(status == IMBREX_PEER, "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(took_ms < patient(500), "the stream ended %lld ms after the abort",
               (long long)took_ms);
    return 0;
}

static void abort_ends_emulated_sleeps(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    setenv("IMBREX_CPU_LINK", "0.000001", 1); /* a KB a second */
    assert_int_equal(ranks_run(&desc, sleeper, NULL), 0);
    setenv("IMBREX_CPU_LINK", "0", 1);
    setenv("IMBREX_CHAOS", "60000", 1);
    assert_int_equal(ranks_run(&desc, sleeper, NULL), 0);
    unsetenv("IMBREX_CHAOS");
    setenv("IMBREX_CPU_LINK", LINK, 1);
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    setenv("IMBREX_CPU_LINK", LINK, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),
        cmocka_unit_test(where_kernels_store),
        cmocka_unit_test(stopped),
        cmocka_unit_test(exits),
        cmocka_unit_test(leaves),
        cmocka_unit_test(absent),
        cmocka_unit_test(absent_thread),
        cmocka_unit_test(leaving_thread),
        cmocka_unit_test(names_the_last_of_a_chain),
        cmocka_unit_test(knows_a_circle),
        cmocka_unit_test(a_pause_of_all_is_no_fault),
        cmocka_unit_test(names_who_gave_up),
        cmocka_unit_test(names_who_left_a_barrier),
        cmocka_unit_test(abort_ends_emulated_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
