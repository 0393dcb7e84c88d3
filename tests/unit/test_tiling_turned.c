/* test_tiling_turned.c - which products of some hundred rows take tiles of 192 rows or turned ones
 * on Hopper, and which never do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "imbrex.h"
#include "kernels/gemm/sm90_tile.h"
#include "kernels/gemm/sm90_tune.h"

enum { SMS = 132, SHARED_MOST = 231424 };

/* Where tiles of 128 rows would stay half empty. */
static void rows_that_fill_no_tiles_take_others(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int ranks, invariant, rows, cols, split, turned; /* rows: of a block */
    } some[] = {
        { 152, 24576, 6144, 1, 0, 152, 192, 1, 1 },  { 320, 8192, 14336, 1, 0, 160, 128, 1, 1 },
        { 272, 7168, 9216, 1, 0, 136, 128, 1, 1 },   { 144, 4096, 14336, 1, 0, 144, 64, 2, 1 },
        { 344, 1792, 5120, 1, 0, 176, 64, 2, 1 },    { 200, 7168, 8192, 1, 0, 200, 64, 1, 1 },
        { 3580, 1024, 16384, 1, 0, 224, 128, 1, 1 }, { 192, 7168, 8192, 1, 0, 192, 64, 1, 0 },
        { 536, 28672, 8192, 1, 0, 136, 128, 1, 1 }, /* many waves, */
        { 1040, 28672, 8192, 1, 0, 152, 128, 1, 1 }, { 2053, 34816, 5120, 1, 0, 128, 176, 1, 0 },
        { 152, 24576, 6144, 1, 1, 192, 96, 1, 0 },   { 300, 8192, 8192, 2, 0, 192, 128, 1, 0 },
        { 128, 7168, 8192, 1, 0, 128, 112, 2, 0 }, /* b's reading is what takes time */
        { 256, 7168, 8192, 1, 0, 128, 112, 1, 0 },   { 384, 8192, 7168, 1, 0, 128, 192, 1, 0 },
        { 2048, 7168, 8192, 1, 0, 128, 176, 1, 0 },
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        imx_sm90_input in = { .m = some[i].m,
                              .n = some[i].n,
                              .k = some[i].k,
                              .ranks = some[i].ranks,
                              .sms = SMS,
                              .invariant = some[i].invariant };
        imx_sm90_config c = imx_sm90_tune(&in);
        if (c.tile_m != some[i].rows || c.tile_cols != some[i].cols || c.split != some[i].split ||
            c.turned != some[i].turned)
            fail_msg("row %zu: tiles of %d x %d by %d%s", i, c.tile_m, c.tile_cols, c.split,
                     c.turned ? ", turned" : "");
    }
}

/* As the kernel wants them: sums that its warpgroups' registers hold, each block a piece. */
static void check_form(const imx_sm90_config *c, int sms, int may_be_turned)
{
    char options[256];
    imx_sm90_tune_options(c, options, sizeof options);
    assert_int_equal(strstr(options, "-DIMX_TURNED") != NULL, c->turned);
    assert_int_equal(c->tile_rows, c->tile_m * c->cluster_m);
    assert_in_range(c->shared_bytes, 1, SHARED_MOST);
    assert_in_range(c->stages, c->turned && c->split > 1 ? 3 : 4, 13);
    assert_true(may_be_turned || !c->turned);
    assert_int_equal(c->room, sms - (c->threads > 384)); /* of registers nothing is left */
    assert_in_range(c->blocks, 1, c->room);
    if (c->turned) {
        assert_int_equal(c->tile_m % (8 * c->split), 0);
        assert_in_range(c->tile_m, 129, c->tile_n == 192 ? 160 : 224);
        assert_true(c->tile_n % 64 == 0 && c->cluster_m == 1);
        assert_int_equal(c->threads, 128 * (1 + c->tile_n / 64));
    } else if (c->tile_m == 192) {
        assert_true(c->tile_n <= 160 && c->tile_n % 32 == 0 && c->split == 1 && !c->pingpong);
        assert_int_equal(c->threads, 512);
    } else {
        assert_true(c->tile_m == 128 || c->tile_m == 64);
    }
}

/* Only what goes to c, of one cut, whose bits may depend on m. */
static void forms_are_the_kernels(void **state)
{
    (void)state;
    int turned = 0, tall = 0;
    for (int64_t m = 1; m <= 2000; m += m < 1000 ? 3 : 61) {
        for (int64_t n = 64; n <= 30000; n += 8 * 113 + (m & 1)) {
            for (int kind = 0; kind < 6; kind++) {
                imx_sm90_input in = { .m = m,
                                      .n = n,
                                      .k = 4096,
                                      .ranks = kind == 1 ? 2 : 1,
                                      .sms = kind ? SMS : 16 + (int)m % 117,
                                      .b_kn = kind == 5,
                                      .scatters = kind == 2,
                                      .hooks = kind == 3,
                                      .invariant = kind == 4 };
                imx_sm90_config c = imx_sm90_tune(&in);
                check_form(&c, in.sms, kind == 0 || kind == 5);
                assert_true((kind != 2 && kind != 3) || c.tile_m <= 128);
                turned += c.turned;
                tall += c.tile_m == 192 && !c.turned;
            }
        }
    }
    assert_true(turned > 100 && tall > 100);
}

/* With fewer rows than such tiles were made for, and with none, their kernel has what it needs. */
static void edges_have_boxes(void **state)
{
    (void)state;
    for (unsigned m = 0; m <= 600; m++) {
        imx_schedule s = { .m = m, .n = 4096, .ranks = 1, .tile_rows = 136, .tile_cols = 128 };
        assert_int_equal(imx_sm90_edge_rows(&s, 136), m % 136);
        assert_int_equal(imx_sm90_tiles(&s, 136, 128), (m + 135) / 136 * 32);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_fill_no_tiles_take_others),
        cmocka_unit_test(forms_are_the_kernels),
        cmocka_unit_test(edges_have_boxes),
    };
    return cmocka_run_group_tests_name("tiling_turned", tests, NULL, NULL);
}
