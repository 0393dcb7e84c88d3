/* test_dtype.c - every bf16 and f16 pattern, and the rounding between any two of them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/dtype.h"

static const int dtypes[] = { IMBREX_BF16, IMBREX_F16 };

/* The value of 16 bits as the format defines it; infinity is the next step beyond the largest. */
static double value16(int dtype, int bits)
{
    int fraction_bits = dtype == IMBREX_BF16 ? 7 : 10, bias = dtype == IMBREX_BF16 ? 127 : 15;
    int exponent = (bits & 0x7fff) >> fraction_bits;
    int fraction = bits & ((1 << fraction_bits) - 1);
    double x = exponent ? ldexp(1 + ldexp(fraction, -fraction_bits), exponent - bias)
                        : ldexp(fraction, 1 - bias - fraction_bits);
    return bits & 0x8000 ? -x : x;
}

static uint16_t narrow_one(int dtype, float x)
{
    return dtype == IMBREX_BF16 ? imx_dtype_to_bf16(x) : imx_dtype_to_f16(x);
}

static void every_short_value_survives(void **state)
{
    (void)state;
    static uint16_t in[2 * 65536], out[2 * 65536]; /* as large as float32 would be */
    static float wide[65536];
    for (int d = 0; d < 2; d++) {
        int dtype = dtypes[d], infinity = dtype == IMBREX_BF16 ? 0x7f80 : 0x7c00;
        for (int i = 0; i < 65536; i++)
            in[i] = (uint16_t)i;
        imx_dtype_widen(dtype, in, wide, 65536);
        imx_dtype_narrow(dtype, wide, out, 65536);
        for (int i = 0; i < 65536; i++) {
            int quiet = dtype == IMBREX_BF16 ? 0x40 : 0x200;
            bool nan = (i & 0x7fff) > infinity;
            if (nan)
                assert_true(isnan(wide[i]));
            else if ((i & 0x7fff) == infinity)
                assert_true(isinf(wide[i]) && !!signbit(wide[i]) == i >> 15);
            else
                assert_true((double)wide[i] == value16(dtype, i) && !!signbit(wide[i]) == i >> 15);
            assert_int_equal(out[i], nan ? i | quiet : i);
        }
    }
}

static float widen_one(int dtype, uint16_t h)
{
    return dtype == IMBREX_BF16 ? imx_dtype_from_bf16(h) : imx_dtype_from_f16(h);
}

/* Halfway between neighbours goes to the even one, and a hair to either side goes to that side.
 * The last pair is the largest number and infinity. */
static void midpoints_round_to_even(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        int dtype = dtypes[d], infinity = dtype == IMBREX_BF16 ? 0x7f80 : 0x7c00;
        for (int i = 0; i < infinity; i++) {
            float middle = (float)((value16(dtype, i) + value16(dtype, i + 1)) / 2);
            int even = i % 2 ? i + 1 : i;
            assert_int_equal(narrow_one(dtype, middle), even);
            assert_int_equal(narrow_one(dtype, nextafterf(middle, 0)), i);
            assert_int_equal(narrow_one(dtype, nextafterf(middle, INFINITY)), i + 1);
            assert_int_equal(narrow_one(dtype, -middle), even | 0x8000);
        }
        const float large[] = { INFINITY, 3.4028235e38f };
        for (int i = 0; i < 2; i++)
            assert_int_equal(narrow_one(dtype, large[i]), infinity);
        assert_int_equal(narrow_one(dtype, 0x1p-149f), 0);
        assert_int_equal(narrow_one(dtype, -0x1p-149f), 0x8000);
        assert_true((narrow_one(dtype, imx_dtype_float(0x7f800001)) & 0x7fff) > infinity);
        assert_true((narrow_one(dtype, imx_dtype_float(0xffffffff)) & 0x7fff) > infinity);
    }
}

/* The loops and the single conversions are the same function; every length, nothing beyond it. */
static void loops_agree_with_single_conversions(void **state)
{
    (void)state;
    enum { ROOM = 80 };
    uint32_t random = 1;
    for (int d = 0; d < 2; d++)
        for (int count = 0; count < 70; count++) {
            float wide[ROOM], back[ROOM], sum[ROOM];
            uint16_t narrow[2 * ROOM];
            memset(narrow, 0xa5, sizeof narrow);
            memset(back, 0xa5, sizeof back);
            for (int i = 0; i < ROOM; i++) {
                random = random * 1664525 + 1013904223;
                wide[i] = imx_dtype_float(random); /* any bits at all */
                sum[i] = 3;
            }
            imx_dtype_narrow(dtypes[d], wide, narrow, count);
            imx_dtype_widen(dtypes[d], narrow, back, count);
            imx_dtype_add(dtypes[d], narrow, sum, count);
            for (int i = 0; i < ROOM; i++) {
                bool in = i < count;
                float one = widen_one(dtypes[d], narrow[i]);
                assert_int_equal(narrow[i], in ? narrow_one(dtypes[d], wide[i]) : 0xa5a5);
                assert_int_equal(imx_dtype_bits(back[i]), in ? imx_dtype_bits(one) : 0xa5a5a5a5);
                if (in && isnan(one))
                    assert_true(isnan(sum[i]));
                else
                    assert_true(sum[i] == (in ? 3 + one : 3));
            }
        }
}

