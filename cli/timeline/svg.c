/* svg.c - draws a timeline's panels as SVG, and their header where there is no page. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "text.h"

/* Widths of letters, near enough, in the bars and in the legend. */
#define BAR_LETTER    7.2
#define END_LETTER    10.0
#define LEGEND_LETTER 6.4

enum {
    ZOOM_MOST = 200,   /* of the page's script: labels that fit at no zoom are left out */
    LABEL_HEIGHT = 11, /* rows under this have no labels */
    THIN_HEIGHT = 5,   /* rows under this are of one path a rank and colour */
    NAMED_HEIGHT = 9   /* rows under this are not named one by one */
};

const char timeline_reading[] =
    "How to read it: every band is a rank, every row one of its streams; where orange copies run "
    "above or below blue tiles, communication is hidden beneath computation; hatched: waiting.";

/* One row a class: colours in light and in dark surroundings. */
typedef struct colour {
    const char *class, *property, *light, *dark;
} colour;

static const colour colours[] = {
    { "bg", "fill", "#ffffff", "#12161b" },     { "band", "fill", "#f4f6f8", "#1b2128" },
    { "grid", "stroke", "#dde2e8", "#2d353f" }, { "text", "fill", "#1c2430", "#e8ecf1" },
    { "mute", "fill", "#5d6878", "#98a4b3" },   { "card", "fill", "#f4f6f8", "#1b2128" },
    { "c", "fill", "#ee7f2d", "#f08a3c" },      { "n", "fill", "#c9412b", "#d9503a" },
    { "o", "fill", "#f6c9a0", "#7d5433" },      { "t0", "fill", "#1d5fae", "#2f7fe0" },
    { "t1", "fill", "#4b8ed6", "#2563a8" },     { "t2", "fill", "#72aae6", "#1f5089" },
    { "k0", "fill", "#75869a", "#53657a" },     { "k1", "fill", "#2f9487", "#2c8f82" },
    { "k2", "fill", "#8763b8", "#8462b5" },     { "k3", "fill", "#9c8a1f", "#94841f" },
    { "k4", "fill", "#bd5577", "#b34d6e" },     { "k5", "fill", "#4d7c3a", "#557f42" },
    { "k6", "fill", "#6b6b6b", "#6f6f6f" },     { "hatch", "stroke", "#b9c1cc", "#4a5563" },
    { "edge", "stroke", "#f4f6f8", "#1b2128" }, { "end", "stroke", "#2e9e5b", "#3fbf73" },
    { "gain", "fill", "#2e9e5b", "#3fbf73" },   { "lt", "fill", "#ffffff", "#ffffff" },
    { "lc", "fill", "#3d1a00", "#2b1200" },     { "lw", "fill", "#5d6878", "#98a4b3" },
    { "lg", "fill", "#1f7f46", "#5cd48d" },
};

void svg_style(FILE *file)
{
    static const size_t count = sizeof colours / sizeof colours[0];
    for (size_t i = 0; i < count; i++)
        fprintf(file, ".%s{%s:%s}", colours[i].class, colours[i].property, colours[i].light);
    fputs("@media (prefers-color-scheme:dark){", file);
    for (size_t i = 0; i < count; i++)
        fprintf(file, ".%s{%s:%s}", colours[i].class, colours[i].property, colours[i].dark);
    fputs("}\n.w{fill:url(#hatch)}.edge{stroke-width:1;vector-effect:non-scaling-stroke}"
          ".t0.edge,.t1.edge,.t2.edge{stroke-opacity:.45}.gain{fill-opacity:.1}.end{stroke-width:1."
          "5;vector-effect:non-scaling-stroke;"
          "stroke-dasharray:4 3}.l{font-size:10.5px;text-anchor:middle;pointer-events:none}"
          ".lt{font-weight:600}.lg{font-size:15px;font-weight:600}\n",
          file);
}

bool timeline_figure(const char *line, int *length, const char **value)
{
    const char *colon = strstr(line, ": ");
    if (!colon)
        return false;
    *length = (int)(colon - line);
    *value = colon + 2;
    return true;
}

/* ---- Bars ------------------------------------------------------------------------------------ */

