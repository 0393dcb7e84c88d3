/* test_tiling_eight.c - which tiles and which form of the GEMM kernel products of 8-bit numbers
 * take on GPUs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "imbrex.h"
#include "kernels/gemm/sm90_tune.h"
#include "kernels/gemm/tiling.h"
#include "tune/tune.h"
#include "tuned.h"

enum { SMS = 132, SHARED_MOST = 231424 };

/* No two blocks make a tile, whose sums have room in registers, and which has
 * room in shared memory beside the stages. */
static void tiles_of_8_bits(void **state)
{
    (void)state;
    static const int64_t ms[] = { 1, 64, 65, 128, 129, 512, 2048, 8192 };
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        for (int64_t n = 8; n <= 16384; n += 8 * 61 + 1) {
            for (int kind = 0; kind < 6; kind++) {
                imx_sm90_input in = { .m = ms[i],
                                      .n = n,
                                      .k = 4096,
                                      .ranks = 1 << kind % 3,
                                      .sms = SMS,
                                      .eight = 1,
                                      .scatters = kind / 3 };
                imx_sm90_config c = imx_sm90_tune(&in);
                assert_true(c.split == 1 && !c.pingpong && !c.bulk && c.wg_m == 64);
                bool alone = in.scatters && c.cluster_m == 1;
                int64_t rows = (ms[i] + in.ranks - 1) / in.ranks;
                int widest = n % 8 || alone ? 160 : rows <= 128 ? 192 : 256;
                assert_true(c.tile_n % 32 == 0 && c.tile_n <= widest);
                in.summable = in.spanning = kind / 3;
                assert_in_range(imx_sm90_tune(&in).tile_n, 64, kind / 3 ? 128 : widest);
                int pieces = c.tile_n / imx_sm90_tune_piece_cols(&c);
                int room = c.tile_n == 256 ? 2 : c.tile_n == 224 ? 6 : pieces; /* else 3 stages */
                assert_int_equal(c.buffers, room);
                assert_int_equal(c.halved, c.tile_n == 256);
                assert_true(c.tile_n != 224 || kind == 0);
                assert_in_range(c.shared_bytes, 1, SHARED_MOST);
                assert_in_range(c.stages, 4, 13);
                assert_int_equal(c.tile_m, rows <= 64 ? 64 : 128);
            }
        }
    }
}

/* Hopper's form makes results of 16 bits. */
static void forms_of_8_bits(void **state)
{
    (void)state;
    imx_tiling_input in = { .arch = 90,
                            .shared_bytes = 232448,
                            .m = 8192,
                            .n = 4096,
                            .k = 4112,
                            .dtype = IMBREX_E4M3,
                            .out = IMBREX_BF16,
                            .layout = IMBREX_NK,
                            .ranks = 1,
                            .sms = SMS };
    assert_int_equal(imx_tiling_choose(&in).form, IMX_GEMM_SM90);
    in.dtype = IMBREX_E5M2, in.out = IMBREX_F16;
    assert_int_equal(imx_tiling_choose(&in).form, IMX_GEMM_SM90);
    in.out = IMBREX_F32;
    assert_int_equal(imx_tiling_choose(&in).form, IMX_GEMM_SM80);
    in.out = IMBREX_BF16, in.arch = 80;
    assert_int_equal(imx_tiling_choose(&in).form, IMX_GEMM_SM80);
    assert_false(imx_tiling_hooks(90, 4096, 4096, IMBREX_E4M3, IMBREX_NK));
}

/* Wide tiles where there are many rows, narrow ones for all blocks where there are few.  Of those
 * that leave two share b. */
static void shapes_take_tiles(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int ranks, scatters, rows, cols;
    } shapes[] = {
        { 8192, 7168, 8192, 1, 0, 128, 256 },  { 4096, 7168, 8192, 1, 0, 128, 256 },
        { 2048, 7168, 8192, 1, 0, 256, 128 },  { 1000, 7168, 8192, 1, 0, 128, 224 },
        { 512, 7168, 8192, 1, 0, 128, 224 },   { 1024, 6144, 8192, 1, 0, 128, 192 },
        { 64, 7168, 8192, 1, 0, 64, 64 },      { 64, 14336, 8192, 1, 0, 64, 128 },
        { 128, 7168, 8192, 1, 0, 128, 64 },    { 8192, 14336, 8192, 2, 0, 128, 256 },
        { 2048, 14336, 8192, 2, 0, 128, 256 }, { 8192, 8192, 14336, 2, 1, 256, 256 },
        { 2048, 8192, 14336, 2, 1, 256, 256 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        imx_sm90_input in = { .m = shapes[i].m,
                              .n = shapes[i].n,
                              .k = shapes[i].k,
                              .ranks = shapes[i].ranks,
                              .sms = SMS,
                              .eight = 1,
                              .scatters = shapes[i].scatters };
        imx_sm90_config c = imx_sm90_tune(&in);
        if (c.tile_rows != shapes[i].rows || c.tile_cols != shapes[i].cols)
            fail_msg("shape %zu: tiles of %d x %d", i, c.tile_rows, c.tile_cols);
    }
}

