/* scaled_cases.c - as the header says.  Inputs follow from the rank and the row of the whole
 * matrix, so that a row is the same in runs of any m, and its bits must be. */
#include "scaled_cases.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "op_cases.h"
#include "ranks.h"

/* What elements and scales are like. */
typedef enum kind {
    USUAL,     /* any finite numbers */
    TINY,      /* products of scales of about 2^-100 */
    HUGE_ONES, /* 2^70 */
    OPPOSITE,  /* scales of a of 2^100, of b of 2^-100 */
    ZEROS,     /* elements and scales that are 0 */
    LARGEST,   /* all elements are the largest, of either sign */
    NANS       /* elements and scales that are no numbers, and infinities where there are some */
} kind;

typedef struct scaled_case {
    const char *op;
    int64_t m, n, k;
    imbrex_dtype dtype, out;
    imbrex_scaling scaling;
    kind kind;
    int bias, chunk_rows, sms, fast;
} scaled_case;

/* ---- inputs ---------------------------------------------------------------------------------- */

enum { OF_A, OF_B = 100, OF_BIAS = 200, OF_SCALE_A = 300, OF_SCALE_B = 400 }; /* + rank */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t number(int of, int64_t i)
{
    return mix(mix((uint64_t)of) + (uint64_t)i);
}

static imbrex_dtype dtype_of_b(const scaled_case *c)
{
    return c->dtype == IMBREX_E5M2 ? IMBREX_E4M3 : c->dtype;
}

static uint8_t code(const scaled_case *c, imbrex_dtype dtype, int of, int64_t i)
{
    int largest = dtype == IMBREX_E4M3 ? 0x7e : 0x7b;
    uint64_t x = number(of, i);
    int sign = (int)(x >> 60 & 1) << 7;
    if (c->kind == LARGEST)
        return (uint8_t)(largest | sign);
    if (c->kind == ZEROS && x >> 32 & 1)
        return (uint8_t)sign;
    if (c->kind == NANS && x % 197 == 0)
        return (uint8_t)(sign | (x >> 40 & 1 ? 0x7f : largest + 1));
    return (uint8_t)(sign | (int)(x % (uint64_t)(largest + 1)));
}

static float scale(const scaled_case *c, int of, int64_t i)
{
    static const int exponents[][2] = {
        [USUAL] = { -9, -7 },       [TINY] = { -60, -40 }, [HUGE_ONES] = { 40, 30 },
        [OPPOSITE] = { 100, -100 }, [ZEROS] = { -8, -8 },  [LARGEST] = { -10, -10 },
        [NANS] = { -8, -8 }
    };
    uint64_t x = number(of, i);
    if (c->kind == ZEROS && x % 5 == 0)
        return 0;
    if (c->kind == NANS && x % 23 == 0)
        return NAN;
    return ldexpf(1 + (float)(x >> 41 & 0x3fffff) * 0x1p-22f, exponents[c->kind][of >= OF_SCALE_B]);
}

static int64_t blocks(int64_t count)
{
    return (count + 127) / 128;
}

/* Of so many rows of a; 0: there are none. */
static int64_t scales_of_a(const scaled_case *c, int64_t rows)
{
    int64_t per_row = c->scaling == IMBREX_PER_BLOCK ? blocks(c->k) : 1;
    return c->scaling == IMBREX_PER_TENSOR ? 1 : c->scaling ? rows * per_row : 0;
}

static int64_t scales_of_b(const scaled_case *c)
{
    return c->scaling == IMBREX_PER_BLOCK ? blocks(c->n) * blocks(c->k) : scales_of_a(c, c->n);
}

static double element(imbrex_dtype dtype, uint8_t code)
{
    return element_get(dtype, &code, 0);
}

/* One scale of a tensor is alike on all ranks. */
static int of_scale_a(const scaled_case *c, int r)
{
    return OF_SCALE_A + (c->scaling == IMBREX_PER_TENSOR ? 0 : r);
}

/* ---- in float64 ------------------------------------------------------------------------------ */

static bool gathers(const scaled_case *c)
{
    return strcmp(c->op, "ag_gemm") == 0;
}

static bool sums_ranks(const scaled_case *c)
{
    return strcmp(c->op, "gemm_rs") == 0 || strcmp(c->op, "gemm_ar") == 0;
}

/* Whose numbers rank r's a has: those of a gather are one matrix's. */
static int of_a(const scaled_case *c, int r)
{
    return gathers(c) ? 0 : r;
}

