/* test_gpu_operators.c - every operator on real GPUs, ranks as threads: against a float64 loop,
 * against the CPU backend, with the kernels' general form, and queued without the host's help. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fewer_cases.h"
#include "gpu.h"
#include "op_cases.h"
#include "op_image.h"

enum { MEETING_S = 60 };
static int64_t timeout_ms = 5000;
static int limit_s = 100;

/* ---- ranks with a group on GPUs and one on the CPU ------------------------------------------- */

typedef int (*pair_main)(imbrex_group *gpu, imbrex_group *cpu, op_walk *walk);

typedef struct job {
    pair_main run;
    int size;
    bool spread, cpu;
    op_walk *walk;
    const char *device; /* NULL: GPUs */
} job;

static int with_groups(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const job *j = ctx;
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = j->device ? j->device : gpu_of(rank, j->spread),
        .timeout_ms = timeout_ms,
    };
    imbrex_group *gpu, *cpu = NULL;
    RANK_OK(imbrex_group_create(&desc, &gpu));
    desc.device = "cpu";
    if (j->cpu)
        RANK_OK(imbrex_group_create(&desc, &cpu));
    int failed = j->run(gpu, cpu, j->walk);
    if (failed) {
        imbrex_group_abort(gpu);
        if (cpu)
            imbrex_group_abort(cpu);
    }
    imbrex_group_destroy(cpu);
    imbrex_group_destroy(gpu);
    return failed;
}

static int all_ranks(void *ctx)
{
    ranks_desc desc = { .size = ((const job *)ctx)->size, .meeting_s = MEETING_S };
    return ranks_run_bare(&desc, with_groups, ctx);
}

/* An algorithm that ends a group is given up, and the others go on. */
static int walk_on(job *j)
{
    int failed = 0, how;
    do {
        how = gpu_isolated(all_ranks, j, limit_s);
        failed += how;
    } while (how && op_walk_resume(j->walk, j->size));
    return failed;
}

static void run(const char *name, int size, bool spread, pair_main main, bool cpu,
                void (*begin)(op_walk *))
{
    job j = { main, size, spread, cpu, gpu_shared(sizeof(op_walk)), NULL };
    if (begin)
        (gpu_is_fake() && begin == op_walk_table ? op_walk_short : begin)(j.walk);
    const char *shared = size == 1 ? "" : spread ? " on several GPUs" : " on one GPU";
    if (gpu_wanted("%s, %d rank%s%s", name, size, size > 1 ? "s" : "",
                   spread && size <= gpu_count() ? ", a GPU each" : shared))
        gpu_report(begin ? walk_on(&j) : gpu_isolated(all_ranks, &j, limit_s));
}

static int table(imbrex_group *gpu, imbrex_group *cpu, op_walk *walk)
{
    return (void)cpu, op_cases_device(gpu, walk);
}

/* ---- against the CPU ------------------------------------------------------------------------- */

/* As op_cases.h: the group has failed, or values are wrong. */
enum { FINE, STUCK, WRONG };

/* A group that has failed is told of; else what was found first. */
static int worse(int worst, int how)
{
    return how == STUCK || !worst ? how : worst;
}

/* Whole numbers: no order of sums and no shape of tiles may show. */
static int check_equal(const op_case *c, const char *name, const char *have, const char *want,
                       int64_t count, int64_t cols)
{
    int64_t wrong = 0, i = -1;
    while ((i = elements_differ(c->dtype, have, want, i + 1, count)) >= 0) {
        if (wrong++ < 2)
            op_image_complain("%s[%lld, %lld] is %g, want %g", name, (long long)(i / cols),
                              (long long)(i % cols), element_get(c->dtype, have, i),
                              element_get(c->dtype, want, i));
    }
    if (wrong)
        op_image_complain("%lld of %lld values of %s differ from what is wanted", (long long)wrong,
                          (long long)count, name);
    return wrong != 0;
}