static void class_of(const layout *l, const layout_panel *p, const layout_bar *bar, char class[4])
{
    const imbrex_span *span = bar->span;
    int rank = p->panel->ranks[bar->rank].rank;
    switch (span->kind) {
    case IMBREX_SPAN_COPY:
        snprintf(class, 4, "%s",
                 layout_is_own(span, rank) ? "o"
                 : layout_is_network(span) ? "n"
                                           : "c");
        break;
    case IMBREX_SPAN_WAIT:
        snprintf(class, 4, "w");
        break;
    case IMBREX_SPAN_KERNEL:
        snprintf(class, 4, "k%d", layout_name(l, span) % 10);
        break;
    case IMBREX_SPAN_TILE: /* own rows, then neighbours told apart */
        snprintf(class, 4, "t%d", layout_is_own(span, rank) ? 0 : 1 + span->peer % 2);
        break;
    }
}

/* What kernels of the library do, for who does not know their names. */
static const char *const kernel_words[][2] = {
    { "gemm", "product" },        { "grouped", "experts' products" },  { "activate", "activation" },
    { "silu_mul", "activation" }, { "reduce", "sum over ranks" },      { "attend", "attention" },
    { "merge", "states joined" }, { "place", "k and v to the cache" }, { "route", "tokens sorted" },
    { "gate", "experts chosen" }, { "combine", "sums of tokens" },     { "ll", "data with flags" },
};

static void name_kernel(const char *name, char *text, size_t size)
{
    const char *words = NULL;
    for (size_t i = 0; i < sizeof kernel_words / sizeof kernel_words[0]; i++)
        if (strcmp(name, kernel_words[i][0]) == 0)
            words = kernel_words[i][1];
    snprintf(text, size, words ? "kernel %s: %s" : "kernel %s", name, words);
}

int svg_legend(const layout *l, svg_kind kinds[SVG_KINDS])
{
    int count = 0;
    if (l->has[IMBREX_SPAN_COPY])
        kinds[count++] = (svg_kind){ "c", "copy to a peer" };
    if (l->has_network)
        kinds[count++] = (svg_kind){ "n", "network, to another node" };
    if (l->has_own)
        kinds[count++] = (svg_kind){ "o", "own copy" };
    if (l->has[IMBREX_SPAN_TILE]) {
        kinds[count++] = (svg_kind){ "t0", "tile of own rows" };
        kinds[count++] = (svg_kind){ "t1", "tile of others' rows" };
    }
    for (int name = 0; name < l->name_count; name++, count++) {
        snprintf(kinds[count].class, sizeof kinds[count].class, "k%d", name % 10);
        name_kernel(l->names[name], kinds[count].text, sizeof kinds[count].text);
    }
    if (l->has[IMBREX_SPAN_WAIT])
        kinds[count++] = (svg_kind){ "w", "waiting" };
    return count;
}

static void draw_bar(const layout *l, const layout_panel *p, const layout_bar *bar, FILE *file)
{
    const layout_row *row = &p->rows[bar->row];
    double x = layout_x(l, p, bar->span->begin_ns);
    double width = layout_x(l, p, bar->end_ns) - x;
    char class[4], title[256];
    class_of(l, p, bar, class);
    layout_bar_title(p, bar, title, sizeof title);
    fprintf(file, "<rect class=\"%s%s\" x=\"%.3f\" y=\"%.1f\" width=\"%.3f\" height=\"%.1f\"",
            class, width > 2.5 && row->height > 4 && class[0] != 'w' ? " edge" : "", x,
            layout_band_y(p, bar->rank) + row->y, fmax(width, 0.5), row->height);
    if (width < 0.5)
        fprintf(file, " data-w=\"%.4f\"", width);
    fputs("><title>", file);
    text_markup(file, title, strlen(title));
    fputs("</title></rect>\n", file);
}

/* Rows of a GPU's blocks are too many for an element a bar: all of a rank's bars that look the same
 * become one path, which shows no details. */
static bool is_thin(const layout_panel *p, const layout_bar *bar)
{
    return p->rows[bar->row].height < THIN_HEIGHT;
}

