/* test_gpu_nodes.c - the GPUs of this machine as two logical nodes of two ranks, a process a rank,
 * which share a GPU where there are few, with NCCL between them by way of sockets: the table of
 * operators, large products queued and compared bit by bit, exchanges, experts, what a
 * trace says of the network, and a rank that is killed.  On fake GPUs ranks are threads, and NCCL
 * is a fake one. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "dispatch_cases.h"
#include "exchange_cases.h"
#include "fake_driver.h"
#include "fake_nccl.h"
#include "gpu.h"
#include "imbrex_device.h"
#include "moe_cases.h"
#include "op_cases.h"
#include "op_image.h"

/* KILLED_MS: half of it is for connecting, for which 1.5 s were too few on two GPUs. */
enum { NODES = 2, TIMEOUT_MS = 20000, KILLED_MS = 8000, RUNS = 8 };

/* All of it ends within 85 s, whatever breaks: what is quick first, then the table for as long
 * as there is time.  IMBREX_TEST_SECONDS gives it more. */
enum { SECONDS = 85, QUEUED_S = 30, KILLED_S = 25, ONE_CASE_S = 20 }; /* and the engine's end */

typedef struct job {
    rank_main run;
    int size;
    int64_t timeout_ms;
    int here; /* ranks that have come to where it happens; atomic */
    op_walk walk;
} job;

static job *shared; /* by all ranks */
static int64_t end_ns;

static int seconds_left(int most)
{
    int left = (int)((end_ns - imbrexd_now_ns()) / 1000000000);
    return left > most ? most : left < 1 ? 1 : left;
}

