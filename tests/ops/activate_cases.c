/* activate_cases.c - as the header says: each case fills memory of the device, runs, and reads out
 * and what lies around it. */
#include "activate_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"
#include "sanitized.h"

enum { KINDS = 5, GUARD = 64, GUARD_BYTE = 0xa5 };

/* Values are the release build's to prove. */
enum { EVERY_BITS = SANITIZED ? 14 : 20, EVERY = 1 << EVERY_BITS, ROOM = (4 << 20) + 2 * GUARD };

static const char *const kind_names[KINDS] = { "silu", "gelu", "gelu_tanh", "relu", "relu2" };

/* A rank's memory: in and out on the device, with room around it, and the same on the host. */
typedef struct bench {
    imbrex_group *group;
    char *in, *out; /* [ROOM] of the device */
    int32_t *count; /* of the device */
    char *host_in, *host_out;
} bench;

typedef struct activate_case {
    int64_t rows, cols;
    imbrex_activation desc;
    int64_t shift;        /* elements that in and out lie off the alignment of 16 bytes */
    const int32_t *count; /* rows that are there; NULL: all */
} activate_case;

/* f(x) in float64. */
static double activated(imbrex_activation_kind kind, double x)
{
    if (x == -INFINITY)
        return 0;
    switch (kind) {
    case IMBREX_SILU:
        return x / (1 + exp(-x));
    case IMBREX_GELU:
        return x / 2 * erfc(-x / sqrt(2));
    case IMBREX_GELU_TANH:
        return x / (1 + exp(-2 * sqrt(2 / acos(-1)) * (x + 0.044715 * pow(x, 3))));
    case IMBREX_RELU:
        return x < 0 ? 0 : x;
    case IMBREX_RELU2:
        return x < 0 ? 0 : x * x;
    }
    return NAN;
}

/* What docs/numerics.md promises of f(x), of which up is a multiple, before it is rounded. */
static double allowed(const bench *b, imbrex_activation_kind kind, double x)
{
    if (strcmp(imbrex_group_device(b->group), "cpu") == 0)
        return 5e-7;
    return kind == IMBREX_GELU_TANH && x < -1 ? 2e-5 : 1e-6;
}

static const double half_steps[] = { 0, 0x1p-8, 0x1p-11, 0x1p-24 }; /* relative, by imbrex_dtype */
static const double smallest[] = { 0, 0x1p-133, 0x1p-24, 0x1p-140 };

static int run_case(bench *b, const activate_case *c)
{
    int64_t size = (int64_t)element_bytes(c->desc.dtype), width = (c->desc.gated ? 2 : 1) * c->cols;
    size_t in_bytes = (size_t)(c->rows * width * size);
    size_t out_bytes = (size_t)(c->rows * c->cols * size);
    char *in = b->in + c->shift * size, *out = b->out + GUARD + c->shift * size;
    memset(b->host_out, GUARD_BYTE, out_bytes + 2 * GUARD);
    RANK_OK(imbrex_copy(b->group, in, b->host_in, in_bytes, NULL));
    RANK_OK(imbrex_copy(b->group, out - GUARD, b->host_out, out_bytes + 2 * GUARD, NULL));
    if (c->count)
        RANK_OK(imbrex_copy(b->group, b->count, c->count, sizeof *c->count, NULL));
    RANK_OK(imbrex_activate(b->group, &c->desc, c->rows, c->cols, in, out, NULL,
                            c->count ? b->count : NULL, NULL));
    RANK_OK(imbrex_copy(b->group, b->host_out, out - GUARD, out_bytes + 2 * GUARD, NULL));
    RANK_OK(imbrex_stream_sync(b->group, NULL));
    return 0;
}

static int check_case(const bench *b, const activate_case *c)
{
    imbrex_dtype dtype = c->desc.dtype;
    int64_t width = (c->desc.gated ? 2 : 1) * c->cols, rows = c->count ? *c->count : c->rows;
    rows = rows < 0 ? 0 : rows < c->rows ? rows : c->rows;
    size_t written = (size_t)(rows * c->cols) * element_bytes(dtype);
    size_t all = (size_t)(c->rows * c->cols) * element_bytes(dtype) + 2 * GUARD;
    for (int64_t i = 0; i < rows * c->cols; i++) {
        int64_t at = i / c->cols * width + i % c->cols;
        double x = element_get(dtype, b->host_in, at),
               have = element_get(dtype, b->host_out + GUARD, i);
        double up = c->desc.gated ? element_get(dtype, b->host_in, at + c->cols) : 1;
        double f = activated(c->desc.kind, x), want = f * up;
        double within =
            (allowed(b, c->desc.kind, x) + half_steps[dtype]) * fabs(want) + smallest[dtype];
        bool right = isnan(x)                          ? isnan(have)
                     : fabs(f) > 3.4e38 || isinf(have) ? have == want || fabs(want) > 3.4e38
                                                       : fabs(have - want) <= within;
        RANK_CHECK(
            right, "%s, dtype %d, %lld x %lld, shift %lld: %s(%.9g) * %.9g is %.9g, not %.9g",
            imbrex_group_device(b->group), (int)dtype, (long long)c->rows, (long long)c->cols,
            (long long)c->shift, kind_names[c->desc.kind], x, up, have, want);
    }
    for (size_t i = 0; i < all; i++)
        RANK_CHECK((i >= GUARD && i < GUARD + written) ||
                       (unsigned char)b->host_out[i] == GUARD_BYTE,
                   "%lld of %lld rows: byte %zu beside them was written", (long long)rows,
                   (long long)c->rows, i);
    return 0;
}