/* One matrix as numbers, and the scales that its elements have, [rows, k] each. */
typedef struct matrix {
    double *value, *scale;
} matrix;

static matrix numbers_of(const scaled_case *c, imbrex_dtype dtype, int of, int of_scale,
                         int64_t rows, bool is_b)
{
    int64_t k = c->k, each = is_b ? 128 : 1;
    matrix x = { calloc((size_t)(rows * k) + 1, sizeof(double)),
                 calloc((size_t)(rows * k) + 1, sizeof(double)) };
    for (int64_t i = 0; i < rows * k; i++) {
        int64_t row = i / k, at = 0;
        if (c->scaling == IMBREX_PER_ROW)
            at = row;
        if (c->scaling == IMBREX_PER_BLOCK)
            at = row / each * blocks(k) + i % k / 128;
        x.value[i] = element(dtype, code(c, dtype, of, i));
        x.scale[i] = c->scaling ? (double)scale(c, of_scale, at) : 1;
    }
    return x;
}

static void drop(matrix *x)
{
    free(x->value);
    free(x->scale);
}

/* Of one element of c: its value, and what the error of one is counted from. */
typedef struct total {
    double value, magnitude, partials; /* of all, of |products|, of |ranks' parts| */
} total;

/* A row of a times a row of b. */
static void add_part(const scaled_case *c, const matrix *a, int64_t row, const matrix *b,
                     int64_t col, total *sum)
{
    const double *x = a->value + row * c->k, *y = b->value + col * c->k;
    const double *s = a->scale + row * c->k, *t = b->scale + col * c->k;
    double part = 0, block = 0;
    for (int64_t i = 0; i < c->k; i++) {
        block += x[i] * y[i];
        sum->magnitude += fabs(x[i] * y[i] * (s[i] * t[i]));
        if (i % 128 < 127 && i < c->k - 1)
            continue;
        part += block * (s[i] * t[i]);
        block = 0;
    }
    sum->value += part;
    sum->partials += fabs(part);
}

enum { RANKS_MOST = 4 };

/* What rank r's c is made of: a and b of each rank that has a part in it. */
typedef struct parts {
    int first, end; /* ranks */
    matrix a[RANKS_MOST], b[RANKS_MOST];
} parts;

static parts parts_of(const scaled_case *c, int ranks, int r)
{
    parts x = { .first = sums_ranks(c) ? 0 : r, .end = sums_ranks(c) ? ranks : r + 1 };
    for (int q = x.first; q < x.end; q++) {
        int of = of_a(c, q);
        x.a[q] = numbers_of(c, c->dtype, OF_A + of, of_scale_a(c, of), c->m, false);
        x.b[q] = numbers_of(c, dtype_of_b(c), OF_B + q, OF_SCALE_B + q, c->n, true);
    }
    return x;
}

static void drop_parts(parts *x)
{
    for (int q = x->first; q < x->end; q++) {
        drop(&x->a[q]);
        drop(&x->b[q]);
    }
}

static total sum_of(const scaled_case *c, const parts *x, int64_t row, int64_t col)
{
    double bias = c->bias ? input_value(c->out, OF_BIAS, col) : 0;
    total sum = { .value = bias, .magnitude = fabs(bias) };
    for (int q = x->first; q < x->end; q++)
        add_part(c, &x->a[q], row, &x->b[q], col, &sum);
    return sum;
}

static bool is_right(const scaled_case *c, double have, const total *want, int nodes,
                     double *within)
{
    double unit = 0.51 * (c->out == IMBREX_F32 ? 0x1p-23 : c->out == IMBREX_F16 ? 0x1p-10 : 0x1p-7);
    *within = unit * (fabs(want->value) + (nodes > 1 ? 2.1 : 1) * want->partials) +
              0x1p-23 * (want->magnitude + want->partials) * (4 + sqrt((double)c->k)) + 1e-36;
    if (c->out == IMBREX_F16)
        *within += 0x1p-22; /* subnormals */
    if (!isfinite(want->value))
        return isnan(want->value) ? isnan(have) : have == want->value;
    return fabs(have - want->value) <= *within;
}

/* ---- one run --------------------------------------------------------------------------------- */

enum { A, SCALES_A, B, SCALES_B, BIAS, C, GATHERED, MATRICES };
enum { GUARD = 256, FILL = 0xff };