static void draw_thin(const layout *l, const layout_panel *p, int rank, const char *class,
                      FILE *file)
{
    bool any = false;
    for (size_t i = 0; i < p->bar_count; i++) {
        const layout_bar *bar = &p->bars[i];
        char own[4];
        if (bar->rank != rank || !is_thin(p, bar))
            continue;
        class_of(l, p, bar, own);
        if (strcmp(own, class) != 0)
            continue;
        const layout_row *row = &p->rows[bar->row];
        double x = layout_x(l, p, bar->span->begin_ns);
        double width = fmax(layout_x(l, p, bar->end_ns) - x, 0.1);
        if (!any)
            fprintf(file, "<path class=\"%s\" d=\"", class);
        fprintf(file, "M%.1f %.0fh%.1fv%.1fh-%.1fz", x, layout_band_y(p, rank) + row->y, width,
                row->height, width);
        any = true;
    }
    if (any)
        fputs("\"/>\n", file);
}

/* Waits beneath; then tiles; what is stored after them above. */
static void draw_all_thin(const layout *l, const layout_panel *p, FILE *file)
{
    static const char *const classes[] = { "w", "t0", "t1", "t2", "o", "c" };
    for (int rank = 0; rank < p->panel->rank_count; rank++)
        for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
            draw_thin(l, p, rank, classes[i], file);
}

/* ---- Labels ---------------------------------------------------------------------------------- */

/* m and w are half as wide again as others. */
static double letters(const char *text)
{
    double count = 0;
    for (; *text; text++)
        if (((unsigned char)*text & 0xC0) != 0x80) /* it begins a character */
            count += strchr("mwMW", *text) ? 1.5 : 1;
    return count;
}

/* How wide letters of this text are, one as another, where one of usual width is `letter`. */
static double mean_letter(const char *text, double letter)
{
    size_t count = 0;
    for (const char *at = text; *at; at++)
        count += ((unsigned char)*at & 0xC0) != 0x80;
    return count ? letters(text) * letter / (double)count : 0;
}

/* The full text if it fits, else the brief one, else none. */
static void draw_label(FILE *file, svg_use use, const char *class, double letter, double x,
                       double width, double y, const char *full, const char *brief)
{
    const char *text = letters(full) * letter + 4 <= width    ? full
                       : letters(brief) * letter + 4 <= width ? brief
                                                              : "";
    const char *least = *brief ? brief : full;
    if (!*text && (use == SVG_ALONE || letters(least) * letter > width * ZOOM_MOST))
        return;
    fprintf(file, "<text class=\"l %s\" x=\"%.2f\" y=\"%.1f\"", class, x + width / 2, y);
    if (use == SVG_INLINE) {
        fprintf(file, " data-x=\"%.3f\" data-w=\"%.3f\" data-k=\"%.1f\" data-b=\"%s\" data-f=\"", x,
                width, fmax(mean_letter(full, letter), mean_letter(brief, letter)), brief);
        text_markup(file, full, strlen(full));
        fputc('"', file);
    }
    fputc('>', file);
    text_markup(file, text, strlen(text));
    fputs("</text>\n", file);
}

typedef struct bar_label {
    const char *class;
    char full[48], brief[16];
} bar_label;

static bar_label label_of(const imbrex_span *span, int rank)
{
    bar_label l = { .class = "lt" };
    switch (span->kind) {
    case IMBREX_SPAN_COPY:
        l.class = "lc";
        if (layout_is_own(span, rank))
            break;
        snprintf(l.full, sizeof l.full, "to rank %d", span->peer);
        snprintf(l.brief, sizeof l.brief, "→%d", span->peer);
        break;
    case IMBREX_SPAN_WAIT:
        l.class = "lw";
        if (span->peer >= 0)
            snprintf(l.full, sizeof l.full, "wait for %d", span->peer);
        break;
    case IMBREX_SPAN_KERNEL:
        snprintf(l.full, sizeof l.full, "%.*s", (int)sizeof span->name, span->name);
        break;
    case IMBREX_SPAN_TILE:
        if (span->peer < 0)
            break;
        snprintf(l.full, sizeof l.full, "rows of %d", span->peer);
        snprintf(l.brief, sizeof l.brief, "%d", span->peer);
        break;
    }
    return l;
}

/* Tiles of one rank's rows that follow each other, without a gap that can be seen. */
static bool continues(const layout *l, const layout_panel *p, const layout_bar *bar)
{
    const layout_bar *next = bar + 1;
    return next < p->bars + p->bar_count && next->rank == bar->rank && next->row == bar->row &&
           bar->span->kind == IMBREX_SPAN_TILE && next->span->kind == IMBREX_SPAN_TILE &&
           next->span->peer == bar->span->peer &&
           layout_x(l, p, next->span->begin_ns) - layout_x(l, p, bar->end_ns) < 2;
}

