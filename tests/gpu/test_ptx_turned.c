/* test_ptx_turned.c - Hopper's turned tiles and its tiles of 192 rows as the compiler makes them,
 * run instruction by instruction on fake GPUs, against a loop in float64: one to three warpgroups,
 * two to eight blocks a tile, both layouts of b, edges on all sides, a's rows from where they are
 * and as they arrive from a peer, and c's as a kernel behind adds them up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "op_cases.h"
#include "op_image.h"
#include "plan/plan.h"

enum { BF16 = IMBREX_BF16, F16 = IMBREX_F16, NK = IMBREX_NK, KN = IMBREX_KN };

/* rows, cols: of the tiles that they are to take on 12 multiprocessors. */
typedef struct product {
    int m, n, k, dtype, layout, bias, invariant, rows, cols, sms;
} product;

static const product alone[] = {
    { 150, 764, 200, BF16, NK, 1, 0, 152, 64, 0 },
    { 208, 760, 72, F16, KN, 0, 0, 208, 64, 0 },
    { 136, 1536, 136, BF16, NK, 0, 0, 136, 128, 0 },
    { 290, 767, 136, BF16, NK, 1, 0, 152, 128, 0 },
    { 222, 1400, 72, F16, NK, 1, 0, 224, 128, 0 },
    { 150, 3064, 136, BF16, NK, 1, 0, 152, 128, 0 },
    { 160, 2104, 200, BF16, KN, 1, 0, 160, 192, 0 },
    { 152, 2112, 136, F16, NK, 1, 0, 152, 192, 0 },
    { 144, 250, 2504, BF16, NK, 1, 0, 144, 64, 0 }, /* by two blocks */
    /* By four, */
    { 24, 120, 2504, BF16, NK, 1, 0, 64, 64, 0 },
    { 100, 125, 4168, F16, NK, 1, 0, 128, 64, 0 },
    { 100, 64, 2504, BF16, KN, 0, 0, 128, 64, 4 },
    /* and by eight. */
    { 40, 60, 2504, BF16, NK, 1, 0, 64, 64, 0 },
    { 100, 64, 2056, F16, KN, 0, 0, 128, 64, 0 },
    { 150, 63, 2504, BF16, NK, 1, 0, 192, 64, 0 },
    { 128, 128, 4104, BF16, NK, 1, 0, 128, 128, 0 },
    { 180, 1400, 136, BF16, NK, 1, 1, 192, 128, 0 },
    { 190, 1048, 72, F16, NK, 1, 1, 192, 96, 0 },
    { 384, 800, 136, BF16, KN, 0, 1, 192, 160, 0 },
    { 136, 2048, 72, BF16, NK, 1, 0, 136, 128, 1 }, /* as many tiles as a block lists */
};

/* Of two ranks. */
static const product gathered[] = {
    { 150, 768, 200, BF16, NK, 1, 0, 152, 64, 0 },
    { 152, 2112, 200, F16, NK, 0, 0, 152, 192, 0 },
    { 180, 1400, 136, BF16, NK, 1, 1, 192, 128, 0 },
};

/* Likewise, on 2 multiprocessors, of which one stays free: more tiles than its block lists. */
static const product again[] = {
    { 136, 2176, 72, BF16, NK, 1, 0, 136, 128, 2 },
};

/* Likewise: made alone, and added up behind. */
static const product summed[] = {
    { 129, 512, 256, BF16, NK, 1, 0, 136, 64, 0 },
    { 129, 896, 256, F16, KN, 0, 0, 136, 128, 0 },
};

/* The same in chunks of CHUNK rows of a rank: by one block, and by two below each other. */
enum { CHUNK = 192 };

static const product by_chunks[] = {
    { 370, 800, 200, BF16, NK, 1, 0, 192, 160, 0 },
    { 760, 1600, 136, F16, NK, 1, 0, 384, 160, 0 },
    { 360, 640, 136, BF16, KN, 1, 0, 192, 128, 0 },
};

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
    RANK_CHECK(intact, "something was written beside a matrix");
    RANK_CHECK(at < 0, "%s by %s, m %d, n %d, k %d: c[%d, %d] is %.9g, not %.9g", c->op,
               c->algorithm, (int)m, (int)c->n, (int)c->k, (int)(at / c->n), (int)(at % c->n),
               error.have, error.want);
    return 0;
}

/* With all rows, and with fewer. */
static int check_product(imbrex_group *group, const product *p, const char *op,
                         const char *algorithm, int chunk_rows)
{
    const op_case c = { .op = op,
                        .m = p->m,
                        .n = p->n,
                        .k = p->k,
                        .dtype = (imbrex_dtype)p->dtype,
                        .layout = (imbrex_layout)p->layout,
                        .algorithm = algorithm,
                        .chunk_rows = chunk_rows,
                        .sms = p->sms,
                        .bias = p->bias,
                        .batch_invariant = p->invariant };
    imbrex_plan *plan;
    int failed = op_cases_plan(group, &c, &plan);
    if (!plan)
        return 1;
    imx_plan_facts facts = imx_describe_facts(plan);
    if (facts.tile_rows != p->rows || facts.tile_cols != p->cols)
        RANK_CHECK(0, "m %d, n %d: tiles of %d x %d", p->m, p->n, facts.tile_rows, facts.tile_cols);
    for (int run = 0; run < 2 && !failed; run++)
        failed = check_run(group, plan, &c, run ? c.m / 2 + 11 : c.m);
    imbrex_plan_destroy(plan);
    return failed;
}

static int products(imbrex_group *group, void *ctx)
{
    (void)ctx;
    bool many = imbrex_group_size(group) > 1;
    static const char *const ways[] = { "store", "sequential" };
    for (size_t i = 0; !many && i < sizeof alone / sizeof *alone; i++) {
        if (check_product(group, &alone[i], "gemm", "sequential", 0))
            return 1;
    }
    for (size_t i = 0; many && i < sizeof gathered / sizeof *gathered; i++) {
        if (check_product(group, &gathered[i], "ag_gemm", ways[i % 2], 0))
            return 1;
    }
    for (size_t i = 0; many && i < sizeof again / sizeof *again; i++) {
        if (check_product(group, &again[i], "ag_gemm", "pull", 0))
            return 1;
    }
    for (size_t i = 0; many && i < sizeof summed / sizeof *summed; i++) {
        if (check_product(group, &summed[i], "gemm_rs", "ll", 0))
            return 1;
    }
    for (size_t i = 0; many && i < sizeof by_chunks / sizeof *by_chunks; i++) {
        if (check_product(group, &by_chunks[i], "ag_gemm", i < 2 ? "store" : "copy", CHUNK))
            return 1;
    }
    return 0;
}

enum { SKIPPED = 77 };

static void run(int ranks)
{
    ranks_desc desc = { .size = ranks, .timeout_ms = 20000 };
    assert_int_equal(fake_ranks_run_compiled(&desc, ranks, 9, products, NULL), 0);
}

static void all_is_here(void **state)
{
    (void)state;
    run(1);
}

static void rows_arrive(void **state)
{
    (void)state;
    run(2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_here),
        cmocka_unit_test(rows_arrive),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (!fake_ranks_can_compile())
        return SKIPPED;
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
