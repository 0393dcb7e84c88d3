/* test_gemm_ar.c - what a product's sum on every rank promises beyond the table of cases: the bits
 * of a gemm_rs and an all_gather behind it, by every algorithm, with runs of fewer rows between;
 * and with batch_invariant rows that do not depend on each other; and what is chosen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "op_cases.h"
#include "ranks.h"
#include "reference.h"
#include "sanitized.h"
#include "tuned.h"

/* Rows of several chunks of each rank, of one, fewer than ranks; what goes in lines, in words. */
static const op_case shapes[] = {
    { .m = 97, .n = 33, .k = 19, .chunk_rows = 4, .bias = 1 },
    { .m = 40, .n = 48, .k = 16 },
    { .m = 3, .n = 7, .k = 5, .bias = 1 },
    { .m = 2, .n = 4099, .k = 3, .bias = 1 },
};

/* The last run is the first once more. */
enum { SHAPES = sizeof shapes / sizeof *shapes, RUNS = 4, WANTED = RUNS - 1 };

typedef struct matrices {
    char *a, *b, *bias, *rows, *want, *c;
} matrices;

static matrices take(const op_case *c, int ranks, int r)
{
    op_sizes n = op_sizes_of(c, c->m, ranks, r);
    size_t e = element_bytes(c->dtype);
    matrices x = { malloc((size_t)n.a * e),          malloc((size_t)n.b * e),
                   malloc((size_t)n.bias * e),       malloc((size_t)n.c * e),
                   malloc(WANTED * (size_t)n.c * e), malloc((size_t)n.c * e) };
    input_fill(c->dtype, r, 0, x.a, n.a);
    input_fill(c->dtype, INPUT_B + r, 0, x.b, n.b);
    input_fill(c->dtype, input_bias(c, r), 0, x.bias, n.bias);
    return x;
}

static void drop(matrices *x)
{
    free(x->a);
    free(x->b);
    free(x->bias);
    free(x->rows);
    free(x->want);
    free(x->c);
}

static imbrex_args args_of(const op_case *c, const matrices *x, char *to, int64_t m)
{
    return (imbrex_args){ .a = x->a, .b = x->b, .bias = c->bias ? x->bias : NULL, .c = to, .m = m };
}

