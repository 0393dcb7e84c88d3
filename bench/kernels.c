/* kernels.c - the kernels that only move memory, each alone, against the device's own copy in the
 * same run:
 *
 *     kernels [--device cuda:0] [--mb 64] [--parts 4] [--rounds N] [--warm N] [--sms N] [--json]
 *
 * reduce adds so many parts of so many MB; silu_mul gates two.  Bytes that are read and written are
 * counted; the copy moves as many as reduce.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/group.h"
#include "kernels/reduce/args.h"
#include "kernels/silu_mul/args.h"
#include "measure.h"

enum { COPY, REDUCE_BF16, REDUCE_F32, SILU_BF16, SILU_F32, CANDIDATES, COLUMNS = 4096 };

typedef struct options {
    const char *device;
    int64_t mb, parts, rounds, warm, sms;
    bool json;
} options;

/* One launch of a kernel, or a copy. */
typedef struct kernel_call {
    imbrex_group *group;
    imbrex_stream stream;
    imx_prepared *kernel; /* NULL: a copy */
    union {
        imx_reduce_args reduce;
        imx_silu_mul_args silu_mul;
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
    if (!kernel)
        return IMBREX_OK;
    b->group->backend->target(b->group->device, &target);
    int blocks = b->options.sms ? (int)b->options.sms : target.units;
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
    b->calls[i].args.silu_mul = (imx_silu_mul_args){
        .rows = (int64_t)(b->part_bytes / imx_dtype_bytes(dtype) / COLUMNS),
        .cols = COLUMNS,
        .dtype = dtype,
        .in = b->memory,
        .out = b->memory + 2 * b->part_bytes,
    };
    b->calls[i].args_bytes = sizeof(imx_silu_mul_args);
    b->calls[i].bytes = 3.0 * (double)b->part_bytes;
    return add(b, i, name, &imx_kernel_silu_mul);
}

static imbrex_status add_copy(bench *b)
{
    size_t all = b->part_bytes * (size_t)(b->options.parts + 1);
    b->calls[COPY].src = b->memory;
    b->calls[COPY].dst = b->memory + all / 2;
    b->calls[COPY].bytes = (double)all;
    return add(b, COPY, "copy", NULL);
}

/* Numbers between 1 and 4 in f32, and in bf16: a memory of zeros takes less power. */
static imbrex_status fill(bench *b)
{
    uint32_t *words = NULL;
    IMX_TRY(imx_sys_alloc(b->part_bytes / sizeof *words, sizeof *words, &words));
    uint32_t state = 1;
    for (size_t i = 0; i < b->part_bytes / sizeof *words; i++) {
        state = state * 1664525u + 1013904223u;
        words[i] = (state & 0x00ff00ffu) | 0x3f803f80u;
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
    if (strncmp(imbrex_group_device(b->group), "cuda", 4) == 0)
        IMX_TRY(cuda_timer_open(imbrex_group_device(b->group), &b->timer));
    b->part_bytes = (size_t)b->options.mb << 20;
    IMX_TRY(imbrex_mem_alloc(b->group, b->part_bytes * (size_t)(b->options.parts + 1), &memory));
    b->memory = memory;
    return fill(b);
}

static imbrex_status run(bench *b)
{
    const options *o = &b->options;
    IMX_TRY(open_all(b));
    IMX_TRY(add_copy(b));
    IMX_TRY(add_reduce(b, REDUCE_BF16, "reduce bf16", IMBREX_BF16));
    IMX_TRY(add_reduce(b, REDUCE_F32, "reduce f32", IMBREX_F32));
    IMX_TRY(add_silu_mul(b, SILU_BF16, "silu_mul bf16", IMBREX_BF16));
    IMX_TRY(add_silu_mul(b, SILU_F32, "silu_mul f32", IMBREX_F32));
    return measure_by(b->timer, &b->share, b->candidates, CANDIDATES, (int)o->warm, (int)o->rounds,
                      NULL);
}

static void report(const bench *b)
{
    double copied = b->calls[COPY].bytes / b->candidates[COPY].us * 1e-3;
    if (!b->options.json)
        printf("%lld parts of %lld MB on %s, by the clock of the %s\n\n%-14s %10s %10s %8s\n",
               (long long)b->options.parts, (long long)b->options.mb, imbrex_group_device(b->group),
               b->timer ? "GPU" : "host", "", "us", "GB/s", "/ copy");
    for (int i = 0; i < CANDIDATES; i++) {
        const candidate *c = &b->candidates[i];
        double gb_s = b->calls[i].bytes / c->us * 1e-3;
        if (b->options.json)
            printf("{ \"kernel\": \"%s\", \"device\": \"%s\", \"parts\": %lld, \"mb\": %lld, "
                   "\"us\": %.3f, \"gb_s\": %.3f, \"of_copy\": %.4f }\n",
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

static bool parse(int argc, char **argv, options *o)
{
    static const struct option names[] = {
        { "device", required_argument, NULL, 'd' }, { "mb", required_argument, NULL, 'm' },
        { "parts", required_argument, NULL, 'p' },  { "rounds", required_argument, NULL, 'r' },
        { "warm", required_argument, NULL, 'w' },   { "sms", required_argument, NULL, 's' },
        { "json", no_argument, NULL, 'j' },         { 0 },
    };
    int64_t *const numbers[] = {
        ['m'] = &o->mb, ['p'] = &o->parts, ['r'] = &o->rounds, ['w'] = &o->warm, ['s'] = &o->sms
    };
    for (int word; (word = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (word == 'd')
            o->device = optarg;
        else if (word == 'j')
            o->json = true;
        else if (word == '?' || !imx_env_parse_int(optarg, numbers[word]))
            return false;
    }
    return optind == argc && o->mb > 0 && o->mb <= 1024 && o->parts >= 2 && o->parts <= 16 &&
           o->rounds > 0 && o->rounds <= 10000 && o->warm >= 0 && o->warm <= 10000 && o->sms >= 0 &&
           o->sms <= 1024;
}

int main(int argc, char **argv)
{
    bench b = { .options = { .mb = 64, .parts = 4, .rounds = 15, .warm = 3 } };
    if (!parse(argc, argv, &b.options)) {
        fputs("usage: kernels [--device NAME] [--mb MB] [--parts N] [--rounds N] [--warm N] "
              "[--sms N] [--json]\n",
              stderr);
        return 2;
    }
    imbrex_status status = run(&b);
    if (status == IMBREX_OK)
        report(&b);
    else
        fprintf(stderr, "kernels: %s: %s\n", imbrex_status_name(status), imbrex_error());
    close_all(&b);
    return status == IMBREX_OK ? 0 : 1;
}
