/* rank.c - one rank: joins the others once, then makes the candidates of one shape after another
 * and times them in turn. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "matrix.h"
#include "text.h"

/* A graph holds an even number of calls, as runs of a plan take turns with two workspaces. */
enum { GRAPH_CALLS = 10, HOST_ROUNDS = 7 };

typedef struct case_state {
    bench_setting *setting;
    const bench_shape *shape;
    bench_data data;
    bench_blas blas;
    bench_cublas cublas;
    bench_call calls[BENCH_CANDIDATES]; /* candidate i's; without a plan for a BLAS */
    cuda_graph *graphs[BENCH_CANDIDATES];
    candidate candidates[BENCH_CANDIDATES];
    int count, left_out;
    bench_result *result;
} case_state;

/* ---- One shape: its candidates --------------------------------------------------------------- */

static void add(case_state *s, const char *name, imbrex_status (*enqueue)(void *), void *ctx,
                imbrex_group *group)
{
    bench_figure *figure = &s->result->figures[s->count];
    figure->name = name;
    s->candidates[s->count++] = (candidate){
        .name = name,
        .enqueue = enqueue,
        .ctx = ctx,
        .group = group,
    };
}

static imbrex_status make_plan(case_state *s, const char *algorithm, bool whole, imbrex_plan **plan,
                               double *ms)
{
    bench_setting *setting = s->setting;
    double begin = now_us();
    imbrex_status status =
        whole ? bench_op_product(setting->alone, s->shape, imbrex_group_size(setting->group), plan)
              : bench_op_plan(setting->group, s->shape, algorithm, plan);
    *ms = (now_us() - begin) * 1e-3;
    return status;
}

static void note_plan(const imbrex_plan *plan, bench_figure *figure)
{
    imbrex_plan_describe(plan, figure->plan, sizeof figure->plan);
    figure->facts = bench_plan_facts(plan);
}

/* Made twice: what was compiled for the first is found by the second. */
static imbrex_status add_plan(case_state *s, const char *name, const char *algorithm, bool whole)
{
    bench_call *call = &s->calls[s->count];
    bench_figure *figure = &s->result->figures[s->count];
    imbrex_plan *first = NULL;
    *figure = (bench_figure){ 0 };
    TRY(make_plan(s, algorithm, whole, &first, &figure->plan_ms));
    *call = (bench_call){
        .data = &s->data, .shape = s->shape, .whole = whole, .stream = s->setting->stream
    };
    imbrex_status status = make_plan(s, algorithm, whole, &call->plan, &figure->plan_again_ms);
    imbrex_plan_destroy(first);
    TRY(status);
    note_plan(call->plan, figure);
    add(s, name, bench_call_run, call, whole ? s->setting->alone : s->setting->group);
    return IMBREX_OK;
}

static imbrex_status add_yardstick(case_state *s)
{
    bench_setting *setting = s->setting;
    bench_result *r = s->result;
    TRY(add_plan(s, "products", NULL, true));
    if (s->shape->op->experts) /* no BLAS has this product */
        return IMBREX_OK;
    if (setting->workspace && s->shape->dtype != IMBREX_E4M3) {
        s->cublas = (bench_cublas){
            .data = &s->data, .shape = s->shape, .alone = setting->alone, .timer = setting->timer
        };
        TRY(bench_cublas_open(&s->cublas, setting->cublas, setting->workspace));
        r->base = s->count;
        r->figures[s->count] = (bench_figure){ 0 };
        add(s, "cublas", bench_cublas_run, &s->cublas, setting->alone);
    } else if (bench_blas_can(s->shape, s->calls[0].plan)) {
        s->blas = (bench_blas){ &s->data, s->shape, bench_blas_threads(s->shape), 0 };
        r->base = s->count;
        r->figures[s->count] = (bench_figure){ 0 };
        add(s, "blas", bench_blas_run, &s->blas, setting->alone);
    }
    return IMBREX_OK;
}

/* Leaves out what this shape, device or graph cannot do; ranks agree on that, since the library
 * sees to it that a plan exists on all of them or on none. */
static imbrex_status leave_out(case_state *s, const char *name, imbrex_status status)
{
    bool harmless = status == IMBREX_INVALID || status == IMBREX_UNSUPPORTED;
    if (!harmless)
        return status;
    const char *why = failure_text(status);
    if (imbrex_group_rank(s->setting->group) == 0)
        text_say(stderr, "imbrex bench: %s is left out: %s\n", name, why);
    s->left_out++;
    return IMBREX_OK;
}

