/* gate_cases.c - as the header says.  Logits are of a coarse grid, so that many are equal: then ids
 * are certain.  Where two keys are nearly but not quite equal, float32 may order them otherwise
 * than float64: such tokens are counted, and must be less than a quarter. */
#include "gate_cases.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"
#include "sanitized.h"

enum { EXPERTS = 1024, PLACES = 64, TOKENS = 37, GUARD = 64, GUARD_BYTE = 0xa5 };
enum { LOGITS = TOKENS * EXPERTS * 4, OUTPUT = TOKENS * PLACES * 4 + 2 * GUARD };

/* A rank's memory on the device, and on the host. */
typedef struct bench {
    imbrex_group *group;
    char *logits, *bias, *ids, *weights; /* of the device; outputs with guards */
    char *host_logits, *host_ids, *host_weights;
    float host_bias[EXPERTS];
    int tokens, doubtful;
} bench;

/* Of one token, in float64. */
typedef struct token {
    const imbrex_gate *gate;
    double logit[EXPERTS], score[EXPERTS], key[EXPERTS];
    bool out[EXPERTS]; /* in no chosen group, or chosen */
    bool biased, doubtful;
} token;

static void find_scores(token *t, const float *bias)
{
    int experts = t->gate->experts;
    double most = -INFINITY, sum = 0;
    for (int e = 0; e < experts; e++)
        most = fmax(most, t->logit[e]);
    for (int e = 0; e < experts; e++) {
        t->score[e] = t->gate->sigmoid ? 1 / (1 + exp(-t->logit[e])) : exp(t->logit[e] - most);
        sum += t->score[e];
    }
    for (int e = 0; e < experts; e++) {
        t->score[e] /= t->gate->sigmoid ? 1 : sum;
        t->key[e] = bias ? t->score[e] + (double)bias[e] : t->logit[e];
    }
}

static bool is_near(double x, double y)
{
    return x != y && fabs(x - y) < 1e-5 * (fabs(x) + fabs(y));
}

static int best_expert(token *t, int first, int count)
{
    int found = -1;
    for (int e = first; e < first + count; e++) {
        if (!t->out[e] && (found < 0 || t->key[e] > t->key[found]))
            found = e;
    }
    for (int e = first; e < first + count; e++)
        t->doubtful = t->doubtful ||
                      (found >= 0 && t->biased && !t->out[e] && is_near(t->key[e], t->key[found]));
    return found;
}

static double rate_group(token *t, int first, int count)
{
    const double *worth = t->biased ? t->key : t->score;
    int one = best_expert(t, first, count), two = -1;
    if (t->gate->group_best < 2)
        return t->key[one];
    t->out[one] = true;
    two = best_expert(t, first, count);
    t->out[one] = false;
    return worth[one] + (two < 0 ? 0 : worth[two]);
}

static void drop_groups(token *t)
{
    int groups = t->gate->groups, count = t->gate->experts / groups;
    double rated[EXPERTS];
    bool chosen[EXPERTS] = { false };
    for (int g = 0; g < groups; g++)
        rated[g] = rate_group(t, g * count, count);
    for (int i = 0; i < t->gate->top_groups; i++) {
        int found = -1;
        for (int g = 0; g < groups; g++) {
            if (!chosen[g] && (found < 0 || rated[g] > rated[found]))
                found = g;
        }
        chosen[found] = true;
        for (int g = 0; g < groups; g++) /* sums of other numbers are equal by chance */
            t->doubtful = t->doubtful || (!chosen[g] && (t->biased || t->gate->group_best == 2) &&
                                          fabs(rated[g] - rated[found]) < 1e-5);
    }
    for (int e = 0; e < t->gate->experts; e++)
        t->out[e] = !chosen[e / count];
}

static int check_token(bench *b, const imbrex_gate *gate, bool biased, int number)
{
    const float *bias = biased ? b->host_bias : NULL;
    token t = { .gate = gate, .biased = biased };
    int places[PLACES];
    double sum = 0;
    for (int e = 0; e < gate->experts; e++)
        t.logit[e] = element_get(gate->dtype, b->host_logits, number * gate->experts + e);
    find_scores(&t, bias);
    if (gate->groups)
        drop_groups(&t);
    for (int i = 0; i < gate->top_k; i++) {
        places[i] = best_expert(&t, 0, gate->experts);
        t.out[places[i]] = true;
        sum += t.score[places[i]];
    }
    b->tokens++;
    b->doubtful += t.doubtful;
    for (int i = 0; i < gate->top_k && !t.doubtful; i++) {
        int at = number * gate->top_k + i;
        int32_t id;
        float have;
        double want = t.score[places[i]] / (gate->renormalize ? sum : 1) *
                      (gate->scale != 0 ? (double)gate->scale : 1);
        memcpy(&id, b->host_ids + GUARD + 4 * at, 4);
        memcpy(&have, b->host_weights + GUARD + 4 * at, 4);
        RANK_CHECK(id == places[i], "%d experts, place %d of token %d: expert %d, want %d",
                   gate->experts, i, number, id, places[i]);
        RANK_CHECK(fabs((double)have - want) <= 1e-5 * want + 1e-37,
                   "place %d of token %d: weight %.9g, want %.9g", i, number, (double)have, want);
    }
    return 0;
}

