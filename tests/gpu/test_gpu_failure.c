/* test_gpu_failure.c - on real GPUs a rank is killed, stopped, absent or late in the middle of an
 * operator: the others end in time and say who it was, their GPUs' contexts live, and they go on
 * without it; and being late changes no bit. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cuda/driver.h"
#include "gpu.h"
#include "imbrex_device.h"
#include "op_cases.h"
#include "op_image.h"
#include "op_norm.h"

enum { VICTIM = 1, TIMEOUT_MS = 3000, RUNS = 4, LIMIT_S = 60 };

typedef enum fate { KILLED, STOPPED, ABSENT, LATE } fate;
static const char *const fates[] = { "killed", "stopped", "absent", "late" };

/* In memory that all ranks share. */
typedef struct stage {
    op_case c;
    fate fate;
    int size;
    bool spread, processes;
    pid_t victim;
    int64_t gone_ns;
    int ready, done; /* survivors at the start, and that have seen the failure; atomic */
} stage;

static stage *shared;

/* ---- a group and its plan -------------------------------------------------------------------- */

typedef struct troupe {
    imbrex_group *group;
    imbrex_plan *plan;
    op_image image;
    uint64_t *never; /* a signal that nobody posts */
} troupe;

static int gather(troupe *t, const imbrex_bootstrap *bootstrap, int rank, int64_t timeout_ms)
{
    const op_case *c = &shared->c;
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = gpu_of(rank, shared->spread),
        .timeout_ms = timeout_ms,
    };
    void *device, *never;
    RANK_OK(imbrex_group_create(&desc, &t->group));
    int ranks = imbrex_group_size(t->group);
    RANK_OK(case_plan(t->group, c, &t->plan));
    RANK_OK(imbrex_mem_alloc(t->group, op_image_bytes(c, ranks), &device));
    RANK_OK(imbrex_mem_alloc(t->group, sizeof *t->never, &never));
    t->never = never;
    t->image = op_image_take(c, c->m, ranks, imbrex_group_rank(t->group), device);
    return op_image_upload(t->group, &t->image);
}

static imbrex_status enqueue(troupe *t, int runs)
{
    imbrex_status status = IMBREX_OK;
    imbrex_args args = op_image_args(&shared->c, &t->image, shared->c.m);
    for (int i = 0; i < runs && status == IMBREX_OK; i++)
        status = imbrex_plan_run(t->plan, &args, NULL);
    return status;
}

static void dissolve(troupe *t)
{
    op_image_drop(&t->image);
    imbrex_plan_destroy(t->plan);
    imbrex_group_destroy(t->group);
}

static int check_values(troupe *t)
{
    const op_case *c = &shared->c;
    int ranks = imbrex_group_size(t->group), r = imbrex_group_rank(t->group);
    if (op_image_download(t->group, &t->image))
        return 1;
    reference_error error;
    op_matrix sum = c->norm.rms ? op_image_h(c, &t->image) : t->image.c;
    int64_t wrong = reference_check(c, c->m, ranks, r, t->image.host + sum.at, &error);
    RANK_CHECK(wrong < 0, "rank %d of %d: c[%lld, %lld] is %g, want %g within %g", r, ranks,
               (long long)(wrong / c->n), (long long)(wrong % c->n), error.have, error.want,
               error.within);
    return c->norm.rms ? op_norm_check(t->group, c, c->m, &t->image) : 0;
}

/* ---- the victim ------------------------------------------------------------------------------ */

static void await(const int *count, int want)
{
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < want)
        usleep(1000);
}

/* The stream of one that is killed is in the middle of a run: its GPU waits for what never comes.
 * One that is stopped has not enqueued the run: a GPU goes on while its process stands. */
static int go(troupe *t)
{
    await(&shared->ready, shared->size - 1);
    if (shared->fate == KILLED) {
        RANK_OK(imbrex_signal_wait(t->group, t->never, 1, NULL));
        RANK_OK(enqueue(t, 1));
        usleep(100000);
    }
    shared->victim = getpid();
    __atomic_store_n(&shared->gone_ns, imbrexd_now_ns(), __ATOMIC_RELEASE);
    if (shared->fate == KILLED)
        kill(getpid(), SIGKILL);
    if (shared->fate == STOPPED)
        raise(SIGSTOP); /* a survivor kills it in the end */
    await(&shared->done, shared->size - 1);
    dissolve(t);
    return 0;
}

