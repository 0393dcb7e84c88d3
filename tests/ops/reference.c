/* reference.c - what the operators should give, by the shortest code that can say it. */
#include "reference.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "kept.h"
#include "kernels/dtype.h"
#include "sanitized.h"

/* A case that names none is of bf16. */
static int number_of(imbrex_dtype dtype)
{
    return dtype == IMBREX_DTYPE_DEFAULT ? IMBREX_BF16 : (int)dtype;
}

size_t element_bytes(imbrex_dtype dtype)
{
    return dtype == IMBREX_E4M3 ? 1 : dtype == IMBREX_F32 ? 4 : 2;
}

double element_get(imbrex_dtype dtype, const void *matrix, int64_t i)
{
    float value;
    imx_dtype_widen(number_of(dtype), (const char *)matrix + (size_t)i * element_bytes(dtype),
                    &value, 1);
    return (double)value;
}

void element_set(imbrex_dtype dtype, void *matrix, int64_t i, double value)
{
    float narrow = (float)value;
    imx_dtype_narrow(number_of(dtype), &narrow, (char *)matrix + (size_t)i * element_bytes(dtype),
                     1);
}

/* splitmix64's mixing step, over the input's number and the index. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A float32 cut to the bits that dtype has, so that it goes in and out unchanged: the same as
 * converting there and back, and ten times faster, which is most of what the tests take. */
double input_value(imbrex_dtype dtype, int input, int64_t i)
{
    static const uint32_t kept[] = {
        [IMBREX_BF16] = 0xffff0000, [IMBREX_F16] = 0xffffe000, [IMBREX_F32] = 0xffffffff
    };
    uint64_t bits = mix(mix((uint64_t)input) + (uint64_t)i);
    float value = (float)(int64_t)(bits >> 44) / (1 << 18) - 2; /* [-2, 2), exact */
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    word &= kept[number_of(dtype)];
    memcpy(&value, &word, sizeof word);
    return (double)value;
}

/* A block at a time: converting is most of what the tests do. */
enum { BLOCK = 256 };

void input_fill(imbrex_dtype dtype, int input, int whole, void *matrix, int64_t count)
{
    input_fill_from(dtype, input, whole, matrix, 0, count);
}

void input_fill_from(imbrex_dtype dtype, int input, int whole, void *matrix, int64_t first,
                     int64_t count)
{
    float values[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t left = count - at < BLOCK ? count - at : BLOCK;
        for (int64_t i = 0; i < left; i++) {
            double value = input_value(dtype, input, first + at + i);
            values[i] = (float)(whole ? rint(value) : value);
        }
        imx_dtype_narrow(number_of(dtype), values,
                         (char *)matrix + (size_t)at * element_bytes(dtype), left);
    }
}

int64_t elements_differ(imbrex_dtype dtype, const void *x, const void *y, int64_t from,
                        int64_t count)
{
    float a[BLOCK], b[BLOCK];
    for (int64_t at = from; at < count; at += BLOCK) {
        int64_t left = count - at < BLOCK ? count - at : BLOCK;
        size_t byte = (size_t)at * element_bytes(dtype);
        imx_dtype_widen(number_of(dtype), (const char *)x + byte, a, left);
        imx_dtype_widen(number_of(dtype), (const char *)y + byte, b, left);
        for (int64_t i = 0; i < left; i++)
            if (a[i] != b[i])
                return at + i;
    }
    return -1;
}

int64_t rank_row(int64_t m, int ranks, int r)
{
    return r * m / ranks;
}

bool adds_up(const op_case *c)
{
    return sums_all(c) || strcmp(c->op, "reduce_scatter") == 0 || strcmp(c->op, "gemm_rs") == 0;
}

bool sums_all(const op_case *c)
{
    return strcmp(c->op, "all_reduce") == 0 || strcmp(c->op, "gemm_ar") == 0;
}

bool has_norm(const op_case *c)
{
    return c->residual || c->norm.rms || c->norm.quant;
}

imbrex_dtype result_dtype(const op_case *c)
{
    return c->norm.quant ? IMBREX_E4M3 : c->dtype;
}