static int run_case(bench *b, const imbrex_gate *gate, bool biased, int tokens)
{
    size_t logits = (size_t)(tokens * gate->experts) * element_bytes(gate->dtype);
    size_t out = (size_t)(tokens * gate->top_k) * 4 + 2 * GUARD;
    memset(b->host_ids, GUARD_BYTE, out);
    memset(b->host_weights, GUARD_BYTE, out);
    RANK_OK(imbrex_copy(b->group, b->logits, b->host_logits, logits, NULL));
    RANK_OK(imbrex_copy(b->group, b->bias, b->host_bias, sizeof b->host_bias, NULL));
    RANK_OK(imbrex_copy(b->group, b->ids, b->host_ids, out, NULL));
    RANK_OK(imbrex_copy(b->group, b->weights, b->host_weights, out, NULL));
    RANK_OK(imbrex_topk_gate(b->group, gate, tokens, b->logits, biased ? (float *)b->bias : NULL,
                             (int32_t *)(b->ids + GUARD), (float *)(b->weights + GUARD), NULL));
    RANK_OK(imbrex_copy(b->group, b->host_ids, b->ids, out, NULL));
    RANK_OK(imbrex_copy(b->group, b->host_weights, b->weights, out, NULL));
    RANK_OK(imbrex_stream_sync(b->group, NULL));
    for (size_t i = 0; i < GUARD; i++)
        RANK_CHECK((unsigned char)b->host_ids[i] == GUARD_BYTE &&
                       (unsigned char)b->host_ids[out - 1 - i] == GUARD_BYTE &&
                       (unsigned char)b->host_weights[i] == GUARD_BYTE &&
                       (unsigned char)b->host_weights[out - 1 - i] == GUARD_BYTE,
                   "something was written beside ids or weights");
    return 0;
}

static int every_kind(bench *b)
{
    static const struct {
        int experts, top_k, groups, top_groups, group_best;
        float scale;
    } shapes[] = {
        { 1, 1, 0, 0, 0, 0 },      { 2, 2, 0, 0, 0, 0 },       { 8, 2, 0, 0, 0, 0 },
        { 60, 4, 0, 0, 0, 2.5f },  { 128, 8, 0, 0, 0, 0 },     { 64, 6, 8, 3, 1, 16 },
        { 256, 8, 8, 4, 2, 2.5f }, { 512, 64, 0, 0, 0, 0.5f }, { 512, 10, 64, 5, 2, 0 },
        { 33, 33, 0, 0, 0, 0 },    { 40, 5, 40, 7, 2, 0 },     { 1024, 8, 1, 1, 1, 0 },
    };
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    for (int i = 0; i < SHAPES * 3 * 8; i++) {
        int s = i / 24, tokens = i % 7 ? TOKENS : 1;
        bool biased = i % 2;
        if (SANITIZED && i / 8 % 3 != (i % 8 + s) % 3)
            continue; /* dtypes in turns: others are the same steps */
        imbrex_gate gate = { .experts = shapes[s].experts,
                             .top_k = shapes[s].top_k,
                             .groups = shapes[s].groups,
                             .top_groups = shapes[s].top_groups,
                             .group_best = shapes[s].group_best,
                             .scale = shapes[s].scale,
                             .sigmoid = i / 2 % 2,
                             .renormalize = i / 4 % 2,
                             .dtype = (imbrex_dtype)(IMBREX_BF16 + i / 8 % 3) };
        for (int e = 0; e < tokens * gate.experts; e++)
            element_set(gate.dtype, b->host_logits, e, rint(8 * input_value(IMBREX_F32, i, e)) / 4);
        for (int e = 0; e < EXPERTS; e++)
            b->host_bias[e] = (float)rint(2 * input_value(IMBREX_F32, 500 + i, e)) / 4;
        if (run_case(b, &gate, biased, tokens))
            return 1;
        for (int t = 0; t < tokens; t++)
            if (check_token(b, &gate, biased, t))
                return 1;
    }
    RANK_CHECK(4 * b->doubtful < b->tokens, "%d of %d tokens are doubtful", b->doubtful, b->tokens);
    return 0;
}

