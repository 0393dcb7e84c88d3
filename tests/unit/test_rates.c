/* test_rates.c - tables of rates, what stands for them, and choices by other rates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "plan/op.h"
#include "tune/cost.h"
#include "tuned.h"

enum { SMS = 132 };

static const imx_rates_device h200 = { "NVIDIA H200", 90, SMS, 1980, 4917, true };
static const imx_rates_device a100 = { "NVIDIA A100-SXM4-80GB", 80, 108, 1410, 2039, true };

static imbrex_status parse(const char *text, imx_rates *rates, uint32_t *given)
{
    return imx_rates_parse(text, "FILE", "This GPU", rates, given);
}

static void says(const char *text, const char *sentence)
{
    imx_rates rates = { 0 };
    uint32_t given;
    imx_status_enter("test");
    assert_int_equal(parse(text, &rates, &given), IMBREX_INVALID);
    if (!strstr(imbrex_error(), sentence))
        fail_msg("'%s' gives: %s", text, imbrex_error());
}

static void bad_lines_are_named(void **state)
{
    (void)state;
    char line[400];
    says(
        "device This GPU\nstor 350\n",
        "FILE, line 2: \"stor\" is no rate: want device, bf16, fp8, f32, block, block_fp8, memory, "
        "store, slices, copy, copy_us, signal_us or clock");
    says("# text\n\nstore 350\n", "FILE, line 3: store: want a line \"device NAME\" above it");
    says("device\n", "FILE, line 1: no device: want its name");
    says("device This GPU\nstore\n",
         "line 2: store is \"\": want a number from 0.001 to 1e+06, in GB/s");
    says("device A\nstore 350 GB/s\n", "store is \"350 GB/s\": want a number from 0.001 ");
    says("device A\nbf16 0\n", "bf16 is \"0\": want a number from 0.001 to 1e+06, in TFLOP/s");
    says("device A\nbf16 -1\n", "bf16 is \"-1\"");
    says("device A\nbf16 inf\n", "bf16 is \"inf\"");
    says("device A\nbf16 1e305\n", "bf16 is \"1e305\": want a number from 0.001 to 1e+06");
    says("device A\ncopy 1e-320\n", "copy is \"1e-320\": want a number from 0.001 to 1e+06");
    says("device A\nclock 1980000\n", "want a number from 100 to 10000, in MHz");
    says("device A\nbf16 3,5\n", "bf16 is \"3,5\"");
    says("device A\ncopy_us 1\ndevice B\ncopy_us 2\ncopy_us 3", "line 5: copy_us: want it once");
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\0';
    says(line, "line 1: the line is long");
}

/* Rows of other devices are read, and not taken. */
static void rows_are_of_their_devices(void **state)
{
    (void)state;
    imx_rates rates = { .copy = 7 };
    uint32_t given = 0;
    assert_int_equal(parse("device Another\nstore 1\n\n"
                           "device One\ndevice This GPU # two of a kind\n"
                           "  store\t350.5 # GB/s\r\nsignal_us 2.2\n"
                           "device Another\nstore 2\ncopy 3",
                           &rates, &given),
                     IMBREX_OK);
    assert_true(given == (1u << IMX_RATES_AT_store | 1u << IMX_RATES_AT_signal_us));
    assert_true(rates.store == 350.5e3 && rates.signal_us == 2.2 && rates.copy == 7);
    assert_int_equal(parse("device Another\nstore 1\n", &rates, &given), IMBREX_OK);
    assert_int_equal(given, 0);
    assert_int_equal(parse("", &rates, &given), IMBREX_OK);
    assert_int_equal(given, 0);
}

/* What a built-in table leaves out would be 0. */
static void tables_are_whole(void **state)
{
    (void)state;
    static const char *const models[] = { "NVIDIA H200", "NVIDIA H100 80GB HBM3" };
    for (int i = 0; i < 2; i++) {
        imx_rates rates = { 0 };
        double values[sizeof rates / sizeof(double)];
        assert_true(imx_rates_built_in(models[i], &rates));
        memcpy(values, &rates, sizeof rates);
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            assert_true(values[v] > 0);
    }
    imx_rates rates;
    assert_false(imx_rates_built_in("NVIDIA H200 NVL", &rates));
}

/* It is made of shares that an H200 has. */
static void attributes_come_near_a_table(void **state)
{
    (void)state;
    imx_rates guessed = imx_rates_of_attributes(&h200), known = *tuned_rates();
    double of_guess[sizeof known / sizeof(double)], of_known[sizeof known / sizeof(double)];
    memcpy(of_guess, &guessed, sizeof guessed);
    memcpy(of_known, &known, sizeof known);
    for (size_t i = 0; i < sizeof of_known / sizeof *of_known; i++)
        if (of_guess[i] < 0.97 * of_known[i] || of_guess[i] > 1.03 * of_known[i])
            fail_msg("rate %zu is %g, by attributes %g", i, of_known[i], of_guess[i]);
    const imx_rates_device unknown = { "", 80, 0, 0, 0, false };
    guessed = imx_rates_of_attributes(&unknown);
    assert_true(guessed.bf16 > 0 && guessed.memory > 0 && guessed.store > 0 && guessed.clock > 0);
}

static void the_slower_ones_count(void **state)
{
    (void)state;
    imx_rates one = { .store = 3, .copy = 4, .copy_us = 5, .signal_us = 6 };
    const imx_rates other = { .store = 4, .copy = 3, .copy_us = 6, .signal_us = 5 };
    imx_rates_slower(&one, &other);
    assert_true(one.store == 3 && one.copy == 3 && one.copy_us == 6 && one.signal_us == 6);
}

