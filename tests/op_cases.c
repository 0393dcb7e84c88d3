/* op_cases.c - every operator x dtype x algorithm x odd shape against a float64 loop; all runs and
 * all algorithms give the same bits; nothing is written beside the outputs. */
#include "op_cases.h"

#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"

/* ---- guarded buffers ------------------------------------------------------------------------- */

enum { GUARD = 64 };

/* bytes between two guard zones. */
static char *guarded_new(size_t bytes, int fill)
{
    char *at = malloc(bytes + 2 * GUARD);
    memset(at, 0xA5, bytes + 2 * GUARD);
    memset(at + GUARD, fill, bytes);
    return at + GUARD;
}

static bool guarded_intact(const char *at, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++) {
        if ((unsigned char)at[-1 - (int)i] != 0xA5 || (unsigned char)at[bytes + i] != 0xA5)
            return false;
    }
    return true;
}

static void guarded_free(char *at)
{
    free(at - GUARD);
}

typedef struct buffers {
    op_sizes bytes;
    char *a, *b, *bias, *c, *gathered;
} buffers;

static buffers take(const op_case *c, int64_t m, int ranks, int r)
{
    op_sizes n = op_sizes_of(c, m, ranks, r);
    int64_t e = (int64_t)element_bytes(c->dtype);
    buffers x = { .bytes = { n.a * e, n.b * e, n.bias * e, n.c * e, n.gathered * e } };
    x.a = guarded_new((size_t)x.bytes.a, 0);
    x.b = guarded_new((size_t)x.bytes.b, 0);
    x.bias = guarded_new((size_t)x.bytes.bias, 0);
    x.c = guarded_new((size_t)x.bytes.c, 0xFF);
    x.gathered = guarded_new((size_t)x.bytes.gathered, 0xFF);
    input_fill(c->dtype, r, x.a, n.a);
    input_fill(c->dtype, INPUT_B + r, x.b, n.b);
    input_fill(c->dtype, INPUT_BIAS + r, x.bias, n.bias);
    return x;
}

static bool intact(const buffers *x)
{
    return guarded_intact(x->a, (size_t)x->bytes.a) && guarded_intact(x->b, (size_t)x->bytes.b) &&
           guarded_intact(x->bias, (size_t)x->bytes.bias) &&
           guarded_intact(x->c, (size_t)x->bytes.c) &&
           guarded_intact(x->gathered, (size_t)x->bytes.gathered);
}

static void drop(buffers *x)
{
    guarded_free(x->a);
    guarded_free(x->b);
    guarded_free(x->bias);
    guarded_free(x->c);
    guarded_free(x->gathered);
}

/* ---- one case -------------------------------------------------------------------------------- */

static int check_values(imbrex_group *group, const op_case *c, int64_t m, const buffers *x)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    int64_t n = c->n, rows = n ? op_sizes_of(c, m, ranks, r).c / n : 0;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t col = 0; col < n; col++) {
            double tolerance;
            double want = reference(c, m, ranks, r, row, col, &tolerance);
            double have = element_get(c->dtype, x->c, row * n + col);
            double error = have > want ? have - want : want - have;
            RANK_CHECK(error <= tolerance,
                       "rank %d of %d, %s %s m=%lld n=%lld k=%lld: c[%lld, %lld] is %.9g, want "
                       "%.9g within %.3g",
                       r, ranks, c->op, c->algorithm, (long long)m, (long long)n, (long long)c->k,
                       (long long)row, (long long)col, have, want, tolerance);
        }
    }
    if (!c->gathered)
        return 0;
    for (int64_t row = 0; row < m; row++) {
        int from = 0;
        while (row >= rank_row(m, ranks, from + 1))
            from++;
        for (int64_t i = 0; i < c->k; i++) {
            double want = input_value(c->dtype, from, (row - rank_row(m, ranks, from)) * c->k + i);
            double have = element_get(c->dtype, x->gathered, row * c->k + i);
            RANK_CHECK(have == want, "gathered[%lld, %lld] is %g, want %g", (long long)row,
                       (long long)i, have, want);
        }
    }
    return 0;
}

/* Of those with a product; the others have the first two. */
static const char *const algorithms[] = { "copy", "sequential", "store" };

