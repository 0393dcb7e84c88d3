/* report.c - the result of `imbrex bench` as a table and as JSON. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "matrix.h"
#include "text.h"

static double gflop_s(const bench_result *r, const bench_figure *f)
{
    return r->shape->op->product ? bench_op_flop(r->shape, r->ranks) / f->us * 1e-3 : (double)NAN;
}

/* What a product alone receives is nothing. */
static double gb_s(const bench_result *r, const bench_figure *f)
{
    bool alone = strcmp(f->name, "blas") == 0 || strcmp(f->name, "cublas") == 0 ||
                 strcmp(f->name, "products") == 0 || strcmp(f->name, "local") == 0;
    return alone || r->shape->op->meets || r->ranks == 1
               ? (double)NAN
               : bench_op_bytes(r->shape, r->ranks) / f->us * 1e-3;
}

/* Of a cache. */
static double gb_s_read(const bench_result *r, const bench_figure *f)
{
    double bytes = bench_op_cache_bytes(r->shape);
    return bytes > 0 ? bytes / f->us * 1e-3 : (double)NAN;
}

/* ---- For people ------------------------------------------------------------------------------ */

enum { HOST_WIDTH = 70, PLAN_WIDTH = 80 }; /* from which width on a table has these columns */

static void cell(int width, double value, int decimals)
{
    if (isfinite(value))
        printf("%*.*f", width, value < 1e6 ? decimals : 0, value);
    else
        printf("%*s", width, "-");
}

static bool is_product(const char *name)
{
    return strcmp(name, "products") == 0 || strcmp(name, "local") == 0;
}

/* What others are divided by, as a column's head and as a sentence. */
static const char *base_head(const char *name)
{
    return strcmp(name, "local") == 0        ? "of local attention"
           : strcmp(name, "sequential") == 0 ? "of sequential"
                                             : "of the product alone";
}

static const char *base_sentence(const bench_result *r)
{
    const char *name = r->figures[r->base].name;
    if (strcmp(name, "cublas") == 0)
        return "one rank's product alone, by the fastest of 8 ways that cuBLASLt proposes; nothing "
               "is sent";
    if (strcmp(name, "blas") == 0)
        return "one rank's product alone, by one call of the BLAS; nothing is sent";
    if (strcmp(name, "local") == 0)
        return "attention to one rank's tokens alone, by the same code; nothing is sent";
    if (strcmp(name, "products") == 0 && r->shape->op->experts)
        return "one rank's products alone, by the same code; nothing is sent";
    if (strcmp(name, "products") == 0)
        return "one rank's product alone, by the same code; nothing is sent";
    return "the same without overlap";
}

/* Operator, sizes and ranks: a description up to its algorithm, of a plan for just
 * the rows that are run. */
static void title(const bench_result *r)
{
    int i = r->count - 1;
    while (i > 0 && strcmp(r->figures[i].name, "sequential") != 0)
        i--;
    const char *line = r->figures[i].plan;
    const char *end = strstr(line, ": ");
    if (end)
        text_wrap(stdout, 2, "%.*s\n\n", (int)(end - line), line);
}

/* What a description says behind that; of a product alone no algorithm. */
static void plans(const bench_result *r)
{
    bool any = false;
    for (int i = 0; i < r->count; i++) {
        const bench_figure *f = &r->figures[i];
        const char *how = strstr(f->plan, ": ");
        const char *cut = how ? strstr(how, "; ") : NULL;
        char rows[40] = "";
        how = cut && is_product(f->name) ? cut : how;
        if (r->shape->plan_m > r->shape->m && strcmp(f->name, "chosen") == 0)
            snprintf(rows, sizeof rows, "for m=%lld: ", (long long)r->shape->plan_m);
        if (how)
            text_wrap(stdout, 15, "%s  %-13s%s%s\n", any ? "" : "Plans:\n", f->name, rows, how + 2);
        any = any || how;
    }
    if (any)
        putchar('\n');
}

static void conditions(const bench_result *r)
{
    const bench_request *q = r->request;
    char sets[60] = "";
    if (r->count > 1)
        text_wrap(stdout, 2, "  Compared with \"%s\": %s.\n", r->figures[r->base].name,
                  base_sentence(r));
    if (measure_wire() > 0)
        text_wrap(stdout, 2, "  The wire between ranks is emulated: %g GB/s (IMBREX_CPU_LINK).\n",
                  measure_wire());
    if (r->shape->plan_m > r->shape->m)
        text_wrap(stdout, 2, "  Runs of %lld rows, which the chosen plan is not for alone.\n",
                  (long long)r->shape->m);
    if (r->sets)
        snprintf(sets, sizeof sets, "; %d set%s of operands", r->sets, r->sets == 1 ? "" : "s");
    text_wrap(
        stdout, 2,
        "  Times are of one call: the median of %lld round%s of the slowest rank, %d call%s a "
        "%s, by the clock of the %s%s.\n\n",
        (long long)q->rounds, q->rounds == 1 ? "" : "s", r->inner, r->inner == 1 ? "" : "s",
        q->graph ? "graph" : "round", r->device_clock ? "GPU" : "host", sets);
}

static void chart(const bench_result *r)
{
    double base = r->figures[r->base].us, most = base;
    for (int i = 0; i < r->count; i++)
        most = fmax(most, r->figures[i].us);
    for (int i = 0; i < r->count; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.2fx", r->figures[i].us / base);
        text_bar(stdout, r->figures[i].name, r->figures[i].us, base, most, text);
    }
    text_wrap(stdout, 2, "  Shorter is sooner; a colon stands where \"%s\" ends.\n\n",
              r->figures[r->base].name);
}

