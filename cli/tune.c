/* tune.c - `imbrex tune`: what this machine's GPUs do in a microsecond.  A rank times plans, each
 * of which is bound by one rate, and says what that rate is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"
#include "matrix.h"
#include "measure.h"
#include "options.h"
#include "output.h"
#include "text.h"
#include "tune.h"

enum {
    RANKS = 2,
    WARM = 3,
    RATES_MOST = 8,
    GRAPH_CALLS = 10, /* even, as runs of a plan take turns with two workspaces */
    CALLS_MOST = 8,   /* that are all enqueued before the first begins */
    FEW_ROWS = 16,    /* of a product that is bound by reading b */
    COLUMNS = 4096    /* of what travels */
};

typedef struct rate {
    const char *name, *unit;
    double value;
    char how[96];
} rate;

typedef struct tuning {
    const tune_request *request;
    imbrex_group *group, *alone; /* alone: this rank by itself */
    share share;
    cuda_timer *timer;
    progress bar;
    rate rates[RATES_MOST];
    int count;
} tuning;

/* ---- timing ---------------------------------------------------------------------------------- */

typedef struct call {
    imbrex_plan *plan;
    imbrex_args args;
    imbrex_stream stream;
} call;

static imbrex_status run(void *ctx)
{
    const call *c = ctx;
    return imbrex_plan_run(c->plan, &c->args, c->stream);
}

/* graph: what is shorter than its enqueuing. */
static imbrex_status time_call(tuning *t, imbrex_group *group, call *c, bool graph, double *us)
{
    cuda_graph *captured = NULL;
    candidate one = { .enqueue = run, .ctx = c, .group = group, .inner = 1 };
    int inner;
    c->stream = cuda_timer_stream(t->timer);
    TRY(measure_inner(t->timer, &t->share, &one, &inner));
    one.inner = inner < CALLS_MOST ? inner : CALLS_MOST;
    if (graph)
        TRY(measure_capture(t->timer, &one, GRAPH_CALLS, &captured));
    imbrex_status status =
        measure_by(t->timer, &t->share, &one, 1, WARM, (int)t->request->rounds, &t->bar);
    cuda_graph_destroy(captured);
    *us = graph ? one.us / GRAPH_CALLS : one.us;
    return status;
}

/* On all ranks alike, also of what each did by itself: whether to go on.  What a device cannot do
 * is no failure, but has no rate. */
static imbrex_status agree(tuning *t, const char *name, imbrex_status status, bool *can)
{
    bool harmless = status == IMBREX_INVALID || status == IMBREX_UNSUPPORTED;
    double lacks = 0;
    if (status != IMBREX_OK && !harmless)
        return status;
    const char *why = status == IMBREX_OK ? NULL : failure_text(status);
    if (why && imbrex_group_rank(t->group) == 0)
        text_say(stderr, "imbrex tune: %s is left out: %s\n", name, why);
    TRY(share_max(&t->share, why != NULL, &lacks));
    *can = lacks == 0;
    return IMBREX_OK;
}

static void add(tuning *t, const char *name, const char *unit, double value, const char *how)
{
    rate *r = &t->rates[t->count++];
    *r = (rate){ .name = name, .unit = unit, .value = value };
    snprintf(r->how, sizeof r->how, "%s", how);
}

/* ---- one rank's products --------------------------------------------------------------------- */

