/* timeline.h - writes what the streams of all ranks did as a file for people: a picture, a page, or
 * a trace for Perfetto and chrome://tracing; and adds it up in figures. */
#ifndef CLI_TIMELINE_H
#define CLI_TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "imbrex.h"

typedef struct timeline_rank {
    int rank;
    const imbrex_span *spans; /* in any order */
    size_t count;
} timeline_rank;

/* One run of all ranks.  Its time begins with its first span. */
typedef struct timeline_panel {
    const char *name; /* "overlapped" */
    const timeline_rank *ranks;
    int rank_count;
} timeline_panel;

/* Panels are drawn one above the other on one time scale. */
typedef struct timeline {
    const char *title;
    const char *const *lines; /* below the title; "what: value" stands out as a figure */
    int line_count;
    const char *const *streams; /* names, by number of the stream; "stream N" for those beyond */
    int stream_count;
    const timeline_panel *panels;
    int panel_count; /* at least 1 */
} timeline;

/* The file's extension says what to write: .html, .svg or .json.  Both return true, or false with a
 * sentence in error[size].  The file appears whole or not at all. */
bool timeline_check(const char *path, char *error, size_t size); /* before long work */
bool timeline_write(const timeline *t, const char *path, char *error, size_t size);

/* ---- What a rank's product did with its time, in figures ------------------------------------- */

/* Of the last kernel that tells its tiles, in us.  A lane is a block: an SM, a thread. */
typedef struct timeline_summary {
    int lanes;
    int64_t begin_ns;
    double kernel;
    double first_product;         /* from the kernel's begin to the first product of all lanes */
    double wait_mean, wait_most;  /* of a lane: all its waits */
    double stores;                /* of a lane: folds of own rows, what follows the last product */
    double products;              /* share of the lanes' time that is products */
    double tail;                  /* from the first lane's last product to the last one's */
    double after;                 /* from the last product to the kernel's end */
    double sent_first, sent_last; /* copies to peers: first begin, last end, from its begin; NAN */
} timeline_summary;

/* Whether it is a whole kernel, and not what one of its lanes did. */
bool timeline_summary_kernel(const imbrex_span *span);

/* Whether it tells its tiles. */
bool timeline_summary_has_tiles(const timeline_rank *rank, const imbrex_span *kernel);

/* false: no such kernel, or out of memory. */
bool timeline_summarise(const timeline_rank *rank, timeline_summary *out);

/* A table, a column a rank. */
void timeline_summary_print(const timeline_panel *panel, FILE *file);

#endif /* CLI_TIMELINE_H */