/* One label for bars that continue each other.  Returns the next bar to label. */
static size_t label_bars(const layout *l, const layout_panel *p, size_t at, svg_use use, FILE *file)
{
    const layout_bar *bar = &p->bars[at], *last = bar;
    const layout_row *row = &p->rows[bar->row];
    while (continues(l, p, last))
        last++;
    bar_label text = label_of(bar->span, p->panel->ranks[bar->rank].rank);
    double x = layout_x(l, p, bar->span->begin_ns);
    double width = layout_x(l, p, last->end_ns) - x;
    double y = layout_band_y(p, bar->rank) + row->y + row->height / 2 + 3.6;
    if (row->height >= LABEL_HEIGHT && *text.full)
        draw_label(file, use, text.class, BAR_LETTER, x, width, y, text.full, text.brief);
    return (size_t)(last - p->bars) + 1;
}

/* ---- Panels ---------------------------------------------------------------------------------- */

static double bottom(const layout_panel *p)
{
    return layout_band_y(p, p->panel->rank_count) - LAYOUT_BAND_GAP;
}

static void draw_heading(const layout_panel *p, FILE *file)
{
    double ms = (double)(p->end_ns - p->begin_ns) / 1e6;
    fprintf(file, "<text class=\"text\" x=\"16\" y=\"%.1f\" font-size=\"15\" font-weight=\"600\">",
            p->y + 26);
    text_markup(file, p->panel->name, strlen(p->panel->name));
    fprintf(file, "<tspan class=\"mute\" dx=\"12\" font-weight=\"400\">%.4g ms</tspan></text>\n",
            ms);
    char hidden[80] = "";
    if (p->hidden >= 0)
        snprintf(hidden, sizeof hidden,
                 "%.0f %% of the copying to peers lies beneath computation; ", p->hidden * 100);
    if (ms > 0)
        fprintf(file,
                "<text class=\"mute\" x=\"%d\" y=\"%.1f\" font-size=\"12.5\" text-anchor=\"end\">"
                "%s%.0f %% of the time ranks only wait</text>\n",
                LAYOUT_LEFT + LAYOUT_PLOT, p->y + 26, hidden, p->waiting * 100);
    if (ms <= 0)
        fprintf(file,
                "<text class=\"mute\" x=\"%d\" y=\"%.1f\" font-size=\"12.5\">no spans</text>\n",
                LAYOUT_LEFT, layout_band_y(p, 0) + 12);
}

static void draw_row_labels(const layout *l, const layout_panel *p, int rank, FILE *file)
{
    double y = layout_band_y(p, rank);
    fprintf(file,
            "<text class=\"text\" x=\"16\" y=\"%.1f\" font-size=\"12.5\" "
            "font-weight=\"600\">rank %d</text>\n",
            y + p->band_height / 2 + 4.5, p->panel->ranks[rank].rank);
    for (int i = 0; i < p->row_count; i++) {
        const layout_row *row = &p->rows[i];
        char label[96];
        bool first = i == 0 || p->rows[i - 1].stream != row->stream || p->rows[i - 1].lane == 0;
        bool only = i + 1 == p->row_count || p->rows[i + 1].stream != row->stream;
        if (row->height < NAMED_HEIGHT && !first)
            continue;
        if (row->lane > 0 && first && (only || row->height < NAMED_HEIGHT))
            snprintf(label, sizeof label, only ? "tiles" : "tiles, by block");
        else
            layout_row_label(l->timeline, row, label, sizeof label);
        fprintf(file,
                "<text class=\"mute\" x=\"%d\" y=\"%.1f\" font-size=\"11\" "
                "text-anchor=\"end\">",
                LAYOUT_LEFT - 10, y + row->y + fmax(row->height / 2 + 3.8, 8));
        text_markup(file, label, strlen(label));
        fputs("</text>\n", file);
    }
}