static imx_tune_input product(const imx_rates *rates, int arch, int64_t m)
{
    return (imx_tune_input){
        .shape = { m, 7168, 8192, IMBREX_BF16, IMBREX_BF16, IMBREX_NK, IMBREX_UNSCALED, false },
        .product = true,
        .ranks = 2,
        .nodes = 1,
        .arch = arch,
        .shared_bytes = 166912,
        .rates = rates,
        .workers = 108,
        .sharers = 1,
        .alike = true,
        .whole_lines = true,
    };
}

static void all_rates(imx_rates *rates, double of_work, double of_start, double clock)
{
    *rates = (imx_rates){ of_work, of_work, of_work, of_work,  of_work,  of_work,
                          of_work, of_work, of_work, of_start, of_start, clock };
}

static void plan_for(const imx_rates *rates, const imx_op *op, int arch, int64_t m)
{
    imx_tune_input in = product(rates, arch, m);
    in.shared_bytes = arch == 90 ? 232448 : in.shared_bytes;
    in.scatters = op->scatters;
    imx_config config = imx_tune_config(&in);
    assert_in_range(config.slices, 1, 16);
    assert_in_range(config.push_pace[0], 0, 1 << 24);
    assert_in_range(config.push_pace[1], 0, 1 << 24);
    imx_choice choice = imx_choose(op, &in, &config);
    assert_non_null(choice.algorithm);
    assert_non_null(imx_op_algorithm(op->algorithms, choice.algorithm));
}

/* What a file may say, and what is beyond it. */
static void any_rates_choose(void **state)
{
    (void)state;
    static const imx_op *const ops[] = { &imx_op_ag_gemm, &imx_op_gemm_rs };
    static const double rates_of_work[] = { 0, 1e-30, 1, 1e12, 1e300 };
    static const int64_t m[] = { 64, 4096 };
    for (int i = 0; i < 5 * 2 * 2 * 2; i++) {
        imx_rates rates;
        all_rates(&rates, rates_of_work[i / 8], i / 8 % 2 ? 1e-3 : 1e6, 1e10);
        plan_for(&rates, ops[i % 2], i / 2 % 2 ? 90 : 80, m[i / 4 % 2]);
    }
    imx_rates slow, slower;
    all_rates(&slow, 1e6, 1, 1600);
    all_rates(&slower, 1e-30, 1, 1600);
    imx_tune_input in = product(&slow, 90, 64), other = product(&slower, 90, 64);
    in.shared_bytes = other.shared_bytes = 232448;
    assert_true(imx_tune_config(&in).slices > 1);
    assert_int_equal(imx_tune_config(&in).slices, imx_tune_config(&other).slices);

    imx_rates none = { 0 };
    in = product(&none, 80, 4096);
    imx_config config = imx_tune_config(&in);
    imx_choice choice = imx_choose(&imx_op_ag_gemm, &in, &config);
    assert_string_equal(choice.algorithm, "sequential");
    assert_string_equal(choice.why, "no expected time is finite");
}

/* An A100 multiplies three times as slowly: it hides what an H200 does not. */
static void another_device_chooses_by_its_own(void **state)
{
    (void)state;
    const imx_rates slow = imx_rates_of_attributes(&a100);
    imx_tune_input in = product(&slow, 80, 4096), fast = product(tuned_rates(), 80, 4096);
    double ratio = imx_cost_product(&in) / imx_cost_product(&fast);
    if (ratio < 3 || ratio > 4)
        fail_msg("a product takes %.2f times as long", ratio);
    imx_config config = imx_tune_config(&in);
    imx_choice there = imx_choose(&imx_op_ag_gemm, &in, &config);
    imx_choice here = imx_choose(&imx_op_ag_gemm, &fast, &config);
    assert_string_not_equal(there.why, here.why);

    imx_rates far = *tuned_rates(); /* where stores are slow, and copy engines are not */
    in = product(&far, 90, 4096);
    in.shared_bytes = 232448;
    config = imx_tune_config(&in);
    assert_string_equal(imx_choose(&imx_op_ag_gemm, &in, &config).algorithm, "store");
    assert_true(config.push_pace[0] > 0);
    far.store = 20e3;
    assert_string_equal(imx_choose(&imx_op_ag_gemm, &in, &config).algorithm, "copy");
    assert_int_equal(imx_tune_config(&in).push_pace[0], 0); /* they can hardly come too fast */
}

/* On CPU ranks: why nothing overlaps. */
static void a_reason_is_that_of_the_operator(void **state)
{
    (void)state;
    static const imx_op *const by_kernel[] = { &imx_op_dispatch, &imx_op_ag_moe, &imx_op_moe_rs };
    for (int i = 0; i < 3; i++) {
        imx_choice many = tuned_choice_of(by_kernel[i], 64, 64, 64, 18, 0, 1);
        assert_string_equal(many.algorithm, "sequential");
        assert_string_equal(many.why, "kernels reach at most 16 ranks");
    }
    imx_choice few = tuned_choice_of(&imx_op_ag_gemm, 64, 64, 64, 18, 0, 1);
    assert_string_equal(few.why, "a shard is sent sooner than a second stream starts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_lines_are_named),
        cmocka_unit_test(rows_are_of_their_devices),
        cmocka_unit_test(tables_are_whole),
        cmocka_unit_test(attributes_come_near_a_table),
        cmocka_unit_test(the_slower_ones_count),
        cmocka_unit_test(any_rates_choose),
        cmocka_unit_test(another_device_chooses_by_its_own),
        cmocka_unit_test(a_reason_is_that_of_the_operator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