/* The scores of far apart logits are equal in float32, 0 or 1; without bias ids tell them apart. */
static int far_apart(bench *b)
{
    static const float logits[] = { -300, -200, 90, 80, -250, 80 };
    static const int32_t want[] = { 2, 3, 5, 1, 4, 0 };
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        imbrex_gate gate = {
            .experts = 6, .top_k = 6, .sigmoid = sigmoid, .dtype = IMBREX_F32, .renormalize = 1
        };
        memcpy(b->host_logits, logits, sizeof logits);
        if (run_case(b, &gate, false, 1))
            return 1;
        RANK_CHECK(memcmp(b->host_ids + GUARD, want, sizeof want) == 0, "other ids");
    }
    return 0;
}

/* Of scores that are all 0 no weight becomes a NaN. */
static int sum_of_none(bench *b)
{
    static const float logits[] = { -200, -200, -200 }, want[] = { 0, 0 };
    imbrex_gate gate = {
        .experts = 3, .top_k = 2, .sigmoid = 1, .renormalize = 1, .dtype = IMBREX_F32
    };
    memcpy(b->host_logits, logits, sizeof logits);
    if (run_case(b, &gate, false, 1))
        return 1;
    RANK_CHECK(memcmp(b->host_weights + GUARD, want, sizeof want) == 0, "a weight is not 0");
    return 0;
}

/* The middle one of three tokens; its neighbours are as without it. */
static int no_numbers(bench *b)
{
    static const struct {
        float logit, bias, others;
        int sigmoid;
        bool numbers;
    } rows[] = {
        { NAN, 0, 1, 0, false },
        { NAN, 0, 1, 1, false },
        { INFINITY, 0, 1, 0, false },
        { INFINITY, 0, 1, 1, true },
        { -INFINITY, 0, 1, 0, true },
        { -INFINITY, 0, 1, 1, true },
        { -INFINITY, 0, -INFINITY, 0, false },
        { -INFINITY, 0, -INFINITY, 1, true },
    };
    enum { MANY = 12, TOP = 3, AT = 7 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        imbrex_gate gate = { .experts = MANY,
                             .top_k = TOP,
                             .groups = 4,
                             .top_groups = 2,
                             .group_best = 2,
                             .sigmoid = rows[i].sigmoid,
                             .dtype = IMBREX_F32 };
        float logits[3 * MANY];
        int32_t ids[3 * TOP];
        float weights[3 * TOP];
        for (int e = 0; e < 3 * MANY; e++)
            logits[e] = e / MANY == 1 ? rows[i].others : (float)(e % 5);
        logits[MANY + AT] = rows[i].logit;
        memcpy(b->host_logits, logits, sizeof logits);
        if (run_case(b, &gate, false, 3))
            return 1;
        memcpy(ids, b->host_ids + GUARD, sizeof ids);
        memcpy(weights, b->host_weights + GUARD, sizeof weights);
        for (int p = 0; p < TOP; p++) {
            bool number = !isnan(weights[TOP + p]);
            RANK_CHECK(number == rows[i].numbers, "row %zu, place %d: weight %g", i, p,
                       (double)weights[TOP + p]);
            RANK_CHECK(number ? ids[TOP + p] >= 0 && ids[TOP + p] < MANY : ids[TOP + p] == p,
                       "row %zu, place %d: expert %d", i, p, ids[TOP + p]);
        }
        if (check_token(b, &gate, false, 0) || check_token(b, &gate, false, 2))
            return 1;
    }
    return 0;
}

static int bias_without_end(bench *b)
{
    for (int i = 0; i < 3; i++) {
        imbrex_gate gate = { .experts = 4, .top_k = 2, .dtype = IMBREX_F32 };
        memset(b->host_logits, 0, 4 * sizeof(float));
        for (int e = 0; e < 4; e++)
            b->host_bias[e] = 0;
        b->host_bias[1] = i == 0 ? NAN : i == 1 ? INFINITY : -INFINITY;
        float weight;
        if (run_case(b, &gate, true, 1))
            return 1;
        memcpy(&weight, b->host_weights + GUARD, sizeof weight);
        RANK_CHECK(isnan(weight), "bias %g: weight %g", (double)b->host_bias[1], (double)weight);
    }
    return 0;
}

int gate_cases(imbrex_group *group, void *ctx)
{
    (void)ctx;
    bench *b = calloc(1, sizeof *b);
    b->group = group;
    b->host_logits = malloc(LOGITS);
    b->host_ids = malloc(OUTPUT);
    b->host_weights = malloc(OUTPUT);
    RANK_OK(imbrex_mem_alloc(group, LOGITS, (void **)&b->logits));
    RANK_OK(imbrex_mem_alloc(group, sizeof b->host_bias, (void **)&b->bias));
    RANK_OK(imbrex_mem_alloc(group, OUTPUT, (void **)&b->ids));
    RANK_OK(imbrex_mem_alloc(group, OUTPUT, (void **)&b->weights));
    int failed =
        every_kind(b) || far_apart(b) || sum_of_none(b) || no_numbers(b) || bias_without_end(b);
    free(b->host_logits);
    free(b->host_ids);
    free(b->host_weights);
    free(b);
    return failed;
}
