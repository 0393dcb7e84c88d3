/* test_timeline.c - a timeline as a picture, a page and a trace. */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "timeline.h"

enum { MS = 1000000 };

static char folder[] = "/tmp/test_timeline.XXXXXX";
static char path[128];

/* Two ranks; rank 1 copies for 4 ms, 3 of them while it computes a tile. */
static const imbrex_span rank_0[] = {
    { 100 * MS, 102 * MS, IMBREX_SPAN_KERNEL, 0, 0, -1, -1, 0, "gemm", { 0 } },
    { 100 * MS, 101 * MS, IMBREX_SPAN_TILE, 0, 1, 0, 7, 0, "gemm", { 0 } },
    { 101 * MS, 102 * MS, IMBREX_SPAN_WAIT, 0, 1, 1, 0, 0, "chunk", { 0 } },
};
static const imbrex_span rank_1[] = {
    { 101 * MS, 105 * MS, IMBREX_SPAN_COPY, 1, 0, 0, 0, 4000000, "put", { 0 } },
    { 102 * MS, 110 * MS, IMBREX_SPAN_TILE, 0, 1, 0, 3, 0, "gemm", { 0 } },
    { 101 * MS, 110 * MS, IMBREX_SPAN_KERNEL, 0, 0, -1, -1, 0, "a<b>&\"c\\d", { 0 } },
};
static const timeline_rank ranks[] = { { 0, rank_0, 3 }, { 1, rank_1, 3 } };
static const timeline_rank short_ranks[] = { { 0, rank_0, 3 } };
static const timeline_panel panels[] = { { "over<lapped", short_ranks, 1 },
                                         { "sequential", ranks, 2 } };
static const char *const lines[] = { "two ranks & <one> wire", "time \"saved\": 8 ms" };
static const char *const streams[] = { "compute", "copies" };
static const timeline both = {
    .title = "<MLP> & \"more\" \x01\xff",
    .lines = lines,
    .line_count = 2,
    .streams = streams,
    .stream_count = 2,
    .panels = panels,
    .panel_count = 2,
};

static char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* The file's text; it is removed. */
static char *write_and_read(const timeline *t, const char *name)
{
    char error[256] = "";
    if (!timeline_write(t, in_folder(name), error, sizeof error))
        fail_msg("%s", error);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    struct stat about;
    assert_int_equal(fstat(fileno(file), &about), 0);
    char *text = calloc(1, (size_t)about.st_size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)about.st_size, file), about.st_size);
    fclose(file);
    return text;
}

static int count(const char *text, const char *part)
{
    int found = 0;
    for (size_t length = strlen(part); *text; text++) /* strstr is quadratic under a sanitizer */
        found += *text == *part && strncmp(text, part, length) == 0;
    return found;
}

static void assert_count(const char *text, const char *part, int expected)
{
    int found = count(text, part);
    if (found != expected)
        fail_msg("'%s' is there %d times, not %d", part, found, expected);
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is missing in:\n%s", part, text);
}

/* With an independent parser; skipped where there is none. */
static void assert_parses(const char *program)
{
    char command[512];
    if (system("python3 -c '' 2>/dev/null") != 0)
        skip();
    snprintf(command, sizeof command, "python3 -c '%s' '%s'", program, path);
    if (system(command) != 0)
        fail_msg("'%s' does not parse", path);
}

/* Steps of the engine between nodes, and beside them what else a plan over nodes has. */
static const imbrex_span over_nodes[] = {
    { 100 * MS, 109 * MS, IMBREX_SPAN_KERNEL, 0, 0, -1, -1, 0, "gemm", { 0 } },
    { 101 * MS, 103 * MS, IMBREX_SPAN_COPY, 1, 0, 1, 0, 4000, "copy", { 0 } },
    { 103 * MS, 104 * MS, IMBREX_SPAN_KERNEL, 7, 0, -1, -1, 0, "reduce", { 0 } },
    { 104 * MS, 108 * MS, IMBREX_SPAN_COPY, 8, 0, 2, -1, 4000, "network", { 0 } },
    { 105 * MS, 109 * MS, IMBREX_SPAN_COPY, 9, 0, 2, -1, 4000, "network", { 0 } },
    { 105 * MS, 106 * MS, IMBREX_SPAN_COPY, 10, 0, 1, 0, 4000, "copy", { 0 } },
};

/* The picture of rank 0 alone. */
static char *draw_one(const imbrex_span *spans, size_t count, const char *file)
{
    const timeline_rank rank = { 0, spans, count };
    const timeline_panel panel = { "hierarchical", &rank, 1 };
    timeline t = both;
    t.panels = &panel;
    t.panel_count = 1;
    return write_and_read(&t, file);
}

