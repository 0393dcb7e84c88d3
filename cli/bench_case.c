/* bench_case.c - plans, operands and graphs of one shape. */
#include "bench_case.h"

#include <math.h>
#include <stdlib.h>

#include "bench_blas.h"
#include "bench_call.h"
#include "cli.h"
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

/* ---- The candidates -------------------------------------------------------------------------- */

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
    imbrex_status status = whole ? bench_op_product(setting->alone, s->shape, plan)
                                 : bench_op_plan(setting->group, s->shape, algorithm, plan);
    *ms = (now_us() - begin) * 1e-3;
    return status;
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
    imbrex_plan_describe(call->plan, figure->plan, sizeof figure->plan);
    add(s, name, bench_call_run, call, whole ? s->setting->alone : s->setting->group);
    return IMBREX_OK;
}

static imbrex_status add_yardstick(case_state *s)
{
    bench_setting *setting = s->setting;
    bench_result *r = s->result;
    TRY(add_plan(s, "products", NULL, true));
    if (setting->workspace) {
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

/* ---- Timing ---------------------------------------------------------------------------------- */

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
            imbrex_plan_describe(s->calls[i].plan, figure->plan, sizeof figure->plan);
    }
    s->result->count = s->count;
    return IMBREX_OK;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static imbrex_status work(case_state *s)
{
    if (!s->shape->op->meets)
        TRY(bench_data_open(s->setting->group, s->shape, &s->data));
    s->result->sets = s->data.count;
    TRY(add_all(s));
    TRY(share_barrier(s->setting->group));
    TRY(time_all(s));
    return share_barrier(s->setting->group); /* before the memory goes */
}

imbrex_status bench_case(bench_setting *setting, const bench_shape *shape, bench_result *result,
                         int *left_out)
{
    case_state s = { .setting = setting, .shape = shape, .result = result };
    *result = (bench_result){
        .request = setting->request,
        .shape = shape,
        .ranks = imbrex_group_size(setting->group),
        .device = imbrex_group_device(setting->group),
        .device_clock = setting->timer != NULL,
    };
    imbrex_status status = work(&s);
    for (int i = 0; i < BENCH_CANDIDATES; i++) {
        cuda_graph_destroy(s.graphs[i]);
        bench_call_close(&s.calls[i]);
    }
    bench_cublas_close(&s.cublas);
    bench_data_close(&s.data);
    *left_out += s.left_out;
    return status;
}