/* Of rank r, which has `rows` of the m. */
static op_sizes sum_sizes(const op_case *c, int64_t m, int64_t rows)
{
    bool product = strstr(c->op, "gemm") != NULL;
    int64_t own = sums_all(c) && !c->norm.shard_residual ? m : rows;
    int64_t blocks = c->norm.quant == IMBREX_PER_BLOCK ? (c->n + 127) / 128 : 1;
    rows = sums_all(c) ? m : rows;
    op_sizes s = { .a = m * (product ? c->k : c->n),
                   .b = product ? c->n * c->k : 0,
                   .c = rows * c->n,
                   .bias = c->bias ? c->n : 0 };
    if (!has_norm(c))
        return s;
    s.h = own * c->n;
    s.residual = c->residual ? s.h : 0;
    s.gamma = c->norm.rms ? c->n : 0;
    s.normed = c->norm.quant ? s.c : 0;
    s.scale = c->norm.quant == IMBREX_PER_TENSOR ? 1 : c->norm.quant ? rows * blocks : 0;
    return s;
}

op_sizes op_sizes_of(const op_case *c, int64_t m, int ranks, int r)
{
    int64_t rows = rank_row(m, ranks, r + 1) - rank_row(m, ranks, r);
    if (strcmp(c->op, "all_gather") == 0)
        return (op_sizes){ .a = rows * c->n, .c = m * c->n };
    if (adds_up(c))
        return sum_sizes(c, m, rows);
    if (strcmp(c->op, "all_to_all") == 0)
        return (op_sizes){ .a = m * c->n, .c = ranks * rows * c->n };
    op_sizes s = { .b = c->n * c->k, .bias = c->n };
    bool gathers = strcmp(c->op, "ag_gemm") == 0;
    s.a = (gathers ? rows : m) * c->k;
    s.c = m * c->n;
    s.gathered = gathers ? m * c->k : 0;
    return s;
}

int input_bias(const op_case *c, int r)
{
    return INPUT_BIAS + (sums_all(c) ? 0 : r);
}

static double epsilon(imbrex_dtype dtype)
{
    return dtype == IMBREX_F32 ? 0x1p-23 : dtype == IMBREX_F16 ? 0x1p-10 : 0x1p-7;
}

/* Of each element of rank r's c: its value, and what the error of one is counted from. */
typedef struct elements {
    double *value, *magnitude, *partials; /* sums: of all, of |products|, of |ranks' parts| */
} elements;

/* b of rank r as [k, n]. */
static void fill_b(const op_case *c, int r, double *b)
{
    for (int64_t i = 0; i < c->k; i++)
        for (int64_t col = 0; col < c->n; col++)
            *b++ = input_value(c->dtype, INPUT_B + r,
                               c->layout == IMBREX_NK ? col * c->k + i : i * c->n + col);
}

/* No memset: that would be a sanitizer's. */
static void clear(double *numbers, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        numbers[i] = 0;
}

enum { TOGETHER = 8 }; /* rows, for which b is read once */

/* Wider vectors where the processor has them; a sanitizer starts too late for this. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !SANITIZED
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

enum { STEPS = 4 }; /* of k, whose products sums take on in turn before they go to memory */

/* part and magnitude of n columns: of STEPS elements of a row of a, and as many rows of b. */
WIDE static void add_steps(const double *a, const double *restrict b, int64_t n,
                           double *restrict part, double *restrict magnitude)
{
    for (int64_t col = 0; col < n; col++) {
        double sum = part[col], size = magnitude[col];
        for (int i = 0; i < STEPS; i++) {
            double term = a[i] * b[i * n + col];
            sum += term;
            size += fabs(term);
        }
        part[col] = sum;
        magnitude[col] = size;
    }
}

static void add_step(double a, const double *restrict b, int64_t n, double *restrict part,
                     double *restrict magnitude)
{
    for (int64_t col = 0; col < n; col++) {
        double term = a * b[col];
        part[col] += term;
        magnitude[col] += fabs(term);
    }
}

/* Rows of rank r's a times b, at most TOGETHER of them: the parts of a sum. */
static void make_parts(const op_case *c, int r, int64_t row, int64_t rows, const double *b,
                       double *parts, double *magnitudes)
{
    clear(parts, rows * c->n);
    for (int64_t i = 0; i < c->k; i += STEPS) {
        int64_t steps = c->k - i < STEPS ? c->k - i : STEPS;
        for (int64_t q = 0; q < rows; q++) {
            double a[STEPS], *part = parts + q * c->n, *magnitude = magnitudes + q * c->n;
            for (int64_t j = 0; j < steps; j++)
                a[j] = input_value(c->dtype, r, (row + q) * c->k + i + j);
            if (steps == STEPS)
                add_steps(a, b + i * c->n, c->n, part, magnitude);
            for (int64_t j = 0; j < steps && steps < STEPS; j++)
                add_step(a[j], b + (i + j) * c->n, c->n, part, magnitude);
        }
    }
}

