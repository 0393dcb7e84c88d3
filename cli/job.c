/* job.c - times, compares, writes and traces what ranks make of a layer. */
#include "job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "checkpoint.h"
#include "cli.h"
#include "text.h"
#include "timeline.h"

/* ---- Figures --------------------------------------------------------------------------------- */

imbrex_status job_prepare_gpu(cuda_timer *timer, share *s, candidate *candidates, int count,
                              int like, bool graph, cuda_graph **graphs)
{
    int inner;
    TRY(measure_by(timer, s, candidates, count, 1, 1, NULL));
    TRY(measure_inner(timer, s, &candidates[like], &inner));
    TRY(share_barrier(s->group));
    for (int i = 0; i < count; i++) {
        if (graph)
            TRY(measure_capture(timer, &candidates[i], 1, &graphs[i]));
        candidates[i].inner = inner;
    }
    return IMBREX_OK;
}

void job_print_how(const char *compared, bool device_clock, bool graph)
{
    if (measure_wire() > 0)
        text_wrap(stdout, 2, "  The wire between ranks is emulated: %g GB/s (IMBREX_CPU_LINK).\n",
                  measure_wire());
    text_wrap(stdout, 2, "  Compared with %s, nothing sent.%s%s\n", compared,
              device_clock ? " By the GPU's clock" : "",
              !device_clock ? ""
              : graph       ? ", replays of a CUDA graph of each."
                            : ".");
}

/* ---- y --------------------------------------------------------------------------------------- */

imbrex_status job_compare(share *s, const void *y, size_t bytes, int *apart)
{
    const unsigned char *at = y;
    int ranks = imbrex_group_size(s->group);
    uint64_t sum = 14695981039346656037u, *sums = calloc((size_t)ranks, sizeof *sums);
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ at[i]) * 1099511628211u;
    imbrex_status status = sums ? share_all(s, &sum, sizeof sum, sums) : IMBREX_NO_MEMORY;
    *apart = 0;
    for (int r = 0; r < ranks && status == IMBREX_OK; r++)
        *apart = *apart || sums[r] != sum;
    free(sums);
    return status;
}

int job_write_y(const char *command, const char *path, imbrex_dtype dtype, int64_t rows,
                int64_t cols, const void *y, bool wrong)
{
    st_error error;
    const st_tensor tensor = {
        .name = "y",
        .dtype = st_dtype_of(dtype),
        .rank = 2,
        .shape = { rows, cols },
        .data = y,
    };
    if (wrong)
        text_say(stderr, "imbrex %s: y is wrong: nothing is written to '%s'\n", command, path);
    else if (!st_write(path, &tensor, 1, NULL, &error))
        text_say(stderr, "imbrex %s: %s\n", command, error.text);
    else
        return CLI_OK;
    return CLI_FAILED;
}

/* ---- The picture ----------------------------------------------------------------------------- */

enum { RUNS = 7 };

imbrex_status job_trace_begin(const job_traced *t)
{
    for (int i = 0; i < t->count; i++)
        TRY(imbrex_trace(t->groups[i], JOB_SPANS));
    return IMBREX_OK;
}

/* This rank's spans into own[JOB_SPANS]. */
static imbrex_status trace_once(const job_traced *t, imbrex_span *own, size_t *count, double *us)
{
    *count = 0;
    TRY(job_trace_begin(t));
    TRY(share_barrier(t->groups[0]));
    TRY(t->run(t->ctx));
    for (int i = 0; i < t->count; i++) {
        *count += imbrex_trace_spans(t->groups[i], own + *count, JOB_SPANS - *count);
        *count = *count < JOB_SPANS ? *count : JOB_SPANS;
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

imbrex_status job_trace(const job_traced *t, double median_us, spans *out)
{
    imbrex_span *kept = calloc(JOB_SPANS, sizeof *kept);
    imbrex_span *next = calloc(JOB_SPANS, sizeof *next);
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

bool job_draw(const spans *overlapped, const spans *sequential, int count, timeline picture,
              const char *path, char *error, size_t size)
{
    timeline_rank *ranks = calloc((size_t)count * 2, sizeof *ranks);
    if (!ranks) {
        snprintf(error, size, "out of memory");
        return false;
    }
    spans_ranks(overlapped, count, ranks);
    spans_ranks(sequential, count, ranks + count);
    const timeline_panel panels[] = {
        { "overlapped", ranks, count },
        { "sequential", ranks + count, count },
    };
    picture.panels = panels;
    picture.panel_count = 2;
    bool written = timeline_write(&picture, path, error, size);
    free(ranks);
    return written;
}