static imbrex_status meet(void *ctx)
{
    const bench_setting *setting = ctx;
    return imbrex_barrier(setting->group, setting->stream);
}

static imbrex_status add_all(case_state *s)
{
    const bench_request *q = s->setting->request;
    if (s->shape->op->meets) {
        add(s, s->shape->op->name, meet, s->setting, s->setting->group);
        return IMBREX_OK;
    }
    if (s->shape->op->product)
        TRY(add_yardstick(s));
    if (s->shape->op->cache)
        TRY(add_plan(s, "local", NULL, true));
    if (s->shape->op->alone)
        return IMBREX_OK;
    TRY(add_plan(s, "sequential", "sequential", false));
    int before = s->count;
    for (int i = 0; i < q->algorithm_count; i++) {
        const char *algorithm = q->algorithms[i], *name = algorithm ? algorithm : "chosen";
        imbrex_status status = add_plan(s, name, algorithm, false);
        if (status != IMBREX_OK && q->algorithm_count == 1)
            return status;
        if (status != IMBREX_OK)
            TRY(leave_out(s, name, status));
    }
    if (q->algorithm_count && s->count == before)
        return failure_note(IMBREX_UNSUPPORTED, "no algorithm is left to time");
    return IMBREX_OK;
}

/* ---- One shape: timing ----------------------------------------------------------------------- */

static imbrex_status note_host(case_state *s, int warm, int rounds)
{
    for (int i = 0; i < s->count; i++) {
        s->candidates[i].inner = s->result->inner;
        if (s->calls[i].plan && !bench_call_note(&s->calls[i], s->result->inner, warm + rounds))
            return failure_note(IMBREX_NO_MEMORY, "out of memory");
    }
    return IMBREX_OK;
}

static imbrex_status take_host(case_state *s, int warm, int rounds)
{
    share *ranks = &s->setting->share;
    for (int i = 0; i < s->count; i++) {
        bench_figure *figure = &s->result->figures[i];
        figure->host_us = (double)NAN;
        if (s->calls[i].plan)
            TRY(share_max(ranks, bench_call_host_us(&s->calls[i], warm, rounds), &figure->host_us));
    }
    return IMBREX_OK;
}

static imbrex_status capture_all(case_state *s)
{
    s->result->inner = GRAPH_CALLS;
    for (int i = 0; i < s->count; i++) {
        candidate *c = &s->candidates[i];
        TRY(measure_capture(s->setting->timer, c, GRAPH_CALLS, &s->graphs[i]));
        c->inner = 1;
    }
    return IMBREX_OK;
}

static imbrex_status time_all(case_state *s)
{
    const bench_request *q = s->setting->request;
    share *ranks = &s->setting->share;
    int warm = (int)q->warm, rounds = (int)q->rounds;
    TRY(measure_inner(s->setting->timer, ranks, &s->candidates[s->count - 1], &s->result->inner));
    if (q->graph) {
        TRY(note_host(s, warm, HOST_ROUNDS));
        TRY(measure_by(s->setting->timer, ranks, s->candidates, s->count, warm, HOST_ROUNDS, NULL));
        TRY(take_host(s, warm, HOST_ROUNDS));
        TRY(share_barrier(s->setting->group));
        TRY(capture_all(s));
    } else {
        TRY(note_host(s, warm, rounds));
    }
    TRY(measure_by(s->setting->timer, ranks, s->candidates, s->count, warm, rounds,
                   s->setting->bar));
    if (!q->graph)
        TRY(take_host(s, warm, rounds));
    for (int i = 0; i < s->count; i++) {
        bench_figure *figure = &s->result->figures[i];
        figure->us = s->candidates[i].us / (q->graph ? GRAPH_CALLS : 1);
        if (s->calls[i].plan) /* now with what a run has sent */
            note_plan(s->calls[i].plan, figure);
    }
    s->result->count = s->count;
    return IMBREX_OK;
}

/* ---- One shape: all of it -------------------------------------------------------------------- */

static imbrex_status time_candidates(case_state *s)
{
    if (!s->shape->op->meets)
        TRY(bench_data_open(s->setting->group, s->setting->alone, s->shape, &s->data));
    s->result->sets = s->data.count;
    TRY(add_all(s));
    TRY(share_barrier(s->setting->group));
    TRY(time_all(s));
    return share_barrier(s->setting->group); /* before the memory goes */
}

/* Collective.  What an algorithm cannot do is said on standard error by rank 0, and *left_out
 * counts it.  An error if nothing was timed. */