/* m rows by the two operators. */
static int by_two(imbrex_group *group, op_case c, const matrices *x, char *want, int64_t m)
{
    imbrex_plan *scatter, *gather;
    imbrex_coll_desc whole = { .m = m, .n = c.n, .dtype = c.dtype, .algorithm = "sequential" };
    c.op = "gemm_rs";
    c.algorithm = "sequential";
    RANK_OK(case_plan(group, &c, &scatter));
    RANK_OK(imbrex_plan_all_gather(group, &whole, &gather));
    imbrex_args args = args_of(&c, x, x->rows, m);
    RANK_OK(imbrex_plan_run(scatter, &args, NULL));
    RANK_OK(imbrex_plan_run(gather, &(imbrex_args){ .a = x->rows, .c = want }, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    imbrex_plan_destroy(scatter);
    imbrex_plan_destroy(gather);
    return 0;
}

/* Few rows in the product's kernel: refused on CPU ranks, which test_operators sees to. */
static bool is_of_gpus(const op_case *c)
{
    return strncmp(c->algorithm, "reduce_push", 11) == 0;
}

static int check(imbrex_group *group, op_case c)
{
    const int64_t rows[RUNS] = { c.m, (c.m + 1) / 2, 1, c.m };
    matrices x = take(&c, imbrex_group_size(group), imbrex_group_rank(group));
    size_t most = (size_t)(c.m * c.n) * element_bytes(c.dtype);
    for (int run = 0; run < WANTED; run++)
        if (by_two(group, c, &x, x.want + (size_t)run * most, rows[run]))
            return 1;
    for (int i = 0; (c.algorithm = op_cases_algorithm(&c, i)); i++) {
        imbrex_plan *plan;
        if (is_of_gpus(&c))
            continue;
        RANK_OK(case_plan(group, &c, &plan));
        for (int run = 0; run < RUNS; run++) {
            size_t bytes = (size_t)(rows[run] * c.n) * element_bytes(c.dtype);
            const char *want = x.want + (size_t)(run % WANTED) * most;
            memset(x.c, 0xff, bytes);
            imbrex_args args = args_of(&c, &x, x.c, rows[run]);
            RANK_OK(imbrex_plan_run(plan, &args, NULL));
            RANK_OK(imbrex_stream_sync(group, NULL));
            RANK_CHECK(memcmp(x.c, want, bytes) == 0, "%s, run %d of %d x %d: other bits",
                       c.algorithm, run, (int)rows[run], (int)c.n);
        }
        imbrex_plan_destroy(plan);
    }
    drop(&x);
    return 0;
}

/* To a sanitizer bf16 and f16 are the same accesses: it gets them in turns. */
static bool is_left_out(int dtype, int number)
{
    return SANITIZED && dtype == (int)IMBREX_BF16 + number % 2;
}

static int check_all(imbrex_group *group, void *ctx)
{
    (void)ctx;
    for (int i = 0; i < SHAPES; i++)
        for (int dtype = IMBREX_BF16; dtype <= IMBREX_F32; dtype++) {
            if (is_left_out(dtype, i))
                continue;
            op_case c = shapes[i];
            c.op = "gemm_ar";
            c.dtype = (imbrex_dtype)dtype;
            c.layout = (i + dtype) % 2 ? IMBREX_KN : IMBREX_NK;
            if (check(group, c))
                return 1;
        }
    return 0;
}

static void has_the_bits_of_two_operators(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 3, 5, 8 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ranks_desc desc = { .size = sizes[i] };
        assert_int_equal(ranks_run(&desc, check_all, NULL), 0);
    }
}

/* ---- batch_invariant ------------------------------------------------------------------------- */

enum { M = 37, N = 150, K = 700 };

/* Rows of c by themselves, from a plan for one row and from the one for all, have the bits that
 * they have among the others. */
static int rows_alone(imbrex_group *group, op_case c)
{
    matrices x = take(&c, imbrex_group_size(group), imbrex_group_rank(group));
    size_t e = element_bytes(c.dtype), row = (size_t)c.n * e;
    op_case single = c;
    imbrex_plan *all, *one;
    single.m = 1;
    RANK_OK(case_plan(group, &c, &all));
    RANK_OK(case_plan(group, &single, &one));
    imbrex_args args = args_of(&c, &x, x.want, c.m);
    RANK_OK(imbrex_plan_run(all, &args, NULL));
    for (int r = 0; r < c.m; r++) {
        args.a = x.a + (size_t)(r * c.k) * e;
        args.c = x.c + (size_t)r * row;
        args.m = 1;
        RANK_OK(imbrex_plan_run(r % 2 ? all : one, &args, NULL));
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int r = 0; r < c.m; r++)
        RANK_CHECK(memcmp(x.c + (size_t)r * row, x.want + (size_t)r * row, row) == 0,
                   "%s by %s, dtype %d: row %d alone has other bits", c.op, c.algorithm,
                   (int)c.dtype, r);
    imbrex_plan_destroy(one);
    imbrex_plan_destroy(all);
    drop(&x);
    return 0;
}

static int invariant(imbrex_group *group, void *ctx)
{
    static const char *const ops[] = { "gemm_ar", "gemm" };
    (void)ctx;
    for (int i = 0; i < 2 * 3; i++) {
        op_case c = { .op = ops[i % 2],
                      .m = M,
                      .n = N,
                      .k = K,
                      .dtype = (imbrex_dtype)(IMBREX_BF16 + i / 2),
                      .layout = i / 2 % 2 ? IMBREX_KN : IMBREX_NK,
                      .bias = i % 3 == 1,
                      .batch_invariant = 1 };
        if (is_left_out(IMBREX_BF16 + i / 2, i))
            continue;
        for (int at = 0; (c.algorithm = op_cases_algorithm(&c, at)); at++)
            if (!is_of_gpus(&c) && rows_alone(group, c))
                return 1;
    }
    return 0;
}

static void rows_do_not_depend_on_others(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        ranks_desc desc = { .size = ranks };
        assert_int_equal(ranks_run(&desc, invariant, NULL), 0);
    }
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* What was the soonest on four H200s, at hidden 8192 and k 28672 of all. */
static void takes_what_was_the_soonest(void **state)
{
    (void)state;
    static const struct {
        int m;
        const char *algorithm;
    } measured[] = { { 1, "reduce_push" },
                     { 16, "reduce_push" },
                     { 64, "reduce_push2" },
                     { 256, "reduce_push2" },
                     { 1024, "reduce_push2" } };
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++)
        assert_true(tuned_takes(&imx_op_gemm_ar, measured[i].m, 8192, 28672 / 4, 4, false,
                                measured[i].algorithm));
}

/* A norm in the sum's kernel costs one launch less. */
static void norms_few_rows_where_they_are_added(void **state)
{
    (void)state;
    assert_true(tuned_takes(&imx_op_gemm_ar, 1, 8192, 28672 / 4, 4, true, "ll"));
    assert_true(tuned_takes(&imx_op_gemm_ar, 256, 8192, 28672 / 4, 4, true, "reduce_push2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_the_bits_of_two_operators),
        cmocka_unit_test(rows_do_not_depend_on_others),
        cmocka_unit_test(takes_what_was_the_soonest),
        cmocka_unit_test(norms_few_rows_where_they_are_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