/* The same of any number of rows, added to those of c from element `at` on.  sums: other ranks'
 * parts come to them. */
static void add_products(const op_case *c, int r, int64_t row, int64_t rows, const double *b,
                         double *parts, const elements *x, int64_t at, bool sums)
{
    for (int64_t done = 0; done < rows; done += TOGETHER, at += TOGETHER * c->n) {
        int64_t some = rows - done < TOGETHER ? rows - done : TOGETHER;
        make_parts(c, r, row + done, some, b, parts, x->magnitude + at);
        for (int64_t i = 0; i < some * c->n; i++) {
            x->value[at + i] += parts[i];
            x->partials[at + i] += sums ? fabs(parts[i]) : 0;
        }
    }
}

/* Of rank r alone. */
static void multiply(const op_case *c, int64_t m, int ranks, int r, double *b, double *parts,
                     const elements *x)
{
    (void)ranks;
    fill_b(c, r, b);
    add_products(c, r, 0, m, b, parts, x, 0, false);
}

static void gather(const op_case *c, int64_t m, int ranks, int r, double *b, double *parts,
                   const elements *x)
{
    bool multiplies = strcmp(c->op, "ag_gemm") == 0;
    if (multiplies)
        fill_b(c, r, b);
    for (int from = 0; from < ranks; from++) {
        int64_t first = rank_row(m, ranks, from), rows = rank_row(m, ranks, from + 1) - first;
        if (multiplies)
            add_products(c, from, 0, rows, b, parts, x, first * c->n, false);
        for (int64_t i = 0; i < rows * c->n && !multiplies; i++)
            x->value[first * c->n + i] += input_value(c->dtype, from, i);
    }
}

/* The blocks of all ranks for rank r. */
static void exchange(const op_case *c, int64_t m, int ranks, int r, double *b, double *parts,
                     const elements *x)
{
    int64_t first = rank_row(m, ranks, r) * c->n, count = rank_row(m, ranks, r + 1) * c->n - first;
    (void)b;
    (void)parts;
    for (int q = 0; q < ranks; q++)
        for (int64_t i = 0; i < count; i++)
            x->value[q * count + i] = input_value(c->dtype, q, first + i);
}

static void scatter(const op_case *c, int64_t m, int ranks, int r, double *b, double *parts,
                    const elements *x)
{
    bool multiplies = strstr(c->op, "gemm") != NULL, all = sums_all(c);
    int64_t first = all ? 0 : rank_row(m, ranks, r);
    int64_t rows = (all ? m : rank_row(m, ranks, r + 1)) - first;
    for (int q = 0; q < ranks; q++) {
        if (multiplies) {
            fill_b(c, q, b);
            add_products(c, q, first, rows, b, parts, x, 0, true);
        }
        for (int64_t i = 0; i < rows * c->n && !multiplies; i++) {
            double part = input_value(c->dtype, q, first * c->n + i);
            x->value[i] += part;
            x->partials[i] += fabs(part);
        }
    }
}

/* Each partial and the result are rounded to dtype (half a unit), sums to float32. */
static double tolerance(const op_case *c, int ranks, double depth, const elements *x, int64_t at)
{
    double unit = epsilon(c->dtype) * 0.51, partials = x->partials[at];
    double error = unit * (fabs(x->value[at]) + partials) +
                   0x1p-23 * (x->magnitude[at] + partials) * depth + 1e-30;
    if (c->nodes > 1)
        error += unit * 1.01 * partials;
    if (c->dtype == IMBREX_F16)
        error += 0x1p-24 * (ranks + 1); /* subnormals */
    return error;
}

/* Which matrix of expected values. */
typedef struct which {
    const char *op;
    int64_t m, n, k, ranks, dtype, layout, bias, residual;
} which;

typedef struct expected {
    which of;
    double *room;
    elements x;
} expected;

static expected expect(const op_case *c, int64_t m, int ranks, int r, int64_t count)
{
    double *room = kept_take((size_t)(3 * count + (c->k + TOGETHER) * c->n + 1) * sizeof *room);
    clear(room, 3 * count);
    elements x = { room, room + count, room + 2 * count };
    double *parts = room + 3 * count, *b = parts + TOGETHER * c->n;
    int64_t first = adds_up(c) && !sums_all(c) ? rank_row(m, ranks, r) * c->n : 0;
    for (int64_t i = 0; c->bias && i < count; i++) {
        x.value[i] = input_value(c->dtype, input_bias(c, r), i % c->n);
        x.magnitude[i] = fabs(x.value[i]);
    }
    for (int64_t i = 0; c->residual && i < count; i++) {
        double residual = input_value(c->dtype, INPUT_RESIDUAL, first + i);
        x.value[i] += residual;
        x.magnitude[i] += fabs(residual);
    }
    (strcmp(c->op, "all_to_all") == 0 ? exchange
     : strcmp(c->op, "gemm") == 0     ? multiply
     : strcmp(c->op, "ag_gemm") == 0 || strcmp(c->op, "all_gather") == 0
         ? gather
         : scatter)(c, m, ranks, r, b, parts, &x);
    return (expected){ .room = room, .x = x };
}

