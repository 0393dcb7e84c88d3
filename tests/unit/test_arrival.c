/* test_arrival.c - how a product is cut whose rows arrive beneath it: chunks, slices of k, tiles,
 * and the pace and the means by which they are pushed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/gemm/sm90_tune.h"
#include "tuned.h"

enum { SMS = 132 };

static imx_config plan_of(int64_t m, int64_t n, int64_t k, int ranks, int arch)
{
    return tuned_on(m, n, k, 0, ranks, arch, SMS);
}

static const char *algorithm_of(int64_t m, int64_t n, int64_t k, int ranks, int arch)
{
    return tuned_choice(m, n, k, 0, ranks, arch, SMS).algorithm;
}

/* A run's chunks are whole tiles, no more and no larger than the plan has room for, and none is
 * much shorter than the others. */
static void chunks_are_even(void **state)
{
    (void)state;
    imx_config config = { .chunk_rows = 2048, .tile_rows = 256 };
    static const int64_t rows[][2] = { { 4096, 2048 }, { 2048, 2048 }, { 2049, 1280 },
                                       { 2500, 1280 }, { 4097, 1536 }, { 50, 256 },
                                       { 1, 256 },     { 0, 2048 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(imx_tune_chunk_rows(&config, rows[i][0]), rows[i][1]);
    for (int64_t share = 1; share < 10000; share += 3) {
        int64_t chunk = imx_tune_chunk_rows(&config, share);
        assert_in_range(chunk, 1, config.chunk_rows);
        assert_int_equal(chunk % config.tile_rows, 0);
        assert_true(imx_ceil_div(share, chunk) <= imx_ceil_div(share, config.chunk_rows));
    }
    config.spanning = true;
    assert_int_equal(imx_tune_chunk_rows(&config, 2500), 2048);
    /* On CPUs, whose tiles are as tall as chunks, the plan's are. */
    imx_tune_input cpu = {
        .product = true, .scatters = true, .ranks = 2, .nodes = 1, .workers = 1
    };
    cpu.shape =
        (imx_shape){ 4096, 64, 64, IMBREX_F32, IMBREX_F32, IMBREX_NK, IMBREX_UNSCALED, false };
    assert_int_equal(imx_tune_config(&cpu).chunk_rows, 1024);
    cpu.shape.m = 4100;
    assert_int_equal(imx_tune_config(&cpu).chunk_rows, 684);
    assert_int_equal(imx_tune_config(&cpu).chunks, 3);
    cpu.chunk_rows = 1024; /* as asked for */
    assert_int_equal(imx_tune_config(&cpu).chunk_rows, 1024);
}

/* Each slice takes a while, which so much of the product hides. */
static void short_products_have_few_slices(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int ranks, slices;
    } rows[] = {
        { 600, 1280, 8192, 2, 3 },  { 1000, 768, 4096, 2, 2 },   { 1000, 1440, 2880, 2, 2 },
        { 600, 7168, 8192, 2, 12 }, { 1000, 7168, 8192, 4, 12 }, { 200, 7168, 8192, 2, 6 },
        { 64, 14336, 8192, 2, 2 },  { 16, 14336, 8192, 2, 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        imx_config c = plan_of(rows[i].m, rows[i].n, rows[i].k, rows[i].ranks, 90);
        if (!c.spanning || c.slices != rows[i].slices)
            fail_msg("row %zu: spanning %d, %d slices", i, c.spanning, c.slices);
    }
}

/* Measured on two H100s: tiles of which the ranks' rows make a wave each, not one that half of the
 * blocks wait for from the beginning; but not narrow ones. */
static void tiles_do_not_wait_for_rows(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int cols, alone; /* of a tile; of one rank's product by itself */
    } rows[] = {
        { 1500, 2560, 5120, 128, 256 }, { 3000, 1280, 8192, 128, 256 },
        { 2048, 1536, 4096, 96, 192 },  { 8192, 1440, 2880, 192, 144 },
        { 3000, 2560, 5120, 256, 160 }, { 2048, 1280, 8192, 96, 160 },
        { 8192, 7168, 8192, 176, 176 }, { 2048, 7168, 8192, 176, 176 },
        { 8192, 2560, 5120, 256, 256 }, /* of two chunks the first hides the second */
        { 1024, 1536, 4096, 96, 96 },   /* come slice by slice */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        imx_sm90_input in = {
            .m = rows[i].m, .n = rows[i].n, .k = rows[i].k, .ranks = 2, .sms = SMS
        };
        int cols = imx_sm90_tune(&in).tile_n;
        in.ranks = 1;
        int alone = imx_sm90_tune(&in).tile_n;
        if (cols != rows[i].cols || alone != rows[i].alone)
            fail_msg("row %zu: %d columns, alone %d", i, cols, alone);
    }
    /* Where rows leave, or a caller's hooks wait, it is no matter. */
    imx_sm90_input other = {
        .m = 2048, .n = 1536, .k = 4096, .ranks = 2, .sms = SMS, .scatters = 1
    };
    assert_int_equal(imx_sm90_tune(&other).tile_n, 192);
    other.scatters = 0;
    other.hooks = 1;
    assert_int_equal(imx_sm90_tune(&other).tile_n, 192);
    for (int64_t n = 64; n < 4096; n += 64) {
        imx_sm90_input in = { .m = 1100 + 4 * n, .n = n, .k = 4096, .ranks = 2, .sms = SMS };
        imx_sm90_config c = imx_sm90_tune(&in);
        assert_true(c.tile_n >= (c.pingpong ? 128 : 96));
    }
}

/* The copy engine pushes also where that takes a stage, if five are left. */
static void pushes_have_room(void **state)
{
    (void)state;
    static const int64_t ns[] = { 1280, 2560, 3584, 7168, 768 };
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
        imx_sm90_input in = { .m = 8192, .n = ns[i], .k = 8192, .ranks = 2, .sms = SMS };
        int stages = imx_sm90_tune(&in).stages;
        in.pushes = 1;
        imx_sm90_config c = imx_sm90_tune(&in);
        assert_true(c.bulk);
        assert_true(c.stages == stages || (stages > 5 && c.stages == stages - 1));
        assert_in_range(imx_sm90_tune_shared_bytes(&c, 0), 1, 231424);
    }
    imx_sm90_input turned = {
        .m = 8192, .n = 7168, .k = 8192, .ranks = 2, .sms = SMS, .b_kn = 1, .pushes = 1
    };
    imx_sm90_config c = imx_sm90_tune(&turned); /* whose b comes in whole atoms */
    assert_int_equal(c.tile_n, 176);
    assert_int_equal(c.stages, 5);
    assert_false(c.bulk);
}

