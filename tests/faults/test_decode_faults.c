/* test_decode_faults.c - flash_decode and merge_states where something goes wrong, or is slow: a
 * rank that is killed, ranks that sleep at random, a post or a wait that is missing; and graphs
 * whose sequences grow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_driver.h"
#include "fake_ranks.h"
#include "plan/plan.h"
#include "ranks.h"
#include "reference.h"

enum { BATCH = 3, CONTEXT = 70, HEADS = 4, KV_HEADS = 2, DIM = 64, RUNS = 6 };
enum { ROW = HEADS * DIM, CACHE = BATCH * CONTEXT * KV_HEADS * DIM };
static const char *const algorithms[] = { "sequential", "store", "ll" };
enum { ALGORITHMS = 3 };

/* ---- runs ------------------------------------------------------------------------------------ */

/* Memory of the device; on CPU ranks the host has it, too.  In run i sequences have lengths[i]. */
typedef struct work {
    imbrex_plan *plan;
    bool merges; /* else attends */
    float *q, *k, *v, *lse;
    float *o; /* [RUNS, BATCH, ROW] */
    int32_t *lengths;
} work;

/* They grow, from none on some ranks. */
static int32_t length_of(int rank, int run, int sequence)
{
    return (int32_t)((run * 11 + sequence * 7 * rank) % CONTEXT);
}

typedef struct values {
    float q[BATCH * ROW], k[CACHE], v[CACHE], lse[BATCH * HEADS], o[RUNS * BATCH * ROW];
    int32_t lengths[RUNS * BATCH];
} values;

static void fill(int rank, values *x)
{
    for (int i = 0; i < BATCH * ROW; i++)
        x->q[i] = (float)input_value(IMBREX_F32, 5, i);
    for (int i = 0; i < CACHE; i++) {
        x->k[i] = (float)input_value(IMBREX_F32, 20 + rank, i);
        x->v[i] = (float)input_value(IMBREX_F32, 60 + rank, i);
    }
    for (int i = 0; i < BATCH * HEADS; i++)
        x->lse[i] = (float)input_value(IMBREX_F32, 90 + rank, i);
    for (int i = 0; i < RUNS * BATCH; i++)
        x->lengths[i] = length_of(rank, i / BATCH, i % BATCH);
}