static imbrex_status time_product(tuning *t, const imbrex_gemm_desc *desc, imbrex_plan *plan,
                                  double *us)
{
    int64_t element = matrix_dtype_bytes(desc->dtype), out = element < 2 ? 2 : element;
    int64_t a = desc->m * desc->k, b = desc->n * desc->k, c = desc->m * desc->n;
    static const float ones[2] = { 1, 1 };
    void *room;
    size_t scales = (size_t)((a + b) * element + 255) / 256 * 256;
    TRY(imbrex_mem_alloc(t->alone, scales + 256 + (size_t)(c * out), &room));
    char *at = room;
    call product = { .plan = plan,
                     .args = { .a = at, .b = at + a * element, .c = at + scales + 256 } };
    if (desc->scaling) {
        product.args.scale_a = (const float *)(void *)(at + scales);
        product.args.scale_b = product.args.scale_a + 1;
    }
    /* as from N(0, 1): what a product takes depends on its numbers */
    imbrex_status status = matrix_fill(t->alone, at, desc->dtype, a + b, 1);
    if (status == IMBREX_OK)
        status = imbrex_copy(t->alone, at + scales, ones, sizeof ones, NULL);
    if (status == IMBREX_OK)
        status = failure_drain(status, t->alone, NULL);
    if (status == IMBREX_OK)
        status = time_call(t, t->alone, &product, false, us);
    status = failure_drain(status, t->alone, cuda_timer_stream(t->timer));
    imbrex_mem_free(t->alone, room);
    return status;
}

/* us is 0 where there is no such product. */
static imbrex_status try_product(tuning *t, const char *name, imbrex_gemm_desc desc, double *us)
{
    imbrex_plan *plan = NULL;
    bool can = false;
    *us = 0;
    desc.m_least = desc.m;
    if (desc.dtype == IMBREX_E4M3) {
        desc.out = IMBREX_BF16;
        desc.scaling = IMBREX_PER_TENSOR;
    }
    imbrex_status status = agree(t, name, imbrex_plan_gemm(t->alone, &desc, &plan), &can);
    if (status == IMBREX_OK && can)
        status = time_product(t, &desc, plan, us);
    imbrex_plan_destroy(plan);
    return status;
}

static imbrex_status multiply(tuning *t, const char *name, imbrex_dtype dtype, int64_t size)
{
    char how[96];
    double us, operations = 2.0 * (double)size * (double)size * (double)size;
    TRY(try_product(t, name, (imbrex_gemm_desc){ .m = size, .n = size, .k = size, .dtype = dtype },
                    &us));
    snprintf(how, sizeof how, "gemm of %lld x %lld x %lld", (long long)size, (long long)size,
             (long long)size);
    if (us > 0)
        add(t, name, "TFLOP/s", operations / us * 1e-6, how);
    return IMBREX_OK;
}

static imbrex_status read_memory(tuning *t)
{
    int64_t size = t->request->read;
    char how[96];
    double us, bytes = 2.0 * (double)size * (double)(size + 2 * FEW_ROWS);
    TRY(try_product(t, "memory",
                    (imbrex_gemm_desc){ .m = FEW_ROWS, .n = size, .k = size, .dtype = IMBREX_BF16 },
                    &us));
    snprintf(how, sizeof how, "gemm of %d x %lld x %lld, which reads b", FEW_ROWS, (long long)size,
             (long long)size);
    if (us > 0)
        add(t, "memory", "GB/s", bytes / us * 1e-3, how);
    return IMBREX_OK;
}

/* ---- between ranks --------------------------------------------------------------------------- */

/* Of so many rows of each rank; us is 0 where the algorithm cannot do it. */
static imbrex_status gather(tuning *t, const char *name, const char *algorithm, int64_t rows,
                            bool graph, double *us)
{
    int64_t shard = rows * COLUMNS, ranks = imbrex_group_size(t->group);
    const imbrex_coll_desc desc = {
        .m = ranks * rows, .n = COLUMNS, .dtype = IMBREX_BF16, .algorithm = algorithm
    };
    call all = { .plan = NULL };
    void *room = NULL;
    bool can = false;
    *us = 0;
    TRY(agree(t, name, imbrex_plan_all_gather(t->group, &desc, &all.plan), &can));
    imbrex_status status = IMBREX_OK;
    if (can)
        status = imbrex_mem_alloc(t->group, (size_t)(2 * shard * (ranks + 1)), &room);
    if (room && status == IMBREX_OK) {
        all.args.a = room;
        all.args.c = (char *)room + 2 * shard;
        status = matrix_fill(t->group, room, IMBREX_BF16, shard, 1);
        if (status == IMBREX_OK)
            status = time_call(t, t->group, &all, graph, us);
        status = failure_drain(status, t->group, cuda_timer_stream(t->timer));
    }
    imbrex_plan_destroy(all.plan);
    imbrex_mem_free(t->group, room);
    return status;
}