typedef struct bench {
    imbrex_group *group;
    const scaled_case *c;
    int ranks, r, nodes, plans;
    size_t at[MATRICES + 1];
    char *device, *host;
    parts parts;
    uint8_t *codes; /* of a, all rows, and behind it b */
    char *all;      /* c of all rows, as far as they are known, */
    bool known[64];
} bench;

static int64_t first_row(const bench *b, int64_t m)
{
    return rank_row(m, b->ranks, b->r);
}

static int64_t own_rows(const bench *b, int64_t m)
{
    return rank_row(m, b->ranks, b->r + 1) - first_row(b, m);
}

static bool scatters(const bench *b)
{
    return strcmp(b->c->op, "gemm_rs") == 0;
}

static void lay_out(bench *b)
{
    const scaled_case *c = b->c;
    size_t e = element_bytes(c->out), m = (size_t)c->m, n = (size_t)c->n, k = (size_t)c->k;
    const size_t bytes[MATRICES] = {
        [A] = m * k,        [SCALES_A] = sizeof(float) * (size_t)scales_of_a(c, c->m),
        [B] = n * k,        [SCALES_B] = sizeof(float) * (size_t)scales_of_b(c),
        [BIAS] = n * e,     [C] = m * n * e,
        [GATHERED] = m * k,
    };
    b->at[0] = GUARD;
    for (int i = 0; i < MATRICES; i++)
        b->at[i + 1] = (b->at[i] + bytes[i] + 2 * GUARD - 1) / GUARD * GUARD;
}

static uint8_t *codes_of(const scaled_case *c, int r)
{
    int64_t of_a_rows = c->m * c->k;
    uint8_t *codes = malloc((size_t)(of_a_rows + c->n * c->k) + 1);
    for (int64_t i = 0; i < of_a_rows; i++)
        codes[i] = code(c, c->dtype, OF_A + of_a(c, r), i);
    for (int64_t i = 0; i < c->n * c->k; i++)
        codes[of_a_rows + i] = code(c, dtype_of_b(c), OF_B + r, i);
    return codes;
}

static void fill(const bench *b, int64_t m)
{
    const scaled_case *c = b->c;
    int64_t first = gathers(c) ? first_row(b, m) : 0, rows = gathers(c) ? own_rows(b, m) : m;
    int64_t skipped = c->scaling == IMBREX_PER_TENSOR ? 0 : scales_of_a(c, first);
    int of = of_a(c, b->r);
    float *scales = (float *)(void *)(b->host + b->at[SCALES_A]);
    memset(b->host, FILL, b->at[MATRICES]);
    memcpy(b->host + b->at[A], b->codes + first * c->k, (size_t)(rows * c->k));
    memcpy(b->host + b->at[B], b->codes + c->m * c->k, (size_t)(c->n * c->k));
    for (int64_t i = 0; i < scales_of_a(c, rows); i++)
        scales[i] = scale(c, of_scale_a(c, of), skipped + i);
    scales = (float *)(void *)(b->host + b->at[SCALES_B]);
    for (int64_t i = 0; i < scales_of_b(c); i++)
        scales[i] = scale(c, OF_SCALE_B + b->r, i);
    input_fill(c->out, OF_BIAS, 0, b->host + b->at[BIAS], c->n);
}

static void *matrix_at(const bench *b, int i, bool wanted)
{
    return wanted ? b->device + b->at[i] : NULL;
}

static int run(const bench *b, imbrex_plan *plan, int64_t m)
{
    const scaled_case *c = b->c;
    fill(b, m);
    RANK_OK(imbrex_copy(b->group, b->device, b->host, b->at[MATRICES], NULL));
    const imbrex_args args = { .a = matrix_at(b, A, true),
                               .b = matrix_at(b, B, true),
                               .bias = matrix_at(b, BIAS, c->bias),
                               .c = matrix_at(b, C, true),
                               .gathered = matrix_at(b, GATHERED, gathers(c) && c->bias),
                               .scale_a = matrix_at(b, SCALES_A, c->scaling),
                               .scale_b = matrix_at(b, SCALES_B, c->scaling),
                               .m = m };
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(b->group, NULL));
    RANK_OK(imbrex_copy(b->group, b->host, b->device, b->at[MATRICES], NULL));
    RANK_OK(imbrex_stream_sync(b->group, NULL));
    return 0;
}

