/* norm_cases.c - as the header says: each case fills memory of the device, runs, and reads all of
 * it back. */
#include "norm_cases.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"
#include "norm_reference.h"
#include "ranks.h"
#include "reference.h"
#include "sanitized.h"

enum { ROWS = 4, COLS = 32768, GUARD = 64, FILL = 0xa5 };

/* Operands lie in the image one after another, each as large as the largest of its case. */
enum { X, RESIDUAL, BIAS, GAMMA, H, NORMED, C, SCALE, OPERANDS };
enum { IMAGE_MOST = OPERANDS * (ROWS * COLS * 4 + 5 * GUARD) };

typedef struct bench {
    imbrex_group *group;
    char *device, *host, *again; /* [IMAGE_MOST] */
} bench;

typedef struct norm_case {
    int64_t rows, n;
    imbrex_dtype dtype;
    imbrex_norm norm;
    int shift; /* elements that all lie off the alignment of 16 bytes */
    bool bias, residual, in_place;
} norm_case;

static float rounded(imbrex_dtype dtype, float x)
{
    char room[4];
    imx_dtype_narrow((int)dtype, &x, room, 1);
    imx_dtype_widen((int)dtype, room, &x, 1);
    return x;
}

/* ---- one case -------------------------------------------------------------------------------- */

static size_t operand_bytes(const norm_case *c)
{
    return ((size_t)(c->rows * c->n) * 4 / GUARD + 5) * GUARD;
}

static size_t image_bytes(const norm_case *c)
{
    return OPERANDS * operand_bytes(c);
}

static size_t place(const norm_case *c, int operand, int64_t element)
{
    size_t bytes = operand == SCALE                ? 4
                   : operand == C && c->norm.quant ? 1
                                                   : element_bytes(c->dtype);
    return (size_t)operand * operand_bytes(c) + GUARD + (size_t)(element + c->shift) * bytes;
}

static double get(const bench *b, const norm_case *c, int operand, int64_t element)
{
    imbrex_dtype dtype = operand == SCALE                ? IMBREX_F32
                         : operand == C && c->norm.quant ? IMBREX_E4M3
                                                         : c->dtype;
    float value;
    imx_dtype_widen((int)dtype, b->host + place(c, operand, element), &value, 1);
    return (double)value;
}

static int64_t scales(const norm_case *c)
{
    int64_t blocks = (c->n + 127) / 128;
    return c->norm.quant == IMBREX_PER_BLOCK    ? c->rows * blocks
           : c->norm.quant == IMBREX_PER_ROW    ? c->rows
           : c->norm.quant == IMBREX_PER_TENSOR ? 1
                                                : 0;
}

/* On rows from `first` on: the others are not the kernel's to see. */
static int enqueue(const bench *b, const norm_case *c, int64_t first, int64_t rows)
{
    int64_t at = first * c->n, blocks = scales(c) / c->rows;
    char *x = b->device;
    bool quant = c->norm.quant, one = c->norm.quant == IMBREX_PER_TENSOR;
    imbrex_args args = {
        .a = x + place(c, X, at),
        .bias = c->bias ? x + place(c, BIAS, 0) : NULL,
        .residual = c->residual ? x + place(c, RESIDUAL, at) : NULL,
        .gamma = c->norm.rms ? x + place(c, GAMMA, 0) : NULL,
        .h = x + place(c, H, at),
        .normed = quant ? x + place(c, NORMED, at) : NULL,
        .c = x + place(c, C, at),
        .scale_c = quant ? (float *)(x + place(c, SCALE, one ? 0 : first * blocks)) : NULL,
    };
    if (c->in_place && c->residual)
        args.h = x + place(c, RESIDUAL, at);
    if (c->in_place && !quant)
        args.c = x + place(c, X, at);
    RANK_OK(imbrex_rms_norm(b->group, c->dtype, rows, c->n, &c->norm, &args, NULL));
    return 0;
}