static int begin(imbrex_group *group, bool merges, const char *algorithm, work *w)
{
    const imbrex_decode_desc desc = { .batch = BATCH,
                                      .context = CONTEXT,
                                      .heads = HEADS,
                                      .kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .value_dim = DIM,
                                      .dtype = IMBREX_F32,
                                      .algorithm = algorithm,
                                      .replicate = 1 };
    const imbrex_decode_desc states = { .batch = BATCH,
                                        .heads = HEADS,
                                        .value_dim = DIM,
                                        .dtype = IMBREX_F32,
                                        .algorithm = algorithm,
                                        .replicate = 1 };
    void *memory;
    *w = (work){ .merges = merges };
    RANK_OK(merges ? imbrex_plan_merge_states(group, &states, &w->plan)
                   : imbrex_plan_flash_decode(group, &desc, &w->plan));
    RANK_OK(imbrex_mem_alloc(group, sizeof(values), &memory));
    values *at = memory, *host = calloc(1, sizeof *host);
    fill(imbrex_group_rank(group), host);
    RANK_OK(imbrex_copy(group, at, host, sizeof *host, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    free(host);
    w->q = at->q;
    w->k = at->k;
    w->v = at->v;
    w->lse = at->lse;
    w->o = at->o;
    w->lengths = at->lengths;
    return 0;
}

static imbrex_status run(const work *w, int i, imbrex_stream stream)
{
    imbrex_decode_args args = { .o = w->o + i * BATCH * ROW };
    if (w->merges) {
        args.o_partial = w->q;
        args.lse_partial = w->lse;
    } else {
        args.q = w->q;
        args.k = w->k;
        args.v = w->v;
        args.lengths = w->lengths + i * BATCH;
    }
    return imbrex_plan_run_decode(w->plan, &args, stream);
}

static imbrex_status run_all(const work *w)
{
    imbrex_status status = IMBREX_OK;
    for (int i = 0; i < RUNS && status == IMBREX_OK; i++)
        status = run(w, i, NULL);
    return status;
}

/* ---- a rank that is killed ------------------------------------------------------------------- */

enum { VICTIM = 1, TIMEOUT_MS = 700 };

typedef struct stage {
    bool merges;
    const char *algorithm;
    int ready; /* survivors; atomic */
} stage;

/* The victim goes before its first run: all others' kernels wait for what it does not send. */
static int loses_one(imbrex_group *group, void *ctx)
{
    stage *s = ctx;
    work w;
    if (begin(group, s->merges, s->algorithm, &w))
        return 1;
    if (imbrex_group_rank(group) == VICTIM) {
        while (__atomic_load_n(&s->ready, __ATOMIC_ACQUIRE) < 2)
            usleep(1000);
        usleep(20000);
        kill(getpid(), SIGKILL);
    }
    imbrex_status status = run_all(&w);
    __atomic_add_fetch(&s->ready, 1, __ATOMIC_ACQ_REL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    RANK_CHECK((status == IMBREX_PEER || status == IMBREX_TIMEOUT) &&
                   strstr(imbrex_error(), "rank 1") && strstr(imbrex_error(), "ended without"),
               "%s by %s: %s", s->merges ? "merge_states" : "flash_decode", s->algorithm,
               imbrex_error());
    RANK_CHECK(run(&w, 0, NULL) == status, "goes on: %s", imbrex_error());
    return 0;
}

static void killed(void **state)
{
    (void)state;
    if (!RANKS_PROCESSES)
        skip();
    for (int i = 0; i < 2 * ALGORITHMS; i++) {
        stage *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(s != MAP_FAILED);
        *s = (stage){ .merges = i % 2, .algorithm = algorithms[i / 2] };
        ranks_desc desc = { .size = 3, .processes = true, .timeout_ms = TIMEOUT_MS };
        int failed = ranks_run(&desc, loses_one, s);
        munmap(s, sizeof *s);
        assert_int_equal(failed, 1); /* the victim */
    }
}

/* ---- ranks that sleep ------------------------------------------------------------------------ */

/* Runs back to back, each into its own o; ctx: the first rank that was here keeps its o there. */
typedef struct bits {
    bool merges;
    const char *algorithm;
    float o[RUNS * BATCH * ROW];
} bits;

static int keep(imbrex_group *group, void *ctx)
{
    bits *b = ctx;
    work w;
    if (begin(group, b->merges, b->algorithm, &w))
        return 1;
    RANK_OK(run_all(&w));
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (imbrex_group_rank(group) == 0)
        memcpy(b->o, w.o, sizeof b->o);
    imbrex_plan_destroy(w.plan);
    return 0;
}

static void keep_bits(bits *b)
{
    ranks_desc desc = { .size = 3 };
    assert_int_equal(ranks_run(&desc, keep, b), 0);
}

static void sleepers_have_the_same_bits(void **state)
{
    static bits quiet[2], slow;
    (void)state;
    for (int merges = 0; merges < 2; merges++) {
        quiet[merges] = (bits){ .merges = merges, .algorithm = "sequential" };
        keep_bits(&quiet[merges]);
        assert_true(quiet[merges].o[2 * BATCH * ROW + 5] != 0);
    }
    setenv("IMBREX_CHAOS", "7", 1);
    for (int i = 0; i < 2 * ALGORITHMS; i++) {
        slow = (bits){ .merges = i % 2, .algorithm = algorithms[i / 2] };
        keep_bits(&slow);
        if (memcmp(slow.o, quiet[i % 2].o, sizeof slow.o) != 0)
            fail_msg("%s by %s has other bits", i % 2 ? "merge_states" : "flash_decode",
                     slow.algorithm);
    }
    unsetenv("IMBREX_CHAOS");
}

/* ---- what the checker finds ------------------------------------------------------------------ */

/* A missing credit is none here: a rank sends states when it has merged those of the run before,
 * which says as much. */
typedef enum mistake { NO_POST, NO_WAIT, MISTAKES } mistake;

static const struct {
    const char *name, *says, * or ; /* one of two sides notices it */
} seeds[MISTAKES] = {
    [NO_POST] = { "a missing post", "that nobody will satisfy", NULL },
    [NO_WAIT] = { "a missing wait", "no signal orders it after that", "which nobody has written" },
};

static _Thread_local mistake what;

static imbrex_status signals(imx_device *device, const imx_signal_op *ops, int count,
                             imbrex_stream stream)
{
    for (int i = 0; i < count; i++) {
        bool wait = ops[i].kind == IMX_WAIT, credit = ops[i].point.what == IMX_POINT_CREDIT;
        if (!credit && what == (wait ? NO_WAIT : NO_POST))
            continue;
        IMX_TRY(imx_backend_cpu.signals(device, &ops[i], 1, stream));
    }
    return IMBREX_OK;
}

typedef struct trial {
    int seed, ready; /* ready: ranks; atomic */
} trial;

/* Rank 0 errs, and both hear of it. */
static int errs(imbrex_group *group, void *ctx)
{
    imx_backend faulty = imx_backend_cpu;
    trial *t = ctx;
    const int seed = t->seed;
    work w;
    if (begin(group, false, "sequential", &w))
        return 1;
    __atomic_add_fetch(&t->ready, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&t->ready, __ATOMIC_ACQUIRE) < 2)
        usleep(1000);
    faulty.signals = signals;
    what = (mistake)seed;
    if (imbrex_group_rank(group) == 0)
        group->backend = &faulty;
    imbrex_status status = run_all(&w);
    group->backend = &imx_backend_cpu;
    for (int i = 0; status == IMBREX_OK && i < 10000; i++) {
        status = imbrex_stream_sync(group, NULL);
        usleep(1000);
    }
    RANK_CHECK(status != IMBREX_OK && (strstr(imbrex_error(), seeds[seed].says) ||
                                       (seeds[seed].or &&strstr(imbrex_error(), seeds[seed].or))),
               "%s: %s %s", seeds[seed].name, imbrex_status_name(status), imbrex_error());
    return 0;
}

static void mistakes_are_found(void **state)
{
    (void)state;
    if (SANITIZED_THREADS)
        skip(); /* which says itself that a mistake is a data race */
    setenv("IMBREX_CHECK", "1", 1);
    for (int seed = 0; seed < MISTAKES; seed++) {
        ranks_desc desc = { .size = 2 };
        trial t = { .seed = seed };
        assert_int_equal(ranks_run(&desc, errs, &t), 0);
    }
    unsetenv("IMBREX_CHECK");
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* One graph of a run, replayed as sequences grow: the bits of plain runs with those lengths. */
static int grows(imbrex_group *group, void *ctx)
{
    work w;
    fake_graph *graph;
    imbrex_stream stream;
    values *host = calloc(1, sizeof *host);
    float *replayed = calloc(RUNS * BATCH * ROW, sizeof *replayed);
    size_t row = BATCH * ROW * sizeof(float);
    if (begin(group, false, ctx, &w))
        return 1;
    RANK_OK(imbrex_stream_create(group, &stream));
    fill(imbrex_group_rank(group), host);
    RANK_OK(run_all(&w));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_OK(imbrex_copy(group, host->o, w.o, sizeof host->o, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_CHECK(fake_graph_begin(stream) == 0, "no capture");
    RANK_OK(run(&w, 0, stream));
    RANK_CHECK(fake_graph_end(stream, &graph) == 0, "the capture fails");
    for (int i = 0; i < RUNS; i++) {
        RANK_OK(imbrex_copy(group, w.lengths, host->lengths + i * BATCH, BATCH * sizeof(int32_t),
                            stream));
        fake_graph_launch(graph, stream);
        RANK_OK(imbrex_copy(group, replayed + i * BATCH * ROW, w.o, row, stream));
    }
    RANK_OK(imbrex_stream_sync(group, stream));
    RANK_CHECK(memcmp(replayed, host->o, sizeof host->o) == 0, "other bits by %s",
               (const char *)ctx);
    RANK_CHECK(memcmp(replayed, replayed + (RUNS - 1) * BATCH * ROW, row) != 0,
               "the graph has kept its first lengths");
    fake_graph_destroy(graph);
    imbrex_stream_destroy(group, stream);
    imbrex_plan_destroy(w.plan);
    free(replayed);
    free(host);
    return 0;
}

static void graphs_of_growing_sequences(void **state)
{
    (void)state;
    for (int i = 0; i < ALGORITHMS; i++) {
        ranks_desc desc = { .size = 2 };
        assert_int_equal(fake_ranks_run(&desc, 2, grows, (void *)(uintptr_t)algorithms[i]), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed),
        cmocka_unit_test(sleepers_have_the_same_bits),
        cmocka_unit_test(mistakes_are_found),
        cmocka_unit_test(graphs_of_growing_sequences),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests_name("decode_faults", tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