static int complain(const bench *b, const char *algorithm, int64_t m, const char *what)
{
    const scaled_case *c = b->c;
    fprintf(
        stderr,
        "%s: rank %d of %d, %s by %s, m=%lld of %lld n=%lld k=%lld, dtype %d to %d, scaling %d, "
        "values %d\n",
        what, b->r, b->ranks, c->op, algorithm, (long long)m, (long long)c->m, (long long)c->n,
        (long long)c->k, (int)c->dtype, (int)c->out, (int)c->scaling, (int)c->kind);
    return 1;
}

/* In bits, but for those of what is no number. */
static bool rows_differ(const scaled_case *c, const char *x, const char *y)
{
    size_t e = element_bytes(c->out);
    for (int64_t i = 0; i < c->n; i++) {
        bool nans = isnan(element_get(c->out, x, i)) && isnan(element_get(c->out, y, i));
        if (!nans && memcmp(x + (size_t)i * e, y + (size_t)i * e, e) != 0)
            return true;
    }
    return false;
}

/* c of a run of m rows: of rows that no run gave yet against float64, of others bit by bit. */
static int check(bench *b, const char *algorithm, int64_t m)
{
    const scaled_case *c = b->c;
    int64_t first = scatters(b) ? first_row(b, m) : 0, rows = scatters(b) ? own_rows(b, m) : m;
    size_t row_bytes = (size_t)c->n * element_bytes(c->out);
    const char *have = b->host + b->at[C];
    for (int64_t row = 0; row < rows; row++) {
        char *kept = b->all + (size_t)(first + row) * row_bytes;
        const char *is = have + (size_t)row * row_bytes;
        if (b->known[first + row]) {
            if (rows_differ(c, kept, is))
                return complain(b, algorithm, m, "a row has other bits than before");
            continue;
        }
        b->known[first + row] = true;
        memcpy(kept, is, row_bytes);
        if (row % b->ranks != b->r && !scatters(b))
            continue; /* another rank's to look at */
        for (int64_t col = 0; col < c->n; col++) {
            total want = sum_of(c, &b->parts, first + row, col);
            double within, x = element_get(c->out, is, col);
            if (is_right(c, x, &want, b->nodes, &within))
                continue;
            fprintf(stderr, "c[%lld, %lld] is %.9g, want %.9g within %.3g\n",
                    (long long)(first + row), (long long)col, x, want.value, within);
            return complain(b, algorithm, m, "a wrong value");
        }
    }
    for (size_t i = (size_t)rows * row_bytes; i < b->at[C + 1] - b->at[C]; i++)
        if ((unsigned char)have[i] != FILL)
            return complain(b, algorithm, m, "something was written behind c");
    for (int64_t i = 0; i < m * c->k && gathers(c) && c->bias; i++)
        if ((uint8_t)b->host[b->at[GATHERED] + (size_t)i] != b->codes[i])
            return complain(b, algorithm, m, "gathered is not all of a");
    return 0;
}

