/* op_cases.c - every operator x dtype x algorithm x odd shape against a float64 loop; all runs and
 * all algorithms give the same bits; nothing is written beside the outputs. */
#include "op_cases.h"

#include <stdlib.h>
#include <string.h>

#include "op_image.h"
#include "ranks.h"

const char *op_cases_algorithm(const op_case *c, int i)
{
    static const char *const names[] = { "copy", "sequential", "store" };
    return i < (strstr(c->op, "gemm") ? 3 : 2) ? names[i] : NULL;
}

/* ---- one case -------------------------------------------------------------------------------- */

static int check_values(imbrex_group *group, const op_case *c, int64_t m, const op_image *x)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    int64_t n = c->n, rows = n ? op_sizes_of(c, m, ranks, r).c / n : 0;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t col = 0; col < n; col++) {
            double tolerance;
            double want = reference(c, m, ranks, r, row, col, &tolerance);
            double have = element_get(c->dtype, x->host + x->c.at, row * n + col);
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
            double have = element_get(c->dtype, x->host + x->gathered.at, row * c->k + i);
            RANK_CHECK(have == want, "gathered[%lld, %lld] is %g, want %g", (long long)row,
                       (long long)i, have, want);
        }
    }
    return 0;
}

static int run_once(imbrex_group *group, imbrex_plan *plan, const op_case *c, int64_t m,
                    const op_image *x)
{
    if (op_image_upload(group, x))
        return 1;
    imbrex_args args = op_image_args(c, x, m);
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (op_image_download(group, x))
        return 1;
    RANK_CHECK(op_image_intact(x), "%s %s m=%lld n=%lld k=%lld wrote beside a matrix", c->op,
               c->algorithm, (long long)m, (long long)c->n, (long long)c->k);
    return 0;
}

enum { RUNS = 5 };

/* All algorithms, each several times, with the plan's m and with fewer rows; same bits always. */
static int check_case(imbrex_group *group, op_case c, void *device)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    const int64_t rows_of_run[RUNS] = { c.m, c.m / 2, c.m - 1, 1, c.m };
    char *first[RUNS] = { 0 };
    for (int alg = 0; (c.algorithm = op_cases_algorithm(&c, alg)); alg++) {
        imbrex_plan *plan;
        RANK_OK(case_plan(group, &c, &plan));
        for (int i = 0; i < RUNS; i++) {
            int64_t m = rows_of_run[i];
            if ((m < 1 && i) || m > c.m)
                continue;
            op_image x = op_image_take(&c, m, ranks, r, device);
            if (run_once(group, plan, &c, m, &x))
                return 1;
            const char *bits = x.host + x.c.at;
            if (alg == 0) {
                if (check_values(group, &c, m, &x))
                    return 1;
                first[i] = malloc(x.c.bytes + 1);
                memcpy(first[i], bits, x.c.bytes);
            }
            RANK_CHECK(memcmp(first[i], bits, x.c.bytes) == 0,
                       "%s m=%lld: %s and %s differ in bits", c.op, (long long)m, c.algorithm,
                       op_cases_algorithm(&c, 0));
            if (i == RUNS - 1)
                RANK_CHECK(memcmp(first[0], bits, x.c.bytes) == 0, "%s %s: two runs differ in bits",
                           c.op, c.algorithm);
            op_image_drop(&x);
        }
        imbrex_plan_destroy(plan);
    }
    for (int i = 0; i < RUNS; i++)
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

enum { OPS = 4, DTYPES = 3 };
static const char *const ops[OPS] = { "all_gather", "reduce_scatter", "ag_gemm", "gemm_rs" };

bool op_cases_get(int number, op_case *c)
{
    int s = number / (OPS * DTYPES), o = number / DTYPES % OPS, d = number % DTYPES;
    if (s >= (int)(sizeof shapes / sizeof shapes[0]))
        return false;
    const shape *x = &shapes[s];
    *c = (op_case){
        .op = ops[o],
        .m = x->m,
        .n = x->n,
        .k = o >= 2 ? x->k : 0,
        .dtype = (imbrex_dtype)d,
        .layout = (s + d) % 2 ? IMBREX_KN : IMBREX_NK,
        .chunk_rows = x->chunk_rows,
        .sms = x->sms,
        .bias = x->bias && o >= 2,
        .gathered = x->gathered && o == 2,
    };
    return true;
}

/* For every form and tile of the kernels, on few multiprocessors and on many. */
static const op_case large[] = {
    { .m = 48, .n = 1536, .k = 512, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .bias = 1 },
    { .m = 200, .n = 712, .k = 264, .dtype = IMBREX_F16, .layout = IMBREX_KN, .gathered = 1 },
    { .m = 777, .n = 1000, .k = 200, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .chunk_rows = 64 },
    { .m = 640, .n = 1001, .k = 128, .dtype = IMBREX_F16, .layout = IMBREX_NK, .bias = 1 },
    { .m = 1024, .n = 1536, .k = 64, .dtype = IMBREX_BF16, .layout = IMBREX_KN, .sms = 20 },
    { .m = 1500, .n = 640, .k = 320, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .gathered = 1 },
    { .m = 300, .n = 500, .k = 96, .dtype = IMBREX_F32, .layout = IMBREX_NK, .bias = 1 },
    { .m = 300, .n = 501, .k = 99, .dtype = IMBREX_F32, .layout = IMBREX_KN },
    { .m = 500, .n = 333, .k = 77, .dtype = IMBREX_BF16, .layout = IMBREX_KN, .bias = 1 },
    { .m = 2500, .n = 2304, .k = 64, .dtype = IMBREX_BF16, .layout = IMBREX_NK },
};

bool op_cases_get_large(int number, op_case *c)
{
    if (number >= 2 * (int)(sizeof large / sizeof large[0]))
        return false;
    *c = large[number / 2];
    c->op = ops[2 + number % 2];
    c->gathered = c->gathered && number % 2 == 0;
    c->whole = 1;
    return true;
}

/* ---- the table on a device ------------------------------------------------------------------- */

int op_cases_all(imbrex_group *group, void *ctx)
{
    op_case c;
    (void)ctx;
    for (int i = 0; op_cases_get(i, &c); i++) {
        if (check_case(group, c, NULL))
            return 1;
    }
    return 0;
}

int op_cases_collectives(imbrex_group *group, void *ctx)
{
    op_case c;
    (void)ctx;
    for (int i = 0; op_cases_get(i, &c); i++) {
        if (i / DTYPES % OPS < 2 && check_case(group, c, NULL))
            return 1;
    }
    return 0;
}

int op_cases_device(imbrex_group *group, void *ctx)
{
    size_t most = 0;
    op_case c;
    void *device;
    (void)ctx;
    for (int i = 0; op_cases_get(i, &c); i++) {
        size_t bytes = op_image_bytes(&c, imbrex_group_size(group));
        most = bytes > most ? bytes : most;
    }
    RANK_OK(imbrex_mem_alloc(group, most, &device));
    for (int i = 0; op_cases_get(i, &c); i++) {
        if (check_case(group, c, device))
            return 1;
    }
    return 0;
}
