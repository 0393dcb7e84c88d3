/* test_tiling_deep.c - which products that are made alone have tiles of four or eight blocks on
 * Hopper, and which never do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gemm/schedule.h"
#include "kernels/gemm/sm90_tune.h"

enum { SMS = 132, SHARED_MOST = 231424 };

/* Where k is long and tiles are few. */
static void few_tiles_are_shared_out(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int split;
    } some[] = {
        { 251, 512, 14336, 8 }, { 456, 256, 11008, 8 },  { 146, 768, 6144, 8 },
        { 48, 512, 4096, 8 },   { 64, 2048, 8192, 2 },   { 37, 5632, 384, 1 },
        { 64, 512, 512, 1 },    { 87, 4096, 14336, 2 },  { 141, 7168, 3584, 1 },
        { 492, 1024, 8192, 2 }, { 8192, 8192, 8192, 1 },
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        imx_sm90_input in = {
            .m = some[i].m, .n = some[i].n, .k = some[i].k, .ranks = 1, .sms = SMS, .deep = 1
        };
        imx_sm90_config c = imx_sm90_tune(&in);
        if (c.split != some[i].split)
            fail_msg("row %zu: tiles of %d x %d by %d", i, c.tile_m, c.tile_n, c.split);
        in.invariant = 1;
        assert_int_equal(imx_sm90_tune(&in).split, 1); /* k has one order, for any m */
    }
}

/* As the kernel wants them: a piece of whole units for each block, and clusters that are all there
 * at once. */
static void check_form(const imx_sm90_config *c, const imx_sm90_input *in)
{
    char options[256], split[24];
    imx_sm90_tune_options(c, options, sizeof options);
    snprintf(split, sizeof split, "-DIMX_SPLIT=%d ", c->split);
    strcat(options, " ");
    assert_non_null(strstr(options, split));
    assert_true(c->split == 4 || c->split == 8);
    assert_true(c->cluster_m == 1 && !c->pingpong && c->buffers == 1 && c->wg_m == 64);
    assert_int_equal((c->turned ? c->tile_m : c->tile_n) % (8 * c->split), 0);
    assert_in_range(c->stages, 4, 13);
    assert_in_range(c->shared_bytes, 1, SHARED_MOST);
    int64_t tiles = imx_schedule_ceil(in->m, c->tile_rows) * imx_schedule_ceil(in->n, c->tile_cols);
    assert_int_equal(c->blocks, tiles * c->split);
    int most = c->split == 4 ? 28 : 12; /* of 132 SMs */
    assert_true(in->sms < 16 ? c->blocks <= in->sms : tiles <= in->sms * most / SMS);
}

/* Field by field, as a compiler may leave anything between them. */
static void check_alike(const imx_sm90_config *a, const imx_sm90_config *b)
{
    char options[2][256];
    imx_sm90_tune_options(a, options[0], sizeof options[0]);
    imx_sm90_tune_options(b, options[1], sizeof options[1]);
    assert_string_equal(options[0], options[1]);
    assert_true(a->split == b->split && a->cluster == b->cluster && a->blocks == b->blocks);
    assert_true(a->tile_rows == b->tile_rows && a->tile_cols == b->tile_cols);
    assert_true(a->group == b->group && a->threads == b->threads && a->room == b->room);
    assert_true(a->shared_bytes == b->shared_bytes && a->column_cost == b->column_cost);
}

/* All others are as they are elsewhere, and those of nobody else. */
static void nothing_else_changes(void **state)
{
    (void)state;
    int deep = 0, idle = 0;
    for (int64_t m = 1; m <= 2000; m += m < 300 ? 7 : 61) {
        for (int64_t n = 64; n <= 9000; n += 8 * 37 + (m & 1)) {
            for (int kind = 0; kind < 6; kind++) {
                imx_sm90_input in = { .m = m,
                                      .n = n,
                                      .k = 8 * (40 + m * n % 1500),
                                      .ranks = kind == 1 ? 2 : 1,
                                      .sms = kind ? SMS : 8 + (int)m % 125,
                                      .b_kn = kind == 5,
                                      .scatters = kind == 2,
                                      .hooks = kind == 3,
                                      .invariant = kind == 4 };
                imx_sm90_config known = imx_sm90_tune(&in);
                in.deep = 1;
                imx_sm90_config c = imx_sm90_tune(&in);
                bool may = kind == 0 || kind == 5;
                idle += may && 2 * known.blocks <= in.sms;
                if (c.split > 2) {
                    deep++;
                    assert_true(may && 2 * known.blocks <= in.sms);
                    check_form(&c, &in);
                } else {
                    check_alike(&c, &known);
                }
            }
        }
    }
    assert_in_range(deep, 100, idle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_tiles_are_shared_out),
        cmocka_unit_test(nothing_else_changes),
    };
    return cmocka_run_group_tests_name("tiling_deep", tests, NULL, NULL);
}