/* All algorithms, each several times, with the plan's m and with fewer rows; same bits always. */
static int check_case(imbrex_group *group, op_case c)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    const int64_t rows_of_run[] = { c.m, c.m / 2, c.m - 1, 1, c.m };
    char *first[5] = { 0 };
    for (size_t alg = 0; alg < (size_t)(strstr(c.op, "gemm") ? 3 : 2); alg++) {
        c.algorithm = algorithms[alg];
        imbrex_plan *plan;
        RANK_OK(case_plan(group, &c, &plan));
        for (int i = 0; i < 5; i++) {
            int64_t m = rows_of_run[i];
            if ((m < 1 && i) || m > c.m)
                continue;
            buffers x = take(&c, m, ranks, r);
            imbrex_args args = {
                .a = x.a,
                .b = x.bytes.b ? x.b : NULL,
                .bias = c.bias ? x.bias : NULL,
                .c = x.c,
                .gathered = c.gathered ? x.gathered : NULL,
                .m = m,
            };
            RANK_OK(imbrex_plan_run(plan, &args, NULL));
            RANK_OK(imbrex_stream_sync(group, NULL));
            RANK_CHECK(intact(&x), "%s %s wrote beside a buffer", c.op, c.algorithm);
            if (alg == 0) {
                if (check_values(group, &c, m, &x))
                    return 1;
                first[i] = malloc((size_t)x.bytes.c + 1);
                memcpy(first[i], x.c, (size_t)x.bytes.c);
            }
            RANK_CHECK(memcmp(first[i], x.c, (size_t)x.bytes.c) == 0,
                       "%s m=%lld: %s and copy differ in bits", c.op, (long long)m, c.algorithm);
            if (i == 4)
                RANK_CHECK(memcmp(first[0], x.c, (size_t)x.bytes.c) == 0,
                           "%s %s: two runs differ in bits", c.op, c.algorithm);
            drop(&x);
        }
        imbrex_plan_destroy(plan);
    }
    for (int i = 0; i < 5; i++)
        free(first[i]);
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef struct shape {
    int64_t m, n, k;
    int chunk_rows, sms, bias, gathered;
} shape;

static const shape shapes[] = {
    { 64, 24, 32, 8, 0, 0, 0 },                               /* even everywhere */
    { 61, 17, 13, 5, 0, 1, 1 },                               /* uneven everywhere */
    { 3, 5, 7, 0, 0, 0, 1 },                                  /* fewer rows than ranks */
    { 1, 1, 1, 1, 0, 1, 0 },       { 40, 33, 0, 4, 0, 1, 0 }, /* k = 0: only the bias */
    { 0, 8, 8, 0, 0, 0, 0 },                                  /* no rows */
    { 16, 0, 8, 0, 0, 0, 1 },                                 /* no columns */
    { 96, 40, 21, 7, 3, 1, 1 },                               /* several blocks */
    { 150, 1030, 9, 64, 2, 0, 0 },                            /* more columns than a tile */
};

static int run_cases(imbrex_group *group, int last)
{
    static const char *const ops[] = { "all_gather", "reduce_scatter", "ag_gemm", "gemm_rs" };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (int o = 0; o < last; o++) {
            for (int d = IMBREX_BF16; d <= IMBREX_F32; d++) {
                const shape *x = &shapes[s];
                op_case c = {
                    .op = ops[o],
                    .m = x->m,
                    .n = x->n,
                    .k = o >= 2 ? x->k : 0,
                    .dtype = (imbrex_dtype)d,
                    .layout = (s + (size_t)d) % 2 ? IMBREX_KN : IMBREX_NK,
                    .chunk_rows = x->chunk_rows,
                    .sms = x->sms,
                    .bias = x->bias && o >= 2,
                    .gathered = x->gathered && o == 2,
                };
                if (check_case(group, c))
                    return 1;
            }
        }
    }
    return 0;
}

int op_cases_all(imbrex_group *group, void *ctx)
{
    (void)ctx;
    return run_cases(group, 4);
}

int op_cases_collectives(imbrex_group *group, void *ctx)
{
    (void)ctx;
    return run_cases(group, 2);
}
