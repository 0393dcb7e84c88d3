/* test_mlp_check.c - what `imbrex mlp --check` lets pass: rounding, and not one wrong element. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "mlp/mlp.h"

enum { HIDDEN = 40, FFN = 100, TOKENS = 300, ELEMENTS = HIDDEN * TOKENS };

static mlp_reference reference;
static matrix x;
static float wide[ELEMENTS];    /* y in float32, as right as it can be */
static uint16_t half[ELEMENTS]; /* the same in bf16 or f16 */

static int make_input(void **state)
{
    (void)state;
    reference = (mlp_reference){ .weights = shard_random_weights(HIDDEN, FFN),
                                 .activation = mlp_reference_function("silu") };
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
    assert_true(mlp_check(&reference, &x, dtype, 0, TOKENS, round_to(dtype), NULL, NULL, &error));
    return error;
}

/* What compute leaves out or does otherwise than the reference; all zero: nothing. */
typedef struct deviation {
    bool gate_bias, up_bias, down_bias; /* left out */
    const char *activation;             /* another */
} deviation;

static double bias_of(const matrix *bias, int64_t i)
{
    float one = 0;
    if (bias->rows)
        matrix_copy(bias, 0, 1, i, i + 1, IMBREX_F32, &one, 1);
    return one;
}

/* The reference once more, plainly: an element's products in float64. */
static void compute_otherwise(imbrex_dtype dtype, deviation other)
{
    const mlp_weights *mlp = &reference.weights;
    double (*f)(double) =
        other.activation ? mlp_reference_function(other.activation) : reference.activation;
    static float in[TOKENS * HIDDEN], gate[FFN * HIDDEN], up[FFN * HIDDEN], down[HIDDEN * FFN];
    static uint16_t rounded[FFN * HIDDEN > TOKENS * HIDDEN ? FFN * HIDDEN : TOKENS * HIDDEN];
    struct {
        const matrix *from;
        float *to;
    } parts[] = { { &x, in },
                  { &reference.weights.gate, gate },
                  { &reference.weights.up, up },
                  { &reference.weights.down, down } };
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
        for (int h = 0; h < HIDDEN && !other.down_bias; h++)
            y[h] = bias_of(&mlp->down_bias, h);
        for (int feature = 0; feature < FFN; feature++) {
            double g = other.gate_bias ? 0 : bias_of(&mlp->gate_bias, feature);
            double u = other.up_bias ? 0 : bias_of(&mlp->up_bias, feature);
            for (int h = 0; h < HIDDEN; h++) {
                g += (double)in[t * HIDDEN + h] * (double)gate[feature * HIDDEN + h];
                u += (double)in[t * HIDDEN + h] * (double)up[feature * HIDDEN + h];
            }
            for (int h = 0; h < HIDDEN; h++)
                y[h] += (mlp->ungated ? f(u) : f(g) * u) * (double)down[h * FFN + feature];
        }
        for (int h = 0; h < HIDDEN; h++)
            wide[t * HIDDEN + h] = (float)y[h];
    }
}