static void the_network_has_rows_of_its_own(void **state)
{
    (void)state;
    char *text = draw_one(over_nodes, 6, "nodes.svg");
    assert_count(text, ">network<", 2);
    assert_count(text, ">sums<", 1);
    assert_count(text, ">copies<", 2);        /* by its number, and by what is on it */
    assert_count(text, "<rect class=\"n", 3); /* and one in the legend */
    assert_contains(text, "network, to another node");
    assert_contains(text, "network to rank 2");
    free(text);
}

/* One stream does it all. */
static void what_computes_is_no_network(void **state)
{
    (void)state;
    imbrex_span spans[2] = { over_nodes[0], over_nodes[3] };
    spans[1].stream = 0;
    char *text = draw_one(spans, 2, "one.svg");
    assert_count(text, ">network<", 0);
    assert_count(text, ">compute<", 1);
    free(text);
}

/* ---- Traces ---------------------------------------------------------------------------------- */

static void trace_has_every_span(void **state)
{
    (void)state;
    char *text = write_and_read(&both, "trace.json");
    assert_count(text, "\"ph\":\"X\"", 9);
    assert_count(text, "\"process_name\"", 3);
    assert_contains(text, "\"over<lapped, rank 0\"");
    assert_contains(text, "\"sequential, rank 1\"");
    assert_contains(text, "\"compute, block 1\"");
    assert_contains(text, "a<b>&\\\"c\\\\d");
    assert_contains(text, "\\u0001\xEF\xBF\xBD");
    assert_contains(text,
                    "\"cat\":\"copy\",\"pid\":2,\"tid\":10000,\"ts\":1000.000,\"dur\":4000.000,"
                    "\"args\":{\"peer\":0,\"index\":0,\"bytes\":4000000");
    free(text);
    assert_parses("import json,sys; t=json.load(open(sys.argv[1])); "
                  "assert sum(e[\"ph\"]==\"X\" for e in t[\"traceEvents\"])==9");
}

static void trace_of_one_panel_names_ranks_only(void **state)
{
    (void)state;
    timeline one = both;
    one.panels = &panels[1];
    one.panel_count = 1;
    char *text = write_and_read(&one, "one.json");
    assert_contains(text, "{\"name\":\"rank 1\"}");
    assert_contains(text, "\"cat\":\"copy\",\"pid\":1,");
    free(text);
}

/* ---- Pictures -------------------------------------------------------------------------------- */

static void assert_picture(const char *text)
{
    assert_count(text, "<title>rank ", 9);
    assert_count(text, ">rank 0</text>", 2);
    assert_count(text, ">rank 1</text>", 1);
    assert_contains(text, ">copies</text>");
    assert_contains(text, "over&lt;lapped");
    assert_contains(text, "kernel a&lt;b&gt;&amp;&quot;c\\d");
    assert_contains(text, "two ranks &amp; &lt;one&gt; wire");
    assert_contains(text, "time &quot;saved&quot;");
    assert_contains(text, "&lt;MLP&gt; &amp; &quot;more&quot; \xEF\xBF\xBD\xEF\xBF\xBD");
    assert_contains(text,
                    "rank 1: copy to rank 0 · 4.000 ms, from 1.000 to 5.000 ms · 4 MB, 1 GB/s");
    assert_contains(text, "rank 0: tile 7, rows of rank 0");
    assert_contains(text, "rank 0: wait for rank 1");
    assert_contains(text, "75 % of the copying to peers");
    assert_contains(text, "8 ms sooner, 5.00× as fast");
    assert_contains(text, "How to read it");
    assert_contains(text, "prefers-color-scheme:dark");
    assert_null(strstr(text, "http://www.w3.org/1999"));
    assert_null(strstr(text, "src="));
    assert_null(strstr(text, "href="));
}

static void picture_shows_all(void **state)
{
    (void)state;
    char *text = write_and_read(&both, "picture.svg");
    assert_memory_equal(text, "<svg xmlns=", 11);
    assert_picture(text);
    /* 10 ms are the width of the time axis: the copy's 4 ms are 4/10 of it. */
    assert_contains(text, "<rect class=\"c edge\" x=\"100.600\"");
    assert_contains(text, "width=\"402.400\"");
    free(text);
    assert_parses("import sys,xml.dom.minidom as m; m.parse(sys.argv[1])");
}

static void page_shows_all(void **state)
{
    (void)state;
    char *text = write_and_read(&both, "page.HTML");
    assert_memory_equal(text, "<!DOCTYPE html>", 15);
    assert_picture(text);
    assert_contains(text, "<dd>8 ms</dd>");
    assert_contains(text, ">50 % of the time ranks only wait<"); /* 1 ms of 2 of one rank */
    assert_contains(text, "; 5 % of the time ranks only wait<"); /* 1 ms of 10 of two ranks */
    assert_contains(text, ">kernel gemm: product<");
    assert_count(text, "<button ", 3);
    assert_count(text, "<script>", 1);
    assert_count(text, "</html>", 1);
    free(text);
}

