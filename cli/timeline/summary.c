/* summary.c - adds up a kernel's spans, lane by lane. */
#include "timeline.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "text.h"

typedef struct lane {
    int64_t wait, product, fold; /* ns, in all */
    int64_t waited, folded;      /* up to when waits and folds are counted */
    int64_t done;                /* end of its last product; 0: it has none */
} lane;

static bool within(const imbrex_span *span, const imbrex_span *kernel)
{
    return span->stream == kernel->stream && span->begin_ns >= kernel->begin_ns &&
           span->begin_ns <= kernel->end_ns;
}

bool timeline_summary_kernel(const imbrex_span *span)
{
    return span->kind == IMBREX_SPAN_KERNEL && span->lane == 0 && span->end_ns > span->begin_ns;
}

bool timeline_summary_has_tiles(const timeline_rank *rank, const imbrex_span *kernel)
{
    for (size_t i = 0; i < rank->count; i++)
        if (rank->spans[i].kind == IMBREX_SPAN_TILE && within(&rank->spans[i], kernel))
            return true;
    return false;
}

/* NULL if there is none. */
static const imbrex_span *last_product(const timeline_rank *rank)
{
    const imbrex_span *last = NULL;
    for (size_t i = 0; i < rank->count; i++) {
        const imbrex_span *span = &rank->spans[i];
        if (timeline_summary_kernel(span) && (!last || span->begin_ns > last->begin_ns) &&
            timeline_summary_has_tiles(rank, span))
            last = span;
    }
    return last;
}