static void draw_axis(const layout *l, const layout_panel *p, FILE *file)
{
    double tick_ms = layout_tick_ms(l);
    int decimals = tick_ms < 1 ? (int)-floor(log10(tick_ms) + 1e-9) : 0;
    double top = layout_band_y(p, 0), low = bottom(p);
    fprintf(file, "<g class=\"axis\" data-top=\"%.1f\" data-low=\"%.1f\">\n", top, low);
    for (int i = 0; i * tick_ms <= l->duration_ns / 1e6; i++) {
        double x = LAYOUT_LEFT + i * tick_ms * 1e6 / l->duration_ns * LAYOUT_PLOT;
        fprintf(file, "<line class=\"grid\" x1=\"%.2f\" x2=\"%.2f\" y1=\"%.1f\" y2=\"%.1f\"/>", x,
                x, top, low + 4);
        fprintf(file,
                "<text class=\"mute\" x=\"%.2f\" y=\"%.1f\" font-size=\"11\" "
                "text-anchor=\"middle\">%.*f%s</text>\n",
                x, low + 17, decimals, i * tick_ms, i == 0 ? " ms" : "");
    }
    fputs("</g>\n", file);
}

/* Where this panel ends, and how much sooner than the longest. */
static void draw_end(const layout *l, const layout_panel *p, FILE *file)
{
    double x = layout_x(l, p, p->end_ns);
    double top = layout_band_y(p, 0);
    fprintf(file, "<rect class=\"gain\" x=\"%.3f\" y=\"%.1f\" width=\"%.3f\" height=\"%.1f\"/>\n",
            x, top, LAYOUT_PLOT - x, bottom(p) - top);
    fprintf(file, "<path class=\"end\" d=\"M%.3f %.1fV%.1f\"/>\n", x, top, bottom(p));
}

static void label_end(const layout *l, const layout_panel *p, svg_use use, FILE *file)
{
    double x = layout_x(l, p, p->end_ns);
    double ms = (double)(p->end_ns - p->begin_ns) / 1e6;
    char text[64], brief[32];
    snprintf(text, sizeof text, "%.3g ms sooner, %.2f× as fast", l->duration_ns / 1e6 - ms,
             l->duration_ns / 1e6 / ms);
    snprintf(brief, sizeof brief, "%.2f×", l->duration_ns / 1e6 / ms);
    draw_label(file, use, "lg", END_LETTER, x, LAYOUT_PLOT - x,
               (layout_band_y(p, 0) + bottom(p)) / 2 + 4, text, brief);
}

static void draw_panel(const layout *l, const layout_panel *p, svg_use use, FILE *file)
{
    bool shorter = p->bar_count && (double)(p->end_ns - p->begin_ns) < 0.995 * l->duration_ns;
    fputs("<g class=\"panel\">\n", file);
    draw_heading(p, file);
    for (int rank = 0; rank < p->panel->rank_count; rank++)
        fprintf(file,
                "<rect class=\"band\" x=\"8\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" "
                "rx=\"4\"/>\n",
                layout_band_y(p, rank), LAYOUT_WIDTH - 16, p->band_height);
    draw_axis(l, p, file);
    for (int rank = 0; rank < p->panel->rank_count; rank++)
        draw_row_labels(l, p, rank, file);

    fprintf(file,
            "<g clip-path=\"url(#plot)\"><g transform=\"translate(%d 0)\">\n<g class=\"zoom\">\n",
            LAYOUT_LEFT);
    if (shorter)
        draw_end(l, p, file);
    for (int waits = 1; waits >= 0; waits--) /* waits lie beneath */
        for (size_t i = 0; i < p->bar_count; i++)
            if (!is_thin(p, &p->bars[i]) &&
                (p->bars[i].span->kind == IMBREX_SPAN_WAIT) == (waits == 1))
                draw_bar(l, p, &p->bars[i], file);
    draw_all_thin(l, p, file);
    fputs("</g>\n<g class=\"labels\">\n", file);
    if (shorter)
        label_end(l, p, use, file);
    for (size_t i = 0; i < p->bar_count;)
        i = label_bars(l, p, i, use, file);
    fputs("</g>\n</g></g>\n</g>\n", file);
}

void svg_panels(const layout *l, FILE *file, svg_use use)
{
    fprintf(file,
            "<defs><pattern id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
            "patternTransform=\"rotate(45)\"><path class=\"hatch\" d=\"M0 0V5\" "
            "stroke-width=\"2\"/></pattern>"
            "<clipPath id=\"plot\"><rect x=\"%d\" y=\"0\" width=\"%d\" height=\"%.1f\"/>"
            "</clipPath></defs>\n",
            LAYOUT_LEFT - 1, LAYOUT_PLOT + 2, l->height);
    for (int i = 0; i < l->timeline->panel_count; i++)
        draw_panel(l, &l->panels[i], use, file);
}