/* By what twice as many bytes take more, which leaves out what all begin with. */
static imbrex_status send(tuning *t, const char *name, const char *algorithm)
{
    int64_t rows = t->request->bytes / (2 * COLUMNS), half = rows / 2;
    double all_us, half_us, peers = imbrex_group_size(t->group) - 1;
    char how[96];
    TRY(gather(t, name, algorithm, rows, false, &all_us));
    TRY(gather(t, name, algorithm, half, false, &half_us));
    double bytes = 2.0 * COLUMNS * (double)rows * peers, us = all_us;
    if (all_us > 1.2 * half_us) {
        bytes = 2.0 * COLUMNS * (double)(rows - half) * peers;
        us -= half_us;
    }
    snprintf(how, sizeof how, "all_gather by %s, %.3g and %.3g MB of a rank", algorithm,
             2e-6 * COLUMNS * (double)half, 2e-6 * COLUMNS * (double)rows);
    if (all_us > 0)
        add(t, name, "GB/s", bytes / us * 1e-3, how);
    return IMBREX_OK;
}

static imbrex_status begin(tuning *t, const char *name, const char *algorithm, bool graph)
{
    char how[96];
    double us;
    TRY(gather(t, name, algorithm, 1, graph, &us));
    snprintf(how, sizeof how, "all_gather by %s, %d bytes of a rank", algorithm, 2 * COLUMNS);
    if (us > 0)
        add(t, name, "us", us, how);
    return IMBREX_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* What ranks on one GPU store to each other crosses no link.  Each may call it by another index. */
static imbrex_status check_gpus(tuning *t)
{
    int size = imbrex_group_size(t->group);
    cuda_gpu_id own, *all = calloc((size_t)size, sizeof *all);
    imbrex_status status = all ? cuda_timer_gpu(t->timer, &own) : IMBREX_NO_MEMORY;
    if (status == IMBREX_OK)
        status = share_all(&t->share, &own, sizeof own, all);
    for (int r = 0; r < size && status == IMBREX_OK; r++)
        for (int q = 0; q < r && status == IMBREX_OK; q++)
            if (memcmp(&all[q], &all[r], sizeof own) == 0)
                status = failure_note(IMBREX_UNSUPPORTED,
                                      "ranks %d and %d are on one GPU: start one rank for each GPU "
                                      "that is to be measured",
                                      q, r);
    free(all);
    return status;
}

static imbrex_status open_all(tuning *t)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { 0 };
    TRY(imbrex_group_create(&desc, &t->group));
    const char *device = imbrex_group_device(t->group);
    if (strncmp(device, "cuda", 4) != 0)
        return failure_note(IMBREX_UNSUPPORTED,
                            "%s has no rates: what CPU ranks take is chosen by rules, and rates "
                            "are of GPUs",
                            device);
    desc = (imbrex_group_desc){ .bootstrap = &one, .device = device };
    TRY(imbrex_group_create(&desc, &t->alone));
    TRY(share_open(t->group, sizeof(cuda_gpu_id), &t->share));
    return cuda_timer_open(device, &t->timer);
}

static imbrex_status measure_all(tuning *t)
{
    const tune_request *q = t->request;
    TRY(multiply(t, "bf16", IMBREX_BF16, q->product));
    TRY(multiply(t, "fp8", IMBREX_E4M3, q->product));
    TRY(multiply(t, "f32", IMBREX_F32, q->product_f32));
    TRY(read_memory(t));
    if (imbrex_group_size(t->group) == 1)
        return IMBREX_OK;
    TRY(send(t, "store", "store"));
    TRY(send(t, "copy", "copy"));
    TRY(begin(t, "copy_us", "copy", false));
    return begin(t, "signal_us", "ll", true);
}

