/* layout.c - sorts spans into bands and rows, and merges what is too small to see. */
#include "layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MERGE_ABOVE = 20000 }; /* spans of a panel */

/* layout_row.has */
enum { HAS_NETWORK = 1, HAS_COPY = 2, HAS_SUM = 4, HAS_OTHER = 8 };

static unsigned bit_of(const imbrex_span *span)
{
    if (span->kind == IMBREX_SPAN_WAIT)
        return 0;
    if (span->kind == IMBREX_SPAN_COPY)
        return layout_is_network(span) ? HAS_NETWORK : HAS_COPY;
    bool sums = span->kind == IMBREX_SPAN_KERNEL && strcmp(span->name, "reduce") == 0;
    return sums ? HAS_SUM : HAS_OTHER;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static int by_stream(const void *a, const void *b)
{
    const layout_row *x = a, *y = b;
    return x->stream != y->stream ? (x->stream > y->stream) - (x->stream < y->stream)
                                  : (x->lane > y->lane) - (x->lane < y->lane);
}

static int find_row(const layout_panel *p, const imbrex_span *span)
{
    layout_row key = { .stream = span->stream, .lane = span->lane };
    if (!p->rows)
        return -1;
    layout_row *row = bsearch(&key, p->rows, (size_t)p->row_count, sizeof key, by_stream);
    return row ? (int)(row - p->rows) : -1;
}

/* Keeps the rows sorted, so that find_row works at once. */
static bool add_row(layout_panel *p, const imbrex_span *span)
{
    int found = find_row(p, span);
    if (found >= 0) {
        p->rows[found].has |= bit_of(span);
        return true;
    }
    layout_row *more = realloc(p->rows, (size_t)(p->row_count + 1) * sizeof *more);
    if (!more)
        return false;
    p->rows = more;
    more[p->row_count++] =
        (layout_row){ .stream = span->stream, .lane = span->lane, .has = bit_of(span) };
    qsort(more, (size_t)p->row_count, sizeof *more, by_stream);
    return true;
}

/* A stream has one height; the lanes of its blocks get thinner the more they are. */
static void place_rows(layout_panel *p)
{
    double y = LAYOUT_PAD;
    for (int i = 0; i < p->row_count; i++) {
        layout_row *row = &p->rows[i];
        int lanes = 0;
        for (int j = 0; j < p->row_count; j++)
            lanes += p->rows[j].stream == row->stream && p->rows[j].lane > 0;
        row->height = row->lane <= 0 || lanes <= 2 ? 19
                      : lanes <= 8                 ? 11
                      : lanes <= 32                ? 6
                      : lanes <= 64                ? 3
                                                   : 2;
        row->y = y;
        y += row->height + (row->height > 10 ? 2 : row->height > 5 ? 1 : 0);
    }
    p->band_height = y - 2 + LAYOUT_PAD;
}

/* ---- Bars ------------------------------------------------------------------------------------ */

static int by_place(const void *a, const void *b)
{
    const layout_bar *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    if (x->span->begin_ns != y->span->begin_ns)
        return x->span->begin_ns < y->span->begin_ns ? -1 : 1;
    return (x->end_ns < y->end_ns) - (x->end_ns > y->end_ns);
}

/* Neighbours that say the same and are, with the gap between them, under half a pixel. */
static bool can_merge(const layout_bar *a, const layout_bar *b, double half_pixel_ns)
{
    return a->rank == b->rank && a->row == b->row && a->span->kind == b->span->kind &&
           a->span->peer == b->span->peer &&
           strncmp(a->span->name, b->span->name, sizeof a->span->name) == 0 &&
           (double)(b->end_ns - b->span->begin_ns) < half_pixel_ns &&
           (double)(b->span->begin_ns - a->end_ns) < half_pixel_ns;
}

static void merge_bars(layout_panel *p, double half_pixel_ns)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->bar_count; i++) {
        layout_bar *last = kept ? &p->bars[kept - 1] : NULL;
        const layout_bar *bar = &p->bars[i];
        if (!last || !can_merge(last, bar, half_pixel_ns)) {
            p->bars[kept++] = *bar;
            continue;
        }
        last->end_ns = bar->end_ns > last->end_ns ? bar->end_ns : last->end_ns;
        last->bytes += bar->bytes;
        last->spans++;
    }
    p->bar_count = kept;
}

