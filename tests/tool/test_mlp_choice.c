/* test_mlp_choice.c - how `imbrex mlp --check` judges the experts that a token chose: float64's are
 * right, those of nearly equal scores too, and no others; and what it makes of weights and y. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mlp/mlp.h"

enum { EXPERTS = 8, HIDDEN = 24, FFN = 20, TOKENS = 50, TOP_K = 3 };

static const imbrex_gate plain = { .experts = EXPERTS, .top_k = 2, .dtype = IMBREX_F32 };
static const double sharp[EXPERTS]; /* nothing is unsure */

static mlp_verdict judge(const imbrex_gate *gate, const double *logits, double unsure,
                         const float *correction, int first, int second, double *right)
{
    double by[EXPERTS];
    const int32_t ids[] = { first, second };
    for (int e = 0; e < EXPERTS; e++)
        by[e] = unsure;
    return mlp_judge(gate, logits, by, correction, ids, right);
}

static void the_best_are_right_and_no_others(void **state)
{
    (void)state;
    const double logits[EXPERTS] = { 0, 3, 1, 2, -1, 2 - 1e-6, -5, 0 };
    double right[2];
    assert_int_equal(judge(&plain, logits, 0, NULL, 1, 3, right), MLP_CHOSE_SAME);
    assert_int_equal(judge(&plain, logits, 0, NULL, 1, 5, right), MLP_STRAYED);
    assert_int_equal(judge(&plain, logits, 0, NULL, 3, 1, right), MLP_STRAYED); /* the best first */
    assert_int_equal(judge(&plain, logits, 0, NULL, 1, 1, right), MLP_STRAYED);
    assert_int_equal(judge(&plain, logits, 0, NULL, 1, EXPERTS, right), MLP_STRAYED);
    assert_int_equal(judge(&plain, logits, 0, NULL, -1, 1, right), MLP_STRAYED);
    assert_int_equal(judge(&plain, logits, 1e-6, NULL, 1, 5, right), MLP_CHOSE_NEAR);
    assert_int_equal(judge(&plain, logits, 1e-7, NULL, 1, 5, right), MLP_STRAYED);
    assert_int_equal(judge(&plain, logits, 1e-6, NULL, 1, 2, right), MLP_STRAYED);
}

static void weights_are_the_scores(void **state)
{
    (void)state;
    const double logits[EXPERTS] = { 0, log(4), 0, log(2), 0, 0, 0, 0 }; /* sum 12 */
    const float correction[EXPERTS] = { 0, 0, 5, 0, 0, 0, 0, 0 };
    imbrex_gate gate = plain;
    double right[2];
    judge(&gate, logits, 0, NULL, 1, 3, right);
    assert_true(fabs(right[0] - 4.0 / 12) < 1e-12 && fabs(right[1] - 2.0 / 12) < 1e-12);
    gate.renormalize = 1;
    gate.scale = 3;
    judge(&gate, logits, 0, NULL, 1, 3, right);
    assert_true(fabs(right[0] - 2) < 1e-12 && fabs(right[1] - 1) < 1e-12);
    gate = (imbrex_gate){ .experts = EXPERTS, .top_k = 2, .sigmoid = 1 };
    assert_int_equal(judge(&gate, logits, 0, correction, 1, 2, right), MLP_STRAYED);
    assert_int_equal(judge(&gate, logits, 0, correction, 2, 1, right), MLP_CHOSE_SAME);
    assert_true(fabs(right[0] - 0.5) < 1e-12 && fabs(right[1] - 0.8) < 1e-12);
}

static void groups_bound_the_choice(void **state)
{
    (void)state;
    imbrex_gate gate = plain;
    double right[2];
    /* Four groups of two; the best expert's is the best by one, but not by two together. */
    const double logits[EXPERTS] = { 3, -3, 1.9, 2, 2.5, -1, 0, 0 };
    const float none[EXPERTS] = { 0 };
    gate.groups = 4;
    gate.top_groups = 1;
    gate.group_best = 1;
    assert_int_equal(judge(&gate, logits, 0, NULL, 0, 1, right), MLP_CHOSE_SAME);
    assert_int_equal(judge(&gate, logits, 0, NULL, 0, 4, right), MLP_STRAYED);
    gate.sigmoid = 1;
    gate.group_best = 2;
    assert_int_equal(judge(&gate, logits, 0, none, 3, 2, right), MLP_CHOSE_SAME);
    assert_int_equal(judge(&gate, logits, 0, none, 0, 1, right), MLP_STRAYED);
    gate.top_groups = 2; /* and the one with 2.5 and -1 */
    assert_int_equal(judge(&gate, logits, 0, none, 4, 3, right), MLP_CHOSE_SAME);
    assert_int_equal(judge(&gate, logits, 0, none, 3, 2, right), MLP_STRAYED);
    /* Two groups that are nearly equal: either will do, not a third one. */
    const double close[EXPERTS] = { 1, 1 - 1e-7, 1, 1, 0.9, 0.9, 0, 0 };
    gate.top_groups = 1;
    assert_int_equal(judge(&gate, close, 1e-6, none, 2, 3, right), MLP_CHOSE_SAME);
    assert_int_equal(judge(&gate, close, 1e-6, none, 0, 1, right), MLP_CHOSE_NEAR);
    assert_int_equal(judge(&gate, close, 1e-6, none, 4, 5, right), MLP_STRAYED);
}