static int compare_run(imbrex_group *gpu, imbrex_plan *plan, const op_case *c, int64_t m,
                       const op_image *want, op_image *x)
{
    if (op_image_upload(gpu, x))
        return STUCK;
    imbrex_args args = op_image_args(c, x, m);
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(gpu, NULL));
    if (op_image_download(gpu, x))
        return STUCK;
    int64_t e = (int64_t)element_bytes(c->dtype);
    int wrong = check_equal(c, "c", x->host + x->c.at, want->host + want->c.at,
                            (int64_t)x->c.bytes / e, c->n);
    if (c->gathered)
        wrong += check_equal(c, "gathered", x->host + x->gathered.at,
                             want->host + want->gathered.at, (int64_t)x->gathered.bytes / e, c->k);
    if (!op_image_intact(x)) {
        op_image_complain("something was written beside a matrix");
        wrong++;
    }
    return wrong ? WRONG : FINE;
}

enum { COMPARED = 2 }; /* the plan's m, and a smaller one */

static int compare_algorithm(imbrex_group *gpu, const op_case *c, const op_image *want,
                             const int64_t *rows, void *device)
{
    int worst = FINE;
    imbrex_plan *plan;
    int made = op_cases_plan(gpu, c, &plan);
    if (made != FINE || !plan)
        return made;
    for (int i = 0; i < COMPARED && worst != STUCK; i++) {
        op_image x =
            op_image_take(c, rows[i], imbrex_group_size(gpu), imbrex_group_rank(gpu), device);
        int how = compare_run(gpu, plan, c, rows[i], &want[i], &x);
        if (how != FINE)
            op_cases_describe(gpu, plan, c, rows[i]);
        worst = worse(worst, how);
        op_image_drop(&x);
    }
    if (worst != STUCK)
        imbrex_plan_destroy(plan);
    return worst;
}

/* What an algorithm that has little to get wrong gives, by tiles of one rank's rows where large.
 * device: as of op_image_take. */
static int run_sequential(imbrex_group *group, op_case c, const int64_t *rows, op_image *want,
                          void *device)
{
    imbrex_plan *plan;
    c.sms = 0;
    c.chunk_rows = c.m > 1024 && strcmp(c.op, "ag_gemm") == 0 ? 128 : 0;
    c.algorithm = "sequential";
    RANK_OK(case_plan(group, &c, &plan));
    for (int i = 0; i < COMPARED; i++) {
        want[i] =
            op_image_take(&c, rows[i], imbrex_group_size(group), imbrex_group_rank(group), device);
        if (device && op_image_upload(group, &want[i]))
            return STUCK;
        imbrex_args args = op_image_args(&c, &want[i], rows[i]);
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
        RANK_OK(imbrex_stream_sync(group, NULL));
        if (device && op_image_download(group, &want[i]))
            return STUCK;
    }
    imbrex_plan_destroy(plan);
    return FINE;
}

/* cpu: NULL where sequential runs are on the GPU, too. */
static int compare_case(imbrex_group *gpu, imbrex_group *cpu, op_case c, int number, void *device,
                        op_walk *walk)
{
    const int64_t rows[COMPARED] = { c.m, c.m * 2 / 3 + 1 };
    op_image want[COMPARED];
    if (run_sequential(cpu ? cpu : gpu, c, rows, want, cpu ? NULL : device))
        return STUCK;
    int worst = FINE;
    for (int alg = 0; (c.algorithm = op_cases_algorithm(&c, alg)) && worst != STUCK; alg++) {
        if (walk && !op_walk_step(walk, imbrex_group_rank(gpu), number, alg))
            continue;
        worst = worse(worst, compare_algorithm(gpu, &c, want, rows, device));
    }
    for (int i = 0; i < COMPARED; i++)
        op_image_drop(&want[i]);
    return worst;
}

/* Fake GPUs test this test, and not the library, which test_cuda_operators does: of the large cases
 * one of 17, in which each product comes in turn, without those that take long. */
enum { FAKE_SHARE = 17, FAKE_WORK_MOST = 120000000 };
static bool get_large(int number, op_case *c)
{
    return op_cases_get_large(gpu_is_fake() ? FAKE_SHARE * number : number, c);
}