/* ---- the survivors --------------------------------------------------------------------------- */

static int check_story(imbrex_status status, int64_t took_ms)
{
    const op_case *c = &shared->c;
    const char *how = fates[shared->fate];
    char who[32], what[32];
    snprintf(who, sizeof who, "rank %d", VICTIM);
    snprintf(what, sizeof what, "waited %lld ms for", (long long)patient(TIMEOUT_MS));
    if (shared->fate == KILLED)
        strcpy(what, "ended without");
    RANK_CHECK(status == IMBREX_PEER || status == IMBREX_TIMEOUT, "%s %s, %s: %s: %s", c->op,
               c->algorithm, how, imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), who) && strstr(imbrex_error(), what),
               "%s %s, %s: '%s', want %s and %s", c->op, c->algorithm, how, imbrex_error(), who,
               what);
    RANK_CHECK(took_ms <= patient(TIMEOUT_MS + 1000), "%s %s, %s: heard of it after %lld ms", c->op,
               c->algorithm, how, (long long)took_ms);
    return 0;
}

/* No kernel trapped: the context takes work, and does it. */
static int check_context(troupe *t)
{
    CUstream stream;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)(t->image.device + t->image.c.at);
    CUcontext context;
    int least, highest, gpu = 0;
    sscanf(imbrex_group_device(t->group), "cuda:%d", &gpu);
    CUresult made = imx_driver->cuDevicePrimaryCtxRetain(&context, gpu);
    RANK_CHECK(made == CUDA_SUCCESS, "no context: %d", made);
    made = imx_driver->cuCtxSetCurrent(context);
    if (made == CUDA_SUCCESS)
        made = imx_driver->cuCtxGetStreamPriorityRange(&least, &highest);
    RANK_CHECK(made == CUDA_SUCCESS, "the context is dead: %d", made);
    made = imx_driver->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, highest);
    RANK_CHECK(made == CUDA_SUCCESS, "no stream: %d", made);
    CUresult set = imx_driver->cuMemsetD8Async(at, 1, t->image.c.bytes, stream);
    CUresult done = imx_driver->cuStreamSynchronize(stream);
    CUresult gone = imx_driver->cuStreamDestroy(stream);
    CUresult off = imx_driver->cuCtxSetCurrent(NULL);
    if (off == CUDA_SUCCESS)
        off = imx_driver->cuDevicePrimaryCtxRelease(gpu);
    RANK_CHECK(!set && !done && !gone && !off,
               "the context is dead: memset %d, synchronize %d, destroy %d, release %d", set, done,
               gone, off);
    return 0;
}

static int go_on(int rank)
{
    char number[16];
    troupe t = { 0 };
    snprintf(number, sizeof number, "%d", rank - (rank > VICTIM));
    setenv("RANK", number, 1);
    setenv("LOCAL_RANK", number, 1);
    snprintf(number, sizeof number, "%d", shared->size - 1);
    setenv("WORLD_SIZE", number, 1);
    setenv("LOCAL_WORLD_SIZE", number, 1);
    setenv("IMBREX_LAUNCHER", "torchrun", 1); /* they are not as the launcher set them */
    if (gather(&t, NULL, rank, 20000))
        return 1;
    RANK_OK(enqueue(&t, 1));
    RANK_OK(imbrex_stream_sync(t.group, NULL));
    int failed = check_values(&t);
    dissolve(&t);
    return failed;
}

static int survive(troupe *t)
{
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_ACQ_REL);
    imbrex_status status = enqueue(t, RUNS);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(t->group, NULL);
    int64_t gone_ns = __atomic_load_n(&shared->gone_ns, __ATOMIC_ACQUIRE);
    int64_t took_ms = (imbrexd_now_ns() - gone_ns) / 1000000;
    int failed = check_story(status, took_ms) + check_context(t);
    if (enqueue(t, 1) != status) {
        fprintf(stderr, "a later run: %s, want %s\n", imbrex_error(), imbrex_status_name(status));
        failed++;
    }
    dissolve(t);
    /* The last one to see the failure ends the stopped rank. */
    if (__atomic_add_fetch(&shared->done, 1, __ATOMIC_ACQ_REL) == shared->size - 1 &&
        shared->fate == STOPPED)
        kill(shared->victim, SIGKILL);
    return failed;
}