static int try_algorithm(bench *b, const char *algorithm)
{
    const scaled_case *c = b->c;
    const int64_t m_of[] = { c->m, c->m / 2, 1, c->m - 1, c->m };
    const imbrex_gemm_desc desc = { .m = c->m,
                                    .n = c->n,
                                    .k = c->k,
                                    .dtype = c->dtype,
                                    .out = c->out,
                                    .scaling = c->scaling,
                                    .fast_accumulation = c->fast,
                                    .algorithm = algorithm,
                                    .chunk_rows = c->chunk_rows,
                                    .sms = c->sms };
    imbrex_plan *plan;
    imbrex_status status = imbrex_plan_create(b->group, c->op, &desc, sizeof desc, &plan);
    if (status == IMBREX_UNSUPPORTED && strstr(imbrex_error(), ": choose \""))
        return 0; /* for other tiles */
    RANK_OK(status);
    b->plans++;
    for (size_t i = 0; i < sizeof m_of / sizeof *m_of; i++) {
        if (m_of[i] < 1)
            continue;
        if (run(b, plan, m_of[i]) || check(b, algorithm, m_of[i]))
            return 1;
    }
    imbrex_plan_destroy(plan);
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

#define BF16   IMBREX_BF16
#define F16    IMBREX_F16
#define F32    IMBREX_F32
#define E4M3   IMBREX_E4M3
#define E5M2   IMBREX_E5M2
#define TENSOR IMBREX_PER_TENSOR
#define ROW    IMBREX_PER_ROW
#define BLOCK  IMBREX_PER_BLOCK

/* Edges of n and k that are no multiples of 128, few rows and chunks of several, several blocks. */
static const scaled_case cases[] = {
    { .m = 33, .n = 137, .k = 272, .dtype = E4M3, .scaling = BLOCK, .chunk_rows = 5, .bias = 1 },
    { .m = 22, .n = 130, .k = 400, .dtype = E4M3, .scaling = BLOCK, .out = F32, .sms = 2 },
    { .m = 24, .n = 129, .k = 144, .dtype = E5M2, .scaling = BLOCK, .out = F16, .chunk_rows = 8 },
    { .m = 27, .n = 33, .k = 272, .dtype = E4M3, .scaling = ROW, .chunk_rows = 4, .bias = 1 },
    { .m = 18, .n = 140, .k = 160, .dtype = E5M2, .scaling = ROW, .out = F32, .sms = 3 },
    { .m = 3, .n = 5, .k = 16, .dtype = E4M3, .scaling = ROW, .out = F16, .bias = 1 },
    { .m = 24, .n = 40, .k = 128, .dtype = E4M3, .scaling = TENSOR, .fast = 1, .chunk_rows = 3 },
    { .m = 19, .n = 17, .k = 48, .dtype = E4M3, .scaling = TENSOR, .out = F32, .bias = 1 },
    { .m = 20, .n = 24, .k = 144, .dtype = E4M3, .out = F32, .chunk_rows = 2 },
    { .m = 8, .n = 9, .k = 0, .dtype = E4M3, .scaling = BLOCK, .bias = 1 },
    { .m = 17, .n = 50, .k = 256, .dtype = E4M3, .scaling = BLOCK, .kind = TINY },
    { .m = 17, .n = 50, .k = 256, .dtype = E4M3, .scaling = BLOCK, .kind = HUGE_ONES },
    { .m = 18,
      .n = 30,
      .k = 144,
      .dtype = E4M3,
      .scaling = ROW,
      .kind = OPPOSITE,
      .chunk_rows = 2 },
    { .m = 10, .n = 150, .k = 272, .dtype = E4M3, .scaling = BLOCK, .kind = ZEROS, .out = F32 },
    { .m = 18, .n = 30, .k = 144, .dtype = E5M2, .scaling = ROW, .kind = ZEROS, .chunk_rows = 3 },
    { .m = 13, .n = 18, .k = 1040, .dtype = E4M3, .scaling = BLOCK, .kind = LARGEST, .out = F32 },
    { .m = 21, .n = 34, .k = 208, .dtype = E4M3, .scaling = ROW, .kind = LARGEST, .chunk_rows = 4 },
    { .m = 24, .n = 140, .k = 272, .dtype = E4M3, .scaling = BLOCK, .kind = NANS, .chunk_rows = 4 },
    { .m = 40, .n = 60, .k = 48, .dtype = E5M2, .scaling = ROW, .kind = NANS, .out = F32 },
};

static int try_case(imbrex_group *group, scaled_case c, int nodes)
{
    bench b = { .group = group,
                .c = &c,
                .ranks = imbrex_group_size(group),
                .r = imbrex_group_rank(group),
                .nodes = nodes };
    c.out = c.out ? c.out : BF16;
    lay_out(&b);
    RANK_OK(imbrex_mem_alloc(group, b.at[MATRICES], (void **)&b.device));
    b.host = malloc(b.at[MATRICES]);
    b.all = malloc((size_t)(c.m * c.n) * sizeof(float) + 1);
    b.parts = parts_of(&c, b.ranks, b.r);
    b.codes = codes_of(&c, b.r);
    const op_case of = { .op = c.op, .nodes = nodes };
    const char *algorithm;
    int failed = 0;
    for (int i = 0; !failed && (algorithm = op_cases_algorithm(&of, i)); i++)
        failed = try_algorithm(&b, algorithm);
    RANK_CHECK(failed || b.plans, "%s had no algorithm", c.op);
    drop_parts(&b.parts);
    free(b.codes);
    free(b.host);
    free(b.all);
    imbrex_mem_free(group, b.device);
    return failed;
}

static int try_all(imbrex_group *group, int nodes)
{
    static const char *const ops[] = { "gemm", "ag_gemm", "gemm_rs", "gemm_ar" };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t op = nodes > 1; op < sizeof ops / sizeof *ops; op++) {
            scaled_case c = cases[i];
            c.op = ops[op];
            if (try_case(group, c, nodes))
                return 1;
        }
    return 0;
}

int scaled_cases(imbrex_group *group, void *ctx)
{
    (void)ctx;
    return try_all(group, 1);
}

int scaled_cases_over_nodes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    return try_all(group, 2);
}