static void compute(imbrex_dtype dtype)
{
    compute_otherwise(dtype, (deviation){ 0 });
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
    right.apart = 1; /* another rank has another y */
    assert_false(mlp_check_passed(&right, IMBREX_BF16));
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

static const char *const functions[] = { "silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2" };
enum { FUNCTIONS = 5 };

static void give_biases(void)
{
    reference.weights.gate_bias = matrix_random(11, 1, FFN, 0.3);
    reference.weights.up_bias = matrix_random(12, 1, FFN, 0.3);
    reference.weights.down_bias = matrix_random(13, 1, HIDDEN, 0.3);
}

/* Each function is right by itself, and wrong for each other: also erf's and tanh's GELU, which
 * differ by 5e-4 at most. */
static void another_activation_fails(void **state)
{
    for (int i = 0; i < FUNCTIONS * FUNCTIONS * 2; i++) {
        const char *own = functions[i % FUNCTIONS], *other = functions[i / FUNCTIONS % FUNCTIONS];
        make_input(state);
        reference.activation = mlp_reference_function(own);
        reference.weights.ungated = i >= FUNCTIONS * FUNCTIONS;
        compute_otherwise(IMBREX_F32, (deviation){ .activation = other });
        mlp_error error = compare(IMBREX_F32);
        if (mlp_check_passed(&error, IMBREX_F32) != (own == other))
            fail_msg("%s for %s: %g, worst %g", other, own, mlp_check_relative(&error),
                     error.worst);
    }
    make_input(state);
}

static void a_bias_left_out_fails(void **state)
{
    for (int i = 0; i < 3 * 4; i++) {
        int out = i % 4; /* none, gate's, up's, down's */
        imbrex_dtype dtype = dtypes[i / 4];
        make_input(state);
        give_biases();
        compute_otherwise(dtype, (deviation){ out == 1, out == 2, out == 3, NULL });
        mlp_error error = compare(dtype);
        if (mlp_check_passed(&error, dtype) != (out == 0))
            fail_msg("dtype %d, bias %d left out: %g, worst %g", (int)dtype, out,
                     mlp_check_relative(&error), error.worst);
    }
    make_input(state);
}

/* Rounding a y of 1000 is no error, though the rest of its sum is small. */
static void a_large_bias_is_a_term_of_the_sum(void **state)
{
    make_input(state);
    reference.weights.down_bias = matrix_random(13, 1, HIDDEN, 1000);
    compute(IMBREX_BF16);
    mlp_error error = compare(IMBREX_BF16);
    assert_true(error.largest > 1);
    assert_true(mlp_check_passed(&error, IMBREX_BF16));
    make_input(state);
}

/* In place of x[row]; its other rows stay. */
static float *x_with(int row, float value)
{
    static float rows[TOKENS * HIDDEN];
    matrix_copy(&x, 0, TOKENS, 0, HIDDEN, IMBREX_F32, rows, HIDDEN);
    rows[row * HIDDEN + 3] = value;
    x = (matrix){ .rows = TOKENS, .cols = HIDDEN, .dtype = IMBREX_F32, .data = rows };
    return rows;
}

/* NaN and infinities of x are not y's fault: there y may be such, and elsewhere not. */
static void what_x_holds_is_not_blamed_on_y(void **state)
{
    static const float values[] = { NAN, INFINITY, -INFINITY };
    for (int i = 0; i < 3 * FUNCTIONS; i++) {
        make_input(state);
        reference.activation = mlp_reference_function(functions[i / 3]);
        x_with(7, values[i % 3]);
        compute(IMBREX_F32);
        mlp_error error = compare(IMBREX_F32);
        assert_true(error.odd_rows == 1 && !error.lost && !error.odd_weights);
        if (!mlp_check_passed(&error, IMBREX_F32))
            fail_msg("%s of x with %g fails", functions[i / 3], (double)values[i % 3]);
        assert_true(error.scale > 0.1); /* the other rows are compared */
        wide[5 * HIDDEN] = NAN;
        error = compare(IMBREX_F32);
        assert_false(mlp_check_passed(&error, IMBREX_F32));
        compute(IMBREX_F32);
        wide[7 * HIDDEN] = 1; /* it must be NaN or infinite */
        error = compare(IMBREX_F32);
        assert_false(mlp_check_passed(&error, IMBREX_F32));
    }
    make_input(state);
}

static void what_the_weights_hold_is_not_blamed_on_y(void **state)
{
    static float down[HIDDEN * FFN];
    make_input(state);
    matrix_copy(&reference.weights.down, 0, HIDDEN, 0, FFN, IMBREX_F32, down, FFN);
    down[3 * FFN] = NAN;
    reference.weights.down =
        (matrix){ .rows = HIDDEN, .cols = FFN, .dtype = IMBREX_F32, .data = down };
    compute(IMBREX_F32);
    mlp_error error = compare(IMBREX_F32);
    assert_true(error.odd_weights && error.odd_rows == 0);
    assert_true(mlp_check_passed(&error, IMBREX_F32));
    wide[4] = NAN; /* of another column */
    error = compare(IMBREX_F32);
    assert_false(mlp_check_passed(&error, IMBREX_F32));
    make_input(state);
}

/* x is finite, and the dtype's is not: no y is right. */
static void what_the_dtype_cannot_hold_fails(void **state)
{
    make_input(state);
    x_with(7, 1e6F);
    compute(IMBREX_F16);
    mlp_error error = compare(IMBREX_F16);
    assert_true(error.lost && error.odd_rows == 1);
    assert_false(mlp_check_passed(&error, IMBREX_F16));
    compute(IMBREX_BF16);
    error = compare(IMBREX_BF16);
    assert_false(error.lost);
    assert_true(mlp_check_passed(&error, IMBREX_BF16));
    make_input(state);
}

/* y must underflow: 0 is right then, and what is large beside it is not. */
static void underflow_is_no_error(void **state)
{
    static const float scales[] = { 1e-41F, 1e-30F, 1e-20F };
    for (int i = 0; i < 3; i++) {
        static float rows[TOKENS * HIDDEN];
        make_input(state);
        matrix_copy(&x, 0, TOKENS, 0, HIDDEN, IMBREX_F32, rows, HIDDEN);
        for (int e = 0; e < TOKENS * HIDDEN; e++)
            rows[e] *= scales[i];
        x = (matrix){ .rows = TOKENS, .cols = HIDDEN, .dtype = IMBREX_F32, .data = rows };
        compute(IMBREX_F32);
        mlp_error error = compare(IMBREX_F32);
        assert_true(mlp_check_passed(&error, IMBREX_F32));
        for (int e = 0; e < ELEMENTS; e++)
            wide[e] = 0;
        error = compare(IMBREX_F32);
        assert_true(mlp_check_passed(&error, IMBREX_F32) == (scales[i] < 1e-25F));
        wide[1234] = 1e-30F;
        error = compare(IMBREX_F32);
        assert_false(mlp_check_passed(&error, IMBREX_F32));
    }
    make_input(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_result_passes),
        cmocka_unit_test(one_wrong_element_fails),
        cmocka_unit_test(a_large_token_hides_nothing),
        cmocka_unit_test(nan_fails_wherever_it_stands),
        cmocka_unit_test(another_activation_fails),
        cmocka_unit_test(a_bias_left_out_fails),
        cmocka_unit_test(a_large_bias_is_a_term_of_the_sum),
        cmocka_unit_test(what_x_holds_is_not_blamed_on_y),
        cmocka_unit_test(what_the_weights_hold_is_not_blamed_on_y),
        cmocka_unit_test(what_the_dtype_cannot_hold_fails),
        cmocka_unit_test(underflow_is_no_error),
    };
    return cmocka_run_group_tests_name("mlp_check", tests, make_input, NULL);
}