/* Cases from `from` on, each on its own; cpu and walk: as of compare_case. */
static int compare_cases(imbrex_group *gpu, imbrex_group *cpu, bool (*get)(int number, op_case *c),
                         int from, op_walk *walk)
{
    size_t most = 0;
    op_case c;
    void *device;
    for (int i = 0; get(i, &c); i++) {
        size_t bytes = op_image_bytes(&c, imbrex_group_size(gpu));
        most = bytes > most ? bytes : most;
    }
    RANK_OK(imbrex_mem_alloc(gpu, most, &device));
    int worst = FINE;
    for (int i = from; get(i, &c) && worst != STUCK; i++) {
        if (!gpu_is_fake() || c.m * c.n * c.k <= FAKE_WORK_MOST)
            worst = worse(worst, compare_case(gpu, cpu, c, i, device, walk));
    }
    return worst;
}

static int compare(imbrex_group *gpu, imbrex_group *cpu, op_walk *walk)
{
    int worst = compare_cases(gpu, cpu, get_large, walk->from, walk);
    if (worst != STUCK)
        op_walk_end(walk);
    return worst;
}

static int compare_long(imbrex_group *gpu, imbrex_group *cpu, op_walk *walk)
{
    (void)cpu, (void)walk;
    return gpu_is_fake() ? FINE : compare_cases(gpu, NULL, op_cases_get_long, 0, NULL);
}

static int compare_spanning(imbrex_group *gpu, imbrex_group *cpu, op_walk *walk)
{
    (void)cpu, (void)walk;
    return op_cases_check_spanning(gpu) || compare_cases(gpu, NULL, op_cases_get_spanning, 0, NULL);
}

/* ---- not a number ---------------------------------------------------------------------------- */

/* Data that tells by its bits that it has come: NaN, too, and again. */
static const op_case nan_cases[] = {
    { .op = "ag_gemm", .m = 40, .n = 256, .k = 128, .algorithm = "store" },
    { .op = "gemm_rs", .m = 40, .n = 256, .k = 128, .algorithm = BY_TILES },
    { .op = "gemm_rs", .m = 300, .n = 1000, .k = 72, .dtype = IMBREX_F16, .algorithm = BY_TILES },
    { .op = "gemm_ar", .m = 40, .n = 256, .k = 128, .algorithm = "reduce_push" },
    { .op = "gemm_ar", .m = 40, .n = 256, .k = 128, .algorithm = "reduce_push2" },
};
enum { NAN_CASES = sizeof nan_cases / sizeof nan_cases[0], NAN_RUNS = 3 };

static int run_nan(imbrex_group *gpu, op_case c, op_image x)
{
    imbrex_plan *plan;
    int64_t count = (int64_t)(x.c.bytes / element_bytes(c.dtype)), numbers = 0;
    memset(x.host + x.a.at, 0xff, x.a.bytes);
    RANK_OK(case_plan(gpu, &c, &plan));
    for (int i = 0; i < NAN_RUNS; i++) {
        memset(x.host + x.c.at, 0, x.c.bytes);
        imbrex_args args = op_image_args(&c, &x, c.m);
        if (op_image_upload(gpu, &x))
            return STUCK;
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
        RANK_OK(imbrex_stream_sync(gpu, NULL));
        if (op_image_download(gpu, &x))
            return STUCK;
        for (int64_t at = 0; at < count; at++)
            numbers += !isnan(element_get(c.dtype, x.host + x.c.at, at));
    }
    if (numbers)
        op_image_complain("%lld results of NaN are numbers", (long long)numbers);
    imbrex_plan_destroy(plan);
    return numbers ? WRONG : FINE;
}

static int not_a_number(imbrex_group *gpu, imbrex_group *cpu, op_walk *walk)
{
    (void)cpu, (void)walk;
    int worst = FINE, size = imbrex_group_size(gpu);
    for (int i = 0; i < NAN_CASES && worst != STUCK; i++) {
        void *device;
        RANK_OK(imbrex_mem_alloc(gpu, op_image_bytes(&nan_cases[i], size), &device));
        op_image x =
            op_image_take(&nan_cases[i], nan_cases[i].m, size, imbrex_group_rank(gpu), device);
        worst = worse(worst, run_nan(gpu, nan_cases[i], x));
        op_image_drop(&x);
    }
    return worst;
}

