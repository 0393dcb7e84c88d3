/* job.h - what `imbrex mlp` and `imbrex decode` do alike: versions of a layer are timed and traced
 * on ranks, and y, what comes of it, is compared and written. */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include <stdbool.h>

#include "measure.h"
#include "share.h"

/* ---- Figures --------------------------------------------------------------------------------- */

/* Collective.  Calls of candidates[count] follow each other on a GPU, as many in a round as those
 * of candidates[like] need; with `graph` they are replays from here on, of graphs[count]. */
IMBREX_TRY job_prepare_gpu(cuda_timer *timer, share *s, candidate *candidates, int count, int like,
                           bool graph, cuda_graph **graphs);

/* For people, above the figures: with what they are compared, and by which clock. */
void job_print_how(const char *compared, bool device_clock, bool graph);

/* ---- y --------------------------------------------------------------------------------------- */

/* Collective, blocks: whether ranks have different bytes, 1 or 0.  Each is told all ranks' sums of
 * theirs. */
IMBREX_TRY job_compare(share *s, const void *y, size_t bytes, int *apart);

/* Rank 0: writes y[rows, cols] to path, as safetensors, unless it is wrong; the exit code. */
int job_write_y(const char *command, const char *path, imbrex_dtype dtype, int64_t rows,
                int64_t cols, const void *y, bool wrong);

/* ---- The picture: a few runs are traced, one of them is kept --------------------------------- */

enum { JOB_GROUPS = 2, JOB_SPANS = 20000 }; /* SPANS: of a rank */

/* What is traced: the groups that its calls are made of, the one that all ranks are in first, and
 * one run, which returns when it is over. */
typedef struct job_traced {
    imbrex_group *groups[JOB_GROUPS];
    int count;
    share *share;
    imbrex_status (*run)(void *ctx);
    void *ctx;
} job_traced;

/* Starts to trace; what is made from here on is compiled to tell. */
IMBREX_TRY job_trace_begin(const job_traced *t);

/* Collective, blocks: traces a few runs and keeps the one that took most nearly the median time, so
 * that the picture shows what the figures say and not an accident.  *out: all ranks' spans. */
IMBREX_TRY job_trace(const job_traced *t, double median_us, spans *out);

/* picture: without panels.  They become an overlapped run and the same one in sequence, and it is
 * written, as timeline_write does. */
bool job_draw(const spans *overlapped, const spans *sequential, int ranks, timeline picture,
              const char *path, char *error, size_t size);

#endif /* CLI_JOB_H */