/* By slices of k under tiles of all ranks' rows, or rank by rank, as is expected sooner. */
static void slices_come_where_they_are_sooner(void **state)
{
    (void)state;
    assert_false(plan_of(864, 5120, 8192, 2, 90).spanning); /* 4 % more, but nothing waits for k */
    assert_true(plan_of(768, 14336, 8192, 2, 90).spanning);
    assert_true(plan_of(300, 5120, 8192, 2, 90).spanning);
}

/* A product of spanning tiles's pushes count the elements of a rank's rows in 32 bits. */
static void pushes_of_slices_can_count(void **state)
{
    (void)state;
    assert_true(plan_of(1024, 8, 2097151, 2, 80).spanning);
    assert_false(plan_of(1024, 8, 8388613, 2, 80).spanning);
}

/* Where the warps that push are those that multiply, a pace only holds up the product. */
static void pushes_are_slowed_only_beside_a_product(void **state)
{
    (void)state;
    static const int64_t m[] = { 512, 8192 };
    for (int i = 0; i < 2; i++) {
        imx_config hopper = plan_of(m[i], 8192, 8192, 4, 90);
        imx_config general = plan_of(m[i], 8192, 8192, 4, 80);
        imx_config unaligned = plan_of(m[i], 8192, 8191, 4, 90);
        assert_in_range(hopper.push_pace[0], 1, INT32_MAX);
        assert_int_equal(general.push_pace[0] + general.push_pace[1], 0);
        assert_int_equal(unaligned.push_pace[0] + unaligned.push_pace[1], 0);
    }
    assert_string_equal(algorithm_of(8192, 14336, 4096, 4, 90), "store");
    assert_string_equal(algorithm_of(8192, 14336, 4096, 4, 80), "copy");
}

/* What slices begin with is more than little data with flags takes. */
static void little_goes_by_ll(void **state)
{
    (void)state;
    assert_string_equal(algorithm_of(200, 3584, 4096, 2, 90), "ll");
    assert_string_equal(algorithm_of(200, 1280, 8192, 2, 90), "store");
}

/* ---- tokens to experts ----------------------------------------------------------------------- */

/* Experts that all ranks have a part of. */
static const char *experts_go_by(const imx_op *op, int64_t tokens, int64_t n, int64_t k,
                                 int experts, int top_k)
{
    imx_tune_input in = { .shape = { tokens, n, k, IMBREX_BF16, IMBREX_BF16, IMBREX_NK,
                                     IMBREX_UNSCALED, false },
                          .scatters = op->scatters,
                          .experts = experts,
                          .expert_rows = (double)(tokens * top_k),
                          .ranks = 2,
                          .nodes = 1,
                          .arch = 90,
                          .rates = tuned_rates(),
                          .workers = SMS,
                          .sharers = 1,
                          .alike = true,
                          .whole_lines = true };
    const imx_config config = imx_tune_config(&in);
    return imx_choose(op, &in, &config).algorithm;
}

/* As two H200s were soonest: Mixtral 8x7B and Qwen3-30B-A3B. */
static void few_tokens_go_by_ll(void **state)
{
    static const int64_t tokens[] = { 128, 1024, 8192 };
    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *to = i < 2 ? "ll" : "copy", *back = i < 2 ? "ll" : "store";
        assert_string_equal(experts_go_by(&imx_op_ag_moe, tokens[i], 14336, 4096, 8, 2), to);
        assert_string_equal(experts_go_by(&imx_op_moe_rs, tokens[i], 4096, 7168, 8, 2), back);
        assert_string_equal(experts_go_by(&imx_op_ag_moe, tokens[i], 768, 2048, 128, 8), to);
        assert_string_equal(experts_go_by(&imx_op_moe_rs, tokens[i], 2048, 384, 128, 8), back);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_are_even),
        cmocka_unit_test(short_products_have_few_slices),
        cmocka_unit_test(tiles_do_not_wait_for_rows),
        cmocka_unit_test(pushes_have_room),
        cmocka_unit_test(few_tokens_go_by_ll),
        cmocka_unit_test(little_goes_by_ll),
        cmocka_unit_test(slices_come_where_they_are_sooner),
        cmocka_unit_test(pushes_of_slices_can_count),
        cmocka_unit_test(pushes_are_slowed_only_beside_a_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
