/* kernels.c - kernels alone.  Those that only move memory, against the device's own copy in the
 * same run:
 *
 *     kernels [--device cuda:0] [--mb 64] [--parts 4] [--rounds N] [--warm N] [--sms N] [--json]
 *
 * reduce adds so many parts of so many MB; silu_mul gates two.  Bytes that are read and written are
 * counted; the copy moves as many as reduce.  And what its hooks cost the product:
 *
 *     kernels --hooks --m 8192 --n 8192 --k 8192 [...]
 *
 * the product as one rank has it alone, then with the wait for each chunk of half its rows compiled
 * in, all signals raised beforehand, then with tiles counted and a signal posted.  And
 *
 *     kernels --route [...]
 *
 * routing alone, its exchange left out: tokens of 8 pairs each over 128 experts, as chance has
 * them.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "group/group.h"
#include "kernels/activate/args.h"
#include "kernels/gemm/args.h"
#include "kernels/reduce/args.h"
#include "kernels/route/args.h"
#include "measure.h"
#include "tune/tune.h"

enum { COPY, REDUCE_BF16, REDUCE_F32, SILU_BF16, SILU_F32, CANDIDATES, COLUMNS = 4096 };
enum { PLAIN, WAITS, POSTS, PRODUCTS };
enum { EXPERTS = 128, TOP_K = 8, ALIGN = 128 }; /* of routing */
enum { MB = 1 << 20, WORDS = 4096 };            /* signals, and counters, of a product */

typedef enum what { MOVERS, HOOKS, ROUTE } what;

typedef struct options {
    const char *device;
    int64_t mb, parts, rounds, warm, sms, m, n, k;
    what what;
    bool json;
} options;

/* One launch of a kernel, or a copy. */
typedef struct kernel_call {
    imbrex_group *group;
    imbrex_stream stream;
    imx_prepared *kernel; /* NULL: a copy */
    union {
        imx_reduce_args reduce;
        imx_activate_args activate;
        imx_gemm_args gemm;
        imx_route_args route;
    } args;
    size_t args_bytes;
    void *dst;
    const void *src;
    double bytes; /* read and written; a copy: half of them are copied */
} kernel_call;

typedef struct bench {
    options options;
    imbrex_group *group;
    share share;
    cuda_timer *timer; /* NULL: the host's clock */
    size_t part_bytes;
    char *memory; /* [parts + 1][part_bytes] */
    kernel_call calls[CANDIDATES];
    candidate candidates[CANDIDATES];
    int count;
} bench;

static imbrex_status enqueue(void *ctx)
{
    kernel_call *call = ctx;
    const imx_backend *backend = call->group->backend;
    imx_device *device = call->group->device;
    if (!call->kernel)
        return backend->copy(device, call->dst, call->src, (size_t)(call->bytes / 2), 0,
                             call->stream);
    return backend->launch(device, call->kernel, &call->args, call->args_bytes, call->stream);
}

static imbrex_status add(bench *b, int i, const char *name, const imx_kernel *kernel)
{
    kernel_call *call = &b->calls[i];
    imx_target target;
    call->group = b->group;
    call->stream = b->timer ? cuda_timer_stream(b->timer) : b->group->stream;
    b->candidates[i] =
        (candidate){ .name = name, .enqueue = enqueue, .ctx = call, .group = b->group, .inner = 8 };
    b->count++;
    if (!kernel)
        return IMBREX_OK;
    b->group->backend->target(b->group->device, &target);
    int blocks = b->options.sms ? (int)b->options.sms : target.workers;
    return b->group->backend->prepare(b->group->device, kernel, &call->args, blocks, &call->kernel);
}

static imbrex_status add_reduce(bench *b, int i, const char *name, imbrex_dtype dtype)
{
    int parts = (int)b->options.parts;
    int64_t rows = (int64_t)(b->part_bytes / imx_dtype_bytes(dtype) / COLUMNS);
    b->calls[i].args.reduce = (imx_reduce_args){
        .rows = rows,
        .n = COLUMNS,
        .dtype = dtype,
        .ranks = parts,
        .chunk_rows = (int)rows,
        .chunks = 1,
        .slots = b->memory,
        .own_part = b->memory,
        .slot_bytes = (int64_t)b->part_bytes,
        .c = b->memory + (size_t)parts * b->part_bytes,
    };
    b->calls[i].args_bytes = sizeof(imx_reduce_args);
    b->calls[i].bytes = (double)(b->part_bytes * (size_t)(parts + 1));
    return add(b, i, name, &imx_kernel_reduce);
}

