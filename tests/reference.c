/* reference.c - what the operators should give, by the shortest code that can say it. */
#include "reference.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/dtype.h"

size_t element_bytes(imbrex_dtype dtype)
{
    return dtype == IMBREX_F32 ? 4 : 2;
}

double element_get(imbrex_dtype dtype, const void *matrix, int64_t i)
{
    float value;
    imx_dtype_widen((int)dtype, (const char *)matrix + (size_t)i * element_bytes(dtype), &value, 1);
    return (double)value;
}

void element_set(imbrex_dtype dtype, void *matrix, int64_t i, double value)
{
    float narrow = (float)value;
    imx_dtype_narrow((int)dtype, &narrow, (char *)matrix + (size_t)i * element_bytes(dtype), 1);
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
    word &= kept[dtype];
    memcpy(&value, &word, sizeof word);
    return (double)value;
}

void input_fill(imbrex_dtype dtype, int input, void *matrix, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        element_set(dtype, matrix, i, input_value(dtype, input, i));
}

int64_t rank_row(int64_t m, int ranks, int r)
{
    return r * m / ranks;
}

op_sizes op_sizes_of(const op_case *c, int64_t m, int ranks, int r)
{
    int64_t rows = rank_row(m, ranks, r + 1) - rank_row(m, ranks, r);
    if (strcmp(c->op, "all_gather") == 0)
        return (op_sizes){ .a = rows * c->n, .c = m * c->n };
    if (strcmp(c->op, "reduce_scatter") == 0)
        return (op_sizes){ .a = m * c->n, .c = rows * c->n };
    op_sizes s = { .b = c->n * c->k, .bias = c->n };
    bool gathers = strcmp(c->op, "ag_gemm") == 0;
    s.a = (gathers ? rows : m) * c->k;
    s.c = (gathers ? m : rows) * c->n;
    s.gathered = gathers ? m * c->k : 0;
    return s;
}

static int owner(int64_t m, int ranks, int64_t row)
{
    int r = 0;
    while (row >= rank_row(m, ranks, r + 1))
        r++;
    return r;
}

/* a[row of rank r] * b of rank r, column col; magnitude: the sum of |products|. */
static double product(const op_case *c, int r, int a_input, int64_t row, int64_t col,
                      double *magnitude)
{
    double sum = 0;
    for (int64_t i = 0; i < c->k; i++) {
        int64_t b = c->layout == IMBREX_NK ? col * c->k + i : i * c->n + col;
        double term =
            input_value(c->dtype, a_input, row * c->k + i) * input_value(c->dtype, INPUT_B + r, b);
        sum += term;
        *magnitude += fabs(term);
    }
    return sum;
}

static double epsilon(imbrex_dtype dtype)
{
    return dtype == IMBREX_F32 ? 0x1p-23 : dtype == IMBREX_F16 ? 0x1p-10 : 0x1p-7;
}

/* Asked for every element, and strcmp is not free where a sanitizer watches it. */
static bool is(const op_case *c, const char *op)
{
    const char *at = c->op;
    while (*at && *at == *op)
        at++, op++;
    return *at == *op;
}

double reference(const op_case *c, int64_t m, int ranks, int r, int64_t row, int64_t col,
                 double *tolerance)
{
    double bias = c->bias ? input_value(c->dtype, INPUT_BIAS + r, col) : 0;
    double magnitude = fabs(bias), value = bias, partials = 0;
    *tolerance = 0;
    if (is(c, "all_gather")) {
        int from = owner(m, ranks, row);
        return input_value(c->dtype, from, (row - rank_row(m, ranks, from)) * c->n + col);
    }
    if (is(c, "ag_gemm")) {
        int from = owner(m, ranks, row);
        value += product(c, r, from, row - rank_row(m, ranks, from), col, &magnitude);
    } else {
        int64_t whole = rank_row(m, ranks, r) + row;
        for (int q = 0; q < ranks; q++) {
            double part = is(c, "gemm_rs") ? product(c, q, q, whole, col, &magnitude)
                                           : input_value(c->dtype, q, whole * c->n + col);
            value += part;
            partials += fabs(part);
        }
    }
    /* Each partial and the result are rounded to dtype (half a unit), sums to float32. */
    *tolerance = epsilon(c->dtype) * 0.51 * (fabs(value) + partials) +
                 0x1p-23 * (magnitude + partials) * (2 + sqrt((double)c->k)) + 1e-30;
    if (c->nodes > 1)
        *tolerance += epsilon(c->dtype) * 0.51 * 1.01 * partials;
    if (c->dtype == IMBREX_F16)
        *tolerance += 0x1p-24 * (ranks + 1); /* subnormals */
    return value;
}

imbrex_status case_plan(imbrex_group *group, const op_case *c, imbrex_plan **plan)
{
    imbrex_coll_desc coll = {
        .m = c->m,
        .n = c->n,
        .dtype = c->dtype,
        .algorithm = c->algorithm,
        .chunk_rows = c->chunk_rows,
        .sms = c->sms,
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
    };
    if (strcmp(c->op, "all_gather") == 0)
        return imbrex_plan_all_gather(group, &coll, plan);
    if (strcmp(c->op, "reduce_scatter") == 0)
        return imbrex_plan_reduce_scatter(group, &coll, plan);
    if (strcmp(c->op, "ag_gemm") == 0)
        return imbrex_plan_ag_gemm(group, &gemm, plan);
    return imbrex_plan_gemm_rs(group, &gemm, plan);
}
