/* test_ptx_number.c - narrow numbers of the fake GPU: every code, and rounding between them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ptx_tensor.h"

/* What a code stands for, by its fields. */
typedef struct fields {
    ptx_type type;
    int exponent, fraction, unused; /* bits */
    bool infinities;
} fields;

static const fields types[] = {
    { PTX_F16, 5, 10, 0, true },  { PTX_BF16, 8, 7, 0, true }, { PTX_TF32, 8, 10, 13, true },
    { PTX_E4M3, 4, 3, 0, false }, { PTX_E5M2, 5, 2, 0, true },
};
enum { TYPES = sizeof types / sizeof *types };

static uint32_t codes(const fields *f)
{
    return 1u << (f->exponent + f->fraction);
}

/* The largest finite code. */
static uint32_t largest(const fields *f)
{
    return f->infinities ? codes(f) - (1u << f->fraction) - 1 : codes(f) - 2;
}

static double value(const fields *f, uint32_t code)
{
    int bias = (1 << (f->exponent - 1)) - 1, exponent = (int)(code >> f->fraction);
    double fraction = ldexp(code & ((1u << f->fraction) - 1), -f->fraction);
    return exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
}

static uint32_t narrowed(const fields *f, ptx_rounding rounding, double x)
{
    uint32_t bits = ptx_narrow(&(ptx_to){ .type = f->type, .rounding = rounding }, x);
    assert_int_equal(bits & ((1u << f->unused) - 1), 0);
    return bits >> f->unused;
}

static void every_code_is_its_value(void **state)
{
    (void)state;
    for (int i = 0; i < TYPES; i++) {
        const fields *f = &types[i];
        assert_int_equal(ptx_bits(f->type), 1 + f->exponent + f->fraction + f->unused);
        for (uint32_t code = 0; code <= largest(f); code++) {
            double x = value(f, code);
            assert_true(ptx_widen(f->type, code << f->unused) == x);
            assert_true(ptx_widen(f->type, (code + codes(f)) << f->unused) == -x);
            assert_true(signbit(ptx_widen(f->type, (code + codes(f)) << f->unused)));
            assert_int_equal(narrowed(f, PTX_RN, x), code);
            assert_int_equal(narrowed(f, PTX_RZ, -x), code + codes(f));
        }
        for (uint32_t code = largest(f) + 1; code < codes(f); code++) {
            float x = ptx_widen(f->type, code << f->unused);
            assert_true(f->infinities && code == largest(f) + 1 ? isinf(x) : isnan(x));
        }
    }
}

static void numbers_between_two_codes_round(void **state)
{
    (void)state;
    for (int i = 0; i < TYPES; i++) {
        const fields *f = &types[i];
        for (uint32_t code = 0; code < largest(f); code++) {
            double middle = (value(f, code) + value(f, code + 1)) / 2;
            double below = nextafter(middle, 0), above = nextafter(middle, INFINITY);
            assert_int_equal(narrowed(f, PTX_RN, middle), code + code % 2);
            assert_int_equal(narrowed(f, PTX_RNA, middle), code + 1);
            assert_int_equal(narrowed(f, PTX_RZ, above), code);
            assert_int_equal(narrowed(f, PTX_RN, below), code);
            assert_int_equal(narrowed(f, PTX_RNA, below), code);
            assert_int_equal(narrowed(f, PTX_RN, above), code + 1);
            assert_int_equal(narrowed(f, PTX_RN, -above), code + 1 + codes(f));
        }
    }
}

static void what_is_too_large_is_infinite_or_the_largest(void **state)
{
    (void)state;
    for (int i = 0; i < TYPES; i++) {
        const fields *f = &types[i];
        bool clips = ptx_bits(f->type) == 8;
        double last = value(f, largest(f)), step = last - value(f, largest(f) - 1);
        double sizes[] = { last + step / 2, 2 * last, 1e300, INFINITY };
        for (int k = 0; k < 4; k++) {
            ptx_to to = { .type = f->type, .satfinite = true };
            assert_int_equal(narrowed(f, PTX_RN, sizes[k]), largest(f) + !clips);
            assert_int_equal(ptx_narrow(&to, sizes[k]) >> f->unused, largest(f));
            assert_int_equal(ptx_narrow(&to, -sizes[k]) >> f->unused, largest(f) + codes(f));
        }
        assert_int_equal(narrowed(f, PTX_RN, last + step * 0.49), largest(f));
        assert_int_equal(narrowed(f, PTX_RZ, 2 * last), largest(f));
        assert_int_equal(narrowed(f, PTX_RZ, INFINITY), largest(f) + !clips);
    }
}

/* As the PTX ISA has them. */
static void known_numbers(void **state)
{
    (void)state;
    ptx_to e4m3 = { .type = PTX_E4M3 }, f16 = { .type = PTX_F16 }, tf32 = { .type = PTX_TF32 };
    ptx_to relu = { .type = PTX_BF16, .relu = true };
    assert_int_equal(ptx_narrow(&e4m3, 448.0), 0x7e);
    assert_int_equal(ptx_narrow(&e4m3, NAN), 0x7f);
    assert_int_equal(ptx_narrow(&f16, NAN), 0x7fff);
    assert_int_equal(ptx_narrow(&tf32, NAN), 0x7fffffff);
    assert_int_equal(ptx_narrow(&tf32, 1.0), 0x3f800000);
    assert_int_equal(ptx_narrow(&relu, -2.0), 0);
    assert_int_equal(ptx_narrow(&relu, 2.0), 0x4000);
    assert_int_equal(ptx_narrow(&relu, NAN), 0x7fff);
    assert_int_equal(ptx_narrow_two(&f16, 2.0, -1.0), 0x4000bc00);
    assert_int_equal(ptx_narrow_two(&e4m3, 1.0, 0.5), 0x3830);
    assert_true(ptx_widen(PTX_TF32, 0x3f801fff) == 1.0f);
    assert_true(ptx_widen(PTX_E4M3, 0xffffff38) == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_its_value),
        cmocka_unit_test(numbers_between_two_codes_round),
        cmocka_unit_test(what_is_too_large_is_infinite_or_the_largest),
        cmocka_unit_test(known_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