static void a_token_without_numbers_is_nobodys_fault(void **state)
{
    (void)state;
    double logits[EXPERTS] = { 0, (double)NAN }, right[2];
    const int32_t ids[] = { 0, 1 };
    assert_int_equal(mlp_judge(&plain, logits, sharp, NULL, ids, right), MLP_CHOSE_SAME);
    assert_true(isnan(right[0]) && isnan(right[1]));
    float correction[EXPERTS] = { [5] = (float)NAN };
    assert_int_equal(mlp_judge(&plain, sharp, sharp, correction, ids, right), MLP_CHOSE_SAME);
    assert_true(isnan(right[0]) && isnan(right[1]));
}

/* The gate's score of such a logit is 0. */
static void an_expert_that_is_infinitely_bad_is_left_out(void **state)
{
    (void)state;
    const double out = -(double)INFINITY, logits[EXPERTS] = { 0, log(3), out, 0, 0, 0, out, 0 };
    double right[2];
    assert_int_equal(judge(&plain, logits, 0, NULL, 1, 0, right), MLP_CHOSE_SAME);
    assert_true(fabs(right[0] - 3.0 / 8) < 1e-12 && fabs(right[1] - 1.0 / 8) < 1e-12);
    assert_int_equal(judge(&plain, logits, 0, NULL, 1, 2, right), MLP_STRAYED);
}

/* ---- All of a check -------------------------------------------------------------------------- */

static mlp_reference reference;
static matrix x;
static int32_t ids[TOKENS * TOP_K];
static float weights[TOKENS * TOP_K], y[TOKENS * HIDDEN];

static double element(const matrix *from, int64_t row, int64_t col)
{
    float one;
    matrix_copy(from, row, row + 1, col, col + 1, IMBREX_F32, &one, 1);
    return (double)one;
}

static double product(const matrix *weight, int64_t token, int64_t row)
{
    double sum = 0;
    for (int64_t k = 0; k < HIDDEN; k++)
        sum += element(&x, token, k) * element(weight, row, k);
    return sum;
}

/* The layer plainly: the three largest logits, their softmax, and the experts' sums. */
static void compute_token(int64_t t)
{
    double logits[EXPERTS], sum = 0, out[HIDDEN] = { 0 };
    for (int e = 0; e < EXPERTS; e++)
        logits[e] = product(&reference.experts.router, t, e);
    for (int i = 0; i < TOP_K; i++) {
        int best = -1;
        for (int e = 0; e < EXPERTS; e++)
            if (!isnan(logits[e]) && (best < 0 || logits[e] > logits[best]))
                best = e;
        ids[t * TOP_K + i] = best;
        weights[t * TOP_K + i] = (float)exp(logits[best]);
        sum += exp(logits[best]);
        logits[best] = (double)NAN;
    }
    for (int i = 0; i < TOP_K; i++) {
        const mlp_weights *expert = &reference.experts.list[ids[t * TOP_K + i]];
        weights[t * TOP_K + i] /= (float)sum;
        for (int64_t f = 0; f < FFN; f++) {
            double gate = product(&expert->gate, t, f);
            double act = gate / (1 + exp(-gate)) * product(&expert->up, t, f);
            for (int64_t h = 0; h < HIDDEN; h++)
                out[h] += (double)weights[t * TOP_K + i] * act * element(&expert->down, h, f);
        }
    }
    for (int64_t h = 0; h < HIDDEN; h++)
        y[t * HIDDEN + h] = (float)out[h];
}

static mlp_error check(void)
{
    mlp_error error;
    const mlp_choice choice = { ids, weights };
    assert_true(mlp_check(&reference, &x, IMBREX_F32, 0, TOKENS, y, &choice, NULL, &error));
    return error;
}