static bool add_bars(layout_panel *p)
{
    size_t count = 0;
    for (int r = 0; r < p->panel->rank_count; r++)
        count += p->panel->ranks[r].count;
    p->bars = calloc(count + 1, sizeof *p->bars);
    if (!p->bars)
        return false;
    for (int r = 0; r < p->panel->rank_count; r++)
        for (size_t i = 0; i < p->panel->ranks[r].count; i++) {
            const imbrex_span *span = &p->panel->ranks[r].spans[i];
            p->bars[p->bar_count++] = (layout_bar){ .span = span,
                                                    .end_ns = span->end_ns,
                                                    .bytes = span->bytes,
                                                    .spans = 1,
                                                    .rank = r,
                                                    .row = find_row(p, span) };
        }
    qsort(p->bars, p->bar_count, sizeof *p->bars, by_place);
    return true;
}

/* ---- How much of the copying is hidden ------------------------------------------------------- */

typedef struct stretch {
    int64_t begin, end;
} stretch;

static int by_begin(const void *a, const void *b)
{
    const stretch *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Sorts stretches and joins those that overlap. */
static size_t join(stretch *s, size_t count)
{
    size_t kept = 0;
    qsort(s, count, sizeof *s, by_begin);
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || s[i].begin > s[kept - 1].end)
            s[kept++] = s[i];
        else if (s[i].end > s[kept - 1].end)
            s[kept - 1].end = s[i].end;
    }
    return kept;
}

/* Stretches of a rank, joined: copies to others; computing, which is tiles, and kernels that do not
 * tell their tiles, because a kernel may also wait; waits; and what of it is no wait. */
typedef struct activity {
    stretch *copies, *computing, *waits, *busy; /* [count of spans], busy twice that */
    size_t copy_count, computing_count, wait_count, busy_count;
} activity;

static void collect(const timeline_rank *rank, activity *a)
{
    for (size_t i = 0; i < rank->count; i++) {
        const imbrex_span *span = &rank->spans[i];
        stretch s = { span->begin_ns, span->end_ns };
        if (span->kind == IMBREX_SPAN_COPY && !layout_is_own(span, rank->rank))
            a->copies[a->copy_count++] = s;
        if (span->kind == IMBREX_SPAN_TILE ||
            (span->kind == IMBREX_SPAN_KERNEL && !timeline_summary_has_tiles(rank, span)))
            a->computing[a->computing_count++] = s;
        else if (span->kind == IMBREX_SPAN_COPY)
            a->busy[a->busy_count++] = s;
        if (span->kind == IMBREX_SPAN_WAIT)
            a->waits[a->wait_count++] = s;
    }
    memcpy(a->busy + a->busy_count, a->computing, a->computing_count * sizeof *a->busy);
    a->busy_count = join(a->busy, a->busy_count + a->computing_count);
    a->copy_count = join(a->copies, a->copy_count);
    a->computing_count = join(a->computing, a->computing_count);
    a->wait_count = join(a->waits, a->wait_count);
}

static int64_t length(const stretch *s, size_t count)
{
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += s[i].end - s[i].begin;
    return sum;
}

/* How much of x lies beneath y; both are joined. */
static int64_t common(const stretch *x, size_t x_count, const stretch *y, size_t y_count)
{
    int64_t sum = 0;
    for (size_t i = 0, j = 0; i < x_count; i++) {
        while (j < y_count && y[j].end <= x[i].begin)
            j++;
        for (size_t k = j; k < y_count && y[k].begin < x[i].end; k++) {
            int64_t begin = y[k].begin > x[i].begin ? y[k].begin : x[i].begin;
            int64_t end = y[k].end < x[i].end ? y[k].end : x[i].end;
            sum += end - begin;
        }
    }
    return sum;
}