static int by_begin(const void *a, const void *b)
{
    const imbrex_span *x = *(const imbrex_span *const *)a, *y = *(const imbrex_span *const *)b;
    return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

static double us(int64_t ns)
{
    return (double)ns / 1e3;
}

/* Some warps of a block wait, or fold, at once: what they share counts once.  Spans come in order;
 * `until`: up to when they are counted. */
static void add_span(const imbrex_span *span, int64_t *sum, int64_t *until)
{
    int64_t begin = span->begin_ns > *until ? span->begin_ns : *until;
    if (span->end_ns <= begin)
        return;
    *sum += span->end_ns - begin;
    *until = span->end_ns;
}

/* spans: by begin. */
static void add_lanes(const timeline_rank *rank, const imbrex_span *const *spans,
                      const imbrex_span *kernel, lane *lanes, timeline_summary *out)
{
    for (size_t i = 0; i < rank->count; i++) {
        const imbrex_span *span = spans[i];
        double begin = us(span->begin_ns - kernel->begin_ns);
        double end = us(span->end_ns - kernel->begin_ns);
        if (span->kind == IMBREX_SPAN_COPY && span->lane <= 0 && span->peer != rank->rank) {
            out->sent_first = fmin(out->sent_first, begin);
            out->sent_last = fmax(out->sent_last, end);
        }
        if (span->lane < 1 || !within(span, kernel))
            continue;
        lane *l = &lanes[span->lane - 1];
        if (span->kind == IMBREX_SPAN_WAIT)
            add_span(span, &l->wait, &l->waited);
        if (span->kind == IMBREX_SPAN_COPY)
            add_span(span, &l->fold, &l->folded);
        if (span->kind != IMBREX_SPAN_TILE)
            continue;
        l->product += span->end_ns - span->begin_ns;
        l->done = span->end_ns > l->done ? span->end_ns : l->done;
        out->first_product = fmin(out->first_product, begin);
    }
}

static void sum_up(const imbrex_span *kernel, const lane *lanes, int count, timeline_summary *out)
{
    int64_t first = INT64_MAX, last = 0, waits = 0, most = 0, products = 0, folds = 0;
    for (int i = 0; i < count; i++) {
        const lane *l = &lanes[i];
        out->lanes += l->done > 0;
        first = l->done && l->done < first ? l->done : first;
        last = l->done > last ? l->done : last;
        waits += l->wait;
        most = l->wait > most ? l->wait : most;
        products += l->product;
        folds += l->fold;
    }
    out->wait_mean = us(waits) / out->lanes;
    out->wait_most = us(most);
    out->stores = us(folds) / out->lanes;
    out->products = us(products) / out->lanes / out->kernel;
    out->tail = us(last - first);
    out->after = us(kernel->end_ns - last);
}

bool timeline_summarise(const timeline_rank *rank, timeline_summary *out)
{
    const imbrex_span *kernel = last_product(rank);
    int most = 0;
    if (!kernel)
        return false;
    for (size_t i = 0; i < rank->count; i++)
        most = rank->spans[i].lane > most ? rank->spans[i].lane : most;
    lane *lanes = calloc((size_t)most, sizeof *lanes);
    const imbrex_span **spans = calloc(rank->count, sizeof *spans);
    if (!lanes || !spans) {
        free(lanes);
        free(spans);
        return false;
    }
    for (size_t i = 0; i < rank->count; i++)
        spans[i] = &rank->spans[i];
    qsort(spans, rank->count, sizeof *spans, by_begin);
    *out = (timeline_summary){
        .begin_ns = kernel->begin_ns,
        .kernel = us(kernel->end_ns - kernel->begin_ns),
        .first_product = (double)INFINITY,
        .sent_first = (double)INFINITY,
        .sent_last = (double)-INFINITY,
    };
    add_lanes(rank, spans, kernel, lanes, out);
    sum_up(kernel, lanes, most, out);
    free(lanes);
    free(spans);
    return true;
}

/* ---- As a table: a column a rank ------------------------------------------------------------- */

enum { LABEL = 44, COLUMN = 10 };

/* So that each row is words and one figure of every rank. */
static const struct {
    const char *label;
    size_t at; /* in timeline_summary */
    double factor;
} rows[] = {
    { "the kernel takes", offsetof(timeline_summary, kernel), 1 },
    { "its first product begins, in the kernel", offsetof(timeline_summary, first_product), 1 },
    { "waits of a block, mean", offsetof(timeline_summary, wait_mean), 1 },
    { "waits of the block that waits most", offsetof(timeline_summary, wait_most), 1 },
    { "stores and folds of a block, mean", offsetof(timeline_summary, stores), 1 },
    { "products, % of all blocks' time", offsetof(timeline_summary, products), 100 },
    { "first block's last product to the last's", offsetof(timeline_summary, tail), 1 },
    { "last product to the kernel's end", offsetof(timeline_summary, after), 1 },
    { "sends to peers begin, in the kernel", offsetof(timeline_summary, sent_first), 1 },
    { "sends to peers end, in the kernel", offsetof(timeline_summary, sent_last), 1 },
};

typedef struct column {
    int rank;
    bool there;
    timeline_summary s;
} column;

static void print_label(FILE *file, const char *label)
{
    fprintf(file, "  %-*s", LABEL - 2, label);
}

static double value_of(const column *c, size_t at)
{
    return *(const double *)(const void *)((const char *)&c->s + at);
}

static void print_columns(FILE *file, const column *columns, int count, int64_t begin_ns)
{
    print_label(file, "");
    for (int i = 0; i < count; i++) {
        char name[24];
        snprintf(name, sizeof name, "rank %d", columns[i].rank);
        fprintf(file, "%*s", COLUMN, name);
    }
    fputc('\n', file);
    print_label(file, "blocks (SMs, or threads of a CPU)");
    for (int i = 0; i < count; i++)
        if (columns[i].there)
            fprintf(file, "%*d", COLUMN, columns[i].s.lanes);
        else
            fprintf(file, "%*s", COLUMN, "no tiles");
    fputc('\n', file);
    print_label(file, "the kernel begins, after the first rank's");
    for (int i = 0; i < count; i++)
        if (columns[i].there)
            fprintf(file, "%*.1f", COLUMN, us(columns[i].s.begin_ns - begin_ns));
        else
            fprintf(file, "%*s", COLUMN, "-");
    fputc('\n', file);
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        bool any = false; /* a GPU's copies are not traced */
        for (int i = 0; i < count; i++)
            any = any || (columns[i].there && isfinite(value_of(&columns[i], rows[k].at)));
        if (!any)
            continue;
        print_label(file, rows[k].label);
        for (int i = 0; i < count; i++) {
            double value = value_of(&columns[i], rows[k].at);
            if (columns[i].there && isfinite(value))
                fprintf(file, "%*.1f", COLUMN, value * rows[k].factor);
            else
                fprintf(file, "%*s", COLUMN, "-");
        }
        fputc('\n', file);
    }
}

void timeline_summary_print(const timeline_panel *panel, FILE *file)
{
    int64_t begin_ns = INT64_MAX;
    column columns[(TEXT_WIDTH - LABEL) / COLUMN];
    int across = (text_width(file) - LABEL) / COLUMN;
    timeline_summary s;
    for (int r = 0; r < panel->rank_count; r++)
        if (timeline_summarise(&panel->ranks[r], &s) && s.begin_ns < begin_ns)
            begin_ns = s.begin_ns;
    if (begin_ns == INT64_MAX) {
        fprintf(file, "%s: no tiles were traced\n\n", panel->name);
        return;
    }
    text_wrap(file, 2, "%s: one call, in us; blocks are those of its last product\n", panel->name);
    across = across < 1 ? 1 : across;
    for (int r = 0; r < panel->rank_count; r += across) {
        int count = panel->rank_count - r < across ? panel->rank_count - r : across;
        for (int i = 0; i < count; i++) {
            columns[i] = (column){ .rank = panel->ranks[r + i].rank };
            columns[i].there = timeline_summarise(&panel->ranks[r + i], &columns[i].s);
        }
        print_columns(file, columns, count, begin_ns);
        fputc('\n', file);
    }
}
