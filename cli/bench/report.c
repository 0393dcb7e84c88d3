/* report.c - the result of `imbrex bench` as a table and as JSON. */
#include "bench.h"

#include <math.h>
#include <string.h>

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

static void cell(double value, int decimals)
{
    if (isfinite(value))
        printf(" %12.*f", decimals, value);
    else
        printf(" %12s", "-");
}

void bench_report_table(const bench_result *r)
{
    const bench_request *q = r->request;
    bool product = r->shape->op->product;
    const bench_figure *base = &r->figures[r->base];
    char over[32];
    for (int i = 0; i < r->count; i++)
        if (*r->figures[i].plan)
            printf("%-13s%s\n", r->figures[i].name, r->figures[i].plan);
    if (measure_wire() > 0)
        printf("The wire between ranks is emulated: %g GB/s (IMBREX_CPU_LINK).\n", measure_wire());
    if (r->shape->plan_m > r->shape->m)
        printf("Runs of %lld rows, which the chosen plan is not for alone.\n",
               (long long)r->shape->m);
    if (r->sets)
        printf("%d set%s of operands, ", r->sets, r->sets == 1 ? "" : "s");
    printf("%d call%s a %s; the median of %lld round%s of the slowest rank, by the clock of the "
           "%s\n\n",
           r->inner, r->inner == 1 ? "" : "s", q->graph ? "graph" : "round", (long long)q->rounds,
           q->rounds == 1 ? "" : "s", r->device_clock ? "GPU" : "host");
    if (r->shape->op->meets) { /* nothing travels, and there is no plan */
        printf("%-12s %12s\n%-12s %12.1f\n\n", "", "us", base->name, base->us);
        return;
    }

    snprintf(over, sizeof over, "/ %s", base->name);
    printf("%-12s %12s %12s %12s %12s %12s\n", "", "us", over,
           product               ? "GFLOP/s"
           : r->shape->op->cache ? "GB/s of cache"
                                 : "GB/s received",
           "host us", "plan ms");
    for (int i = 0; i < r->count; i++) {
        const bench_figure *f = &r->figures[i];
        printf("%-12s", f->name);
        cell(f->us, 1);
        cell(f->us / base->us, 3);
        cell(product               ? gflop_s(r, f)
             : r->shape->op->cache ? gb_s_read(r, f)
                                   : gb_s(r, f),
             product ? 1 : 2);
        cell(f->host_us, 2);
        cell(*f->plan ? f->plan_again_ms : (double)NAN, 1);
        putchar('\n');
    }
    putchar('\n');
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

/* Bytes that rank 0 sends in a run, as a plan over nodes tells: within its node, and to others. */
static void sent(const bench_figure *f, double *within, double *between)
{
    unsigned long long bytes[2];
    const char *at = strstr(f->plan, "the latest run sent ");
    bool told = at && sscanf(at, "the latest run sent %llu bytes within the node, %llu", &bytes[0],
                             &bytes[1]) == 2;
    *within = told ? (double)bytes[0] : (double)NAN;
    *between = told ? (double)bytes[1] : (double)NAN;
}

static void json_candidate(const bench_result *r, const bench_figure *f)
{
    printf("{ \"name\": ");
    text_json(stdout, f->name, strlen(f->name));
    words("plan", f->plan);
    number("us", f->us);
    number("over", f->us / r->figures[r->base].us);
    number("gflop_s", gflop_s(r, f));
    number("gb_s_received", gb_s(r, f));
    number("gb_s_cache", gb_s_read(r, f));
    double within, between;
    sent(f, &within, &between);
    number("bytes_within_node", within);
    number("bytes_between_nodes", between);
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
