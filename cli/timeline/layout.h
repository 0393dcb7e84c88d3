/* layout.h - where everything of a timeline lies, in pixels; shared by its writers.
 *
 *     title, lines, legend                                 header: only .svg, a page has its own
 *     panel   overlapped                          34.2 ms
 *             rank 0 | compute  ====kernel=====            band: a rank
 *                    |          [tile][tile]///[tile]      row: a stream, or a lane of one
 *                    | copies   --copy-- --copy--          bar: a span, or several too short
 *             rank 1 | ...
 *             0     5     10    15    20    25 ms
 */
#ifndef CLI_LAYOUT_H
#define CLI_LAYOUT_H

#include <stdint.h>
#include <stdio.h>

#include "timeline.h"

enum {
    LAYOUT_WIDTH = 1200,
    LAYOUT_LEFT = 178,   /* of the time axis */
    LAYOUT_PLOT = 1006,  /* length of the time axis */
    LAYOUT_HEAD = 40,    /* of a panel, its heading */
    LAYOUT_BAND_GAP = 6, /* between bands */
    LAYOUT_PAD = 5,      /* inside a band, above and below its rows */
    LAYOUT_AXIS = 40,    /* of a panel, its axis and what separates it from the next */
    LAYOUT_NAMES = 6     /* kernels that have a colour of their own; others share the last */
};

typedef struct layout_row {
    int stream, lane;
    unsigned has;     /* what is on it; bits of layout.c's own */
    double y, height; /* from the band's top */
} layout_row;

typedef struct layout_bar {
    const imbrex_span *span; /* the first one */
    int64_t end_ns;          /* of the last one */
    int64_t bytes;           /* of all */
    size_t spans;            /* 1, unless merged */
    int rank, row;           /* numbers within the panel */
} layout_bar;

typedef struct layout_panel {
    const timeline_panel *panel;
    int64_t begin_ns, end_ns;
    layout_row *rows; /* the same for every rank */
    int row_count;
    double y, band_height, height;
    layout_bar *bars; /* by rank, row and begin; waits, which lie beneath, not apart */
    size_t bar_count;
    double hidden; /* share of copying to peers that lies beneath computation; -1: no copies */
    double
        waiting; /* share of all ranks' time in which one waits, and computes and copies nothing */
} layout_panel;

typedef struct layout {
    const timeline *timeline;
    layout_panel *panels;
    double duration_ns; /* of the longest panel: the time axis */
    double height;      /* of all panels */
    char names[LAYOUT_NAMES][sizeof((imbrex_span *)0)->name + 1]; /* kernels, as they appear */
    int name_count;
    bool has[IMBREX_SPAN_TILE + 1]; /* kinds of spans */
    bool has_own;                   /* copies within a rank */
    bool has_network;               /* to another node */
} layout;

/* NULL if out of memory.  merge: make one bar of neighbours that a picture cannot tell apart. */
layout *layout_create(const timeline *t, bool merge);
void layout_destroy(layout *l); /* NULL is fine */

double layout_x(const layout *l, const layout_panel *p, int64_t ns); /* from the axis' left end */
double layout_band_y(const layout_panel *p, int rank);

/* Distance of ticks, in ms: 1, 2 or 5 times a power of ten, at most ten of them. */
double layout_tick_ms(const layout *l);

/* The span's peer is its own rank, or nobody. */
bool layout_is_own(const imbrex_span *span, int rank);

/* Number of a kernel's colour. */
int layout_name(const layout *l, const imbrex_span *span);

/* The engine's between nodes. */
bool layout_is_network(const imbrex_span *span);

/* "compute", "compute, block 3"; of a stream that has no name, what is on it. */
void layout_row_label(const timeline *t, const layout_row *row, char *label, size_t size);

/* What a pointer on the bar shows: one line. */
void layout_bar_title(const layout_panel *p, const layout_bar *bar, char *title, size_t size);

/* ---- Writers: false if out of memory; a file that cannot be written keeps its error ---------- */

typedef bool timeline_writer(const timeline *t, FILE *file);

timeline_writer timeline_json, timeline_svg, timeline_html;

/* ---- svg.c, for the page too -------------------------------------------------------- */

typedef enum svg_use {
    SVG_ALONE, /* with header and legend; only what can be seen at this size */
    SVG_INLINE /* panels, with all labels, for the page's script to choose from */
} svg_use;

/* A kind of bar: its class in the style and what the legend says. */
typedef struct svg_kind {
    char class[4];
    char text[40];
} svg_kind;

enum { SVG_KINDS = 6 + LAYOUT_NAMES + 1 };

void svg_panels(const layout *l, FILE *file, svg_use use);
void svg_style(FILE *file);
int svg_legend(const layout *l, svg_kind kinds[SVG_KINDS]); /* what this timeline has of them */

extern const char timeline_reading[]; /* how to read the picture, in a sentence */

/* "what: value" as its two parts; false if the line is no figure.  *length is that of what. */
bool timeline_figure(const char *line, int *length, const char **value);

#endif /* CLI_LAYOUT_H */