/* ---- queued ---------------------------------------------------------------------------------- */

/* Runs of two plans in turn, each with inputs of its own, all enqueued before the host looks. */
enum { QUEUED = 12, PLANS = 2, STREAMS = 2 };

static const op_case queued[PLANS] = {
    /* small enough that both fit beside each other on four ranks of one GPU */
    { .op = "ag_gemm",
      .m = 500,
      .n = 256,
      .k = 192,
      .algorithm = "copy",
      .chunk_rows = 128,
      .sms = 12,
      .bias = 1 },
    { .op = "gemm_rs",
      .m = 700,
      .n = 384,
      .k = 136,
      .algorithm = "copy",
      .chunk_rows = 64,
      .sms = 12,
      .dtype = IMBREX_F16 },
};

typedef struct queue {
    imbrex_group *group;
    imbrex_plan *plans[PLANS];
    imbrex_stream streams[STREAMS];
    op_image image[QUEUED];
    char *bits[QUEUED]; /* of c, by runs that were waited for */
} queue;

static int64_t queued_rows(int i)
{
    int64_t most = queued[i % PLANS].m;
    return i / PLANS % 3 == 1 ? most / 2 + 1 : most;
}

static int take_queue(queue *q, imbrex_group *gpu)
{
    int ranks = imbrex_group_size(gpu), r = imbrex_group_rank(gpu);
    size_t bytes = 0, at = 0;
    char *device;
    memset(q, 0, sizeof *q);
    q->group = gpu;
    for (int p = 0; p < PLANS; p++) {
        RANK_OK(case_plan(gpu, &queued[p], &q->plans[p]));
        bytes += QUEUED / PLANS * op_image_bytes(&queued[p], ranks);
    }
    for (int s = 0; s < STREAMS; s++)
        RANK_OK(imbrex_stream_create(gpu, &q->streams[s]));
    RANK_OK(imbrex_mem_alloc(gpu, bytes, (void **)&device));
    for (int i = 0; i < QUEUED; i++) {
        op_case c = queued[i % PLANS];
        c.input = 100 + 10 * i;
        q->image[i] = op_image_take(&c, queued_rows(i), ranks, r, device + at);
        q->bits[i] = malloc(q->image[i].c.bytes);
        at += q->image[i].bytes;
    }
    return 0;
}

static int enqueue(queue *q, int i, imbrex_stream stream)
{
    imbrex_args args = op_image_args(&queued[i % PLANS], &q->image[i], queued_rows(i));
    RANK_OK(imbrex_plan_run(q->plans[i % PLANS], &args, stream));
    return 0;
}

/* One run after the other: these bits are what the queues must give. */
static int record(queue *q)
{
    for (int i = 0; i < QUEUED; i++) {
        op_image *x = &q->image[i];
        if (op_image_upload(q->group, x) || enqueue(q, i, NULL))
            return 1;
        RANK_OK(imbrex_stream_sync(q->group, NULL));
        if (op_image_download(q->group, x))
            return 1;
        memcpy(q->bits[i], x->host + x->c.at, x->c.bytes);
        memset(x->host + x->c.at, 0xFF, x->c.bytes);
    }
    return 0;
}

typedef enum order { ONE_STREAM, STREAM_A_PLAN, STREAMS_IN_TURN } order;
static const char *const orders[] = { "on one stream", "on a stream a plan", "on streams in turn" };

static imbrex_stream stream_of(const queue *q, order o, int i)
{
    return o == ONE_STREAM ? NULL : q->streams[o == STREAM_A_PLAN ? i % PLANS : i / PLANS % 2];
}