static bool measure_rank(const timeline_rank *rank, int64_t *copying, int64_t *hidden,
                         int64_t *waiting)
{
    stretch *room = calloc(5 * rank->count + 1, sizeof *room);
    if (!room)
        return false;
    activity a = { .copies = room,
                   .computing = room + rank->count,
                   .waits = room + 2 * rank->count,
                   .busy = room + 3 * rank->count };
    collect(rank, &a);
    *copying += length(a.copies, a.copy_count);
    *hidden += common(a.copies, a.copy_count, a.computing, a.computing_count);
    *waiting += length(a.waits, a.wait_count) - common(a.waits, a.wait_count, a.busy, a.busy_count);
    free(room);
    return true;
}

static bool measure(layout_panel *p)
{
    int64_t copying = 0, hidden = 0, waiting = 0;
    double all = (double)(p->end_ns - p->begin_ns) * p->panel->rank_count;
    for (int r = 0; r < p->panel->rank_count; r++)
        if (!measure_rank(&p->panel->ranks[r], &copying, &hidden, &waiting))
            return false;
    p->hidden = copying > 0 ? (double)hidden / (double)copying : -1;
    p->waiting = all > 0 ? (double)waiting / all : 0;
    return true;
}

/* ---- Panels ---------------------------------------------------------------------------------- */

static void note_kind(layout *l, const imbrex_span *span, int rank)
{
    l->has[span->kind] = true;
    l->has_network = l->has_network || layout_is_network(span);
    l->has_own = l->has_own || (span->kind == IMBREX_SPAN_COPY && layout_is_own(span, rank));
    if (span->kind == IMBREX_SPAN_KERNEL && layout_name(l, span) == l->name_count &&
        l->name_count < LAYOUT_NAMES)
        snprintf(l->names[l->name_count++], sizeof l->names[0], "%.*s", (int)sizeof span->name,
                 span->name);
}

static bool begin_panel(layout *l, layout_panel *p)
{
    bool any = false;
    for (int r = 0; r < p->panel->rank_count; r++)
        for (size_t i = 0; i < p->panel->ranks[r].count; i++) {
            const imbrex_span *span = &p->panel->ranks[r].spans[i];
            if (!any || span->begin_ns < p->begin_ns)
                p->begin_ns = span->begin_ns;
            if (!any || span->end_ns > p->end_ns)
                p->end_ns = span->end_ns;
            any = true;
            note_kind(l, span, p->panel->ranks[r].rank);
            if (!add_row(p, span))
                return false;
        }
    place_rows(p);
    p->y = l->height;
    p->height =
        LAYOUT_HEAD + p->panel->rank_count * (p->band_height + LAYOUT_BAND_GAP) + LAYOUT_AXIS;
    l->height += p->height;
    l->duration_ns = fmax(l->duration_ns, (double)(p->end_ns - p->begin_ns));
    return measure(p) && add_bars(p);
}

layout *layout_create(const timeline *t, bool merge)
{
    layout *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->timeline = t;
    l->duration_ns = 1;
    l->panels = calloc((size_t)t->panel_count, sizeof *l->panels);
    for (int i = 0; i < t->panel_count; i++) {
        if (l->panels)
            l->panels[i].panel = &t->panels[i];
        if (!l->panels || !begin_panel(l, &l->panels[i])) {
            layout_destroy(l);
            return NULL;
        }
    }
    for (int i = 0; i < t->panel_count; i++)
        if (merge && l->panels[i].bar_count > MERGE_ABOVE)
            merge_bars(&l->panels[i], l->duration_ns / LAYOUT_PLOT / 2);
    return l;
}

void layout_destroy(layout *l)
{
    if (!l)
        return;
    for (int i = 0; l->panels && i < l->timeline->panel_count; i++) {
        free(l->panels[i].rows);
        free(l->panels[i].bars);
    }
    free(l->panels);
    free(l);
}

/* ---- Questions ------------------------------------------------------------------------------- */

bool layout_is_own(const imbrex_span *span, int rank)
{
    return span->peer == rank || span->peer < 0;
}