static int play(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    troupe t = { 0 };
    (void)ctx;
    if (gather(&t, bootstrap, rank, patient(TIMEOUT_MS)))
        return 1;
    RANK_OK(enqueue(&t, 1));
    RANK_OK(imbrex_barrier(t.group, NULL));
    RANK_OK(imbrex_stream_sync(t.group, NULL));
    if (check_values(&t))
        return 1;
    if (rank == VICTIM)
        return go(&t);
    int failed = survive(&t);
    return failed || !shared->processes ? failed : go_on(rank);
}

static int one_fate(void *ctx)
{
    ranks_desc desc = { .size = shared->size, .processes = shared->processes };
    int failed = ranks_run_bare(&desc, play, ctx);
    int expected = shared->fate == KILLED || shared->fate == STOPPED; /* the victim itself */
    if (failed != expected)
        printf("    %d ranks failed, want %d\n", failed, expected);
    return failed != expected;
}

/* ---- late ------------------------------------------------------------------------------------ */

enum { LATE_RUNS = 30, LATE_MOST_US = 10000 };

/* Runs begin up to 10 ms after each other; every third is waited for, the others queue up. */
static int late_rank(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    troupe t = { 0 };
    (void)ctx;
    if (gather(&t, bootstrap, rank, 20000))
        return 1;
    RANK_OK(enqueue(&t, 1));
    RANK_OK(imbrex_stream_sync(t.group, NULL));
    if (check_values(&t))
        return 1;
    const char *have = t.image.host + t.image.c.at;
    char *want = malloc(t.image.c.bytes);
    memcpy(want, have, t.image.c.bytes);
    unsigned seed = 1 + (unsigned)rank;
    for (int i = 0; i < LATE_RUNS; i++) {
        usleep((unsigned)rand_r(&seed) % LATE_MOST_US);
        RANK_OK(enqueue(&t, 1));
        if (i % 3)
            continue;
        RANK_OK(imbrex_stream_sync(t.group, NULL));
        if (op_image_download(t.group, &t.image))
            return 1;
        RANK_CHECK(memcmp(have, want, t.image.c.bytes) == 0, "rank %d: run %d has other bits", rank,
                   i);
        memset(t.image.host + t.image.c.at, 0xFF, t.image.c.bytes);
        if (op_image_upload(t.group, &t.image))
            return 1;
    }
    RANK_OK(imbrex_stream_sync(t.group, NULL));
    free(want);
    dissolve(&t);
    return 0;
}

static int late_ranks(void *ctx)
{
    ranks_desc desc = { .size = shared->size };
    return ranks_run_bare(&desc, late_rank, ctx);
}

/* ---- all ------------------------------------------------------------------------------------- */

enum { SIZE = 3 };

/* FEW: tiles have rows of several ranks, and a has several slices.  MANY: wide tiles, beneath which
 * the copy engine pushes a.  NORMED: rows that clusters of blocks add up and norm. */
typedef enum rows { SOME, FEW, MANY, NORMED, ROWS } rows;

static const char *const rows_names[ROWS] = { "", ", few rows", ", many rows", ", normed" };

typedef struct scene {
    const char *op, *algorithm;
    fate fate; /* of one rank; LATE: of all */
    rows rows;
} scene;