static void fill(const bench *b, const norm_case *c, int input)
{
    memset(b->host, FILL, image_bytes(c));
    input_fill(c->dtype, input, 0, b->host + place(c, X, 0), c->rows * c->n);
    input_fill(c->dtype, input + 1, 0, b->host + place(c, RESIDUAL, 0), c->rows * c->n);
    input_fill(c->dtype, input + 2, 0, b->host + place(c, BIAS, 0), c->n);
    input_fill(c->dtype, input + 3, 0, b->host + place(c, GAMMA, 0), c->n);
    if (c->norm.quant == IMBREX_PER_TENSOR)
        memcpy(b->host + place(c, SCALE, 0), &(float){ 0.01f }, sizeof(float));
}

static int run(const bench *b, const norm_case *c, int64_t first, int64_t rows)
{
    RANK_OK(imbrex_copy(b->group, b->device, b->host, image_bytes(c), NULL));
    if (enqueue(b, c, first, rows))
        return 1;
    RANK_OK(imbrex_copy(b->group, b->host, b->device, image_bytes(c), NULL));
    RANK_OK(imbrex_stream_sync(b->group, NULL));
    return 0;
}

static int say(const norm_case *c, const char *what, int64_t at, double have, double want)
{
    fprintf(stderr,
            "    dtype %d, n %lld, shift %d, rms %d, quant %d%s%s%s: %s[%lld, %lld] is %.9g, want "
            "%.9g\n",
            (int)c->dtype, (long long)c->n, c->shift, c->norm.rms, (int)c->norm.quant,
            c->bias ? ", bias" : "", c->residual ? ", residual" : "",
            c->in_place ? ", in place" : "", what, (long long)(at / c->n), (long long)(at % c->n),
            have, want);
    return 1;
}

static double half_step(imbrex_dtype dtype)
{
    return dtype == IMBREX_F32 ? 0x1p-24 : dtype == IMBREX_F16 ? 0x1p-11 : 0x1p-8;
}

/* before: the image as it went in. */
static int check_sum(const bench *b, const norm_case *c, const char *before, int h)
{
    bench was = *b;
    was.host = (char *)(uintptr_t)before;
    for (int64_t i = 0; i < c->rows * c->n; i++) {
        double x = get(&was, c, X, i), bias = c->bias ? get(&was, c, BIAS, i % c->n) : 0;
        double residual = c->residual ? get(&was, c, RESIDUAL, i) : 0;
        double want = x + bias + residual, have = get(b, c, h, i);
        double within = fabs(want) * half_step(c->dtype) * 1.001 +
                        0x1p-23 * (fabs(x) + fabs(bias) + fabs(residual)) + 0x1p-25;
        if (!(fabs(have - want) <= within))
            return say(c, "h", i, have, want);
    }
    return 0;
}

/* From h as it was stored: c or normed, to the bit and within the contract of float64. */
static int check_norm(const bench *b, const norm_case *c, const char *before, int h, int y)
{
    float *row = calloc((size_t)c->n, sizeof *row), eps = c->norm.eps > 0 ? c->norm.eps : 1e-6f;
    int failed = 0;
    bench was = *b;
    was.host = (char *)(uintptr_t)before;
    for (int64_t r = 0; r < c->rows && !failed; r++) {
        double squares = 0;
        for (int64_t i = 0; i < c->n; i++) {
            row[i] = (float)get(b, c, h, r * c->n + i);
            squares += (double)row[i] * (double)row[i];
        }
        float inverse = norm_inverse(row, c->n, eps);
        double exact = 1 / sqrt(squares / (double)c->n + (double)eps);
        for (int64_t i = 0; i < c->n && !failed; i++) {
            double have = get(b, c, y, r * c->n + i), want = (double)row[i], sure = want;
            float gamma = (float)(get(&was, c, GAMMA, i) + (double)c->norm.gamma_offset);
            if (c->norm.rms) {
                want = (double)rounded(c->dtype, row[i] * inverse * gamma);
                sure = sure * exact * (double)gamma;
            }
            if (have != want ||
                !(fabs(have - sure) <= fabs(sure) * (half_step(c->dtype) + 1e-6) + 0x1p-25))
                failed = say(c, "c", r * c->n + i, have, want);
        }
    }
    free(row);
    return failed;
}