/* A host's name of its own for each node: else NCCL would not take a network. */
static void take_place(int rank)
{
    char node[16];
    snprintf(node, sizeof node, "node%d", rank / (shared->size / NODES));
    setenv("IMBREX_NODE", node, 1);
    setenv("NCCL_HOSTID", node, 1);
    setenv("NCCL_NET", "Socket", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
}

static int one_rank(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    job *j = ctx;
    if (!gpu_is_fake()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* where the case's time is up */
        take_place(rank);
    }
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = gpu_of(rank, true),
        .timeout_ms = j->timeout_ms,
    };
    imbrex_group *group;
    RANK_OK(imbrex_group_create(&desc, &group));
    char text[300];
    imbrex_group_describe(group, text, sizeof text);
    if (rank == 0)
        printf("  %s\n", text);
    RANK_CHECK(strstr(text, "2 nodes over NCCL"), "%s", text);
    int failed = j->run(group, j);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static int all_ranks(void *ctx)
{
    job *j = ctx;
    ranks_desc desc = { .size = j->size, .processes = !gpu_is_fake() };
    if (gpu_is_fake()) {
        char ranks[16];
        snprintf(ranks, sizeof ranks, "%d", j->size / NODES);
        setenv("IMBREX_NODE_RANKS", ranks, 1);
        fake_nccl_install();
    }
    return ranks_run_bare(&desc, one_rank, j);
}

/* dies: so many ranks do, as they should. */
static void run(const char *name, int size, rank_main main, int64_t timeout_ms, int limit_s,
                int dies)
{
    *shared = (job){ .run = main, .size = size, .timeout_ms = timeout_ms };
    op_walk_table(&shared->walk);
    if (gpu_is_fake()) /* all of it is in test_nccl.c */
        op_walk_short(&shared->walk);
    else
        shared->walk.until_ns = end_ns - ONE_CASE_S * 1000000000LL;
    if (!gpu_wanted("%s, %d nodes of %d", name, NODES, size / NODES))
        return;
    int failed = gpu_isolated(all_ranks, shared, seconds_left(limit_s));
    if (failed != dies && failed != GPU_DIED)
        printf("  %d ranks failed, not %d\n", failed, dies);
    gpu_report(failed != dies);
}

/* ---- the table ------------------------------------------------------------------------------- */

static int table(imbrex_group *group, void *ctx)
{
    job *j = ctx;
    int failed = op_cases_device_over_nodes(group, &j->walk), all = 0;
    op_case c;
    while (op_cases_get(all, &c))
        all++;
    if (imbrex_group_rank(group) == 0)
        printf("  %d cases of %d\n", j->walk.to ? j->walk.to : all, all);
    return failed;
}

/* ---- experts --------------------------------------------------------------------------------- */

/* ag_moe and moe_rs; dispatch and combine. */
static int experts(imbrex_group *group, void *ctx)
{
    moe_walk walk = { .step = gpu_is_fake() ? 5 : 1 };
    int step = gpu_is_fake() ? 5 : 1;
    (void)ctx;
    return moe_cases_device(group, &walk) || exchange_on_device(group, &step);
}

/* ---- large products, queued ------------------------------------------------------------------ */

static const op_case large[] = {
    { .op = "gemm_rs", .m = 2048, .n = 2048, .k = 1024, .dtype = IMBREX_BF16, .bias = 1 },
    { .op = "ag_gemm", .m = 2048, .n = 1024, .k = 2048, .dtype = IMBREX_BF16, .gathered = 1 },
    { .op = "gemm_rs", .m = 3001, .n = 1000, .k = 264, .dtype = IMBREX_F16 },
    { .op = "reduce_scatter", .m = 4099, .n = 1024, .dtype = IMBREX_F32 },
    { .op = "all_gather", .m = 4099, .n = 1024, .dtype = IMBREX_BF16 },
};

static const char *const dtype_names[] = { "default", "bf16", "f16", "f32" };

static int run_queued(imbrex_group *group, const op_case *c, op_image *image)
{
    imbrex_plan *plan;
    RANK_OK(case_plan(group, c, &plan));
    imbrex_args args = op_image_args(c, image, c->m);
    if (op_image_upload(group, image))
        return 1;
    for (int i = 0; i < RUNS; i++)
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    imbrex_plan_destroy(plan);
    return op_image_download(group, image);
}

/* Overlapped is what sequential is, bit by bit. */
static int compare(imbrex_group *group, op_case c)
{
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    void *device;
    if (gpu_is_fake()) {
        c.m /= 64;
        c.n /= 16;
        c.k /= 8;
    }
    RANK_OK(imbrex_mem_alloc(group, op_image_bytes(&c, ranks), &device));
    op_image image = op_image_take(&c, c.m, ranks, rank, device);
    c.algorithm = "sequential";
    int64_t begin_ns = imbrexd_now_ns();
    if (run_queued(group, &c, &image))
        return 1;
    char *want = malloc(image.c.bytes + 1);
    memcpy(want, image.host + image.c.at, image.c.bytes);
    memset(image.host + image.c.at, 0xFF, image.c.bytes);
    c.algorithm = "hierarchical";
    if (run_queued(group, &c, &image))
        return 1;
    size_t at = 0, e = element_bytes(c.dtype);
    while (at < image.c.bytes && want[at] == image.host[image.c.at + at])
        at++;
    RANK_CHECK(at == image.c.bytes, "rank %d, %s m=%lld: value %zu is %g, sequential gave %g", rank,
               c.op, (long long)c.m, at / e,
               element_get(c.dtype, image.host + image.c.at, (int64_t)(at / e)),
               element_get(c.dtype, want, (int64_t)(at / e)));
    RANK_CHECK(op_image_intact(&image), "rank %d, %s: it wrote beside a matrix", rank, c.op);
    if (rank == 0)
        printf("  %s m=%lld n=%lld k=%lld %s: %d runs of each, the same bits, %.1f s\n", c.op,
               (long long)c.m, (long long)c.n, (long long)c.k, dtype_names[c.dtype], RUNS,
               1e-9 * (double)(imbrexd_now_ns() - begin_ns));
    free(want);
    op_image_drop(&image);
    imbrex_mem_free(group, device);
    return 0;
}

static int queued(imbrex_group *group, void *ctx)
{
    (void)ctx;
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        if (compare(group, large[i]))
            return 1;
        RANK_OK(imbrex_barrier(group, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
    }
    return 0;
}

/* ---- what a trace says ----------------------------------------------------------------------- */

static int run_once(imbrex_group *group, imbrex_plan *plan, const imbrex_args *args, int *launches)
{
    int before = fake_driver_launched(); /* 0 on real GPUs */
    RANK_OK(imbrex_plan_run(plan, args, NULL));
    *launches = fake_driver_launched() - before;
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

/* Of a plan from before the trace there are the network's spans alone. */
static int check_spans(imbrex_group *group, const op_case *c, int64_t from_ns, int64_t to_ns)
{
    enum { MOST = 1000 };
    static _Thread_local imbrex_span spans[MOST];
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    int other = (rank + ranks / NODES) % ranks;
    int64_t bytes = 0, rows = c->m * (other + 1) / ranks - c->m * other / ranks;
    size_t count = imbrex_trace_spans(group, spans, MOST);
    for (size_t i = 0; i < count; i++) {
        const imbrex_span *s = &spans[i];
        RANK_CHECK(s->kind == IMBREX_SPAN_COPY && strcmp(s->name, "network") == 0 && !s->lane,
                   "rank %d: \"%s\", kind %d", rank, s->name, s->kind);
        RANK_CHECK(s->peer == other, "rank %d: to %d, not %d", rank, s->peer, other);
        RANK_CHECK(s->begin_ns >= from_ns && s->end_ns > s->begin_ns && s->end_ns <= to_ns,
                   "rank %d: from %lld to %lld, in a run from %lld to %lld", rank,
                   (long long)s->begin_ns, (long long)s->end_ns, (long long)from_ns,
                   (long long)to_ns);
        bytes += s->bytes;
    }
    int64_t want = rows * c->n * (int64_t)element_bytes(c->dtype);
    RANK_CHECK(count > 0 && bytes == want, "rank %d: %zu spans: %s; of %lld bytes, not %lld", rank,
               count, imbrex_error(), (long long)bytes, (long long)want);
    RANK_CHECK(imbrex_trace_spans(group, NULL, 0) == count, "rank %d: taken twice", rank);
    return 0;
}

/* Before the trace no kernel tells the time; in it none is launched that is not launched anyway. */
static int traced(imbrex_group *group, void *ctx)
{
    (void)ctx;
    const int64_t slack_ns = gpu_is_fake() ? 300000000 : 1000000; /* of the clocks' comparison */
    const op_case c = { .op = "gemm_rs", .m = 515, .n = 128, .k = 64, .dtype = IMBREX_BF16 };
    int rank = imbrex_group_rank(group), told = fake_driver_told(), off, on;
    void *device;
    imbrex_plan *plan;
    RANK_OK(imbrex_mem_alloc(group, op_image_bytes(&c, imbrex_group_size(group)), &device));
    op_image image = op_image_take(&c, c.m, imbrex_group_size(group), rank, device);
    RANK_OK(case_plan(group, &c, &plan));
    imbrex_args args = op_image_args(&c, &image, c.m);
    if (op_image_upload(group, &image) || run_once(group, plan, &args, &off) || ranks_meet(group))
        return 1;
    RANK_CHECK(fake_driver_told() == told, "rank %d: kernels tell the time", rank);
    if (ranks_meet(group))
        return 1;
    RANK_OK(imbrex_trace(group, 1000));
    int64_t begin_ns = imbrexd_now_ns() - slack_ns;
    if (run_once(group, plan, &args, &on) ||
        check_spans(group, &c, begin_ns, imbrexd_now_ns() + slack_ns))
        return 1;
    RANK_CHECK(on == off, "rank %d: %d launches, %d without a trace", rank, on, off);
    RANK_OK(imbrex_trace(group, 0));
    if (run_once(group, plan, &args, &off))
        return 1;
    RANK_CHECK(imbrex_trace_spans(group, NULL, 0) == 0, "rank %d: spans after the trace", rank);
    op_image_drop(&image);
    imbrex_plan_destroy(plan);
    imbrex_mem_free(group, device);
    return 0;
}

/* ---- a rank that is killed ------------------------------------------------------------------- */

static int survives(imbrex_group *group, void *ctx)
{
    job *j = ctx;
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    const op_case c = { .op = "gemm_rs", .m = 2048, .n = 1024, .k = 512, .dtype = IMBREX_BF16 };
    void *device;
    imbrex_plan *plan;
    RANK_OK(imbrex_mem_alloc(group, op_image_bytes(&c, ranks), &device));
    op_image image = op_image_take(&c, c.m, ranks, rank, device);
    RANK_OK(case_plan(group, &c, &plan));
    imbrex_args args = op_image_args(&c, &image, c.m);
    if (op_image_upload(group, &image))
        return 1;
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    __atomic_add_fetch(&j->here, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&j->here, __ATOMIC_SEQ_CST) < ranks)
        usleep(1000);
    if (rank == ranks - 1)
        raise(SIGKILL);
    int64_t begin_ns = imbrexd_now_ns();
    imbrex_status status = IMBREX_OK;
    while (status == IMBREX_OK && imbrexd_now_ns() - begin_ns < 10 * KILLED_MS * 1000000LL) {
        status = imbrex_plan_run(plan, &args, NULL);
        if (status == IMBREX_OK)
            status = imbrex_stream_sync(group, NULL);
    }
    int64_t took_ms = (imbrexd_now_ns() - begin_ns) / 1000000;
    printf("  rank %d, %s after %lld ms: %s\n", rank, imbrex_status_name(status),
           (long long)took_ms, imbrex_error());
    RANK_CHECK(status == IMBREX_PEER || status == IMBREX_TIMEOUT, "rank %d: %s", rank,
               imbrex_status_name(status));
    RANK_CHECK(took_ms < 2 * KILLED_MS, "rank %d: it took %lld ms", rank, (long long)took_ms);
    op_image_drop(&image);
    return 0;
}

/* In a process of its own: what it loads and opens is not to be inherited. */
static int look_for_nccl(void *ctx)
{
    static char text[1 << 15];
    (void)ctx;
    imbrex_info(text, sizeof text);
    return !strstr(text, "between nodes of gpus: NCCL");
}

int main(int argc, char **argv)
{
    enum { SIZE = 2 * NODES, LOOK_S = 60 };
    gpu_begin(argc, argv);
    if (!gpu_is_fake() && gpu_isolated(look_for_nccl, NULL, LOOK_S) != 0) {
        printf("skipped: there is no NCCL\n");
        return 77;
    }
    shared = gpu_shared(sizeof *shared);
    const char *seconds = getenv("IMBREX_TEST_SECONDS");
    bool in_time = !seconds && !gpu_is_fake();
    int total_s = seconds ? atoi(seconds) : in_time ? SECONDS : 300;
    end_ns = imbrexd_now_ns() + total_s * 1000000000LL;
    run("queued", SIZE, queued, TIMEOUT_MS, in_time ? QUEUED_S : total_s, 0);
    run("exchange", SIZE, exchange_cases, TIMEOUT_MS, in_time ? KILLED_S : total_s, 0);
    run("experts", SIZE, experts, TIMEOUT_MS, in_time ? QUEUED_S : total_s, 0);
    run("trace", SIZE, traced, TIMEOUT_MS, in_time ? KILLED_S : total_s, 0);
    if (!gpu_is_fake())
        run("a rank is killed", SIZE, survives, KILLED_MS, KILLED_S, 1);
    if (!gpu_is_fake() && gpu_count() >= NODES && gpu_count() < SIZE)
        run("queued", NODES, queued, TIMEOUT_MS, in_time ? KILLED_S : total_s, 0);
    run("table", SIZE, table, TIMEOUT_MS, total_s, 0);
    return gpu_end();
}