static imbrex_status add_silu_mul(bench *b, int i, const char *name, imbrex_dtype dtype)
{
    b->calls[i].args.activate = (imx_activate_args){
        .rows = (int64_t)(b->part_bytes / imx_dtype_bytes(dtype) / COLUMNS),
        .cols = COLUMNS,
        .kind = IMBREX_SILU,
        .gated = 1,
        .dtype = dtype,
        .in = b->memory,
        .out = b->memory + 2 * b->part_bytes,
    };
    b->calls[i].args_bytes = sizeof(imx_activate_args);
    b->calls[i].bytes = 3.0 * (double)b->part_bytes;
    return add(b, i, name, &imx_kernel_activate);
}

static imbrex_status add_copy(bench *b)
{
    size_t all = b->part_bytes * (size_t)(b->options.parts + 1);
    b->calls[COPY].src = b->memory;
    b->calls[COPY].dst = b->memory + all / 2;
    b->calls[COPY].bytes = (double)all;
    return add(b, COPY, "copy", NULL);
}

/* ---- the product's hooks --------------------------------------------------------------------- */

/* Where in the memory things lie: a, b and c in bf16, signals, counters. */
static size_t offset_of(const options *o, int thing)
{
    const int64_t bytes[] = { o->m * o->k * 2, o->n * o->k * 2, o->m * o->n * 2, WORDS * 8 };
    size_t at = 0;
    for (int i = 0; i < thing; i++)
        at += imx_align((size_t)bytes[i], 1024);
    return at;
}

static char *place_of(const bench *b, int thing)
{
    return b->memory + offset_of(&b->options, thing);
}

static imbrex_status add_product(bench *b, int i, const char *name, int ranks, int features)
{
    const options *o = &b->options;
    imx_target target;
    b->group->backend->target(b->group->device, &target);
    imx_tune_input input = {
        .shape = { o->m, o->n, o->k, IMBREX_BF16, IMBREX_BF16, IMBREX_NK, IMBREX_UNSCALED, false },
        .product = true,
        .scatters = features & IMX_GEMM_SCATTERS,
        .ranks = ranks,
        .nodes = 1,
        .sms = o->sms,
        .arch = target.arch,
        .rates = &b->group->rates,
        .workers = target.workers,
        .sharers = 1,
    };
    imx_config tuned = imx_tune_config(&input);
    if (tuned.spanning && !target.arch) /* a CPU's ranks take all rows at once */
        tuned.chunk_rows =
            (int)imx_align((size_t)imx_ceil_div(o->m, ranks), (size_t)tuned.tile_rows);
    else if ((tuned.spanning && ranks > 1) || ranks * tuned.chunks > WORDS)
        return imx_fail(IMBREX_UNSUPPORTED, "m is %lld: this is about products of many rows",
                        (long long)o->m);
    uint64_t *words = (uint64_t *)place_of(b, 3);
    imx_gemm_args *args = &b->calls[i].args.gemm;
    *args = (imx_gemm_args){
        .schedule = { .m = o->m,
                      .n = o->n,
                      .ranks = ranks,
                      .chunk_rows = tuned.chunk_rows,
                      .tile_rows = tuned.tile_rows,
                      .tile_cols = tuned.tile_cols,
                      .group = tuned.group,
                      .band = tuned.band,
                      .chunks = tuned.chunks },
        .k = o->k,
        .dtype = IMBREX_BF16,
        .out = IMBREX_BF16,
        .features = features,
        .slices = 1,
        .slice_k = (int)o->k,
        .a = place_of(b, 0),
        .gathered = place_of(b, 0),
        .b = place_of(b, 1),
        .c = place_of(b, 2),
        .epoch = words,
        .ready = ranks > 1 ? words : NULL,
        .done = features & IMX_GEMM_SCATTERS ? words : NULL,
        .counters = (uint32_t *)place_of(b, 4),
    };
    b->calls[i].args_bytes = sizeof *args;
    return add(b, i, name, &imx_kernel_gemm);
}

