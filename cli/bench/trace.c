/* trace.c - traces a few calls in a row, as they are timed, and shows the last. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "matrix.h"
#include "share.h"
#include "timeline.h"

enum { SPANS = 100000, WARM = 3, CALLS = 3 };
enum { PANELS = BENCH_ALGORITHMS + 1 }; /* and sequential */

typedef struct picture {
    bench_setting *setting;
    const bench_shape *shape;
    bench_data data;
    imbrex_span *own; /* [SPANS] */
    int count;        /* of panels */
    char names[PANELS][64];
    spans all[PANELS];
} picture;

static int by_end(const void *a, const void *b)
{
    const imbrex_span *x = a, *y = b;
    return (x->end_ns > y->end_ns) - (x->end_ns < y->end_ns);
}

/* Keeps the last of CALLS calls: what ends after the kernels of the others.  Returns how many. */
static size_t keep_last(imbrex_span *list, size_t count)
{
    size_t kernels = 0, seen = 0, kept = 0;
    int64_t cut_ns = INT64_MIN;
    qsort(list, count, sizeof *list, by_end);
    for (size_t i = 0; i < count; i++)
        kernels += timeline_summary_kernel(&list[i]);
    size_t others = kernels - kernels / CALLS;
    for (size_t i = 0; i < count && seen < others; i++) {
        if (timeline_summary_kernel(&list[i]) && ++seen == others)
            cut_ns = list[i].end_ns;
    }
    for (size_t i = 0; i < count; i++) {
        if (list[i].end_ns <= cut_ns)
            continue;
        list[kept] = list[i];
        if (list[kept].begin_ns < cut_ns)
            list[kept].begin_ns = cut_ns;
        kept++;
    }
    return kept;
}

static imbrex_status run_some(bench_call *call, int times)
{
    TRY(share_barrier(call->data->group));
    for (int i = 0; i < times; i++)
        TRY(bench_call_run(call));
    return imbrex_stream_sync(call->data->group, NULL);
}

/* "chosen (copy)". */
static void name_panel(const char *algorithm, const imbrex_plan *plan, char *name, size_t size)
{
    if (algorithm)
        snprintf(name, size, "%s", algorithm);
    else
        snprintf(name, size, "chosen (%s)", bench_plan_facts(plan).algorithm);
}

/* The plan is made while tracing is on: a GPU's kernels are then compiled to tell. */
static imbrex_status trace_one(picture *p, const char *algorithm, spans *out, char *name,
                               size_t size)
{
    imbrex_group *group = p->setting->group;
    bench_call call = { .data = &p->data, .shape = p->shape };
    TRY(imbrex_trace(group, SPANS));
    TRY(bench_op_plan(group, p->shape, algorithm, &call.plan));
    size_t count = 0;
    imbrex_status status = run_some(&call, WARM);
    name_panel(algorithm, call.plan, name, size);
    if (status == IMBREX_OK)
        status = imbrex_trace(group, SPANS); /* forgets those */
    if (status == IMBREX_OK)
        status = run_some(&call, CALLS);
    if (status == IMBREX_OK) {
        count = imbrex_trace_spans(group, p->own, SPANS);
        status = imbrex_trace(group, 0);
    }
    bench_call_close(&call);
    TRY(status);
    count = keep_last(p->own, count);
    return spans_share(group, p->own, count, out);
}

static bool draw(const picture *p, timeline_panel *panels, timeline_rank *ranks, char *error,
                 size_t size)
{
    const bench_setting *setting = p->setting;
    const bench_shape *s = p->shape;
    int count = imbrex_group_size(setting->group);
    char title[120], sizes[200], k[32] = "", wire[80];
    const char *const lines[] = { sizes, wire };
    static const char *const streams[] = { "compute", "copies" };
    if (s->op->product)
        snprintf(k, sizeof k, ", k %lld", (long long)s->k);
    snprintf(title, sizeof title, "What %d rank%s do in one call of %s", count,
             count == 1 ? "" : "s", s->op->name);
    snprintf(sizes, sizeof sizes, "m %lld, n %lld%s, %s, on %s", (long long)s->m, (long long)s->n,
             k, matrix_dtype_names[s->dtype], imbrex_group_device(setting->group));
    snprintf(wire, sizeof wire, "wire between ranks, emulated: %g GB/s", measure_wire());
    for (int i = 0; i < p->count; i++) {
        spans_ranks(&p->all[i], count, ranks + i * count);
        panels[i] = (timeline_panel){ p->names[i], ranks + i * count, count };
        timeline_summary_print(&panels[i], setting->request->json ? stderr : stdout);
    }
    const timeline t = {
        .title = title,
        .lines = lines,
        .line_count = measure_wire() > 0 ? 2 : 1,
        .streams = streams,
        .stream_count = 2,
        .panels = panels,
        .panel_count = p->count,
    };
    return timeline_write(&t, setting->request->timeline, error, size);
}

static imbrex_status show(const picture *p)
{
    size_t ranks = (size_t)imbrex_group_size(p->setting->group);
    timeline_panel *panels = calloc((size_t)p->count + 1, sizeof *panels);
    timeline_rank *room = calloc((size_t)p->count * ranks + 1, sizeof *room);
    char error[512] = "out of memory";
    bool written = panels && room && draw(p, panels, room, error, sizeof error);
    free(panels);
    free(room);
    return written ? IMBREX_OK : failure_note(IMBREX_SYSTEM, "%s", error);
}

static imbrex_status work(picture *p)
{
    const bench_request *q = p->setting->request;
    p->own = calloc(SPANS, sizeof *p->own);
    if (!p->own)
        return failure_note(IMBREX_NO_MEMORY, "out of memory");
    TRY(bench_data_open(p->setting->group, p->setting->alone, p->shape, &p->data));
    for (int i = 0; i <= q->algorithm_count; i++) {
        const char *algorithm = i < q->algorithm_count ? q->algorithms[i] : "sequential";
        char *name = p->names[p->count];
        imbrex_status status = trace_one(p, algorithm, &p->all[p->count], name, sizeof p->names[0]);
        if (status == IMBREX_OK) {
            p->count++;
            continue;
        }
        if (status != IMBREX_UNSUPPORTED && status != IMBREX_INVALID)
            return status; /* else it was left out of the figures too, and they said why */
        TRY(imbrex_trace(p->setting->group, 0));
    }
    bool speaks = imbrex_group_rank(p->setting->group) == 0;
    return speaks && p->count ? show(p) : IMBREX_OK;
}

imbrex_status bench_trace(bench_setting *setting, const bench_shape *shape)
{
    picture p = { .setting = setting, .shape = shape };
    imbrex_status status = work(&p);
    for (int i = 0; i < PANELS; i++)
        spans_free(&p.all[i]);
    bench_data_close(&p.data);
    free(p.own);
    return status;
}
