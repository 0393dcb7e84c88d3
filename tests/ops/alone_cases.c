/* alone_cases.c - as the header says: each run fills memory of the device, and all is read back. */
#include "alone_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"

enum { ROWS = 11, OPERANDS = 5 };

/* Where operands lie, in bytes from the first, and how many there are in all. */
enum { A, RESIDUAL, GAMMA, H, C };

typedef struct alone_case {
    int64_t n;
    imbrex_dtype dtype;
} alone_case;

typedef struct bench {
    imbrex_group *group;
    alone_case of;
    size_t row, bytes;        /* of a row; of all operands */
    char *device, *in, *have; /* [bytes] */
    char *first;              /* what the first algorithm made */
} bench;

static size_t at(const bench *b, int operand, int row)
{
    return ((size_t)operand * ROWS + (size_t)row) * b->row;
}

static float value(const bench *b, int operand, int row, int column)
{
    return (float)element_get(b->of.dtype, b->have + at(b, operand, row), column);
}

static void fill(const bench *b)
{
    static const float odd[4] = { -0.0f, NAN, INFINITY, -INFINITY };
    imbrex_dtype dtype = b->of.dtype;
    input_fill(dtype, imbrex_group_rank(b->group), 0, b->in + at(b, A, 0), ROWS * b->of.n);
    input_fill(dtype, 100, 0, b->in + at(b, RESIDUAL, 0), ROWS * b->of.n);
    input_fill(dtype, 101, 0, b->in + at(b, GAMMA, 0), b->of.n);
    for (int i = 0; i < 4; i++) {
        element_set(dtype, b->in + at(b, A, i), 0, (double)odd[i]);
        element_set(dtype, b->in + at(b, RESIDUAL, i), 0, (double)odd[i]);
    }
}

/* Of all rows, into h and c; or of each by itself, in place. */
static int run(const bench *b, imbrex_plan *plan, bool alone)
{
    char *x = b->device;
    RANK_OK(imbrex_copy(b->group, x, b->in, b->bytes, NULL));
    for (int row = 0; row < (alone ? ROWS : 1); row++) {
        imbrex_args args = { .a = x + at(b, A, row),
                             .residual = x + at(b, RESIDUAL, row),
                             .gamma = x + at(b, GAMMA, 0),
                             .h = x + at(b, alone ? RESIDUAL : H, row),
                             .c = x + at(b, alone ? A : C, row),
                             .m = alone ? 1 : ROWS };
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
    }
    RANK_OK(imbrex_copy(b->group, b->have, x, b->bytes, NULL));
    RANK_OK(imbrex_stream_sync(b->group, NULL));
    return 0;
}

static int check_odd(const bench *b, const char *algorithm)
{
    float h[4], c[4];
    for (int i = 0; i < 4; i++) {
        h[i] = value(b, H, i, 0);
        c[i] = value(b, C, i, b->of.n > 1);
    }
    RANK_CHECK(h[0] == 0 && signbit(h[0]) && isnan(h[1]) && h[2] == INFINITY && h[3] == -INFINITY,
               "%s: -0, NaN, inf, -inf became %g, %g, %g, %g", algorithm, (double)h[0],
               (double)h[1], (double)h[2], (double)h[3]);
    RANK_CHECK(isnan(c[1]) && c[2] == 0 && c[3] == 0, "%s: beside NaN, inf, -inf are %g, %g, %g",
               algorithm, (double)c[1], (double)c[2], (double)c[3]);
    return 0;
}

static int check(const bench *b, const char *algorithm)
{
    imbrex_coll_desc desc = {
        .m = ROWS, .n = b->of.n, .dtype = b->of.dtype, .algorithm = algorithm, .norm = { .rms = 1 }
    };
    size_t all = ROWS * b->row;
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_all_reduce(b->group, &desc, &plan));
    if (run(b, plan, false) || check_odd(b, algorithm))
        return 1;
    if (!b->first[0])
        memcpy(b->first + 1, b->have + at(b, H, 0), 2 * all);
    b->first[0] = 1;
    RANK_CHECK(memcmp(b->first + 1, b->have + at(b, H, 0), 2 * all) == 0,
               "n %lld: %s has other bits", (long long)b->of.n, algorithm);
    if (run(b, plan, true))
        return 1;
    RANK_CHECK(memcmp(b->first + 1, b->have + at(b, RESIDUAL, 0), all) == 0 &&
                   memcmp(b->first + 1 + all, b->have + at(b, A, 0), all) == 0,
               "n %lld, %s: a row alone has other bits", (long long)b->of.n, algorithm);
    imbrex_plan_destroy(plan);
    return 0;
}

static int check_case(imbrex_group *group, alone_case of)
{
    static const char *const algorithms[] = { "sequential", "copy", "store", "ll", "ll2" };
    bench b = { .group = group, .of = of, .row = (size_t)of.n * element_bytes(of.dtype) };
    void *device;
    b.bytes = OPERANDS * ROWS * b.row;
    RANK_OK(imbrex_mem_alloc(group, b.bytes, &device));
    b.device = device;
    b.in = calloc(2, b.bytes);
    b.have = b.in + b.bytes;
    b.first = calloc(1, b.bytes);
    fill(&b);
    int failed = 0;
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms && !failed; i++)
        failed = check(&b, algorithms[i]);
    free(b.first);
    free(b.in);
    if (!failed)
        imbrex_mem_free(group, device);
    return failed;
}

int alone_cases(imbrex_group *group, void *ctx)
{
    static const alone_case cases[] = {
        { 70, IMBREX_F32 }, { 2100, IMBREX_F32 }, { 1099, IMBREX_BF16 }, { 4096, IMBREX_F16 }
    };
    (void)ctx;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (check_case(group, cases[i]))
            return 1;
    }
    return 0;
}