/* The lines of `imbrex info` about rates. */
static void print_rates_in_use(void)
{
    size_t size = imbrex_info(NULL, 0) + 1;
    char *lines = malloc(size), *rest = NULL;
    if (!lines)
        return;
    imbrex_info(lines, size);
    for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (strncmp(line, "rates of ", 9) == 0)
            text_say(stdout, "%s\n", line);
    free(lines);
}

static imbrex_status keep(const tuning *t)
{
    char rows[RATES_MOST * 128];
    size_t at = 0;
    for (int i = 0; i < t->count; i++) {
        const rate *r = &t->rates[i];
        at += (size_t)snprintf(rows + at, sizeof rows - at, "%-9s %.5g  # %s: %s\n", r->name,
                               r->value, r->unit, r->how);
    }
    text_say(stdout, "%s", rows);
    TRY(imbrex_rates_keep(t->group, rows, t->request->output));
    if (t->request->output)
        text_say(stdout, "written to %s, which IMBREX_RATES may name\n", t->request->output);
    else
        print_rates_in_use();
    return IMBREX_OK;
}

static imbrex_status work(tuning *t)
{
    TRY(open_all(t));
    TRY(check_gpus(t));
    bool first = imbrex_group_rank(t->group) == 0;
    if (first)
        progress_begin(&t->bar, "tune", 10 * (WARM + t->request->rounds));
    imbrex_status status = measure_all(t);
    if (first)
        progress_end(&t->bar);
    return status == IMBREX_OK && first ? keep(t) : status;
}

int tune_rank(const tune_request *request)
{
    tuning t = { .request = request };
    imbrex_status status = work(&t);
    if (status != IMBREX_OK)
        failure_say("tune", t.group, status);
    share_close(&t.share);
    imbrex_group_destroy(t.alone);
    imbrex_group_destroy(t.group);
    cuda_timer_close(t.timer);
    return cli_exit_code(status);
}

/* ---- The command ----------------------------------------------------------------------------- */

static int rank_main(int rank, void *ctx)
{
    (void)rank;
    return tune_rank(ctx);
}

int cli_tune(int argc, char **argv)
{
    bool device = false;
    int64_t ranks = 0;
    tune_request request = {
        .rounds = 15, .product = 8192, .product_f32 = 4096, .read = 16384, .bytes = 64 << 20
    };
    const option options[] = {
        { "device", 0, .flag = &device,
          .help = "measure the rates of this machine's GPUs, and keep them for later groups" },
        { "output", 'o', .text = &request.output, .metavar = "FILE",
          .help = "write them to FILE instead, which IMBREX_RATES may name" },
        { "ranks", 'n', .integer = &ranks, .metavar = "R", .min = 1, .max = 64,
          .help = "ranks to start, outside every launcher, a GPU each (2); 1: products\n"
                  "and memory alone" },
        { "rounds", 0, .integer = &request.rounds, .metavar = "N", .min = 1, .max = 10000,
          .help = "how often each is timed (15)" },
        { 0 },
    };
    const options_page page = {
        .command = "tune",
        .synopsis = "--device [--output FILE] [options]",
        .about = "Measures what GPUs do in a microsecond, by plans: products, reading of memory, "
                 "stores and\ncopies to peers, a signal.  Expected times are made of these rates, "
                 "and by them plans\nchoose.  Nothing else is to run on the GPUs meanwhile.",
        .options = options,
        .notes =
            "A figure is the median over rounds of the slowest rank.  `imbrex info` says "
            "which rates\ncount; docs/tuning.md has the form of the file.  One operator at one "
            "shape:\nimbrex bench OPERATOR --tune.\n\n"
            "exit code: 0; 1 if something failed; 2 for wrong usage, or where there is no GPU.",
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    if (!device)
        return options_exit(options_wrong(&page, "what is to be tuned? --device: this machine's "
                                                 "GPUs; one operator: imbrex bench --tune"));
    int wrong = output_check_both(&page, request.output, NULL);
    int count = wrong < 0 ? wrong : launch_count(&page, ranks, RANKS);
    return count < 0 ? options_exit(count) : launch_start(count, rank_main, &request);
}
