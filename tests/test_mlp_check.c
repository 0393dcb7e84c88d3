/* test_mlp_check.c - what `imbrex mlp --check` lets pass: rounding, and not one wrong element. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "mlp_check.h"

enum { HIDDEN = 40, FFN = 100, TOKENS = 300, ELEMENTS = HIDDEN * TOKENS };

static mlp_weights weights;
static matrix x;
static float wide[ELEMENTS];    /* y in float32, as right as it can be */
static uint16_t half[ELEMENTS]; /* the same in bf16 or f16 */

static int make_input(void **state)
{
    (void)state;
    weights = shard_random_weights(HIDDEN, FFN);
    x = shard_random_input(TOKENS, HIDDEN);
    return 0;
}

static void *round_to(imbrex_dtype dtype)
{
    matrix all = { .rows = TOKENS, .cols = HIDDEN, .dtype = IMBREX_F32, .data = wide };
    if (dtype == IMBREX_F32)
        return wide;
    matrix_copy(&all, 0, TOKENS, 0, HIDDEN, dtype, half, HIDDEN);
    return half;
}

static mlp_error compare(imbrex_dtype dtype)
{
    mlp_error error;
    assert_true(mlp_check(&weights, &x, dtype, 0, TOKENS, round_to(dtype), NULL, &error));
    return error;
}

/* The reference once more, plainly: an element's products in float64. */
static void compute(imbrex_dtype dtype)
{
    static float in[TOKENS * HIDDEN], gate[FFN * HIDDEN], up[FFN * HIDDEN], down[HIDDEN * FFN];
    static uint16_t rounded[FFN * HIDDEN > TOKENS * HIDDEN ? FFN * HIDDEN : TOKENS * HIDDEN];
    struct {
        const matrix *from;
        float *to;
    } parts[] = {
        { &x, in }, { &weights.gate, gate }, { &weights.up, up }, { &weights.down, down }
    };
    for (int i = 0; i < 4; i++) {
        const matrix *m = parts[i].from;
        void *first = dtype == IMBREX_F32 ? (void *)parts[i].to : rounded;
        matrix_copy(m, 0, m->rows, 0, m->cols, dtype, first, m->cols);
        matrix again = { .rows = m->rows, .cols = m->cols, .dtype = dtype, .data = first };
        if (dtype != IMBREX_F32)
            matrix_copy(&again, 0, m->rows, 0, m->cols, IMBREX_F32, parts[i].to, m->cols);
    }
    for (int t = 0; t < TOKENS; t++) {
        double y[HIDDEN] = { 0 };
        for (int f = 0; f < FFN; f++) {
            double g = 0, u = 0;
            for (int h = 0; h < HIDDEN; h++) {
                g += (double)in[t * HIDDEN + h] * (double)gate[f * HIDDEN + h];
                u += (double)in[t * HIDDEN + h] * (double)up[f * HIDDEN + h];
            }
            for (int h = 0; h < HIDDEN; h++)
                y[h] += g / (1 + exp(-g)) * u * (double)down[h * FFN + f];
        }
        for (int h = 0; h < HIDDEN; h++)
            wide[t * HIDDEN + h] = (float)y[h];
    }
}

static const imbrex_dtype dtypes[] = { IMBREX_F32, IMBREX_F16, IMBREX_BF16 };

static void a_right_result_passes(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        compute(dtypes[d]);
        mlp_error error = compare(dtypes[d]);
        if (!mlp_check_passed(&error, dtypes[d]))
            fail_msg("dtype %d: %g of its size, worst %g", (int)dtypes[d],
                     mlp_check_relative(&error), error.worst);
        assert_true(error.scale > 0.5 && error.scale < 10);
        assert_true(error.worst > 0 && error.largest > 0);
    }
}

/* An element as large as it is typical, at the wrong place: the whole's size hardly notices. */
static void one_wrong_element_fails(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        compute(dtypes[d]);
        wide[1234] += 0.2F;
        mlp_error error = compare(dtypes[d]);
        if (mlp_check_passed(&error, dtypes[d]))
            fail_msg("dtype %d: 0.2 off passed: worst %g, allowed %g", (int)dtypes[d], error.worst,
                     mlp_check_worst_allowed(dtypes[d]));
        if (dtypes[d] == IMBREX_BF16)
            assert_true(mlp_check_relative(&error) <= mlp_check_allowed(IMBREX_BF16));
        assert_true(fabs(error.largest - 0.2) < 0.02);
    }
}

/* A token that is a thousand times larger must not lend the others its scale. */
static void a_large_token_hides_nothing(void **state)
{
    static float rows[TOKENS * HIDDEN];
    (void)state;
    matrix random = x;
    matrix_copy(&random, 0, TOKENS, 0, HIDDEN, IMBREX_F32, rows, HIDDEN);
    for (int h = 0; h < HIDDEN; h++)
        rows[7 * HIDDEN + h] *= 1000;
    x = (matrix){ .rows = TOKENS, .cols = HIDDEN, .dtype = IMBREX_F32, .data = rows };
    compute(IMBREX_BF16);
    mlp_error right = compare(IMBREX_BF16);
    wide[1234] += 0.2F;
    mlp_error wrong = compare(IMBREX_BF16);
    x = random;
    assert_true(right.scale > 1e5);
    assert_true(mlp_check_passed(&right, IMBREX_BF16));
    assert_false(mlp_check_passed(&wrong, IMBREX_BF16));
}

static void nan_fails_wherever_it_stands(void **state)
{
    static const int places[] = { 0, ELEMENTS / 2, ELEMENTS - 1 };
    (void)state;
    compute(IMBREX_F32);
    for (int i = 0; i < 3; i++) {
        float before = wide[places[i]];
        wide[places[i]] = NAN;
        mlp_error error = compare(IMBREX_F32), sum = { 0 };
        wide[places[i]] = before;
        assert_true(isnan(error.largest) && isnan(error.worst));
        mlp_check_add(&sum, &error);
        mlp_check_add(&sum, &(mlp_error){ .largest = 1, .worst = 1 });
        assert_true(isnan(sum.largest) && isnan(sum.worst));
        assert_false(mlp_check_passed(&sum, IMBREX_F32));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_result_passes),
        cmocka_unit_test(one_wrong_element_fails),
        cmocka_unit_test(a_large_token_hides_nothing),
        cmocka_unit_test(nan_fails_wherever_it_stands),
    };
    return cmocka_run_group_tests_name("mlp_check", tests, make_input, NULL);
}