static int check_quant(const bench *b, const norm_case *c)
{
    int64_t each = c->norm.quant == IMBREX_PER_BLOCK ? 128 : c->n,
            blocks = (c->n + each - 1) / each;
    for (int64_t i = 0; i < c->rows * c->n; i++) {
        int64_t row = i / c->n, block = i % c->n / each, number = row * blocks + block;
        float largest = 0;
        bool reads = c->norm.quant == IMBREX_PER_TENSOR;
        float scale = (float)get(b, c, SCALE, reads ? 0 : number);
        if (!reads && i % c->n % each == 0) {
            for (int64_t j = block * each; j < c->n && j < (block + 1) * each; j++)
                largest = fmaxf(largest, (float)fabs(get(b, c, NORMED, row * c->n + j)));
            float want = norm_scale(largest, c->norm.power_of_two);
            if (scale != want)
                return say(c, "scale of c", i, (double)scale, (double)want);
        }
        float want = rounded(IMBREX_E4M3, (float)get(b, c, NORMED, i) / scale);
        if (get(b, c, C, i) != (double)want)
            return say(c, "c", i, get(b, c, C, i), (double)want);
    }
    return 0;
}

/* Nothing but what a run of all rows has to write differs from what went in. */
static int check_beside(const bench *b, const norm_case *c, const char *before)
{
    int64_t count = c->rows * c->n;
    bool quant = c->norm.quant, residual = c->in_place && c->residual;
    const int64_t written[OPERANDS] = {
        [X] = c->in_place && !quant ? count : 0,
        [RESIDUAL] = residual ? count : 0,
        [H] = residual ? 0 : count,
        [NORMED] = quant ? count : 0,
        [C] = c->in_place && !quant ? 0 : count,
        [SCALE] = c->norm.quant == IMBREX_PER_TENSOR ? 0 : scales(c),
    };
    size_t at = 0;
    for (int i = 0; i <= OPERANDS; i++) {
        size_t end = i < OPERANDS ? place(c, i, 0) : image_bytes(c);
        RANK_CHECK(memcmp(b->host + at, before + at, end - at) == 0,
                   "n %lld: something before operand %d was written", (long long)c->n, i);
        at = i < OPERANDS ? place(c, i, written[i]) : end;
    }
    return 0;
}

/* Each row by itself gives the bits that it has among the others. */
static int check_alone(const bench *b, const norm_case *c, int input)
{
    memcpy(b->again, b->host, image_bytes(c));
    fill(b, c, input);
    for (int64_t r = 0; r < c->rows; r++) {
        if (run(b, c, r, 1)) /* what is there goes up and down again */
            return 1;
    }
    RANK_CHECK(memcmp(b->host, b->again, image_bytes(c)) == 0, "n %lld: a row alone has other bits",
               (long long)c->n);
    return 0;
}

static int check_case(const bench *b, const norm_case *c, int input)
{
    int h = c->in_place && c->residual ? RESIDUAL : H;
    int y = c->norm.quant ? NORMED : c->in_place ? X : C;
    char *before = malloc(image_bytes(c));
    fill(b, c, input);
    memcpy(before, b->host, image_bytes(c));
    int failed = run(b, c, 0, c->rows) || check_beside(b, c, before) ||
                 check_sum(b, c, before, h) || check_norm(b, c, before, h, y) ||
                 (c->norm.quant && check_quant(b, c)) || check_alone(b, c, input);
    free(before);
    return failed;
}

/* As of all operators, bf16 and f16 in turns to a sanitizer, and to ThreadSanitizer, of rows with
 * many columns, which are most bytes, one dtype. */
static bool is_left_out(int width, int dtype, int variant)
{
    if (SANITIZED_THREADS && width > 4)
        return dtype != (width + variant) % 3;
    return SANITIZED && dtype == (width + variant) % 2;
}

static int every_shape(const bench *b)
{
    static const int64_t widths[] = { 1, 7, 127, 129, 1000, 1024, 1025, 8192, 17000, 32768 };
    for (int i = 0; i < 10 * 3 * 4; i++) {
        int w = i % 10, d = i / 10 % 3, v = i / 30;
        if (is_left_out(w, d, v))
            continue;
        norm_case c = {
            .rows = w < 7 ? ROWS : 2,
            .n = widths[w],
            .dtype = d == 0   ? IMBREX_BF16
                     : d == 1 ? IMBREX_F16
                              : IMBREX_F32,
            .norm = { .rms = (v + w) % 3 != 0, .quant = (imbrex_scaling)v },
            .shift = (w + v + d) % 2,
            .bias = (w + d) % 2,
            .residual = (v + d) % 2 || w == 3,
            .in_place = (w + v) % 2,
        };
        c.norm.power_of_two = v > 1 && w % 2;
        if (c.norm.rms) {
            c.norm.eps = w % 2 ? 0.125f : 0;
            c.norm.gamma_offset = v % 2 ? 1 : 0;
        }
        if (check_case(b, &c, 10 * i))
            return 1;
    }
    return 0;
}