/* Values at which the kinds are far apart, so that none stands for another. */
static int far_apart(bench *b)
{
    static const double want[KINDS][2] = { { -0.26894142, 1.76159416 },
                                           { -0.15865525, 1.95449974 },
                                           { -0.15880801, 1.95459769 },
                                           { 0, 2 },
                                           { 0, 4 } };
    memcpy(b->host_in, (float[]){ -1, 2 }, 8);
    for (int kind = 0; kind < KINDS; kind++) {
        activate_case c = { 1, 2, { (imbrex_activation_kind)kind, .dtype = IMBREX_F32 }, 0, NULL };
        if (run_case(b, &c))
            return 1;
        for (int i = 0; i < 2; i++) {
            double have = element_get(IMBREX_F32, b->host_out + GUARD, i);
            RANK_CHECK(fabs(have - want[kind][i]) < 1e-6, "%s is %.9g, not %.9g", kind_names[kind],
                       have, want[kind][i]);
        }
    }
    return 0;
}

static int every_shape(bench *b)
{
    static const int64_t shapes[][2] = { { 0, 3 },  { 3, 0 },  { 1, 1 },
                                         { 7, 45 }, { 5, 64 }, { 2, 2500 } };
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    for (int i = 0; i < SHAPES * KINDS * 3 * 2 * 2; i++) {
        const int64_t *shape = shapes[i / (KINDS * 12)];
        activate_case c = { shape[0], shape[1], { 0 }, i % 2, NULL };
        c.desc = (imbrex_activation){ .kind = (imbrex_activation_kind)(i / 12 % KINDS),
                                      .gated = i / 2 % 2,
                                      .dtype = (imbrex_dtype)(IMBREX_BF16 + i / 4 % 3) };
        for (int64_t e = 0; e < 2 * c.rows * c.cols; e++)
            element_set(c.desc.dtype, b->host_in, e, 5 * input_value(IMBREX_F32, i, e));
        if (run_case(b, &c) || check_case(b, &c))
            return 1;
    }
    return 0;
}

static int rows_here(bench *b)
{
    static const int32_t counts[] = { 0, 1, 3, 7, 8, -1, INT32_MAX, INT32_MIN };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        activate_case c = { 7, 40, { IMBREX_GELU, 1, .dtype = IMBREX_F32 }, 0, &counts[i] };
        input_fill(IMBREX_F32, (int)i, 0, b->host_in, 2 * c.rows * c.cols);
        if (run_case(b, &c) || check_case(b, &c))
            return 1;
    }
    return 0;
}

/* ---- quantised ------------------------------------------------------------------------------- */

/* Where the results of both ways lie in the room for out: as far from each other. */
enum { PART = 1 << 16, SCALES = PART, OUT_2 = 2 * PART, SCALES_2 = 3 * PART, Y = 4 * PART };

typedef struct quant_case {
    activate_case of;
    int64_t rows; /* that are there */
} quant_case;

static int quant_by_both(const bench *b, const quant_case *q)
{
    const activate_case *c = &q->of;
    imbrex_activation plain = c->desc;
    imbrex_norm norm = { .quant = c->desc.quant, .power_of_two = c->desc.power_of_two };
    int64_t at = c->shift * (int64_t)element_bytes(c->desc.dtype);
    char *in = b->in + at, *out = b->out + GUARD + c->shift, *y = b->out + Y + GUARD + at;
    float *scales = (float *)(void *)(b->out + SCALES);
    plain.quant = IMBREX_UNSCALED;
    plain.power_of_two = 0;
    RANK_OK(imbrex_copy(b->group, b->out, b->host_out, Y, NULL));
    RANK_OK(imbrex_copy(b->group, in, b->host_in, PART, NULL));
    if (c->count)
        RANK_OK(imbrex_copy(b->group, b->count, c->count, sizeof *c->count, NULL));
    RANK_OK(imbrex_activate(b->group, &c->desc, c->rows, c->cols, in, out, scales,
                            c->count ? b->count : NULL, NULL));
    RANK_OK(imbrex_activate(b->group, &plain, c->rows, c->cols, in, y, NULL, NULL, NULL));
    imbrex_args args = { .a = y, .c = out + OUT_2, .scale_c = scales + OUT_2 / sizeof(float) };
    RANK_OK(imbrex_rms_norm(b->group, c->desc.dtype, q->rows, c->cols, &norm, &args, NULL));
    RANK_OK(imbrex_copy(b->group, b->host_out, b->out, Y, NULL));
    RANK_OK(imbrex_stream_sync(b->group, NULL));
    return 0;
}