bool layout_is_network(const imbrex_span *span)
{
    return span->kind == IMBREX_SPAN_COPY && strcmp(span->name, "network") == 0;
}

double layout_x(const layout *l, const layout_panel *p, int64_t ns)
{
    return (double)(ns - p->begin_ns) / l->duration_ns * LAYOUT_PLOT;
}

double layout_band_y(const layout_panel *p, int rank)
{
    return p->y + LAYOUT_HEAD + rank * (p->band_height + LAYOUT_BAND_GAP);
}

double layout_tick_ms(const layout *l)
{
    double least = l->duration_ns / 1e6 / 10;
    double power = pow(10, floor(log10(least)));
    double mantissa = least / power;
    return power * (mantissa <= 1 ? 1 : mantissa <= 2 ? 2 : mantissa <= 5 ? 5 : 10);
}

int layout_name(const layout *l, const imbrex_span *span)
{
    int name = 0;
    while (name < l->name_count && strncmp(l->names[name], span->name, sizeof span->name) != 0)
        name++;
    return name;
}

void layout_row_label(const timeline *t, const layout_row *row, char *label, size_t size)
{
    char name[64];
    int stream = row->stream, lane = row->lane;
    if (row->has == HAS_NETWORK)
        snprintf(name, sizeof name, "network");
    else if (stream >= 0 && stream < t->stream_count)
        snprintf(name, sizeof name, "%s", t->streams[stream]);
    else if (lane == 0 && (row->has == HAS_COPY || row->has == HAS_SUM))
        snprintf(name, sizeof name, row->has == HAS_COPY ? "copies" : "sums");
    else
        snprintf(name, sizeof name, "stream %d", stream);
    if (lane == 0)
        snprintf(label, size, "%s", name);
    else if (lane == -1)
        snprintf(label, size, "%s, to all", name);
    else if (lane < 0)
        snprintf(label, size, "%s, to rank %d", name, -2 - lane);
    else
        snprintf(label, size, "%s, block %d", name, lane);
}

static void describe(const imbrex_span *span, int rank, char *text, size_t size)
{
    switch (span->kind) {
    case IMBREX_SPAN_COPY:
        if (layout_is_own(span, rank))
            snprintf(text, size, "copy within the rank");
        else
            snprintf(text, size, "%s to rank %d", layout_is_network(span) ? "network" : "copy",
                     span->peer);
        break;
    case IMBREX_SPAN_WAIT:
        if (span->peer < 0)
            snprintf(text, size, "wait");
        else
            snprintf(text, size, "wait for rank %d", span->peer);
        break;
    case IMBREX_SPAN_KERNEL:
        snprintf(text, size, "kernel %.*s", (int)sizeof span->name, span->name);
        break;
    case IMBREX_SPAN_TILE:
        snprintf(text, size, "tile %d, rows of rank %d", span->index, span->peer);
        break;
    }
}

void layout_bar_title(const layout_panel *p, const layout_bar *bar, char *title, size_t size)
{
    const imbrex_span *span = bar->span;
    double begin = (double)(span->begin_ns - p->begin_ns) / 1e6;
    double end = (double)(bar->end_ns - p->begin_ns) / 1e6;
    int rank = p->panel->ranks[bar->rank].rank;
    char what[64] = "", more[96] = "";
    describe(span, rank, what, sizeof what);
    if (bar->bytes > 0 && end > begin)
        snprintf(more, sizeof more, " · %.4g MB, %.3g GB/s", (double)bar->bytes / 1e6,
                 (double)bar->bytes / 1e6 / (end - begin));
    else if (bar->bytes > 0)
        snprintf(more, sizeof more, " · %.4g MB", (double)bar->bytes / 1e6);
    if (bar->spans > 1)
        snprintf(title, size, "rank %d: %s and %zu more · %.3f to %.3f ms%s", rank, what,
                 bar->spans - 1, begin, end, more);
    else
        snprintf(title, size, "rank %d: %s · %.3f ms, from %.3f to %.3f ms%s", rank, what,
                 end - begin, begin, end, more);
}
