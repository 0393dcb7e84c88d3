/* report.c - the result of `imbrex decode` as a table, as JSON and as a picture. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "job.h"
#include "matrix.h"
#include "measure.h"
#include "text.h"
#include "timeline.h"

static const char *const rope_names[DECODE_ROPE_LLAMA3 + 1] = {
    [DECODE_ROPE_DEFAULT] = "default",
    [DECODE_ROPE_LINEAR] = "linear",
    [DECODE_ROPE_LLAMA3] = "llama3",
};

static const char *how(const decode_result *r)
{
    return r->shape.by_heads ? "heads" : "tokens";
}

static void row(const decode_result *r, const char *name, int version, int base)
{
    printf("  %-42s%10.3f%20.2fx\n", name, r->us[version] / 1000, r->us[version] / r->us[base]);
}

static void print_layer(const decode_result *r)
{
    const decode_weights *w = &r->model->weights;
    bool biases = w->q_bias.rows || w->k_bias.rows || w->v_bias.rows || w->o_bias.rows;
    char source[200];
    snprintf(source, sizeof source, "%s", r->source);
    text_harmless(source, false);
    text_wrap(stdout, 2, "attention of %s: %d rank%s on %s\n", source, r->ranks,
              r->ranks == 1 ? "" : "s", r->device);
    printf("  hidden %lld, %d heads of %d, %d of the cache, %s\n", (long long)w->hidden, w->heads,
           w->head_dim, w->kv_heads, matrix_dtype_names[r->shape.dtype]);
    printf("  %lld sequence%s of up to %lld tokens, and one more each\n", (long long)r->shape.batch,
           r->shape.batch == 1 ? "" : "s", (long long)r->model->context);
    printf("  RoPE %s, theta %g%s%s\n", rope_names[w->rope.kind], w->rope.theta,
           biases ? ", with biases" : "", w->q_norm.rows ? ", q and k normed" : "");
    if (r->shape.by_heads)
        printf("  a rank has %d head%s of the cache whole\n", r->shape.kv_heads,
               r->shape.kv_heads == 1 ? "" : "s");
    else
        printf("  token t of a sequence lies on rank t %% %d, with all heads\n", r->ranks);
}

static void print_check(const decode_error *e, imbrex_dtype dtype)
{
    if (e->apart)
        printf("  ranks do not have the same y, as all are to\n");
    if (decode_check_blind(e, dtype))
        text_wrap(stdout, 2,
                  "  rounding may change y by all that it is, so nothing can be said of it: "
                  "compute in f32\n");
    printf("  error of all of y        %.2g of its spread, allowed %.2g\n",
           decode_check_relative(e), decode_check_allowed(dtype));
    printf("  worst element            %.2g of its spread, allowed %.2g\n", e->worst,
           decode_check_worst_allowed(dtype));
    printf("  largest error            %.3g where |y| is up to %.3g: %s\n", e->largest, e->scale,
           decode_check_passed(e, dtype) ? "passed" : "FAILED");
}

/* The operator, and of its line what follows its sizes, up to how it is cut. */
static void print_plan(const char *what, const char *line)
{
    const char *algorithm = strstr(line, ": ");
    algorithm = algorithm ? algorithm + 2 : "";
    if (*line)
        text_wrap(stdout, 13, "  %-10s %.*s: %.*s\n", what, (int)strcspn(line, " "), line,
                  (int)strcspn(algorithm, ";"), algorithm);
}

