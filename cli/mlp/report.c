/* report.c - the result of `imbrex mlp` as a table, as JSON and as a picture. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "matrix.h"
#include "measure.h"
#include "mlp.h"
#include "text.h"

/* 1 - (overlapped - products) / (sequential - products): how much of the time that communication
 * adds is no longer seen; NAN where it adds nothing. */
static double hidden_share(const mlp_result *r)
{
    double added = r->sequential_us - r->products_us;
    return added > 0 ? 1 - (r->overlapped_us - r->products_us) / added : (double)NAN;
}

static void row(const mlp_result *r, const char *name, double us)
{
    printf("  %-36s%10.3f%22.2fx\n", name, us / 1000, us / r->products_us);
}

/* Over 100 % is the measurement's noise: overlap cannot beat having nothing to send. */
static void say_hidden(const mlp_result *r, char *text, size_t size)
{
    double hidden = hidden_share(r);
    if (isnan(hidden) || r->ranks == 1)
        snprintf(text, size, "nothing to hide");
    else if (hidden >= 1)
        snprintf(text, size, "all of it");
    else if (hidden < 0)
        snprintf(text, size, "none");
    else
        snprintf(text, size, "%.0f %%", 100 * hidden);
}

static void print_choice(const mlp_error *e)
{
    const bool one = e->strayed == 1;
    if (e->strayed > 0)
        printf("  %.0f token%s chose experts of lower scores than others that %s left out",
               e->strayed, one ? "" : "s", one ? "it" : "they");
    else
        printf("  experts chosen           float64's%s", e->near > 0 ? ", but for " : "");
    if (e->strayed == 0 && e->near > 0)
        printf("%.0f token%s, whose scores are nearly equal", e->near, e->near == 1 ? "" : "s");
    printf("\n  worst weight             off by %.2g of what float32 allows\n", e->weight);
}

static void print_check(const mlp_error *e, imbrex_dtype dtype, imbrex_dtype bound)
{
    if (e->lost)
        printf("  x or a weight holds a number that %s cannot: y cannot be right\n",
               matrix_dtype_names[dtype]);
    if (e->apart)
        printf("  ranks do not have the same y, as all are to\n");
    if (e->odd_rows > 0)
        printf("  x holds NaN or infinities in %.0f token%s: so may y there\n", e->odd_rows,
               e->odd_rows == 1 ? "" : "s");
    if (e->odd_weights)
        printf("  the weights hold NaN or infinities: so may y\n");
    printf("  error of all of y        %.2g of its size, allowed %.2g\n", mlp_check_relative(e),
           mlp_check_allowed(bound));
    printf("  worst element            %.2g of its spread, allowed %.2g\n", e->worst,
           mlp_check_worst_allowed(bound));
    printf("  largest error            %.3g where |y| is up to %.3g: %s\n", e->largest, e->scale,
           mlp_check_passed(e, bound) ? "passed" : "FAILED");
}

/* Pairs of the rank that has the most, by the mean of all. */
static double unevenness(const mlp_result *r)
{
    int64_t most = 0, sum = 0;
    for (int i = 0; i < r->ranks; i++) {
        most = r->pairs[i] > most ? r->pairs[i] : most;
        sum += r->pairs[i];
    }
    return sum ? (double)most * r->ranks / (double)sum : 1;
}

static void print_experts(const mlp_result *r)
{
    enum { PAIRS_TEXT = 64 * 21 }; /* of 64 ranks */
    printf("  %d experts, %d of them for each token, %s", r->experts, r->top_k,
           r->whole ? "whole, on one rank each" : "each cut over all ranks");
    if (r->shared)
        printf("; shared: ffn %lld, for all tokens", (long long)r->shared);
    char pairs[PAIRS_TEXT];
    size_t length = 0;
    for (int i = 0; i < r->ranks && length < sizeof pairs; i++)
        length += (size_t)snprintf(pairs + length, sizeof pairs - length, " %lld",
                                   (long long)r->pairs[i]);
    text_wrap(stdout, 4, "\n  pairs of token and expert on each rank:%s\n", pairs);
    text_wrap(
        stdout, 4, "  the rank with the most has %.2f times the mean, the expert %.2f times\n",
        unevenness(r), (double)r->most_of_expert * r->experts / ((double)r->tokens * r->top_k));
}