static imbrex_status time_case(bench_setting *setting, const bench_shape *shape,
                               bench_result *result, int *left_out)
{
    case_state s = { .setting = setting, .shape = shape, .result = result };
    *result = (bench_result){
        .request = setting->request,
        .shape = shape,
        .ranks = imbrex_group_size(setting->group),
        .device = imbrex_group_device(setting->group),
        .device_clock = setting->timer != NULL,
    };
    imbrex_status status = time_candidates(&s);
    for (int i = 0; i < BENCH_CANDIDATES; i++) {
        cuda_graph_destroy(s.graphs[i]);
        bench_call_close(&s.calls[i]);
    }
    bench_cublas_close(&s.cublas);
    bench_data_close(&s.data);
    *left_out += s.left_out;
    return status;
}

/* ---- imbrex_tune, with a bar and what it says of each candidate ------------------------------ */

enum { ROWS_MOST = 16, STEPS = 1000 };

typedef struct row {
    char algorithm[32], dropped[256];
    int chunk_rows;
    double us;
} row;

typedef struct table {
    progress *bar;
    row rows[ROWS_MOST];
    int count, best;
} table;

static row *find(table *t, const imbrex_tune_step *step)
{
    int i = 0;
    while (i < t->count && (strcmp(t->rows[i].algorithm, step->algorithm) != 0 ||
                            t->rows[i].chunk_rows != step->chunk_rows))
        i++;
    if (i == ROWS_MOST)
        return NULL;
    if (i == t->count) {
        snprintf(t->rows[i].algorithm, sizeof t->rows[i].algorithm, "%s", step->algorithm);
        t->rows[i].chunk_rows = step->chunk_rows;
        t->count++;
    }
    return &t->rows[i];
}

static void note(void *ctx, const imbrex_tune_step *step)
{
    table *t = ctx;
    row *r = find(t, step);
    while (t->bar && t->bar->done < (int64_t)(step->done * STEPS))
        progress_step(t->bar);
    if (!r)
        return;
    r->us = step->us;
    snprintf(r->dropped, sizeof r->dropped, "%s", step->dropped ? step->dropped : "");
    if (step->done >= 1)
        t->best = (int)(r - t->rows);
}

static void print(const table *t, const bench_shape *s)
{
    char k[32] = "";
    if (s->op->product)
        snprintf(k, sizeof k, " k=%lld", (long long)s->k);
    text_wrap(stdout, 2,
              "tuned %s m=%lld n=%lld%s %s; kept for later plans, `imbrex info` says where\n\n",
              s->op->name, (long long)s->m, (long long)s->n, k, matrix_dtype_names[s->dtype]);
    printf("  %-13s%10s%12s\n", "", "us", "chunk rows");
    for (int i = 0; i < t->count; i++) {
        const row *r = &t->rows[i];
        char chunk[16] = "chosen", us[32] = "-";
        if (r->chunk_rows)
            snprintf(chunk, sizeof chunk, "%d", r->chunk_rows);
        if (!*r->dropped)
            snprintf(us, sizeof us, "%.1f", r->us);
        text_wrap(stdout, 39, "  %-13s%10s%12s%s%s\n", r->algorithm, us, chunk,
                  *r->dropped    ? "  left out: "
                  : i == t->best ? "  kept"
                                 : "",
                  r->dropped);
    }
    putchar('\n');
}

/* Collective.  bar: NULL on ranks that say nothing.  shown: print the candidates. */
static imbrex_status tune(imbrex_group *group, const bench_shape *s, progress *bar, bool shown)
{
    table t = { .bar = bar };
    progress_begin(bar, "tune", STEPS);
    imbrex_status status = bench_op_tune(group, s, note, &t);
    progress_end(bar);
    if (status == IMBREX_OK && bar && shown)
        print(&t, s);
    return status;
}

/* ---- All shapes ------------------------------------------------------------------------------ */

typedef struct rank_state {
    const bench_request *request;
    const bench_shape *shapes; /* the device's */
    bench_setting setting;
    progress bar;
    int left_out; /* algorithms, and shapes */
    int shapes_out;
    imbrex_status last; /* why a shape was */
} rank_state;

static bool multiplies(const bench_request *q)
{
    for (int i = 0; i < q->count; i++)
        if (q->shapes[true][i].op->product)
            return true;
    return false;
}

