/* test_variant.c - which variants a plan has, which of them a run takes, and what a wait's point
 * says of both. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "plan/plan.h"

static const imx_target gpu = { .arch = 90 }, cpu = { .arch = 0 };

static imbrex_group group_on(const imx_target *target, int nodes)
{
    return (imbrex_group){ .size = 4, .target = target, .nodes.count = nodes };
}

static int count_of(const imbrex_group *group, const imx_request *r)
{
    int64_t rows[IMX_VARIANTS];
    int count = imx_variant_rows(group, r, rows);
    assert_int_equal(rows[0], r->shape.m);
    for (int i = 2; i < count; i++)
        assert_true(rows[i - 1] < rows[i]);
    return count;
}

static void products_on_gpus_have_several(void **state)
{
    (void)state;
    imbrex_group group = group_on(&gpu, 1), other = group_on(&cpu, 1);
    imx_request r = { .op = &imx_op_gemm_rs, .shape.m = 8192 };
    assert_int_equal(count_of(&group, &r), IMX_VARIANTS);
    assert_int_equal(count_of(&other, &r), 1);
    other = group_on(&gpu, 2);
    assert_int_equal(count_of(&other, &r), 1);
    other = group_on(&gpu, 1);
    strcpy(other.env.algorithm, "copy");
    assert_int_equal(count_of(&other, &r), 1);
    r.op = &imx_op_reduce_scatter;
    assert_int_equal(count_of(&group, &r), 1);
}

static void those_that_are_asked_for(void **state)
{
    (void)state;
    static const struct {
        int64_t m, m_least;
        const char *algorithm;
        int chunk_rows, count;
    } rows[] = {
        { 0, 0, NULL, 0, 1 },       { 85, 0, NULL, 0, 1 },
        { 86, 0, NULL, 0, 2 },      { 2730, 0, NULL, 0, IMX_VARIANTS - 1 },
        { 2731, 64, NULL, 0, 12 },  { 2731, 65, NULL, 0, 11 },
        { 2731, 2048, NULL, 0, 2 }, { 2731, 2049, NULL, 0, 1 },
        { 2731, 0, "copy", 0, 1 },  { 2731, 0, NULL, 64, 1 },
    };
    imbrex_group group = group_on(&gpu, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const imx_request r = { .op = &imx_op_gemm_rs,
                                .shape.m = rows[i].m,
                                .m_least = rows[i].m_least,
                                .algorithm = rows[i].algorithm,
                                .chunk_rows = rows[i].chunk_rows };
        int have = count_of(&group, &r);
        if (have != rows[i].count)
            fail_msg("row %zu: %d variants, want %d", i, have, rows[i].count);
    }
}

static void fill(imbrex_plan *plan, int number, const int64_t *rows, int count)
{
    plan->object.number = number;
    plan->variant_count = count;
    for (int i = 0; i < count; i++) {
        plan->variants[i].plan = plan;
        plan->variants[i].shape.m = rows[i];
    }
}

static void the_fewest_rows_that_a_run_fits_in(void **state)
{
    (void)state;
    static const int64_t rows[] = { 8192, 64, 128, 2048 };
    static const struct {
        int64_t m;
        int want;
    } runs[] = { { 0, 1 },   { 1, 1 },    { 64, 1 },   { 65, 2 },   { 128, 2 },
                 { 129, 3 }, { 2047, 3 }, { 2048, 3 }, { 2049, 0 }, { 8192, 0 } };
    static imbrex_plan several, one;
    fill(&several, 1, rows, 4);
    fill(&one, 2, rows, 1);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        int have = (int)(imx_variant_of(&several, runs[i].m) - several.variants);
        if (have != runs[i].want)
            fail_msg("a run of %d rows: variant %d, want %d", (int)runs[i].m, have, runs[i].want);
        assert_ptr_equal(imx_variant_of(&one, runs[i].m), &one.variants[0]);
    }
}

static void points_tell_plans_and_variants(void **state)
{
    (void)state;
    static const int64_t rows[IMX_VARIANTS] = { 8192, 64,  128,  256,  384,  512,
                                                640,  768, 1024, 1280, 1536, 2048 };
    static imbrex_plan several, one;
    imbrex_group group = { .objects[IMX_OF_LIBRARY].first = &several.object };
    fill(&several, 7, rows, IMX_VARIANTS);
    fill(&one, 8, rows, 1);
    several.object.next = &one.object;
    assert_int_equal(imx_variant_point(&several.variants[0]), 7);
    assert_int_equal(imx_variant_point(&one.variants[0]), 8);
    for (int i = 0; i < IMX_VARIANTS; i++) {
        int point = imx_variant_point(&several.variants[i]);
        assert_true(point > 0);
        assert_int_equal(imx_variant_plan_number(point), 7);
        assert_ptr_equal(imx_variant_by_point(&group, point), &several.variants[i]);
        if (i > 0)
            assert_null(imx_variant_by_point(&group, point + 1)); /* plan 8 has none such */
        assert_null(imx_variant_by_point(&group, point + 2));
    }
    assert_null(imx_variant_by_point(&group, IMX_NET_EXCHANGES));
    assert_null(imx_variant_by_point(&group, IMX_NET_OPENING));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_on_gpus_have_several),
        cmocka_unit_test(those_that_are_asked_for),
        cmocka_unit_test(the_fewest_rows_that_a_run_fits_in),
        cmocka_unit_test(points_tell_plans_and_variants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
