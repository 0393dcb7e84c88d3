/* test_decode_step.c - the step of `imbrex decode` on ranks that are threads, on fake GPUs and
 * under the checker, by tokens and by heads, again and again, against its float64 reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decode/decode.h"

#include "fake_driver.h"
#include "fake_ranks.h"
#include "ranks.h"

/* Groups of one rank for what has no peers; on the same device. */
static int open_alone(imbrex_group *group, imbrex_group **alone)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &one, .device = imbrex_group_device(group) };
    RANK_OK(imbrex_group_create(&desc, alone));
    return 0;
}

static int check_step(imbrex_group *group, imbrex_group *alone, const decode_model *model,
                      const decode_reference *reference, bool by_heads, const char *algorithm)
{
    decode_shape shape;
    decode_operands on = { 0 };
    decode_step step;
    decode_error error;
    char why[200];
    int64_t bytes = model->batch * model->weights.hidden * matrix_dtype_bytes(model->dtype);
    RANK_CHECK(decode_shape_of(model, imbrex_group_size(group), by_heads, &shape, why, sizeof why),
               "%s", why);
    RANK_OK(decode_operands_load(group, model, &shape, NULL, &on));
    RANK_OK(decode_step_create(group, alone, &shape, algorithm, true, &on, &step));
    for (int i = 0; i < 3; i++)
        RANK_OK(decode_step_run(&step));
    char *y = malloc((size_t)bytes);
    RANK_OK(imbrex_copy(group, y, on.y, (size_t)bytes, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    bool checked = decode_check(reference, model->dtype, 0, model->batch, y, NULL, &error);
    free(y);
    decode_step_destroy(&step);
    RANK_CHECK(checked, "memory");
    RANK_CHECK(decode_check_passed(&error, model->dtype) && error.norm > 0,
               "%s by %s on %d ranks: %g of the spread, %g at worst", algorithm,
               by_heads ? "heads" : "tokens", imbrex_group_size(group),
               decode_check_relative(&error), error.worst);
    return 0;
}

/* ctx: a dtype. */
static int steps(imbrex_group *group, void *ctx)
{
    static const char *const algorithms[] = { "sequential", "store", "ll" };
    const decode_source source = { .shape = "64,4,2,64", .sequences = "3,21", .dtype = ctx };
    decode_model model;
    decode_reference reference;
    imbrex_group *alone;
    st_error error;
    RANK_CHECK(decode_model_open(&source, &model, &error), "%s", error.text);
    RANK_CHECK(decode_reference_open(&source, &model, &reference, &error), "%s", error.text);
    if (open_alone(group, &alone))
        return 1;
    model.lengths[1] = 0;
    model.lengths[2] = 8;
    /* The checker knows the order within a group, and by heads there are two. */
    for (int i = 0; i < 6; i += getenv("IMBREX_CHECK") ? 2 : 1)
        if (check_step(group, alone, &model, &reference, i % 2, algorithms[i / 2]))
            return 1;
    imbrex_group_destroy(alone);
    decode_reference_close(&reference);
    decode_model_close(&model);
    return 0;
}

static int of_dtype(int size, char *dtype)
{
    ranks_desc desc = { .size = size };
    return ranks_run(&desc, steps, dtype);
}

static void threads(void **state)
{
    (void)state;
    assert_int_equal(of_dtype(1, "f32"), 0);
    assert_int_equal(of_dtype(2, "bf16"), 0);
    assert_int_equal(of_dtype(4, "f32"), 0);
}

static void fake_gpus(void **state)
{
    ranks_desc desc = { .size = 2 };
    (void)state;
    assert_int_equal(fake_ranks_run(&desc, 2, steps, (void *)(uintptr_t) "f16"), 0);
}

static void checked(void **state)
{
    (void)state;
    if (SANITIZED_THREADS)
        skip(); /* the checker's locks hide from it what operators do */
    setenv("IMBREX_CHECK", "1", 1);
    int failed = of_dtype(2, "f32");
    unsetenv("IMBREX_CHECK");
    assert_int_equal(failed, 0);
}

/* A reference with a wrong angle, or without a bias, is another: the check sees it. */
static int wrong_ones(imbrex_group *group, void *ctx)
{
    const decode_source source = { .shape = "64,4,2,64", .sequences = "2,30" };
    const int which = *(const int *)ctx;
    decode_model model;
    decode_reference reference;
    imbrex_group *alone;
    st_error error;
    RANK_CHECK(decode_model_open(&source, &model, &error), "%s", error.text);
    if (which == 1)
        model.weights.k_bias = matrix_random(77, 1, model.weights.k.rows, 1);
    if (which == 2)
        model.weights.q_norm = model.weights.k_norm = matrix_random(78, 1, 64, 1);
    RANK_CHECK(decode_reference_open(&source, &model, &reference, &error), "%s", error.text);
    if (which == 0)
        reference.theta = 20000;
    if (open_alone(group, &alone))
        return 1;
    int failed = check_step(group, alone, &model, &reference, false, "store");
    imbrex_group_destroy(alone);
    decode_model_close(&model);
    return !failed;
}

static void sees_what_is_wrong(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++) {
        ranks_desc desc = { .size = 1 };
        assert_int_equal(ranks_run(&desc, wrong_ones, &which), 0);
    }
}

/* y of zeros, in bf16: what the check says of it. */
static void check_zeros(const decode_model *model, bool *passed, bool *blind)
{
    static const uint16_t zeros[3 * 64];
    const decode_source source = { .shape = "64,4,2,64" };
    decode_reference reference;
    decode_error found;
    st_error error;
    assert_true(decode_reference_open(&source, model, &reference, &error));
    assert_true(decode_check(&reference, IMBREX_BF16, 0, 3, zeros, NULL, &found));
    *passed = decode_check_passed(&found, IMBREX_BF16);
    *blind = decode_check_blind(&found, IMBREX_BF16);
    decode_reference_close(&reference);
}

/* Large scores give room to what they may change: nothing where one token has all the weight, all
 * where many have the same score. */
static void zeros_fail(void **state)
{
    static float ones[3 * 2 * 21 * 64];
    const decode_source source = { .shape = "64,4,2,64", .sequences = "3,21", .dtype = "bf16" };
    decode_model model;
    st_error error;
    bool passed, blind;
    (void)state;
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        ones[i] = 1;
    assert_true(decode_model_open(&source, &model, &error));
    check_zeros(&model, &passed, &blind);
    assert_true(!passed && !blind);
    model.weights.q = matrix_random(77, 256, 64, 1000);
    check_zeros(&model, &passed, &blind);
    assert_true(!passed && !blind);
    model.k.data = ones;
    check_zeros(&model, &passed, &blind);
    assert_true(!passed && blind);
    decode_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads),    cmocka_unit_test(fake_gpus),
        cmocka_unit_test(checked),    cmocka_unit_test(sees_what_is_wrong),
        cmocka_unit_test(zeros_fail),
    };
    fake_ranks_begin();
    fake_driver_add_kernel("place", decode_place_entry());
    int failed = cmocka_run_group_tests_name("decode_step", tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