static void wrong_weights_and_experts_fail(void **state)
{
    (void)state;
    reference = (mlp_reference){ .weights = shard_random_weights(HIDDEN, FFN),
                                 .experts = shard_random_experts(HIDDEN, FFN, EXPERTS, TOP_K),
                                 .activation = mlp_reference_function("silu") };
    x = shard_random_input(TOKENS, HIDDEN);
    for (int64_t t = 0; t < TOKENS; t++)
        compute_token(t);
    mlp_error error = check();
    assert_true(mlp_check_passed(&error, IMBREX_F32));
    assert_true(error.strayed == 0 && error.near == 0 && error.weight < 1);

    float kept = weights[7];
    weights[7] *= 1.001f;
    error = check();
    assert_true(error.weight > 1 && error.strayed == 0);
    assert_false(mlp_check_passed(&error, IMBREX_F32));
    weights[7] = kept;

    int32_t id = ids[TOP_K * 9 + 2]; /* the worst of token 9 becomes one that it left out */
    for (int32_t other = 0; ids[TOP_K * 9 + 2] == id; other++)
        if (other != id && other != ids[TOP_K * 9] && other != ids[TOP_K * 9 + 1])
            ids[TOP_K * 9 + 2] = other;
    error = check();
    assert_true(error.strayed == 1);
    assert_false(mlp_check_passed(&error, IMBREX_F32));
    ids[TOP_K * 9 + 2] = id;

    y[HIDDEN * 9 + 2] += 0.01f;
    error = check();
    assert_true(error.strayed == 0 && error.weight < 1);
    assert_false(mlp_check_passed(&error, IMBREX_F32));
    mlp_experts_free(&reference.experts);
}

/* In float32 that logit is -infinity.  What it may be off by must not excuse other weights. */
static void a_logit_beyond_float32_excuses_nothing(void **state)
{
    (void)state;
    static float rows[TOKENS * HIDDEN], router[EXPERTS * HIDDEN];
    reference.experts = shard_random_experts(HIDDEN, FFN, EXPERTS, TOP_K);
    matrix_copy(&x, 0, TOKENS, 0, HIDDEN, IMBREX_F32, rows, HIDDEN);
    matrix_copy(&reference.experts.router, 0, EXPERTS, 0, HIDDEN, IMBREX_F32, router, HIDDEN);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        rows[i] = fabsf(rows[i]);
    for (int h = 0; h < HIDDEN; h++)
        router[5 * HIDDEN + h] = -3e38f;
    x = (matrix){ TOKENS, HIDDEN, IMBREX_F32, rows, 0, 0 };
    reference.experts.router = (matrix){ EXPERTS, HIDDEN, IMBREX_F32, router, 0, 0 };
    for (int64_t t = 0; t < TOKENS; t++)
        compute_token(t);
    mlp_error error = check();
    assert_true(mlp_check_passed(&error, IMBREX_F32));
    assert_true(error.strayed == 0 && error.near == 0);
    weights[7] *= 1.001f;
    error = check();
    assert_false(mlp_check_passed(&error, IMBREX_F32));
    mlp_experts_free(&reference.experts);
}

static void pairs_are_counted_where_their_expert_is(void **state)
{
    (void)state;
    /* Seven experts on three ranks: 0 1 | 2 3 | 4 5 6. */
    int32_t some[] = { 0, 1, 6, 6, 4, 2, 6, -1, 9, 5 };
    mlp_expert_set set = {
        .experts = 7, .here = 3, .first = 4, .whole = true, .gate = { .experts = 7, .top_k = 2 }
    };
    int64_t by_rank[3], most;
    moe_count_pairs(&set, 3, 5, some, by_rank, &most);
    assert_true(by_rank[0] == 2 && by_rank[1] == 1 && by_rank[2] == 5 && most == 3);
    moe_keep_own(&set, 5, some);
    const int32_t own[] = { -1, -1, 2, 2, 0, -1, 2, -1, -1, 1 };
    assert_memory_equal(some, own, sizeof own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_are_right_and_no_others),
        cmocka_unit_test(weights_are_the_scores),
        cmocka_unit_test(groups_bound_the_choice),
        cmocka_unit_test(a_token_without_numbers_is_nobodys_fault),
        cmocka_unit_test(an_expert_that_is_infinitely_bad_is_left_out),
        cmocka_unit_test(wrong_weights_and_experts_fail),
        cmocka_unit_test(a_logit_beyond_float32_excuses_nothing),
        cmocka_unit_test(pairs_are_counted_where_their_expert_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
