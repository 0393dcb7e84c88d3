/* timeline.c - chooses how to write a timeline, puts the file in its place, and writes traces. */
#define _GNU_SOURCE
#include "timeline.h"

#include <string.h>
#include <unistd.h>

#include "layout.h"
#include "output.h"
#include "text.h"

/* ---- Files ----------------------------------------------------------------------------------- */

static timeline_writer *writer_of(const char *path)
{
    static const struct {
        const char *extension;
        timeline_writer *write;
    } writers[] = { { ".html", timeline_html },
                    { ".svg", timeline_svg },
                    { ".json", timeline_json } };
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof writers / sizeof writers[0]; i++)
        if (strcasecmp(dot, writers[i].extension) == 0)
            return writers[i].write;
    return NULL;
}

bool timeline_check(const char *path, char *error, size_t size)
{
    if (!writer_of(path))
        snprintf(error, size, "'%s' is no timeline: its name must end in .html, .svg or .json",
                 path);
    else if (!output_check(path))
        snprintf(error, size, "cannot write '%s': %s", path, output_reason());
    else
        return true;
    return false;
}

/* Closes fd. */
static bool write_to(int fd, const timeline *t, const char *path)
{
    FILE *file = fdopen(fd, "w");
    if (!file) {
        close(fd);
        return false;
    }
    bool good = writer_of(path)(t, file) && !ferror(file);
    return fclose(file) == 0 && good;
}

bool timeline_write(const timeline *t, const char *path, char *error, size_t size)
{
    if (!timeline_check(path, error, size))
        return false;
    output file;
    if (output_begin(&file, path) && output_end(&file, write_to(dup(file.fd), t, path)))
        return true;
    snprintf(error, size, "cannot write '%s': %s", path, output_reason());
    return false;
}

/* ---- Traces ---------------------------------------------------------------------------------- */

/* https://ui.perfetto.dev reads them: a rank of a panel is a process, a stream or lane a thread. */
enum { LANES = 10000 }; /* numbers that a stream's lanes have among the threads */

static int thread_of(const imbrex_span *span)
{
    return span->stream * LANES + span->lane;
}

static void write_name(FILE *file, const char *kind, int process, int thread, const char *name)
{
    fprintf(file,
            ",\n{\"ph\":\"M\",\"name\":\"%s_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", kind,
            process, thread);
    text_json(file, name, strlen(name));
    fprintf(file,
            "}},\n{\"ph\":\"M\",\"name\":\"%s_sort_index\",\"pid\":%d,\"tid\":%d,"
            "\"args\":{\"sort_index\":%d}}",
            kind, process, thread, kind[0] == 'p' ? process : thread);
}

static void write_span(FILE *file, const layout_panel *p, const layout_bar *bar, int process)
{
    static const char *const kinds[] = { "copy", "wait", "kernel", "tile" };
    const imbrex_span *span = bar->span;
    const char *name = span->name[0] ? span->name : kinds[span->kind];
    fputs(",\n{\"ph\":\"X\",\"name\":", file);
    text_json(file, name, strnlen(name, sizeof span->name));
    fprintf(file, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f",
            kinds[span->kind], process, thread_of(span),
            (double)(span->begin_ns - p->begin_ns) / 1e3,
            (double)(bar->end_ns - span->begin_ns) / 1e3);
    fprintf(file, ",\"args\":{\"peer\":%d,\"index\":%d,\"bytes\":%lld,\"spans\":%zu}}", span->peer,
            span->index, (long long)bar->bytes, bar->spans);
}

static void write_panel(const layout *l, const layout_panel *p, int first, FILE *file)
{
    for (int r = 0; r < p->panel->rank_count; r++) {
        char name[160];
        bool alone = l->timeline->panel_count == 1;
        snprintf(name, sizeof name, "%s%srank %d", alone ? "" : p->panel->name, alone ? "" : ", ",
                 p->panel->ranks[r].rank);
        write_name(file, "process", first + r, 0, name);
        for (int i = 0; i < p->row_count; i++) {
            layout_row_label(l->timeline, &p->rows[i], name, sizeof name);
            write_name(file, "thread", first + r, p->rows[i].stream * LANES + p->rows[i].lane,
                       name);
        }
    }
    for (size_t i = 0; i < p->bar_count; i++)
        write_span(file, p, &p->bars[i], first + p->bars[i].rank);
}

bool timeline_json(const timeline *t, FILE *file)
{
    layout *l = layout_create(t, false);
    if (!l)
        return false;
    fputs("{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"title\":", file);
    text_json(file, t->title, strlen(t->title));
    for (int i = 0; i < t->line_count; i++) {
        fprintf(file, ",\"line %d\":", i + 1);
        text_json(file, t->lines[i], strlen(t->lines[i]));
    }
    /* The first event only lets every other one begin with a comma. */
    fputs("},\n\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0,\"tid\":0}", file);
    int first = 0;
    for (int i = 0; i < t->panel_count; i++) {
        write_panel(l, &l->panels[i], first, file);
        first += t->panels[i].rank_count;
    }
    fputs("\n]}\n", file);
    layout_destroy(l);
    return true;
}
