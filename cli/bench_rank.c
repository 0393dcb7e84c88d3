/* bench_rank.c - one rank: make the candidates, time them in turn, report. */
#include "bench_rank.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench_blas.h"
#include "bench_call.h"
#include "bench_report.h"
#include "cli.h"
#include "measure.h"

#define TRY(call)                          \
    do {                                   \
        imbrex_status try_status = (call); \
        if (try_status != IMBREX_OK)       \
            return try_status;             \
    } while (0)

/* A round of very short calls has several of them, so that it lasts about so long. */
enum { ROUND_US = 1000, MOST_INNER = 16, CANDIDATES = BENCH_ALGORITHMS + 3 };

typedef struct rank_state {
    const bench_request *request;
    imbrex_group *group, *alone; /* alone: this rank by itself */
    share share;
    bench_data data;
    bench_blas blas;
    bench_call calls[CANDIDATES]; /* candidate i's; without a plan for blas */
    candidate candidates[CANDIDATES];
    int count;
    bench_result result;
    progress bar, *shown; /* shown: &bar on rank 0, else NULL */
} rank_state;

/* ---- The candidates -------------------------------------------------------------------------- */

static void add_blas(rank_state *s)
{
    const bench_shape *shape = &s->request->shape;
    s->blas = (bench_blas){ &s->data, shape, bench_blas_threads(shape), 0 };
    s->result.figures[s->count].name = "blas";
    s->candidates[s->count++] = (candidate){
        .name = "blas", .enqueue = bench_blas_run, .ctx = &s->blas, .group = s->alone
    };
}

static imbrex_status add_plan(rank_state *s, const char *name, const char *algorithm, bool whole)
{
    const bench_shape *shape = &s->request->shape;
    imbrex_group *group = whole ? s->alone : s->group;
    bench_call *call = &s->calls[s->count];
    bench_figure *figure = &s->result.figures[s->count];
    *call = (bench_call){ .data = &s->data, .shape = shape, .whole = whole };
    TRY(whole ? bench_op_product(group, shape, &call->plan)
              : bench_op_plan(group, shape, algorithm, &call->plan));
    figure->name = name;
    imbrex_plan_describe(call->plan, figure->plan, sizeof figure->plan);
    s->candidates[s->count++] =
        (candidate){ .name = name, .enqueue = bench_call_run, .ctx = call, .group = group };
    return IMBREX_OK;
}

static imbrex_status add_all(rank_state *s)
{
    const bench_request *q = s->request;
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &one, .device = imbrex_group_device(s->group) };
    TRY(imbrex_group_create(&desc, &s->alone));
    s->result.base = &s->result.figures[0];
    if (q->shape.op->product)
        TRY(add_plan(s, "products", NULL, true));
    if (q->shape.op->product && bench_blas_can(&q->shape, s->calls[0].plan)) {
        s->result.base = &s->result.figures[s->count];
        add_blas(s);
    }
    TRY(add_plan(s, "sequential", "sequential", false));
    for (int i = 0; i < q->algorithm_count; i++) {
        const char *algorithm = q->algorithms[i];
        TRY(add_plan(s, algorithm ? algorithm : "chosen", algorithm, false));
    }
    return IMBREX_OK;
}

/* ---- Timing ---------------------------------------------------------------------------------- */

/* Calls in a round, the same on all ranks and for all candidates. */
static imbrex_status choose_inner(rank_state *s)
{
    candidate *last = &s->candidates[s->count - 1];
    last->inner = 1;
    TRY(measure(&s->share, last, 1, 1, 3, NULL));
    double inner = last->us > 0 ? ROUND_US / last->us : MOST_INNER;
    s->result.inner = inner < 1 ? 1 : inner > MOST_INNER ? MOST_INNER : (int)inner;
    return IMBREX_OK;
}

static imbrex_status time_all(rank_state *s)
{
    int warm = (int)s->request->warm, rounds = (int)s->request->rounds;
    TRY(choose_inner(s));
    for (int i = 0; i < s->count; i++) {
        s->candidates[i].inner = s->result.inner;
        if (s->calls[i].plan && !bench_call_note(&s->calls[i], s->result.inner, warm + rounds))
            return IMBREX_NO_MEMORY;
    }
    TRY(measure(&s->share, s->candidates, s->count, warm, rounds, s->shown));
    for (int i = 0; i < s->count; i++) {
        bench_figure *figure = &s->result.figures[i];
        figure->us = s->candidates[i].us;
        figure->host_us = (double)NAN;
        if (s->calls[i].plan)
            TRY(share_max(&s->share, bench_call_host_us(&s->calls[i], warm, rounds),
                          &figure->host_us));
    }
    s->result.count = s->count;
    return IMBREX_OK;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static imbrex_status work(rank_state *s)
{
    const bench_request *q = s->request;
    imbrex_group_desc desc = { .device = q->device };
    TRY(imbrex_group_create(&desc, &s->group));
    s->shown = imbrex_group_rank(s->group) == 0 ? &s->bar : NULL;
    progress_begin(s->shown, "bench", q->warm + q->rounds);
    TRY(share_open(s->group, sizeof(double), &s->share));
    TRY(bench_data_open(s->group, &q->shape, &s->data));
    TRY(add_all(s));
    TRY(share_barrier(s->group));
    s->result.request = q;
    s->result.ranks = imbrex_group_size(s->group);
    s->result.sets = s->data.count;
    return time_all(s);
}

int bench_rank(const bench_request *request)
{
    rank_state s = { .request = request };
    imbrex_status status = work(&s);
    progress_end(s.shown);
    if (status != IMBREX_OK)
        fprintf(stderr, "imbrex bench: %s\n",
                status == IMBREX_NO_MEMORY ? "out of memory" : imbrex_error());
    else if (s.shown)
        (request->json ? bench_report_json : bench_report_table)(&s.result);
    for (int i = 0; i < CANDIDATES; i++)
        bench_call_close(&s.calls[i]);
    bench_data_close(&s.data);
    share_close(&s.share);
    imbrex_group_destroy(s.alone);
    imbrex_group_destroy(s.group);
    return status == IMBREX_OK ? CLI_OK : CLI_FAILED;
}