static void figures(const bench_result *r)
{
    bool product = r->shape->op->product, cache = r->shape->op->cache;
    bool host = text_width(stdout) >= HOST_WIDTH, plan = text_width(stdout) >= PLAN_WIDTH;
    const bench_figure *base = &r->figures[r->base];
    printf("  %-13s%10s%22s%15s%s%s\n", "", "us", base_head(base->name),
           product ? "GFLOP/s"
           : cache ? "GB/s of cache"
                   : "GB/s received",
           host ? "  host us" : "", plan ? "  plan ms" : "");
    for (int i = 0; i < r->count; i++) {
        const bench_figure *f = &r->figures[i];
        printf("  %-13s", f->name);
        cell(10, f->us, 1);
        cell(21, f->us / base->us, 2);
        putchar('x');
        cell(15, product ? gflop_s(r, f) : cache ? gb_s_read(r, f) : gb_s(r, f), product ? 1 : 2);
        if (host)
            cell(9, f->host_us, 2);
        if (plan)
            cell(9, *f->plan ? f->plan_again_ms : (double)NAN, 1);
        putchar('\n');
    }
    putchar('\n');
}

void bench_report_table(const bench_result *r)
{
    const bench_figure *base = &r->figures[r->base];
    title(r);
    conditions(r);
    if (r->shape->op->meets) { /* nothing travels, and there is no plan */
        printf("  %-13s%10s\n  %-13s%10.1f\n\n", "", "us", base->name, base->us);
        return;
    }
    figures(r);
    if (r->count > 1 && (r->request->chart || isatty(STDOUT_FILENO)))
        chart(r);
    plans(r);
}

/* ---- For programs ---------------------------------------------------------------------------- */

static void number(const char *key, double value)
{
    printf(", \"%s\": ", key);
    text_json_number(stdout, value);
}

static void words(const char *key, const char *value)
{
    printf(", \"%s\": ", key);
    if (value && *value)
        text_json(stdout, value, strlen(value));
    else
        fputs("null", stdout);
}

static void json_candidate(const bench_result *r, const bench_figure *f)
{
    printf("{ \"name\": ");
    text_json(stdout, f->name, strlen(f->name));
    words("plan", f->plan);
    words("algorithm", f->facts.algorithm);
    printf(", \"measured\": %s", !*f->plan ? "null" : f->facts.measured ? "true" : "false");
    number("us", f->us);
    number("over", f->us / r->figures[r->base].us);
    number("gflop_s", gflop_s(r, f));
    number("gb_s_received", gb_s(r, f));
    number("gb_s_cache", gb_s_read(r, f));
    /* Of rank 0, in a run over nodes. */
    number("bytes_within_node", *f->plan ? f->facts.sent_inside : (double)NAN);
    number("bytes_between_nodes", *f->plan ? f->facts.sent_between : (double)NAN);
    number("host_us", f->host_us);
    number("plan_ms", *f->plan ? f->plan_ms : (double)NAN);
    number("plan_again_ms", *f->plan ? f->plan_again_ms : (double)NAN);
    fputs(" }", stdout);
}

void bench_report_json(const bench_result *r)
{
    const bench_request *q = r->request;
    const bench_shape *s = r->shape;
    printf("{ \"op\": \"%s\", \"ranks\": %d", s->op->name, r->ranks);
    words("device", r->device);
    number("m", s->op->meets ? (double)NAN : (double)s->m);
    number("n", s->op->meets ? (double)NAN : (double)s->n);
    number("k", s->op->product ? (double)s->k : (double)NAN);
    words("dtype", s->op->meets ? NULL : matrix_dtype_names[s->dtype]);
    words("layout", s->op->product ? bench_layout_names[s->layout] : NULL);
    number("experts", s->op->experts ? s->experts : (double)NAN);
    number("top_k", s->op->experts ? s->top_k : (double)NAN);
    words("parallel", !s->op->experts ? NULL : s->whole ? "whole" : "tensor");
    number("skew", s->op->experts ? s->skew : (double)NAN);
    words("scaling", s->scaling ? bench_scaling_names[s->scaling] : NULL);
    number("heads", s->op->states ? s->heads : (double)NAN);
    number("kv_heads", s->op->cache ? s->kv_heads : (double)NAN);
    number("head_dim", s->op->states ? s->head_dim : (double)NAN);
    number("page", s->op->cache && s->page ? s->page : (double)NAN);
    printf(", \"bias\": %s", s->bias ? "true" : "false");
    printf(", \"norm\": %s", s->norm ? "true" : "false");
    number("plan_m", s->plan_m ? (double)s->plan_m : (double)NAN);
    number("chunk_rows", s->chunk_rows ? s->chunk_rows : (double)NAN);
    number("sms", s->sms ? s->sms : (double)NAN);
    number("emulated_link_gb_s", measure_wire());
    number("warm", (double)q->warm);
    number("rounds", (double)q->rounds);
    number("calls_a_round", r->inner);
    number("operand_sets", r->sets ? r->sets : (double)NAN);
    printf(", \"graph\": %s", q->graph ? "true" : "false");
    words("clock", r->device_clock ? "gpu" : "host");
    words("base", r->figures[r->base].name);
    fputs(", \"candidates\": [", stdout);
    for (int i = 0; i < r->count; i++) {
        json_candidate(r, &r->figures[i]);
        fputs(i + 1 < r->count ? ", " : "", stdout);
    }
    puts("] }");
}