static void no_spans_are_no_trouble(void **state)
{
    (void)state;
    static const timeline_rank none[] = { { 0, NULL, 0 } };
    static const timeline_panel panel[] = { { "empty", none, 1 } };
    const timeline empty = { .title = "nothing", .panels = panel, .panel_count = 1 };
    static const char *const names[] = { "empty.svg", "empty.html", "empty.json" };
    for (int i = 0; i < 3; i++) {
        char *text = write_and_read(&empty, names[i]);
        assert_contains(text, "nothing");
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "inf"));
        free(text);
    }
}

/* 30000 spans of which a pixel holds thirty: a picture merges them, a trace does not. */
static void many_spans_are_merged_in_pictures(void **state)
{
    (void)state;
    enum { MANY = 30000 };
    imbrex_span *spans = calloc(MANY, sizeof *spans);
    assert_non_null(spans);
    for (int i = 0; i < MANY; i++)
        spans[i] = (imbrex_span){ .begin_ns = i * 1000,
                                  .end_ns = i * 1000 + 900,
                                  .kind = IMBREX_SPAN_COPY,
                                  .peer = 1 + (i >= MANY / 2),
                                  .bytes = 10 };
    const timeline_rank rank = { 0, spans, MANY };
    const timeline_panel panel = { "many", &rank, 1 };
    const timeline t = { .title = "many", .panels = &panel, .panel_count = 1 };
    char *picture = write_and_read(&t, "many.svg");
    assert_count(picture, "<title>", 2);
    assert_contains(picture, "copy to rank 1 and 14999 more");
    assert_contains(picture, "0.15 MB");
    char *trace = write_and_read(&t, "many.json");
    assert_count(trace, "\"ph\":\"X\"", MANY);
    free(picture);
    free(trace);
    free(spans);
}

/* ---- Blocks of a GPU ------------------------------------------------------------------------- */

enum { BLOCKS = 132, TILES = 14, US = 1000, GPU_SPANS = 1 + BLOCKS * (2 * TILES) + 3 };

/* A block waits 5 us, then has tiles of 20 us with 1 us between, the first of them after 10 us; the
 * last block has one tile less.  The kernel ends 7 us after the last. */
static void fill_gpu(imbrex_span *spans, int rank)
{
    const int64_t begin = (1000 + rank) * US;
    size_t at = 0;
    spans[at++] = (imbrex_span){ begin,
                                 begin + (10 + TILES * 21 - 1 + 7) * US,
                                 IMBREX_SPAN_KERNEL,
                                 .peer = -1,
                                 .index = -1,
                                 .name = "gemm" };
    for (int b = 1; b <= BLOCKS; b++)
        for (int i = 0; i < TILES; i++) {
            int64_t from = begin + (10 + 21 * i) * US;
            spans[at++] =
                (imbrex_span){ from - 6 * US,          from - US,      IMBREX_SPAN_WAIT, .lane = b,
                               .peer = (rank + 1) % 4, .name = "chunk" };
            spans[at++] = (imbrex_span){ from,          from + 20 * US, IMBREX_SPAN_TILE, .lane = b,
                                         .peer = i / 4, .index = i,     .name = "tile" };
            if (b == BLOCKS && i == TILES - 1)
                spans[at - 1] = spans[at - 2]; /* the wait again: it counts once */
        }
    for (int r = 0; r < 3; r++)
        spans[at++] = (imbrex_span){ begin + 2 * US,
                                     begin + (50 + r) * US,
                                     IMBREX_SPAN_COPY,
                                     .lane = -2 - (rank + 1 + r) % 4,
                                     .peer = (rank + 1 + r) % 4,
                                     .name = "push" };
}

static void a_gpus_blocks_are_drawn_thin(void **state)
{
    (void)state;
    static imbrex_span spans[4][GPU_SPANS];
    timeline_rank gpus[4];
    for (int r = 0; r < 4; r++) {
        fill_gpu(spans[r], r);
        gpus[r] = (timeline_rank){ r, spans[r], GPU_SPANS };
    }
    const timeline_panel panel = { "pushing", gpus, 4 };
    const timeline t = { .title = "four GPUs", .panels = &panel, .panel_count = 1 };
    char *picture = write_and_read(&t, "gpus.svg");
    assert_in_range(strlen(picture), 100000, 1000000);
    assert_contains(picture, "stream 0, to rank 3");
    assert_contains(picture, "tiles, by block");
    assert_count(picture, "<path class=\"w\"", 4);
    assert_count(picture, "<path class=\"t0\"", 4);
    free(picture);
}