static int check_queue(queue *q, order o)
{
    int r = imbrex_group_rank(q->group);
    for (int i = 0; i < QUEUED; i++) {
        if (op_image_upload(q->group, &q->image[i]))
            return 1;
    }
    for (int i = 0; i < QUEUED; i++) {
        if (enqueue(q, i, stream_of(q, o, i)))
            return 1;
    }
    RANK_OK(imbrex_stream_sync(q->group, NULL));
    for (int s = 0; s < STREAMS; s++)
        RANK_OK(imbrex_stream_sync(q->group, q->streams[s]));
    for (int i = 0; i < QUEUED; i++) {
        op_image *x = &q->image[i];
        if (op_image_download(q->group, x))
            return 1;
        const char *have = x->host + x->c.at;
        size_t at = 0;
        while (at < x->c.bytes && have[at] == q->bits[i][at])
            at++;
        imbrex_dtype dtype = queued[i % PLANS].dtype;
        int64_t e = (int64_t)(at / element_bytes(dtype));
        RANK_CHECK(at == x->c.bytes,
                   "rank %d, %s: run %d (%s, m=%lld): value %lld is %g, alone it was %g", r,
                   orders[o], i, queued[i % PLANS].op, (long long)queued_rows(i), (long long)e,
                   element_get(dtype, have, e), element_get(dtype, q->bits[i], e));
        RANK_CHECK(op_image_intact(x), "%s: run %d wrote beside a matrix", orders[o], i);
        memset(x->host + x->c.at, 0xFF, x->c.bytes);
    }
    return 0;
}

static int queues(imbrex_group *gpu, imbrex_group *cpu, op_walk *walk)
{
    queue q;
    (void)cpu, (void)walk;
    int failed = take_queue(&q, gpu) || record(&q);
    for (int round = gpu_is_fake() ? 2 : 0; round < 3 && !failed; round++)
        failed = check_queue(&q, ONE_STREAM) || check_queue(&q, STREAM_A_PLAN) ||
                 check_queue(&q, STREAMS_IN_TURN);
    for (int i = 0; i < QUEUED; i++) {
        op_image_drop(&q.image[i]);
        free(q.bits[i]);
    }
    return failed;
}

static int fewer(imbrex_group *gpu, imbrex_group *cpu, op_walk *walk)
{
    return (void)cpu, (void)walk, fewer_cases(gpu, NULL);
}

/* ---- ahead ----------------------------------------------------------------------------------- */

/* Kernels are compiled one at a time in a process: so many processes first make all plans, each a
 * part of them, on a device that only compiles.  It need not be on a machine with a GPU. */
enum { PARTS = 4, SMS = 132 }; /* other GPUs compile when they run what differs for them */

typedef struct ahead {
    job job;
    int part, sms;    /* sms: of each rank */
    const char *form; /* IMBREX_CUDA_ARCH */
} ahead;

static ahead current; /* of this process */

static int make_plan(imbrex_group *gpu, op_case c)
{
    int worst = FINE;
    if (!c.sms)
        c.sms = current.sms;
    for (int alg = 0; (c.algorithm = op_cases_algorithm(&c, alg)); alg++) {
        imbrex_plan *plan;
        int made = op_cases_plan(gpu, &c, &plan);
        if (made == STUCK)
            return STUCK;
        imbrex_plan_destroy(plan);
        worst = made > worst ? made : worst;
    }
    return worst;
}

static int make_plans(imbrex_group *gpu, imbrex_group *cpu, op_walk *walk)
{
    static bool (*const gets[])(int, op_case *) = { op_cases_get, op_cases_get_large,
                                                    op_cases_get_long, op_cases_get_spanning };
    int worst = FINE;
    op_case c;
    (void)cpu, (void)walk;
    for (size_t g = 0; g < sizeof gets / sizeof *gets; g++) {
        for (int i = current.part; gets[g](i, &c) && worst != STUCK; i += PARTS)
            worst = worse(worst, make_plan(gpu, c));
    }
    if (current.part == 0 && worst != STUCK)
        worst = worse(worst, fewer_cases_plans(gpu, current.sms));
    return worst;
}

static int ahead_main(void *ctx)
{
    current = *(const ahead *)ctx;
    if (current.form)
        setenv("IMBREX_CUDA_ARCH", current.form, 1);
    return all_ranks(&current.job);
}

