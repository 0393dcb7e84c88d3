/* op_norm.c - what the table of cases does after sums, and how that is checked. */
#include "op_norm.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"
#include "norm_reference.h"

enum { SHAPES = 12 };

/* By shape, of operators that add up over ranks: what happens to the sum. */
static const struct {
    imbrex_norm norm;
    int bias, residual, in_place;
} after[SHAPES] = {
    { { 0 }, 1, 1, 0 },
    { { .rms = 1 }, 0, 1, 1 },
    { { .rms = 1, .quant = IMBREX_PER_ROW }, 1, 0, 0 },
    { { .rms = 1, .gamma_offset = 1 }, 0, 0, 0 },
    { { .quant = IMBREX_PER_BLOCK, .power_of_two = 1 }, 1, 1, 1 },
    { { .rms = 1, .shard_residual = 1 }, 1, 1, 1 },
    { { .rms = 1, .eps = 0.5f, .quant = IMBREX_PER_TENSOR }, 0, 1, 0 },
    { { .rms = 1, .shard_residual = 1, .quant = IMBREX_PER_BLOCK }, 0, 1, 0 },
    { { .rms = 1, .quant = IMBREX_PER_BLOCK }, 1, 1, 1 },
    { { 0 }, 0, 0, 1 },
    { { .rms = 1 }, 1, 1, 0 },
    { { 0 }, 0, 0, 0 },
};

void op_norm_set(op_case *c, int shape)
{
    if (!adds_up(c))
        return;
    c->norm = after[shape % SHAPES].norm;
    c->bias = after[shape % SHAPES].bias;
    c->residual = after[shape % SHAPES].residual;
    c->in_place = after[shape % SHAPES].in_place;
}

static const op_case long_rows[] = {
    { .m = 40, .n = 1024, .k = 64, .norm = { .rms = 1 }, .residual = 1 },
    { .m = 3, .n = 8192, .norm = { .rms = 1 }, .residual = 1 },
    /* Only bits of float32 show in which order many segments are added. */
    { .m = 9, .n = 7001, .dtype = IMBREX_F32, .norm = { .rms = 1 }, .residual = 1 },
    { .m = 300,
      .n = 1030,
      .dtype = IMBREX_F32,
      .norm = { .rms = 1, .eps = 0.5f, .gamma_offset = 1 },
      .residual = 1,
      .in_place = 1 },
    { .m = 17, .n = 4099, .norm = { .rms = 1 }, .bias = 1, .residual = 1, .in_place = 1 },
    { .m = 1, .n = 16384, .norm = { .rms = 1 }, .residual = 1, .in_place = 1 },
    { .m = 2, .n = 32768, .norm = { .rms = 1 }, .residual = 1 }, /* the longest */
    { .m = 5, .n = 1, .norm = { .rms = 1, .quant = IMBREX_PER_ROW }, .bias = 1, .residual = 1 },
    { .m = 40, .n = 3000, .dtype = IMBREX_F32, .norm = { .quant = IMBREX_PER_ROW } },
    { .m = 5,
      .n = 12288,
      .norm = { .rms = 1, .gamma_offset = 1, .quant = IMBREX_PER_TENSOR },
      .residual = 1 },
    { .m = 2, .n = 8200, .dtype = IMBREX_F32, .norm = { .rms = 1 }, .residual = 1 },
    { .m = 2, .n = 16392, .norm = { .rms = 1, .quant = IMBREX_PER_BLOCK }, .residual = 1 },
    { .m = 20, .n = 5120, .k = 40, .norm = { .rms = 1, .quant = IMBREX_PER_ROW }, .bias = 1 },
    { .m = 70,
      .n = 2100,
      .k = 72,
      .dtype = IMBREX_F16,
      .norm = { .rms = 1, .quant = IMBREX_PER_BLOCK, .power_of_two = 1 },
      .residual = 1,
      .in_place = 1 },
};

bool op_norm_get(int number, op_case *c)
{
    if (number >= (int)(sizeof long_rows / sizeof *long_rows))
        return false;
    *c = long_rows[number];
    c->op = c->k ? "gemm_ar" : "all_reduce";
    c->dtype = c->dtype ? c->dtype : IMBREX_BF16;
    return true;
}

int op_norm_check(imbrex_group *group, const op_case *c, int64_t m, const op_image *x)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group), failed = 0;
    size_t e = element_bytes(c->dtype), to = element_bytes(result_dtype(c));
    bool part = sums_all(c) && c->norm.shard_residual;
    int64_t rows = (int64_t)(op_image_h(c, x).bytes / e) / (c->n ? c->n : 1);
    int64_t first = part ? rank_row(m, ranks, r) : 0;
    float *y = calloc((size_t)c->n + 1, sizeof *y), *have = calloc((size_t)c->n + 1, sizeof *have);
    for (int64_t row = 0; row < rows && !failed; row++) {
        const char *h = x->host + op_image_h(c, x).at + (size_t)(row * c->n) * e;
        size_t of = (size_t)((first + row) * c->n);
        const char *result = x->host + op_image_c(c, x).at + of * to;
        norm_row_of(&c->norm, c->dtype, c->n, h, x->host + x->gamma.at, y);
        imx_dtype_widen((int)c->dtype, c->norm.quant ? x->host + x->normed.at + of * e : result,
                        have, c->n);
        int64_t blocks = c->norm.quant == IMBREX_PER_BLOCK ? (c->n + 127) / 128 : 1;
        int64_t scale = c->norm.quant == IMBREX_PER_TENSOR ? 0 : (first + row) * blocks;
        failed = memcmp(y, have, (size_t)c->n * sizeof *y) != 0 ||
                 (c->norm.quant &&
                  norm_quant_differs(&c->norm, c->n, y,
                                     (const float *)(const void *)(x->host + x->scale.at) + scale,
                                     (const uint8_t *)result) >= 0);
        if (failed)
            op_image_complain("row %lld of c is not the norm of h: %g, %g for %g, %g",
                              (long long)(first + row), (double)have[0], (double)have[c->n > 1],
                              (double)y[0], (double)y[c->n > 1]);
    }
    free(y);
    free(have);
    return failed;
}