/* The value of an E4M3 code; 480 would follow 448, and its code is NaN's. */
static double value8(int code)
{
    int exponent = (code & 0x7f) >> 3, fraction = code & 7;
    double x = exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction, -9);
    return code & 0x80 ? -x : x;
}

static void e4m3_rounds_and_saturates(void **state)
{
    (void)state;
    for (int i = 0; i < 256; i++) {
        float wide = imx_dtype_from_e4m3((uint8_t)i);
        bool nan = (i & 0x7f) == 0x7f;
        if (nan)
            assert_true(isnan(wide));
        else
            assert_true((double)wide == value8(i) && !!signbit(wide) == i >> 7);
        assert_int_equal(imx_dtype_to_e4m3(wide), nan ? 0x7f : i);
    }
    for (int i = 0; i < 0x7f; i++) {
        float middle = (float)((value8(i) + value8(i + 1)) / 2); /* the last: of 448 and 480 */
        int next = i < 0x7e ? i + 1 : i;
        assert_int_equal(imx_dtype_to_e4m3(middle), i % 2 ? next : i);
        assert_int_equal(imx_dtype_to_e4m3(nextafterf(middle, 0)), i);
        assert_int_equal(imx_dtype_to_e4m3(nextafterf(middle, INFINITY)), next);
        assert_int_equal(imx_dtype_to_e4m3(-middle), (i % 2 ? next : i) | 0x80);
    }
    const float large[] = { 449, 1e6f, 3.4028235e38f, INFINITY };
    for (int i = 0; i < 4; i++) {
        assert_int_equal(imx_dtype_to_e4m3(large[i]), 0x7e);
        assert_int_equal(imx_dtype_to_e4m3(-large[i]), 0xfe);
    }
    assert_int_equal(imx_dtype_to_e4m3(-0x1p-149f), 0x80);
    assert_int_equal(imx_dtype_to_e4m3(imx_dtype_float(0x7f800001)), 0x7f);
    assert_int_equal(imx_dtype_to_e4m3(imx_dtype_float(0xffffffff)), 0x7f);
    float wide[70], back[70];
    uint8_t narrow[70];
    for (int count = 0; count < 70; count++) {
        memset(narrow, 0xa5, sizeof narrow);
        memset(back, 0xa5, sizeof back);
        for (int i = 0; i < 70; i++)
            wide[i] = (float)(i * i - 900) / 7;
        imx_dtype_narrow(IMBREX_E4M3, wide, narrow, count);
        imx_dtype_widen(IMBREX_E4M3, narrow, back, count);
        for (int i = 0; i < 70; i++) {
            assert_int_equal(narrow[i], i < count ? imx_dtype_to_e4m3(wide[i]) : 0xa5);
            assert_int_equal(imx_dtype_bits(back[i]),
                             i < count ? imx_dtype_bits(imx_dtype_from_e4m3(narrow[i]))
                                       : 0xa5a5a5a5);
        }
    }
}

/* The value of an E5M2 code; the step behind the largest is infinity's. */
static double value_e5m2(int code)
{
    int exponent = (code & 0x7f) >> 2, fraction = code & 3;
    double x = exponent ? ldexp(1 + fraction / 4.0, exponent - 15) : ldexp(fraction, -16);
    return code & 0x80 ? -x : x;
}

static void every_e5m2_code_survives(void **state)
{
    (void)state;
    for (int i = 0; i < 256; i++) {
        float wide = imx_dtype_from_e5m2((uint8_t)i), loop;
        bool nan = (i & 0x7f) > 0x7c;
        if (nan)
            assert_true(isnan(wide));
        else if ((i & 0x7f) == 0x7c)
            assert_true(isinf(wide) && !!signbit(wide) == i >> 7);
        else
            assert_true((double)wide == value_e5m2(i) && !!signbit(wide) == i >> 7);
        assert_int_equal(imx_dtype_to_e5m2(wide), nan ? i | 2 : i);
        uint8_t code = (uint8_t)i, back;
        imx_dtype_widen(IMBREX_E5M2, &code, &loop, 1);
        imx_dtype_narrow(IMBREX_E5M2, &loop, &back, 1);
        assert_int_equal(imx_dtype_bits(loop), imx_dtype_bits(wide));
        assert_int_equal(back, imx_dtype_to_e5m2(wide));
    }
    for (int i = 0; i < 0x7c; i++) {
        float middle = (float)((value_e5m2(i) + value_e5m2(i + 1)) / 2);
        int even = i % 2 ? i + 1 : i;
        assert_int_equal(imx_dtype_to_e5m2(middle), even);
        assert_int_equal(imx_dtype_to_e5m2(nextafterf(middle, 0)), i);
        assert_int_equal(imx_dtype_to_e5m2(nextafterf(middle, INFINITY)), i + 1);
        assert_int_equal(imx_dtype_to_e5m2(-middle), even | 0x80);
    }
    assert_int_equal(imx_dtype_to_e5m2(3.4028235e38f), 0x7c);
    assert_int_equal(imx_dtype_to_e5m2(-0x1p-149f), 0x80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_short_value_survives),
        cmocka_unit_test(midpoints_round_to_even),
        cmocka_unit_test(loops_agree_with_single_conversions),
        cmocka_unit_test(e4m3_rounds_and_saturates),
        cmocka_unit_test(every_e5m2_code_survives),
    };
    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
