/* timeline.h - writes what the streams of all ranks did as a file for people: a picture, a page, or
 * a trace for Perfetto and chrome://tracing. */
#ifndef CLI_TIMELINE_H
#define CLI_TIMELINE_H

#include <stdbool.h>
#include <stddef.h>

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

#endif /* CLI_TIMELINE_H */