static void assert_us(const char *what, double got, double want)
{
    if (fabs(got - want) > 0.001)
        fail_msg("%s: %.4f us, not %.4f", what, got, want);
}

static void a_kernels_time_is_summed_up(void **state)
{
    (void)state;
    static imbrex_span spans[GPU_SPANS];
    timeline_summary s;
    fill_gpu(spans, 2);
    const timeline_rank gpu = { 2, spans, GPU_SPANS };
    assert_true(timeline_summarise(&gpu, &s));
    assert_int_equal(s.lanes, BLOCKS);
    assert_int_equal(s.begin_ns, 1002 * US);
    double kernel = 10 + TILES * 21 - 1 + 7;
    assert_us("kernel", s.kernel, kernel);
    assert_us("first product", s.first_product, 10);
    assert_us("waits", s.wait_mean, 5 * TILES);
    assert_us("longest wait", s.wait_most, 5 * TILES);
    assert_us("tail", s.tail, 21);
    assert_us("after", s.after, 7);
    assert_us("stores", s.stores, 0);
    assert_us("products", s.products * kernel, 20.0 * (TILES * BLOCKS - 1) / BLOCKS);
    assert_us("first sent", s.sent_first, 2);
    assert_us("last sent", s.sent_last, 52);
    const timeline_rank nothing = { 0, spans, 1 };
    assert_false(timeline_summarise(&nothing, &s));
}

/* Warps of a block store and fold at once, and one within the other: that counts once. */
static void what_is_stored_at_once_counts_once(void **state)
{
    (void)state;
    enum { COUNT = 5 };
    imbrex_span spans[COUNT] = { { .kind = IMBREX_SPAN_KERNEL, .end_ns = 40 * US },
                                 { .kind = IMBREX_SPAN_TILE, .lane = 1, .end_ns = 9 * US } };
    static const int64_t us[3][2] = { { 10, 20 }, { 12, 18 }, { 15, 25 } };
    for (int i = 0; i < 3; i++)
        spans[2 + i] = (imbrex_span){
            .kind = IMBREX_SPAN_COPY, .lane = 1, .begin_ns = us[i][0] * US, .end_ns = us[i][1] * US
        };
    timeline_summary s;
    assert_true(timeline_summarise(&(timeline_rank){ 0, spans, COUNT }, &s));
    assert_us("stores", s.stores, 15);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static void assert_refused(const char *name, const char *why)
{
    char error[256] = "";
    assert_false(timeline_check(name, error, sizeof error));
    assert_contains(error, why);
    error[0] = 0;
    assert_false(timeline_write(&both, name, error, sizeof error));
    assert_contains(error, why);
}

static void what_cannot_be_written_is_refused(void **state)
{
    (void)state;
    assert_refused("picture.png", "must end in .html, .svg or .json");
    assert_refused("picture", "must end in .html, .svg or .json");
    assert_refused("/no/such/folder/a.svg", "No such file or directory");
    assert_refused("/dev/null/a.svg", "Not a directory");

    char error[256] = "";
    assert_int_equal(mkdir(in_folder("folder.svg"), 0777), 0);
    assert_false(timeline_write(&both, path, error, sizeof error));
    assert_contains(error, "directory");
    assert_int_equal(rmdir(path), 0);
}

/* Runs last: only what tests wrote lies there, no file half-written beside it. */
static void nothing_is_left_beside(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        const char *dot = strrchr(entry->d_name, '.');
        if (entry->d_name[0] == '.')
            continue;
        if (!dot || (strcasecmp(dot, ".html") && strcmp(dot, ".svg") && strcmp(dot, ".json")))
            fail_msg("'%s' was left", entry->d_name);
    }
    closedir(dir);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    if (!dir)
        return -1;
    for (struct dirent *entry; (entry = readdir(dir));)
        unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace_has_every_span),
        cmocka_unit_test(the_network_has_rows_of_its_own),
        cmocka_unit_test(what_computes_is_no_network),
        cmocka_unit_test(trace_of_one_panel_names_ranks_only),
        cmocka_unit_test(picture_shows_all),
        cmocka_unit_test(page_shows_all),
        cmocka_unit_test(no_spans_are_no_trouble),
        cmocka_unit_test(many_spans_are_merged_in_pictures),
        cmocka_unit_test(a_gpus_blocks_are_drawn_thin),
        cmocka_unit_test(a_kernels_time_is_summed_up),
        cmocka_unit_test(what_is_stored_at_once_counts_once),
        cmocka_unit_test(what_cannot_be_written_is_refused),
        cmocka_unit_test(nothing_is_left_beside),
    };
    return cmocka_run_group_tests_name("timeline", tests, make_folder, remove_folder);
}