static void print_layer(const mlp_result *r)
{
    char source[200];
    snprintf(source, sizeof source, "%s", r->source);
    text_harmless(source, false);
    text_wrap(stdout, 2, "MLP of %s: hidden %lld, ffn %lld, %lld tokens, %s; %d rank%s on %s\n",
              source, (long long)r->hidden, (long long)r->ffn, (long long)r->tokens,
              matrix_dtype_names[r->dtype], r->ranks, r->ranks == 1 ? "" : "s", r->device);
    text_wrap(stdout, 4, "  activation %s%s%s, %s%s\n", r->activation,
              r->gated ? ", gated" : ", no gate", r->biases ? ", with biases" : "",
              r->activation_from ? "of " : "assumed: no config.json lies beside the weights",
              r->activation_from ? r->activation_from : "");
    if (r->scaling != IMBREX_UNSCALED)
        text_wrap(stdout, 4, "  weights e4m3, a scale %s; activations e4m3, %s\n",
                  r->scaling == IMBREX_PER_BLOCK ? "for 128 x 128" : "a row",
                  r->fixed                         ? "by the checkpoint's scales"
                  : r->scaling == IMBREX_PER_BLOCK ? "a scale for 128 of a token"
                                                   : "a scale a token");
    if (r->experts)
        print_experts(r);
    if (r->replicated)
        printf("  x and y on every rank whole\n");
    if (r->residual || r->norm)
        text_wrap(stdout, 4, "  y%s%s%s\n", r->residual ? " with a residual" : "",
                  r->norm ? ", normed by " : "", r->norm ? r->norm : "");
    text_wrap(stdout, 13, "  %s   %s\n  down       %s\n", r->gated ? "gate, up" : "up      ",
              r->gate_up, r->down);
}

static void print_times(const mlp_result *r)
{
    job_print_how("the products alone: what each rank multiplies", r->device_clock, r->graph);
    printf("\n  %-36s%10s%23s\n", "", "ms", "of the products alone");
    row(r, "products alone, nothing sent", r->products_us);
    row(r, "sequential: communicate, compute", r->sequential_us);
    row(r, "overlapped", r->overlapped_us);
    putchar('\n');
    char hidden[64];
    say_hidden(r, hidden, sizeof hidden);
    printf("  overlapped is            %.2fx as fast as sequential\n",
           r->sequential_us / r->overlapped_us);
    printf("  communication hidden     %s\n", hidden);
}

void mlp_print_table(const mlp_result *r)
{
    print_layer(r);
    print_times(r);
    if (r->checked && r->experts)
        print_choice(&r->error);
    if (r->checked)
        print_check(&r->error, r->dtype, r->bound);
}

static void json_text(const char *key, const char *value)
{
    text_json_string_line(stdout, key, value, ",");
}

static void json_number(const char *key, double value, const char *end)
{
    text_json_number_line(stdout, key, value, end);
}

static void json_experts(const mlp_result *r)
{
    printf("  \"experts\": %d,\n  \"top_k\": %d,\n  \"shared_ffn\": %lld,\n", r->experts, r->top_k,
           (long long)r->shared);
    json_text("experts_are", r->whole ? "whole" : "tensor");
    printf("  \"pairs\": [");
    for (int i = 0; i < r->ranks; i++)
        printf("%s%lld", i ? ", " : "", (long long)r->pairs[i]);
    printf("],\n  \"pairs_of_one_expert\": %lld,\n", (long long)r->most_of_expert);
    json_number("rank_most_by_mean", unevenness(r), ",");
    if (!r->checked)
        return;
    json_number("tokens_nearly_equal", r->error.near, ",");
    json_number("tokens_strayed", r->error.strayed, ",");
    json_number("worst_weight", r->error.weight, ",");
}

