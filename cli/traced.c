/* traced.c - as the header says. */
#include "traced.h"

#include <math.h>
#include <stdlib.h>

#include "cli.h"

enum { RUNS = 7 };

imbrex_status traced_begin(const traced *t)
{
    for (int i = 0; i < t->count; i++)
        TRY(imbrex_trace(t->groups[i], TRACED_SPANS));
    return IMBREX_OK;
}

/* This rank's spans into own[TRACED_SPANS]. */
static imbrex_status trace_once(const traced *t, imbrex_span *own, size_t *count, double *us)
{
    *count = 0;
    TRY(traced_begin(t));
    TRY(share_barrier(t->groups[0]));
    TRY(t->run(t->ctx));
    for (int i = 0; i < t->count; i++) {
        *count += imbrex_trace_spans(t->groups[i], own + *count, TRACED_SPANS - *count);
        *count = *count < TRACED_SPANS ? *count : TRACED_SPANS;
    }
    for (int i = 0; i < t->count; i++)
        TRY(imbrex_trace(t->groups[i], 0));
    int64_t begin = INT64_MAX, end = 0;
    for (size_t i = 0; i < *count; i++) {
        begin = own[i].begin_ns < begin ? own[i].begin_ns : begin;
        end = own[i].end_ns > end ? own[i].end_ns : end;
    }
    return share_max(t->share, *count ? (double)(end - begin) / 1000 : 0, us);
}

imbrex_status traced_take(const traced *t, double median_us, spans *out)
{
    imbrex_span *kept = calloc(TRACED_SPANS, sizeof *kept);
    imbrex_span *next = calloc(TRACED_SPANS, sizeof *next);
    imbrex_status status = kept && next ? IMBREX_OK : IMBREX_NO_MEMORY;
    size_t count = 0;
    double best = INFINITY;
    for (int i = 0; i < RUNS && status == IMBREX_OK; i++) {
        size_t found;
        double us;
        status = trace_once(t, next, &found, &us);
        if (status == IMBREX_OK && fabs(us - median_us) < best) {
            best = fabs(us - median_us);
            imbrex_span *spare = kept;
            kept = next;
            next = spare;
            count = found;
        }
    }
    if (status == IMBREX_OK)
        status = spans_share(t->groups[0], kept, count, out);
    free(kept);
    free(next);
    return status;
}