/* On a GPU: a stream that both groups use, and cuBLASLt. */
static imbrex_status equip_gpu(bench_setting *s)
{
    const bench_request *q = s->request;
    s->stream = cuda_timer_stream(s->timer);
    if (q->peer == BENCH_PEER_NONE || !multiplies(q))
        return IMBREX_OK;
    imbrex_status status = cuda_blas_open(&s->cublas);
    if (status == IMBREX_OK)
        status = imbrex_mem_alloc(s->alone, CUDA_BLAS_WORKSPACE_BYTES, &s->workspace);
    if (status == IMBREX_OK || q->peer == BENCH_PEER_CUBLAS)
        return status;
    const char *why = failure_text(status);
    if (s->bar)
        text_say(stderr, "imbrex bench: products are compared with our own: %s\n", why);
    return IMBREX_OK;
}

static imbrex_status equip(rank_state *s)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    bench_setting *setting = &s->setting;
    imbrex_group_desc desc = { .device = s->request->device };
    TRY(imbrex_group_create(&desc, &setting->group));
    setting->bar = imbrex_group_rank(setting->group) == 0 ? &s->bar : NULL;
    desc = (imbrex_group_desc){ .bootstrap = &one, .device = imbrex_group_device(setting->group) };
    TRY(imbrex_group_create(&desc, &setting->alone));
    TRY(share_open(setting->group, sizeof(double), &setting->share));
    TRY(measure_clock(setting->group, s->request->graph, &setting->timer));
    s->shapes = s->request->shapes[setting->timer != NULL];
    if (setting->timer)
        return equip_gpu(setting);
    if (s->request->peer == BENCH_PEER_CUBLAS)
        return failure_note(IMBREX_UNSUPPORTED, "--peer cublas needs device cuda, not %s",
                            imbrex_group_device(setting->group));
    return IMBREX_OK;
}

static imbrex_status time_shape(rank_state *s, const bench_shape *shape, bench_result *result)
{
    const bench_request *q = s->request;
    bench_setting *setting = &s->setting;
    if (q->tune)
        TRY(tune(setting->group, shape, setting->bar, !q->json));
    progress_begin(setting->bar, "bench", q->warm + q->rounds);
    imbrex_status status = time_case(setting, shape, result, &s->left_out);
    progress_end(setting->bar);
    return status;
}

/* Collective.  What stands stays, if a later shape ends the run.  lost: rank 0 could not print it,
 * and will say so as it ends. */
static imbrex_status report(rank_state *s, const bench_result *result, bool *lost)
{
    double losses = 0;
    if (s->setting.bar) {
        (s->request->json ? bench_report_json : bench_report_table)(result);
        losses = !cli_flush();
    }
    TRY(share_max(&s->setting.share, losses, &losses));
    *lost = losses > 0;
    return IMBREX_OK;
}

/* One shape that cannot be timed does not keep the others from it, as long as the group works. */
static imbrex_status work(rank_state *s)
{
    const bench_request *q = s->request;
    TRY(equip(s));
    bool lost = false;
    for (int i = 0; i < q->count && !lost; i++) {
        const bench_shape given =
            bench_op_shape(&s->shapes[i], imbrex_group_size(s->setting.group));
        const bench_shape *shape = &given;
        bench_result result;
        imbrex_status status = time_shape(s, shape, &result);
        bool harmless = status == IMBREX_INVALID || status == IMBREX_UNSUPPORTED;
        if (status != IMBREX_OK && (!harmless || q->count == 1))
            return status;
        if (status != IMBREX_OK) {
            const char *why = failure_text(status);
            s->left_out++;
            s->shapes_out++;
            s->last = status;
            if (s->setting.bar)
                text_say(stderr, "imbrex bench: %s m=%lld n=%lld k=%lld is left out: %s\n",
                         shape->op->name, (long long)shape->m, (long long)shape->n,
                         (long long)shape->k, why);
        } else {
            TRY(report(s, &result, &lost));
            if (!lost && q->timeline)
                TRY(bench_trace(&s->setting, shape));
        }
    }
    return IMBREX_OK;
}

int bench_rank(const bench_request *request)
{
    rank_state s = { .request = request, .setting.request = request };
    bench_setting *setting = &s.setting;
    imbrex_status status = work(&s);
    if (status != IMBREX_OK)
        failure_say("bench", setting->group, status);
    cuda_blas_close(setting->cublas);
    if (setting->workspace)
        imbrex_mem_free(setting->alone, setting->workspace);
    share_close(&setting->share);
    imbrex_group_destroy(setting->alone);
    imbrex_group_destroy(setting->group);
    cuda_timer_close(setting->timer);
    bool speaks = setting->bar != NULL; /* one rank says that something was left out */
    if (status != IMBREX_OK || !speaks || !s.left_out)
        return cli_exit_code(status);
    return s.shapes_out < request->count ? CLI_FAILED : cli_exit_code(s.last);
}