void mlp_print_json(const mlp_result *r)
{
    puts("{");
    json_text("source", r->source);
    json_text("device", r->device);
    json_text("dtype", matrix_dtype_names[r->dtype]);
    json_text("scaling", r->scaling == IMBREX_UNSCALED    ? "none"
                         : r->scaling == IMBREX_PER_BLOCK ? "block"
                                                          : "row");
    printf("  \"activation_scales\": \"%s\",\n", r->fixed ? "static" : "dynamic");
    json_text("activation", r->activation);
    json_text("activation_from", r->activation_from ? r->activation_from : "assumed");
    printf("  \"gated\": %s,\n  \"biases\": %s,\n", r->gated ? "true" : "false",
           r->biases ? "true" : "false");
    printf("  \"replicate\": %s,\n  \"residual\": %s,\n", r->replicated ? "true" : "false",
           r->residual ? "true" : "false");
    json_text("norm", r->norm ? r->norm : "none");
    if (r->experts)
        json_experts(r);
    json_text("gate_up", r->gate_up);
    json_text("down", r->down);
    json_text("clock", r->device_clock ? "gpu" : "host");
    json_number("emulated_link_gb_s", measure_wire(), ",");
    printf("  \"graph\": %s,\n", r->graph ? "true" : "false");
    printf("  \"ranks\": %d,\n  \"tokens\": %lld,\n  \"hidden\": %lld,\n  \"ffn\": %lld,\n",
           r->ranks, (long long)r->tokens, (long long)r->hidden, (long long)r->ffn);
    json_number("products_us", r->products_us, ",");
    json_number("sequential_us", r->sequential_us, ",");
    json_number("overlapped_us", r->overlapped_us, ",");
    json_number("communication_hidden", hidden_share(r), r->checked ? "," : "");
    if (r->checked) {
        json_number("largest_error", r->error.largest, ",");
        json_number("largest_y", r->error.scale, ",");
        json_number("relative_error", mlp_check_relative(&r->error), ",");
        json_number("relative_error_allowed", mlp_check_allowed(r->bound), ",");
        json_number("worst_element", r->error.worst, ",");
        json_number("worst_element_allowed", mlp_check_worst_allowed(r->bound), ",");
        json_number("x_not_finite", r->error.odd_rows, ",");
        printf("  \"ranks_differ\": %s,\n", r->error.apart ? "true" : "false");
        printf("  \"weights_not_finite\": %s,\n  \"beyond_dtype\": %s,\n",
               r->error.odd_weights ? "true" : "false", r->error.lost ? "true" : "false");
        printf("  \"passed\": %s\n", mlp_check_passed(&r->error, r->bound) ? "true" : "false");
    }
    puts("}");
}

bool mlp_write_timeline(const mlp_result *r, const spans *overlapped, const spans *sequential,
                        const char *path, char *error, size_t size)
{
    enum { LINES = 6 };
    char title[120], sizes[400], figures[5][80];
    if (r->experts)
        snprintf(title, sizeof title, "What %d rank%s do in a transformer's layer of %d experts",
                 r->ranks, r->ranks == 1 ? "" : "s", r->experts);
    else
        snprintf(title, sizeof title, "What %d rank%s do in a transformer's MLP", r->ranks,
                 r->ranks == 1 ? "" : "s");
    snprintf(sizes, sizeof sizes, "%s, hidden %lld, ffn %lld, %lld tokens, %s, on %s", r->source,
             (long long)r->hidden, (long long)r->ffn, (long long)r->tokens,
             matrix_dtype_names[r->dtype], r->device);
    snprintf(figures[0], sizeof figures[0], "products alone: %.1f ms", r->products_us / 1000);
    snprintf(figures[1], sizeof figures[1], "sequential: %.1f ms", r->sequential_us / 1000);
    snprintf(figures[2], sizeof figures[2], "overlapped: %.1f ms", r->overlapped_us / 1000);
    size_t length = (size_t)snprintf(figures[3], sizeof figures[3], "communication hidden: ");
    say_hidden(r, figures[3] + length, sizeof figures[3] - length);
    snprintf(figures[4], sizeof figures[4], "wire between ranks, emulated: %g GB/s",
             measure_wire());
    const char *lines[LINES] = {
        sizes, figures[0], figures[1], figures[2], figures[3], figures[4]
    };
    const char *streams[] = { "compute", "copies of x", "copies of sums" };
    const timeline picture = {
        .title = title,
        .lines = lines,
        .line_count = measure_wire() > 0 ? LINES : LINES - 1,
        .streams = streams,
        .stream_count = 3,
    };
    return job_draw(overlapped, sequential, r->ranks, picture, path, error, size);
}