/* out and scales are those of imbrex_rms_norm's quant behind the activation, to the bit, and so is
 * what lies beside them: untouched. */
static int quantizes(bench *b)
{
    static const int64_t shapes[][2] = { { 1, 1 },   { 7, 45 },   { 5, 64 },   { 3, 300 },
                                         { 9, 128 }, { 2, 2500 }, { 1, 7000 }, { 40, 8 } };
    static const int32_t counts[] = { 2, 0, 100 };
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    for (int i = 0; i < SHAPES * 3 * 3 * 2 * 2; i++) {
        const int64_t *shape = shapes[i / 36];
        const int32_t *count = i % 5 ? NULL : &counts[i / 5 % 3];
        quant_case q = { { shape[0], shape[1], { 0 }, i % 2, count }, shape[0] };
        q.of.desc = (imbrex_activation){ .kind = (imbrex_activation_kind)(i % KINDS),
                                         .gated = i / 2 % 2,
                                         .dtype = (imbrex_dtype)(IMBREX_BF16 + i / 4 % 3),
                                         .quant = (imbrex_scaling)(1 + i / 12 % 3),
                                         .power_of_two = i / 12 % 3 && i % 3 };
        if (count && *count < q.rows)
            q.rows = *count;
        for (int64_t e = 0; e < 2 * shape[0] * shape[1]; e++)
            element_set(q.of.desc.dtype, b->host_in, e, 5 * input_value(IMBREX_F32, i, e));
        memset(b->host_out, GUARD_BYTE, Y);
        for (int way = 0; way < 2 && q.of.desc.quant == IMBREX_PER_TENSOR; way++)
            memcpy(b->host_out + SCALES + way * OUT_2, &(float){ 0.03f }, sizeof(float));
        if (quant_by_both(b, &q))
            return 1;
        const imbrex_activation *d = &q.of.desc;
        for (int at = 0; at < OUT_2; at++)
            RANK_CHECK(b->host_out[at] == b->host_out[OUT_2 + at],
                       "%s, gated %d, dtype %d, quant %d, %lld x %lld, shift %lld: byte %d of %s "
                       "is %02x, not %02x",
                       kind_names[d->kind], d->gated, (int)d->dtype, (int)d->quant,
                       (long long)shape[0], (long long)shape[1], (long long)q.of.shift, at % PART,
                       at < SCALES ? "out" : "scales", (uint8_t)b->host_out[at],
                       (uint8_t)b->host_out[OUT_2 + at]);
    }
    return 0;
}

/* A million numbers, to a sanitizer fewer, over the whole range of float32; no NaN but from a
 * NaN. */
static int every_magnitude(bench *b)
{
    for (uint32_t i = 0; i < EVERY; i++) {
        uint32_t bits = i << (32 - EVERY_BITS);
        memcpy(b->host_in + 4 * (size_t)i, &bits, sizeof bits);
    }
    for (int kind = 0; kind < KINDS; kind++) {
        activate_case c = {
            1024, EVERY / 1024, { (imbrex_activation_kind)kind, .dtype = IMBREX_F32 }, 0, NULL
        };
        if (run_case(b, &c) || check_case(b, &c))
            return 1;
    }
    return 0;
}

int activate_cases(imbrex_group *group, void *ctx)
{
    (void)ctx;
    void *in, *out, *count;
    RANK_OK(imbrex_mem_alloc(group, ROOM, &in));
    RANK_OK(imbrex_mem_alloc(group, ROOM, &out));
    RANK_OK(imbrex_mem_alloc(group, sizeof(int32_t), &count));
    bench b = { group, in, out, count, malloc(ROOM), malloc(ROOM) };
    int failed = !b.host_in || !b.host_out || far_apart(&b) || every_shape(&b) || rows_here(&b) ||
                 quantizes(&b) || every_magnitude(&b);
    free(b.host_in);
    free(b.host_out);
    return failed;
}