static const scene scenes[] = {
    { "ag_gemm", "copy", KILLED, SOME },
    { "gemm_rs", BY_TILES, KILLED, SOME },
    { "gemm_rs", "copy", STOPPED, SOME },
    { "ag_gemm", "store", STOPPED, SOME },
    { "gemm_rs", BY_TILES, ABSENT, SOME },
    { "reduce_scatter", "copy", ABSENT, SOME },
    { "ag_gemm", "copy", LATE, SOME },
    { "ag_gemm", "store", LATE, SOME },
    { "gemm_rs", "copy", LATE, SOME },
    { "gemm_rs", BY_TILES, LATE, SOME },
    { "all_gather", "copy", LATE, SOME },
    { "all_gather", "store", KILLED, SOME },
    { "reduce_scatter", "store", STOPPED, SOME },
    { "reduce_scatter", "store", LATE, SOME },
    { "ag_gemm", "ring", STOPPED, SOME },
    { "ag_gemm", "ring", LATE, SOME },
    { "ag_gemm", "ll", KILLED, SOME },
    { "gemm_rs", "ll", STOPPED, SOME },
    { "ag_gemm", "ll", LATE, SOME },
    { "gemm_rs", "ll", LATE, SOME },
    { "gemm_ar", "copy", STOPPED, SOME },
    { "gemm_ar", "copy", LATE, SOME },
    { "gemm_ar", "store", KILLED, SOME },
    { "gemm_ar", "store", LATE, SOME },
    { "gemm_ar", "store", STOPPED, FEW },
    { "gemm_ar", "ll", KILLED, FEW },
    { "gemm_ar", "ll", LATE, SOME },
    { "gemm_ar", "reduce_push", KILLED, FEW },
    { "gemm_ar", "reduce_push", LATE, FEW },
    { "gemm_ar", "reduce_push2", KILLED, FEW },
    { "gemm_ar", "reduce_push2", LATE, FEW },
    { "ag_gemm", "store", KILLED, FEW },
    { "ag_gemm", "store", LATE, FEW },
    { "gemm_rs", BY_TILES, STOPPED, FEW },
    { "gemm_rs", BY_TILES, LATE, FEW },
    { "ag_gemm", "store", KILLED, MANY },
    { "ag_gemm", "store", LATE, MANY },
    { "all_reduce", "ll", KILLED, SOME },
    { "all_reduce", "ll2", STOPPED, SOME },
    { "all_reduce", "ll2", LATE, SOME },
    { "all_reduce", "ll", KILLED, NORMED },
    { "all_reduce", "ll", LATE, NORMED },
    { "all_reduce", "ll2", STOPPED, NORMED },
    { "all_reduce", "ll2", LATE, NORMED },
    { "all_reduce", "store", KILLED, NORMED },
    { "all_reduce", "store", STOPPED, NORMED },
    { "all_reduce", "store", LATE, NORMED },
};
enum { SCENES = sizeof scenes / sizeof scenes[0] };

static op_case case_of(const scene *s)
{
    op_case c = { .op = s->op, .m = 500, .n = 256, .k = 128, .algorithm = s->algorithm };
    if (s->rows == FEW) {
        c.m = 96;
        c.k = gpu_is_fake() ? 8192 : 16384;
    } else if (s->rows == NORMED) {
        c.m = 20;
        c.n = 4096;
        c.dtype = IMBREX_BF16;
        c.residual = c.norm.rms = 1;
    } else {
        c.chunk_rows = 64;
    }
    if (s->rows == MANY) {
        c.m = 1300;
        c.n = 1032;
    }
    return c;
}

static void set_stage(const scene *s)
{
    *shared = (stage){
        .c = case_of(s),
        .fate = s->fate,
        .size = SIZE,
        .spread = gpu_count() >= SIZE, /* a GPU each, then */
        .processes = s->fate == KILLED || s->fate == STOPPED,
    };
}

/* Kernels must not be compiled while others wait with a short deadline. */
static int make_plans(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = gpu_of(rank, shared->spread),
        .timeout_ms = 40000,
    };
    imbrex_group *group;
    RANK_OK(imbrex_group_create(&desc, &group));
    for (int i = 0; i < SCENES; i++) {
        op_case c = case_of(&scenes[i]);
        imbrex_plan *plan;
        RANK_OK(case_plan(group, &c, &plan));
        imbrex_plan_destroy(plan);
    }
    imbrex_group_destroy(group);
    return 0;
}

static int compile_ahead(void *ctx)
{
    ranks_desc desc = { .size = SIZE };
    set_stage(&scenes[0]);
    return ranks_run_bare(&desc, make_plans, ctx);
}

/* Fake GPUs test this test: each fate once with each kind of rows. */
static bool is_known(const scene *s)
{
    static bool known[LATE + 1][ROWS];
    bool was = known[s->fate][s->rows];
    known[s->fate][s->rows] = true;
    return gpu_is_fake() && was;
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    shared = gpu_shared(sizeof *shared);
    if (gpu_wanted("plans"))
        gpu_report(gpu_isolated(compile_ahead, NULL, LIMIT_S));
    for (int i = 0; i < SCENES; i++) {
        const scene *s = &scenes[i];
        set_stage(s);
        if (is_known(s))
            continue;
        if (gpu_wanted("%s, %s%s: %s %d %s is %s%s", s->op, s->algorithm, rows_names[s->rows],
                       s->fate == LATE ? "each of" : "one of", SIZE,
                       shared->processes ? "processes" : "threads", fates[s->fate],
                       shared->spread ? ", a GPU each" : ""))
            gpu_report(gpu_isolated(s->fate == LATE ? late_ranks : one_fate, NULL, LIMIT_S));
    }
    return gpu_end();
}
