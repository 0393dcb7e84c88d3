/* scaled_input.c - as the header says.  Inputs follow from the rank and the row of the whole
 * matrix, so that a row is the same in runs of any m, and its bits must be. */
#include "scaled_input.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

/* ---- inputs ---------------------------------------------------------------------------------- */

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

imbrex_dtype scaled_dtype_of_b(const scaled_case *c)
{
    return c->dtype == IMBREX_E5M2 ? IMBREX_E4M3 : c->dtype;
}

uint8_t scaled_code(const scaled_case *c, imbrex_dtype dtype, int of, int64_t i)
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

float scaled_scale(const scaled_case *c, int of, int64_t i)
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
int64_t scaled_scales_of_a(const scaled_case *c, int64_t rows)
{
    int64_t per_row = c->scaling == IMBREX_PER_BLOCK ? blocks(c->k) : 1;
    return c->scaling == IMBREX_PER_TENSOR ? 1 : c->scaling ? rows * per_row : 0;
}

int64_t scaled_scales_of_b(const scaled_case *c)
{
    return c->scaling == IMBREX_PER_BLOCK ? blocks(c->n) * blocks(c->k)
                                          : scaled_scales_of_a(c, c->n);
}

static double element(imbrex_dtype dtype, uint8_t code)
{
    return element_get(dtype, &code, 0);
}

/* One scale of a tensor is alike on all ranks. */
int scaled_of_scale_a(const scaled_case *c, int r)
{
    return OF_SCALE_A + (c->scaling == IMBREX_PER_TENSOR ? 0 : r);
}

/* ---- in float64 ------------------------------------------------------------------------------ */

bool scaled_gathers(const scaled_case *c)
{
    return strcmp(c->op, "ag_gemm") == 0;
}

bool scaled_sums_ranks(const scaled_case *c)
{
    return strcmp(c->op, "gemm_rs") == 0 || strcmp(c->op, "gemm_ar") == 0;
}

/* Whose numbers rank r's a has: those of a gather are one matrix's. */
int scaled_of_a(const scaled_case *c, int r)
{
    return scaled_gathers(c) ? 0 : r;
}

static scaled_matrix numbers_of(const scaled_case *c, imbrex_dtype dtype, int of, int of_scale,
                                int64_t rows, bool is_b)
{
    int64_t k = c->k, each = is_b ? 128 : 1;
    scaled_matrix x = { calloc((size_t)(rows * k) + 1, sizeof(double)),
                        calloc((size_t)(rows * k) + 1, sizeof(double)) };
    for (int64_t i = 0; i < rows * k; i++) {
        int64_t row = i / k, at = 0;
        if (c->scaling == IMBREX_PER_ROW)
            at = row;
        if (c->scaling == IMBREX_PER_BLOCK)
            at = row / each * blocks(k) + i % k / 128;
        x.value[i] = element(dtype, scaled_code(c, dtype, of, i));
        x.scale[i] = c->scaling ? (double)scaled_scale(c, of_scale, at) : 1;
    }
    return x;
}

static void drop(scaled_matrix *x)
{
    free(x->value);
    free(x->scale);
}

/* A row of a times a row of b. */
static void add_part(const scaled_case *c, const scaled_matrix *a, int64_t row,
                     const scaled_matrix *b, int64_t col, scaled_total *sum)
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

scaled_parts scaled_parts_of(const scaled_case *c, int ranks, int r)
{
    scaled_parts x = { .first = scaled_sums_ranks(c) ? 0 : r,
                       .end = scaled_sums_ranks(c) ? ranks : r + 1 };
    for (int q = x.first; q < x.end; q++) {
        int of = scaled_of_a(c, q);
        x.a[q] = numbers_of(c, c->dtype, OF_A + of, scaled_of_scale_a(c, of), c->m, false);
        x.b[q] = numbers_of(c, scaled_dtype_of_b(c), OF_B + q, OF_SCALE_B + q, c->n, true);
    }
    return x;
}

void scaled_drop_parts(scaled_parts *x)
{
    for (int q = x->first; q < x->end; q++) {
        drop(&x->a[q]);
        drop(&x->b[q]);
    }
}

scaled_total scaled_sum_of(const scaled_case *c, const scaled_parts *x, int64_t row, int64_t col)
{
    double bias = c->bias ? input_value(c->out, OF_BIAS, col) : 0;
    scaled_total sum = { .value = bias, .magnitude = fabs(bias) };
    for (int q = x->first; q < x->end; q++)
        add_part(c, &x->a[q], row, &x->b[q], col, &sum);
    return sum;
}

bool scaled_is_right(const scaled_case *c, double have, const scaled_total *want, int nodes,
                     double *within)
{
    double unit = 0.51 * (c->out == IMBREX_F32 ? 0x1p-23 : c->out == IMBREX_F16 ? 0x1p-10 : 0x1p-7);
    *within = unit * (fabs(want->value) + (nodes > 1 ? 2.1 : 1) * want->partials) +
              0x1p-23 * (want->magnitude + want->partials) * (4 + sqrt((double)c->k)) + 1e-36;
    if (c->out == IMBREX_F16)
        *within += 0x1p-22; /* subnormals */
    if (c->hopper)
        *within += 0x1p-11 * want->magnitude;
    if (!isfinite(want->value))
        return isnan(want->value) ? isnan(have) : have == want->value;
    return fabs(have - want->value) <= *within;
}