static int64_t compare(const op_case *c, int ranks, int64_t count, const char *have,
                       const elements *x, reference_error *error)
{
    bool exact = strcmp(c->op, "all_to_all") == 0 || strcmp(c->op, "all_gather") == 0;
    double depth = 2 + sqrt((double)c->k);
    float is[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t left = count - at < BLOCK ? count - at : BLOCK;
        imx_dtype_widen(number_of(c->dtype), have + (size_t)at * element_bytes(c->dtype), is, left);
        for (int64_t i = 0; i < left; i++) {
            double want = x->value[at + i];
            double within = exact ? 0 : tolerance(c, ranks, depth, x, at + i);
            if ((double)is[i] - want <= within && want - (double)is[i] <= within)
                continue;
            *error = (reference_error){ .have = (double)is[i], .want = want, .within = within };
            return at + i;
        }
    }
    return -1;
}

/* What all ranks get alike, one thread works out for all of them. */
static expected alike;
static pthread_mutex_t alike_lock = PTHREAD_MUTEX_INITIALIZER;

int64_t reference_check(const op_case *c, int64_t m, int ranks, int r, const void *have,
                        reference_error *error)
{
    op_case own = *c; /* h of a sharded residual is as of those whose c is own rows */
    if (sums_all(c) && has_norm(c) && c->norm.shard_residual)
        own.op = strcmp(c->op, "all_reduce") == 0 ? "reduce_scatter" : "gemm_rs";
    int64_t count = op_sizes_of(&own, m, ranks, r).c, wrong;
    if (sums_all(&own) || strcmp(own.op, "all_gather") == 0) {
        which of = {
            own.op,   m,           own.n, own.k, ranks, (int64_t)own.dtype, (int64_t)own.layout,
            own.bias, own.residual
        };
        pthread_mutex_lock(&alike_lock);
        if (!alike.room || memcmp(&of, &alike.of, sizeof of) != 0) {
            kept_drop(alike.room);
            alike = expect(&own, m, ranks, r, count);
            alike.of = of;
        }
        wrong = compare(&own, ranks, count, have, &alike.x, error);
        pthread_mutex_unlock(&alike_lock);
        return wrong;
    }
    expected mine = expect(&own, m, ranks, r, count);
    wrong = compare(&own, ranks, count, have, &mine.x, error);
    kept_drop(mine.room);
    return wrong;
}

static imbrex_status plan_by_tiles(imbrex_group *group, op_case c, imbrex_plan **plan)
{
    static const char *const names[] = { "scatter_push", "reduce_push", "reduce_pull" };
    imbrex_status status = IMBREX_UNSUPPORTED;
    for (int i = 0; i < 3 && status == IMBREX_UNSUPPORTED; i++) {
        c.algorithm = names[i];
        status = case_plan(group, &c, plan);
    }
    return status;
}

imbrex_status case_plan(imbrex_group *group, const op_case *c, imbrex_plan **plan)
{
    if (c->algorithm && strcmp(c->algorithm, BY_TILES) == 0)
        return plan_by_tiles(group, *c, plan);
    imbrex_coll_desc coll = {
        .m = c->m,
        .n = c->n,
        .dtype = c->dtype,
        .algorithm = c->algorithm,
        .chunk_rows = c->chunk_rows,
        .sms = c->sms,
        .norm = c->norm,
    };
    imbrex_gemm_desc gemm = {
        .m = c->m,
        .n = c->n,
        .k = c->k,
        .dtype = c->dtype,
        .layout = c->layout,
        .algorithm = c->algorithm,
        .chunk_rows = c->chunk_rows,
        .sms = c->sms,
        .norm = c->norm,
        .batch_invariant = c->batch_invariant,
    };
    bool product = strstr(c->op, "gemm") != NULL;
    return imbrex_plan_create(group, c->op, product ? (void *)&gemm : &coll,
                              product ? sizeof gemm : sizeof coll, plan);
}