/* NaN, infinities, zeros and what is too large: by columns, of rows that are only quantised, or
 * normed. */
static int odd_values(const bench *b)
{
    enum { N = 8 };
    static const float x[N] = { NAN, INFINITY, -INFINITY, -0.0f, 0, 896, -2, 0x1p-12f };
    static const uint8_t want[N] = { 0x7f, 0x7e, 0xfe, 0x80, 0, 0x7e, 0xb8, 0 };
    norm_case c = { .rows = 1, .n = N, .dtype = IMBREX_F32, .norm = { .quant = IMBREX_PER_ROW } };
    fill(b, &c, 1);
    memcpy(b->host + place(&c, X, 0), x, sizeof x);
    if (run(b, &c, 0, 1))
        return 1;
    RANK_CHECK(get(b, &c, SCALE, 0) == 2, "the scale of 896 is %g", get(b, &c, SCALE, 0));
    RANK_CHECK(signbit(get(b, &c, H, 3)) && isnan(get(b, &c, H, 0)) && isinf(get(b, &c, H, 1)),
               "h is not what went in");
    for (int i = 0; i < N; i++)
        RANK_CHECK((uint8_t)b->host[place(&c, C, i)] == want[i], "%g becomes %02x", (double)x[i],
                   (uint8_t)b->host[place(&c, C, i)]);
    for (int nan = 0; nan < 2; nan++) {
        c.norm = (imbrex_norm){ .rms = 1 };
        fill(b, &c, 1);
        memcpy(b->host + place(&c, X, 3), &x[nan ? 0 : 1], sizeof *x);
        if (run(b, &c, 0, 1))
            return 1;
        for (int i = 0; i < N; i++) {
            double have = get(b, &c, C, i);
            RANK_CHECK(nan || i == 3 ? isnan(have) : have == 0, "%s: c[%d] is %g",
                       nan ? "NaN" : "infinity", i, have);
        }
    }
    return 0;
}

static int quantizes(const bench *b)
{
    for (int i = 0; i < 9; i++) {
        norm_case c = { .rows = 3, .n = 300, .dtype = (imbrex_dtype)(IMBREX_BF16 + i % 3) };
        c.norm.quant = (imbrex_scaling)(1 + i / 3);
        fill(b, &c, i);
        if (run(b, &c, 0, 3))
            return 1;
        memcpy(b->again, b->host, image_bytes(&c));
        fill(b, &c, i);
        RANK_OK(imbrex_copy(b->group, b->device, b->host, image_bytes(&c), NULL));
        RANK_OK(imbrex_quantize(b->group, c.dtype, c.norm.quant, c.rows, c.n,
                                b->device + place(&c, X, 0), b->device + place(&c, C, 0),
                                (float *)(b->device + place(&c, SCALE, 0)), NULL));
        RANK_OK(imbrex_copy(b->group, b->host, b->device, image_bytes(&c), NULL));
        RANK_OK(imbrex_stream_sync(b->group, NULL));
        size_t from = (size_t)C * operand_bytes(&c); /* c and the scales */
        RANK_CHECK(memcmp(b->host + from, b->again + from, image_bytes(&c) - from) == 0,
                   "imbrex_quantize differs from imbrex_rms_norm");
    }
    return 0;
}

int norm_cases(imbrex_group *group, void *ctx)
{
    void *device;
    (void)ctx;
    RANK_OK(imbrex_mem_alloc(group, IMAGE_MOST, &device));
    bench b = { group, device, malloc(IMAGE_MOST), malloc(IMAGE_MOST) };
    int failed = !b.host || !b.again || odd_values(&b) || quantizes(&b) || every_shape(&b);
    free(b.host);
    free(b.again);
    return failed;
}