/* ---- A picture alone ------------------------------------------------------------------------- */

/* Figures as cards, side by side; returns where they end. */
static double draw_figures(const timeline *t, double y, FILE *file)
{
    enum { ACROSS = 5, CARD = (LAYOUT_WIDTH - 16 - (ACROSS - 1) * 8) / ACROSS, HEIGHT = 52 };
    int count = 0, length;
    const char *value;
    for (int i = 0; i < t->line_count; i++) {
        if (!timeline_figure(t->lines[i], &length, &value))
            continue;
        int x = 8 + count % ACROSS * (CARD + 8);
        double top = y + count / ACROSS * (HEIGHT + 8);
        fprintf(file,
                "<rect class=\"card\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" "
                "rx=\"6\"/><text class=\"mute\" x=\"%d\" y=\"%.1f\" font-size=\"11.5\">",
                x, top, CARD, HEIGHT, x + 12, top + 19);
        text_markup(file, t->lines[i], (size_t)length);
        fprintf(file,
                "</text><text class=\"text\" x=\"%d\" y=\"%.1f\" font-size=\"17\" "
                "font-weight=\"600\">",
                x + 12, top + 41);
        text_markup(file, value, strlen(value));
        fputs("</text>\n", file);
        count++;
    }
    return y + (count + ACROSS - 1) / ACROSS * (HEIGHT + 8);
}

static double draw_text(const char *text, double y, double size, const char *class, FILE *file)
{
    fprintf(file, "<text class=\"%s\" x=\"16\" y=\"%.1f\" font-size=\"%.1f\"%s>", class, y + size,
            size, size > 16 ? " font-weight=\"600\"" : "");
    text_markup(file, text, strlen(text));
    fputs("</text>\n", file);
    return y + size * 1.6;
}

static double draw_legend(const layout *l, double y, FILE *file)
{
    svg_kind kinds[SVG_KINDS];
    int count = svg_legend(l, kinds);
    double x = 16;
    for (int i = 0; i < count; i++) {
        double width = 22 + (double)strlen(kinds[i].text) * LEGEND_LETTER + 18;
        if (x + width > LAYOUT_WIDTH) {
            x = 16;
            y += 20;
        }
        fprintf(file,
                "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"16\" height=\"11\"/>"
                "<text class=\"mute\" x=\"%.1f\" y=\"%.1f\" font-size=\"12\">",
                kinds[i].class, x, y, x + 22, y + 10);
        text_markup(file, kinds[i].text, strlen(kinds[i].text));
        fputs("</text>\n", file);
        x += width;
    }
    return y + 20;
}

static double draw_header(const layout *l, FILE *file)
{
    const timeline *t = l->timeline;
    int length;
    const char *value;
    double y = draw_text(t->title, 18, 20, "text", file);
    for (int i = 0; i < t->line_count; i++)
        if (!timeline_figure(t->lines[i], &length, &value))
            y = draw_text(t->lines[i], y, 13, "mute", file);
    y = draw_figures(t, y + 8, file);
    y = draw_legend(l, y + 10, file);
    return draw_text(timeline_reading, y, 12, "mute", file);
}

bool timeline_svg(const timeline *t, FILE *file)
{
    layout *l = layout_create(t, true);
    char *header = NULL;
    size_t bytes = 0;
    FILE *above = l ? open_memstream(&header, &bytes) : NULL;
    if (!above) {
        layout_destroy(l);
        return false;
    }
    double height = draw_header(l, above);
    bool whole = fclose(above) == 0;
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
            "height=\"%.0f\" font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, "
            "'DejaVu Sans', sans-serif\">\n<style>",
            LAYOUT_WIDTH, height + l->height, LAYOUT_WIDTH, height + l->height);
    svg_style(file);
    fputs("</style>\n<rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n", file);
    fwrite(header ? header : "", 1, bytes, file);
    fprintf(file, "<g transform=\"translate(0 %.0f)\">\n", height);
    svg_panels(l, file, SVG_ALONE);
    fputs("</g>\n</svg>\n", file);
    free(header);
    layout_destroy(l);
    return whole;
}