/* 0: all plans of the tables are made for the device. */
static int compile_for(const char *device)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    static const struct {
        int size, sms;
        const char *form;
    } groups[] = { { 1, SMS, NULL },     { 2, SMS / 2, NULL }, { 3, SMS / 3, NULL },
                   { 4, SMS / 4, NULL }, { 4, SMS, NULL },     { 2, SMS, NULL },
                   { 4, SMS / 2, NULL }, { 2, SMS / 2, "80" } };
    enum { GROUPS = sizeof groups / sizeof groups[0] };
    pid_t children[GROUPS * PARTS];
    int count = 0, failed = 0, finished = 0;
    for (int i = 0; i < GROUPS; i++) {
        for (int p = 0; p < PARTS; p++) {
            job j = { .run = make_plans, .size = groups[i].size, .device = device };
            ahead a = { j, p, groups[i].sms, groups[i].form };
            children[count++] = gpu_start(ahead_main, &a, 10 * limit_s);
            if (count - finished == processors)
                failed += gpu_finish(children[finished++]);
        }
    }
    while (finished < count)
        failed += gpu_finish(children[finished++]);
    return failed;
}

static void compile_ahead(void)
{
    char device[32];
    if (!gpu_wanted("plans"))
        return;
    snprintf(device, sizeof device, "compile:%d", gpu_arch());
    gpu_report(compile_for(device));
}

/* ---- all ------------------------------------------------------------------------------------- */

static void general_form(int size)
{
    setenv("IMBREX_CUDA_ARCH", "80", 1);
    run("table, general form", size, false, table, false, op_walk_table);
    run("against the CPU, general form", size, false, compare, true, op_walk_large);
    unsetenv("IMBREX_CUDA_ARCH");
}

/* For compute-sanitizer, under which kernels crawl.  It lets one kernel of a GPU run at a time:
 * ranks that wait for each other need one each. */
static void sanitized(void)
{
    timeout_ms = 100000, limit_s = 500;
    run("sanitized", 1, false, table, false, op_walk_short);
    if (gpu_count() > 1)
        run("sanitized", 2, true, table, false, op_walk_short);
}

/* `ahead compile:90`: fills the cache of kernels where there may be no GPU. */
int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "ahead") == 0)
        return compile_for(argv[2]);
    gpu_begin(argc, argv);
    if (argc > 1 && strncmp(argv[1], "sanitized", 9) == 0)
        return sanitized(), gpu_end();
    if (gpu_is_fake())
        limit_s = 300; /* sanitized, on a machine that does other things too */
    else
        compile_ahead();
    for (int size = gpu_is_fake() ? 2 : 1; size <= (gpu_is_fake() ? 2 : 4); size++) {
        run("table", size, false, table, false, op_walk_table);
        run("against the CPU", size, false, compare, true, op_walk_large);
        run("queued", size, false, queues, false, NULL);
        run("few rows", size, false, fewer, false, NULL);
    }
    run("not a number", 2, false, not_a_number, false, NULL);
    general_form(2);
    run("large ones, against \"sequential\"", 4, false, compare_long, false, NULL);
    int each = gpu_count() < 4 ? gpu_count() : 4;
    if (each > 1) {
        run("table", each, true, table, false, op_walk_table);
        run("against the CPU", each, true, compare, true, op_walk_large);
        run("large ones, against \"sequential\"", each, true, compare_long, false, NULL);
        run("tiles of several ranks' rows", each, true, compare_spanning, false, NULL);
        run("queued", each, true, queues, false, NULL);
        run("few rows", each, true, fewer, false, NULL);
    }
    if (each > 1 && each < 4) { /* some of the peers on the same GPU, some by NVLink */
        run("table", 4, true, table, false, op_walk_table);
        run("tiles of several ranks' rows", 4, true, compare_spanning, false, NULL);
        run("queued", 4, true, queues, false, NULL);
        run("few rows", 4, true, fewer, false, NULL);
    }
    return gpu_end();
}