static imbrex_status add_products(bench *b)
{
    uint64_t raised[WORDS];
    uint32_t none[WORDS] = { 0 };
    for (int i = 0; i < WORDS; i++)
        raised[i] = 1;
    IMX_TRY(imbrex_copy(b->group, place_of(b, 3), raised, sizeof raised, NULL));
    IMX_TRY(imbrex_copy(b->group, place_of(b, 4), none, sizeof none, NULL));
    IMX_TRY(imbrex_stream_sync(b->group, NULL));
    IMX_TRY(add_product(b, PLAIN, "plain", 1, IMX_GEMM_GATHERS));
    IMX_TRY(add_product(b, WAITS, "waits", 2, IMX_GEMM_GATHERS));
    return add_product(b, POSTS, "posts", 1, IMX_GEMM_SCATTERS);
}

/* ---- routing --------------------------------------------------------------------------------- */

/* Fills what ranks would have exchanged, a token's ids and then its weights, at `at`, which has so
 * many words. */
static imbrex_status put_packed(bench *b, int32_t *at, int32_t tokens, size_t words)
{
    int32_t *packed = NULL;
    IMX_TRY(imx_sys_alloc(words, sizeof *packed, &packed));
    uint32_t state = 1;
    for (int32_t token = 0; token < tokens; token++) {
        int32_t *ids = packed + (size_t)token * 2 * TOP_K;
        float *weights = (float *)(ids + TOP_K);
        for (int j = 0; j < TOP_K; j++) {
            state = state * 1664525u + 1013904223u;
            ids[j] = (int32_t)(state >> 16) % EXPERTS;
            weights[j] = 1.0f / TOP_K;
        }
    }
    imbrex_status status = imbrex_copy(b->group, at, packed, words * sizeof *packed, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(b->group, NULL);
    free(packed);
    return status;
}

static imbrex_status add_route(bench *b, int i, const char *name, int32_t tokens, int32_t *memory)
{
    const int32_t pairs = tokens * TOP_K, rows = pairs + EXPERTS * ALIGN;
    const size_t words = (size_t)tokens * 2 * TOP_K;
    int32_t *packed = memory, *begin = packed + words, *pair_row = begin + 2 * EXPERTS + 1 + rows;
    b->calls[i].args.route = (imx_route_args){
        .step = IMX_ROUTE_ROUTES,
        .tokens = tokens,
        .top_k = TOP_K,
        .experts = EXPERTS,
        .here = EXPERTS,
        .align = ALIGN,
        .rows = rows,
        .packed = packed,
        .expert_begin = begin,
        .expert_rows = begin + EXPERTS + 1,
        .row_pair = begin + 2 * EXPERTS + 1,
        .pair_row = pair_row,
        .pair_expert = pair_row + pairs,
        .weights = (float *)(pair_row + (size_t)2 * pairs),
    };
    b->calls[i].args_bytes = sizeof(imx_route_args);
    IMX_TRY(put_packed(b, packed, tokens, words));
    return add(b, i, name, &imx_kernel_route);
}

static imbrex_status add_routes(bench *b)
{
    IMX_TRY(add_route(b, 0, "1024 pairs", 128, (int32_t *)b->memory));
    return add_route(b, 1, "65536 pairs", 8192, (int32_t *)(b->memory + MB));
}

static void report_routes(const bench *b)
{
    if (!b->options.json)
        printf("top %d of %d experts on %s, by the clock of the %s\n\n%-14s %10s\n", TOP_K, EXPERTS,
               imbrex_group_device(b->group), b->timer ? "GPU" : "host", "", "us");
    for (int i = 0; i < b->count; i++) {
        const candidate *c = &b->candidates[i];
        if (b->options.json)
            printf("{ \"route\": \"%s\", \"device\": \"%s\", \"experts\": %d, \"us\": %.6g }\n",
                   c->name, imbrex_group_device(b->group), EXPERTS, c->us);
        else
            printf("%-14s %10.1f\n", c->name, c->us);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Numbers between -2 and 2 in f32, and in bf16: a memory of zeros takes less power. */
static imbrex_status fill(bench *b)
{
    uint32_t *words = NULL;
    IMX_TRY(imx_sys_alloc(b->part_bytes / sizeof *words, sizeof *words, &words));
    uint32_t state = 1;
    for (size_t i = 0; i < b->part_bytes / sizeof *words; i++) {
        state = state * 1664525u + 1013904223u;
        words[i] = (state & 0x807f807fu) | 0x3f803f80u;
    }
    imbrex_status status = IMBREX_OK;
    for (int64_t i = 0; i <= b->options.parts && status == IMBREX_OK; i++)
        status = imbrex_copy(b->group, b->memory + (size_t)i * b->part_bytes, words, b->part_bytes,
                             NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(b->group, NULL);
    free(words);
    return status;
}

static imbrex_status open_all(bench *b)
{
    static const imbrex_bootstrap alone = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &alone, .device = b->options.device };
    void *memory;
    IMX_TRY(imbrex_group_create(&desc, &b->group));
    IMX_TRY(share_open(b->group, sizeof(double), &b->share));
    IMX_TRY(measure_clock(b->group, false, &b->timer));
    if (b->options.what == HOOKS) /* the same room, for another use */
        b->options.mb =
            (int64_t)(offset_of(&b->options, 4) + WORDS * 8) / (b->options.parts + 1) / MB + 1;
    b->part_bytes = (size_t)b->options.mb * MB;
    IMX_TRY(imbrex_mem_alloc(b->group, b->part_bytes * (size_t)(b->options.parts + 1), &memory));
    b->memory = memory;
    return fill(b);
}

static imbrex_status add_movers(bench *b)
{
    IMX_TRY(add_copy(b));
    IMX_TRY(add_reduce(b, REDUCE_BF16, "reduce bf16", IMBREX_BF16));
    IMX_TRY(add_reduce(b, REDUCE_F32, "reduce f32", IMBREX_F32));
    IMX_TRY(add_silu_mul(b, SILU_BF16, "silu_mul bf16", IMBREX_BF16));
    return add_silu_mul(b, SILU_F32, "silu_mul f32", IMBREX_F32);
}

static imbrex_status run(bench *b)
{
    const options *o = &b->options;
    IMX_TRY(open_all(b));
    IMX_TRY((o->what == HOOKS ? add_products : o->what == ROUTE ? add_routes : add_movers)(b));
    return measure_by(b->timer, &b->share, b->candidates, b->count, (int)o->warm, (int)o->rounds,
                      NULL);
}

static void report_hooks(const bench *b)
{
    const options *o = &b->options;
    if (!o->json)
        printf("m=%lld n=%lld k=%lld bf16 on %s, by the clock of the %s\n\n%-14s %10s %10s %8s\n",
               (long long)o->m, (long long)o->n, (long long)o->k, imbrex_group_device(b->group),
               b->timer ? "GPU" : "host", "", "us", "TFLOP/s", "/ plain");
    for (int i = 0; i < b->count; i++) {
        const candidate *c = &b->candidates[i];
        double over = c->us / b->candidates[PLAIN].us;
        double tflop_s = 2e-6 * (double)o->m * (double)o->n * (double)o->k / c->us;
        if (o->json)
            printf("{ \"hooks\": \"%s\", \"device\": \"%s\", \"m\": %lld, \"n\": %lld, "
                   "\"k\": %lld, \"us\": %.6g, \"tflop_s\": %.6g, \"of_plain\": %.6g }\n",
                   c->name, imbrex_group_device(b->group), (long long)o->m, (long long)o->n,
                   (long long)o->k, c->us, tflop_s, over);
        else
            printf("%-14s %10.1f %10.1f %8.4f\n", c->name, c->us, tflop_s, over);
    }
}

static void report(const bench *b)
{
    double copied = b->calls[COPY].bytes / b->candidates[COPY].us * 1e-3;
    if (!b->options.json)
        printf("%lld parts of %lld MB on %s, by the clock of the %s\n\n%-14s %10s %10s %8s\n",
               (long long)b->options.parts, (long long)b->options.mb, imbrex_group_device(b->group),
               b->timer ? "GPU" : "host", "", "us", "GB/s", "/ copy");
    for (int i = 0; i < b->count; i++) {
        const candidate *c = &b->candidates[i];
        double gb_s = b->calls[i].bytes / c->us * 1e-3;
        if (b->options.json)
            printf("{ \"kernel\": \"%s\", \"device\": \"%s\", \"parts\": %lld, \"mb\": %lld, "
                   "\"us\": %.6g, \"gb_s\": %.6g, \"of_copy\": %.6g }\n",
                   c->name, imbrex_group_device(b->group), (long long)b->options.parts,
                   (long long)b->options.mb, c->us, gb_s, gb_s / copied);
        else
            printf("%-14s %10.1f %10.1f %8.3f\n", c->name, c->us, gb_s, gb_s / copied);
    }
}

static void close_all(bench *b)
{
    for (int i = 0; i < CANDIDATES && b->group; i++)
        b->group->backend->prepared_destroy(b->group->device, b->calls[i].kernel);
    share_close(&b->share);
    imbrex_group_destroy(b->group);
    cuda_timer_close(b->timer);
}

static bool is_size(int64_t size)
{
    return size > 0 && size <= 1 << 20;
}

static bool parse(int argc, char **argv, options *o)
{
    enum { DEVICE = 1, JSON, WHAT, NUMBERS = WHAT + ROUTE + 1 };
    int64_t *const numbers[] = { &o->mb,  &o->parts, &o->rounds, &o->warm,
                                 &o->sms, &o->m,     &o->n,      &o->k };
    static const struct option names[] = {
        { "device", required_argument, NULL, DEVICE },
        { "json", no_argument, NULL, JSON },
        { "hooks", no_argument, NULL, WHAT + HOOKS },
        { "route", no_argument, NULL, WHAT + ROUTE },
        { "mb", required_argument, NULL, NUMBERS },
        { "parts", required_argument, NULL, NUMBERS + 1 },
        { "rounds", required_argument, NULL, NUMBERS + 2 },
        { "warm", required_argument, NULL, NUMBERS + 3 },
        { "sms", required_argument, NULL, NUMBERS + 4 },
        { "m", required_argument, NULL, NUMBERS + 5 },
        { "n", required_argument, NULL, NUMBERS + 6 },
        { "k", required_argument, NULL, NUMBERS + 7 },
        { 0 },
    };
    for (int word; (word = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (word == DEVICE)
            o->device = optarg;
        else if (word == JSON)
            o->json = true;
        else if (word == WHAT + HOOKS || word == WHAT + ROUTE)
            o->what = (what)(word - WHAT);
        else if (word == '?' || !imx_env_parse_int(optarg, numbers[word - NUMBERS]))
            return false;
    }
    return optind == argc && o->mb > 0 && o->mb <= 1024 && o->parts >= 2 && o->parts <= 16 &&
           o->rounds > 0 && o->rounds <= 10000 && o->warm >= 0 && o->warm <= 10000 && o->sms >= 0 &&
           o->sms <= 1024 && is_size(o->m) && is_size(o->n) && is_size(o->k);
}

int main(int argc, char **argv)
{
    bench b = { .options = { .mb = 64,
                             .parts = 4,
                             .rounds = 15,
                             .warm = 3,
                             .m = 8192,
                             .n = 8192,
                             .k = 8192 } };
    if (!parse(argc, argv, &b.options)) {
        fputs("usage: kernels [--device NAME] [--mb MB] [--parts N] [--rounds N] [--warm N] "
              "[--sms N] [--json]\n       kernels --hooks [--m M] [--n N] [--k K] ...\n"
              "       kernels --route ...\n",
              stderr);
        return 2;
    }
    imbrex_status status = run(&b);
    if (status == IMBREX_OK)
        (b.options.what == HOOKS   ? report_hooks
         : b.options.what == ROUTE ? report_routes
                                   : report)(&b);
    else
        fprintf(stderr, "kernels: %s: %s\n", imbrex_status_name(status), imbrex_error());
    close_all(&b);
    return status == IMBREX_OK ? 0 : 1;
}
