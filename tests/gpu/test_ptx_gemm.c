/* test_ptx_gemm.c - products' kernels as the compiler makes them, for Ampere and for Hopper, run
 * instruction by instruction on a fake GPU, against loops in float64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "moe_cases.h"
#include "op_cases.h"
#include "op_image.h"
#include "scaled_cases.h"

/* Small, and yet several tiles of few blocks, with edges; more steps along k than are under way. */
static const op_case cases[] = {
    { .m = 150,
      .n = 200,
      .k = 392,
      .dtype = IMBREX_BF16,
      .layout = IMBREX_NK,
      .sms = 2,
      .bias = 1 },
    { .m = 70, .n = 328, .k = 200, .dtype = IMBREX_F16, .layout = IMBREX_KN, .gathered = 1 },
    { .m = 65, .n = 67, .k = 37, .dtype = IMBREX_BF16, .layout = IMBREX_NK, .bias = 1 },
    { .m = 20, .n = 130, .k = 45, .dtype = IMBREX_F16, .layout = IMBREX_KN },
    { .m = 70, .n = 72, .k = 36, .dtype = IMBREX_F32, .layout = IMBREX_NK, .sms = 2, .bias = 1 },
    { .m = 30, .n = 67, .k = 35, .dtype = IMBREX_F32, .layout = IMBREX_KN },
};
enum { CASES = sizeof cases / sizeof *cases, OF_HOPPER = 2, RUNS = 2 };

static int check_run(imbrex_group *group, imbrex_plan *plan, const op_case *c, int64_t m)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    op_image x = op_image_take(c, m, ranks, r, NULL);
    imbrex_args args = op_image_args(c, &x, m);
    reference_error error;
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    int64_t at = reference_check(c, m, ranks, r, x.host + op_image_c(c, &x).at, &error);
    bool intact = op_image_intact(&x);
    op_image_drop(&x);
    RANK_CHECK(intact, "%s: something was written beside a matrix", c->op);
    RANK_CHECK(at < 0, "%s by %s, m %d, n %d, k %d: c[%d, %d] is %.9g, not %.9g", c->op,
               c->algorithm, (int)m, (int)c->n, (int)c->k, (int)(at / c->n), (int)(at % c->n),
               error.have, error.want);
    return 0;
}

static int check_case(imbrex_group *group, const op_case *c)
{
    imbrex_plan *plan;
    int failed = op_cases_plan(group, c, &plan);
    for (int run = 0; run < RUNS && plan && !failed; run++)
        failed = check_run(group, plan, c, run ? c->m / 2 + 1 : c->m);
    if (plan)
        imbrex_plan_destroy(plan);
    return failed;
}

/* The first so many cases and all algorithms in turns, each at least once. */
static int check_operator(imbrex_group *group, const char *op, int count)
{
    int algorithms = 0;
    op_case c = { .op = op };
    while (op_cases_algorithm(&c, algorithms))
        algorithms++;
    for (int i = 0; i < count || i < algorithms; i++) {
        c = cases[i % count];
        c.op = op;
        c.gathered = c.gathered && strcmp(op, "ag_gemm") == 0;
        c.algorithm = op_cases_algorithm(&c, i % algorithms);
        if (check_case(group, &c))
            return 1;
    }
    return 0;
}

enum { AMPERE = 8, HOPPER = 9 };

typedef struct table {
    const char *name;
    int ranks, major;
    enum { PRODUCTS, SCALED, EXPERTS } kind;
    const char *op;
} table;

static int through(imbrex_group *group, void *ctx)
{
    const table *t = ctx;
    if (t->kind == SCALED)
        return scaled_cases(group, &(scaled_where){ .op = t->op });
    if (t->kind == EXPERTS)
        return moe_cases_all(group, &(moe_walk){ .step = 13 });
    /* Other cases take the form for all GPUs: on Hopper one operator shows that. */
    return check_operator(group, t->op, t->major == HOPPER && t->ranks > 1 ? OF_HOPPER : CASES);
}

static void run(void **state)
{
    table *t = *state;
    ranks_desc desc = { .size = t->ranks, .timeout_ms = 20000 };
    assert_int_equal(fake_ranks_run_compiled(&desc, 1, t->major, through, t), 0);
}

static table tables[] = {
    { "products, Ampere", 1, AMPERE, PRODUCTS, "gemm" },
    { "products, Hopper", 1, HOPPER, PRODUCTS, "gemm" },
    { "gathered rows, Ampere", 2, AMPERE, PRODUCTS, "ag_gemm" },
    { "gathered rows, Hopper", 2, HOPPER, PRODUCTS, "ag_gemm" },
    { "scattered sums, Ampere", 2, AMPERE, PRODUCTS, "gemm_rs" },
    { "scattered sums, Hopper", 2, HOPPER, PRODUCTS, "gemm_rs" },
    { "sums for all, Hopper", 2, HOPPER, PRODUCTS, "gemm_ar" },
    { "8 bits, Ampere", 1, AMPERE, SCALED, "gemm" },
    { "8 bits, Hopper", 1, HOPPER, SCALED, "gemm" },
    { "experts, Ampere", 1, AMPERE, EXPERTS, NULL },
    { "experts, Hopper", 1, HOPPER, EXPERTS, NULL },
};
enum { TABLES = sizeof tables / sizeof *tables, SKIPPED = 77 };

int main(int argc, char **argv)
{
    struct CMUnitTest tests[TABLES];
    for (int i = 0; i < TABLES; i++)
        tests[i] = (struct CMUnitTest){ .name = tables[i].name,
                                        .test_func = run,
                                        .initial_state = &tables[i] };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (!fake_ranks_can_compile())
        return SKIPPED;
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