/* Of 224 columns only where nothing travels and no blocks have scales. */
static void some_tiles_are_of_224_columns(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        imx_sm90_input in = { .m = i / 4 ? 1000 : 512,
                              .n = 7168,
                              .k = 8192,
                              .ranks = 1 + i / 2 % 2,
                              .sms = SMS,
                              .eight = 1,
                              .by_block = i % 2 };
        assert_int_equal(imx_sm90_tune(&in).tile_n == 224, i % 4 == 0);
    }
}

/* Tiles of 16-bit numbers are with rows of several ranks where others are not. */
static void tiles_of_8_bits_are_of_one_rank(void **state)
{
    (void)state;
    imx_tune_input in = { .shape = { 4172, 8704, 5120, IMBREX_BF16, IMBREX_BF16, IMBREX_NK,
                                     IMBREX_UNSCALED, false },
                          .product = true,
                          .ranks = 2,
                          .nodes = 1,
                          .arch = 90,
                          .rates = tuned_rates(),
                          .shared_bytes = 232448,
                          .workers = SMS,
                          .sharers = 1 };
    assert_true(imx_tune_config(&in).spans_chunks);
    in.apart = true;
    assert_false(imx_tune_config(&in).spans_chunks);
    in.apart = false;
    in.shape.dtype = IMBREX_E4M3;
    assert_false(imx_tune_config(&in).spans_chunks);
    in.shape.scaling = IMBREX_PER_ROW;
    assert_false(imx_tune_config(&in).spans_chunks);
    in.shape.dtype = IMBREX_E5M2, in.shape.scaling = IMBREX_PER_BLOCK;
    assert_false(imx_tune_config(&in).spans_chunks);
}

/* Of two ranks, with scales of blocks. */
static imx_tune_input in_blocks(int64_t m, int64_t n, int64_t k)
{
    return (imx_tune_input){ .shape = { m, n, k, IMBREX_E4M3, IMBREX_BF16, IMBREX_NK,
                                        IMBREX_PER_BLOCK, false },
                             .product = true,
                             .ranks = 2,
                             .nodes = 1,
                             .arch = 90,
                             .shared_bytes = 232448,
                             .memory_gb_s = 4800,
                             .rates = tuned_rates(),
                             .workers = SMS,
                             .sharers = 1 };
}

/* Few rows that come before the first tile come beneath own ones instead, where blocks that have
 * none of these have a tile less. */
static void few_rows_come_beneath_own_tiles(void **state)
{
    (void)state;
    imx_tune_input in = in_blocks(512, 14336, 8192);
    assert_false(imx_tune_config(&in).spanning);
    in.shape.n = 12288; /* 96 own tiles, and 60 behind the first wave */
    assert_false(imx_tune_config(&in).spanning);
    in.shape.n = 7168; /* one wave of both ranks' */
    assert_true(imx_tune_config(&in).spanning);
    in.shape.n = 14336, in.shape.dtype = IMBREX_BF16, in.shape.scaling = 0;
    assert_true(imx_tune_config(&in).spanning);
}

/* By the rate of 16 bits two ranks' rows together seem worth their waves. */
static void waves_of_8_bits_have_their_own_rate(void **state)
{
    (void)state;
    imx_rates as_16 = *tuned_rates();
    as_16.block_fp8 = as_16.block;
    imx_tune_input in = in_blocks(832, 8192, 14336);
    in.shape.scaling = IMBREX_PER_ROW;
    assert_false(imx_tune_config(&in).spanning);
    in.rates = &as_16;
    assert_true(imx_tune_config(&in).spanning);
}

/* How gemm_rs of m x 8192 x 14336 of each of two ranks with blocks' scales goes. */
static const char *way_of(int64_t m, double store)
{
    imx_rates rates = *tuned_rates();
    rates.store *= store;
    imx_tune_input in = in_blocks(m, 8192, 14336);
    in.scatters = in.alike = true;
    in.rates = &rates;
    imx_config config = imx_tune_config(&in);
    assert_int_equal(config.halved, config.tile_cols == 256);
    return imx_choose(&imx_op_gemm_rs, &in, &config).algorithm;
}

/* Half of a wide tile leaves while nothing is multiplied, which copies spare: they begin late,
 * though, and stores may be quick. */
static void copies_spare_what_waits_for_stores(void **state)
{
    (void)state;
    assert_string_equal(way_of(8192, 1), "copy");
    assert_string_equal(way_of(2048, 1), "scatter_push");
    assert_string_equal(way_of(512, 1), "scatter_push");
    assert_string_equal(way_of(8192, 4), "scatter_push");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_come_beneath_own_tiles),
        cmocka_unit_test(waves_of_8_bits_have_their_own_rate),
        cmocka_unit_test(tiles_of_8_bits),
        cmocka_unit_test(copies_spare_what_waits_for_stores),
        cmocka_unit_test(forms_of_8_bits),
        cmocka_unit_test(shapes_take_tiles),
        cmocka_unit_test(some_tiles_are_of_224_columns),
        cmocka_unit_test(tiles_of_8_bits_are_of_one_rank),
    };
    return cmocka_run_group_tests_name("tiling_eight", tests, NULL, NULL);
}