void decode_print_table(const decode_result *r)
{
    print_layer(r);
    print_plan("q, k, v", r->project);
    print_plan("gather", r->gather);
    print_plan("attention", r->attend);
    print_plan("output", r->output);
    job_print_how("the same work of a rank", r->device_clock, r->graph);
    printf("\n  %-42s%10s%21s\n", "attention", "ms", "of own");
    row(r, "own: to the tokens and heads of this rank", DECODE_ATTEND_OWN, DECODE_ATTEND_OWN);
    row(r, r->shape.by_heads ? "in the step: the same" : "to all tokens: merged over ranks",
        DECODE_ATTEND, DECODE_ATTEND_OWN);
    printf("\n  %-42s%10s%21s\n", "whole step, from hidden state to output", "ms",
           "of the step alone");
    row(r, "alone: nothing sent", DECODE_ALONE, DECODE_ALONE);
    row(r, "sequential: communicate, compute", DECODE_SEQUENTIAL, DECODE_ALONE);
    row(r, "overlapped", DECODE_STEP, DECODE_ALONE);
    putchar('\n');
    if (r->checked)
        print_check(&r->error, r->shape.dtype);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_text(const char *key, const char *value)
{
    text_json_string_line(stdout, key, value, ",");
}

static void json_number(const char *key, double value, const char *end)
{
    text_json_number_line(stdout, key, value, end);
}

static void json_check(const decode_result *r)
{
    const decode_error *e = &r->error;
    json_number("largest_error", e->largest, ",");
    json_number("largest_y", e->scale, ",");
    json_number("error_of_y", e->norm > 0 ? sqrt(e->squares / e->norm) : sqrt(e->squares), ",");
    json_number("error_of_spread", decode_check_relative(e), ",");
    json_number("error_of_spread_allowed", decode_check_allowed(r->shape.dtype), ",");
    json_number("worst_element", e->worst, ",");
    json_number("worst_element_allowed", decode_check_worst_allowed(r->shape.dtype), ",");
    printf("  \"ranks_differ\": %s,\n", e->apart ? "true" : "false");
    printf("  \"zeros_would_pass\": %s,\n",
           decode_check_blind(e, r->shape.dtype) ? "true" : "false");
    printf("  \"passed\": %s\n", decode_check_passed(e, r->shape.dtype) ? "true" : "false");
}

void decode_print_json(const decode_result *r)
{
    const decode_weights *w = &r->model->weights;
    puts("{");
    json_text("source", r->source);
    json_text("device", r->device);
    json_text("dtype", matrix_dtype_names[r->shape.dtype]);
    json_text("shard", how(r));
    json_text("rope", rope_names[w->rope.kind]);
    json_number("rope_theta", w->rope.theta, ",");
    json_text("project", r->project);
    if (*r->gather)
        json_text("gather", r->gather);
    json_text("attend", r->attend);
    json_text("output", r->output);
    json_text("clock", r->device_clock ? "gpu" : "host");
    json_number("emulated_link_gb_s", measure_wire(), ",");
    printf("  \"graph\": %s,\n  \"ranks\": %d,\n", r->graph ? "true" : "false", r->ranks);
    printf("  \"hidden\": %lld,\n  \"heads\": %d,\n  \"kv_heads\": %d,\n  \"head_dim\": %d,\n",
           (long long)w->hidden, w->heads, w->kv_heads, w->head_dim);
    printf("  \"batch\": %lld,\n  \"context\": %lld,\n", (long long)r->shape.batch,
           (long long)r->model->context);
    json_number("attend_own_us", r->us[DECODE_ATTEND_OWN], ",");
    json_number("attend_us", r->us[DECODE_ATTEND], ",");
    json_number("alone_us", r->us[DECODE_ALONE], ",");
    json_number("sequential_us", r->us[DECODE_SEQUENTIAL], ",");
    json_number("step_us", r->us[DECODE_STEP], r->checked ? "," : "");
    if (r->checked)
        json_check(r);
    puts("}");
}

/* ---- The picture ----------------------------------------------------------------------------- */

bool decode_write_timeline(const decode_result *r, const spans *step, const spans *sequential,
                           const char *path, char *error, size_t size)
{
    enum { FIGURES = 4, LINES = FIGURES + 2 };
    char title[120], sizes[400], wire[80], figures[FIGURES][80];
    const char *lines[LINES] = { sizes };
    static const char *const names[FIGURES] = { "attention to own tokens", "attention",
                                                "sequential step", "overlapped step" };
    static const int versions[FIGURES] = { DECODE_ATTEND_OWN, DECODE_ATTEND, DECODE_SEQUENTIAL,
                                           DECODE_STEP };
    snprintf(title, sizeof title, "What %d rank%s do in a decode step of attention", r->ranks,
             r->ranks == 1 ? "" : "s");
    snprintf(sizes, sizeof sizes,
             "%s, %lld sequences of %lld tokens, %s, the cache shared out by %s, on %s", r->source,
             (long long)r->shape.batch, (long long)r->model->context,
             matrix_dtype_names[r->shape.dtype], how(r), r->device);
    for (int i = 0; i < FIGURES; i++) {
        snprintf(figures[i], sizeof figures[i], "%s: %.3f ms", names[i], r->us[versions[i]] / 1000);
        lines[1 + i] = figures[i];
    }
    snprintf(wire, sizeof wire, "wire between ranks, emulated: %g GB/s", measure_wire());
    lines[LINES - 1] = wire;
    static const char *const streams[] = { "compute", "copies" };
    const timeline picture = {
        .title = title,
        .lines = lines,
        .line_count = measure_wire() > 0 ? LINES : LINES - 1,
        .streams = streams,
        .stream_count = 2,
    };
    return job_draw(step, sequential, r->ranks, picture, path, error, size);
}
