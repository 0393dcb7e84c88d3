/* cpu.c - the gate kernel on CPU ranks: a block takes its share of the tokens. */
#include <math.h>
#include <stdbool.h>

#include "args.h"
#include "imbrex_device.h"
#include "kernels/dtype.h"

void imx_gate_cpu(const void *args, const imbrexd_block *block);

/* Of one token. */
typedef struct token {
    const imx_gate_args *args;
    float score[IMX_GATE_EXPERTS], key[IMX_GATE_EXPERTS], group[IMX_GATE_EXPERTS];
    bool is_number;
} token;

/* score = logits, then what they stand for. */
static void find_scores(token *t)
{
    int experts = t->args->experts;
    float most = -INFINITY, sum = 0;
    for (int e = 0; e < experts; e++)
        most = t->score[e] > most ? t->score[e] : most;
    for (int e = 0; e < experts; e++) {
        if (t->args->sigmoid) {
            t->score[e] = 1 / (1 + expf(-t->score[e]));
        } else {
            t->score[e] = expf(t->score[e] - most);
            sum += t->score[e];
        }
    }
    for (int e = 0; e < experts && !t->args->sigmoid; e++)
        t->score[e] /= sum;
}

static void find_keys(token *t)
{
    const float *bias = t->args->bias;
    for (int e = 0; e < t->args->experts; e++)
        t->key[e] = t->score[e]; /* the logit */
    find_scores(t);
    t->is_number = true;
    for (int e = 0; e < t->args->experts; e++) {
        t->key[e] = bias ? t->score[e] + bias[e] : t->key[e];
        t->is_number = t->is_number && !isnan(t->score[e]) && (!bias || isfinite(t->key[e]));
    }
}

/* The first of the greatest; what is NaN is out, and one is not. */
static int best(const float *key, int count)
{
    int found = -1;
    for (int i = 0; i < count; i++) {
        if (!isnan(key[i]) && (found < 0 || key[i] > key[found]))
            found = i;
    }
    return found;
}

/* How good a group is, of `count` experts from `first` on. */
static float rate_group(token *t, int first, int count)
{
    const imx_gate_args *args = t->args;
    float *key = t->key + first, *score = t->score + first;
    int one = best(key, count);
    if (args->group_best == 1)
        return key[one];
    float of_one = args->bias ? key[one] : score[one], kept = key[one];
    key[one] = NAN;
    int two = count > 1 ? best(key, count) : -1;
    key[one] = kept;
    return two < 0 ? of_one : of_one + (args->bias ? key[two] : score[two]);
}

static void drop_groups(token *t)
{
    int count = t->args->experts / t->args->groups;
    for (int g = 0; g < t->args->groups; g++)
        t->group[g] = rate_group(t, g * count, count);
    for (int i = 0; i < t->args->top_groups; i++)
        t->group[best(t->group, t->args->groups)] = NAN; /* chosen */
    for (int e = 0; e < t->args->experts; e++)
        t->key[e] = isnan(t->group[e / count]) ? t->key[e] : NAN;
}

/* Until all places are taken. */
static void choose(token *t, int32_t *ids, float *weights)
{
    const imx_gate_args *args = t->args;
    float sum = 0;
    for (int i = 0; i < args->top_k; i++) {
        int id = t->is_number ? best(t->key, args->experts) : i;
        ids[i] = id;
        weights[i] = t->is_number ? t->score[id] : NAN;
        t->key[id] = NAN;
        sum += weights[i];
    }
    for (int i = 0; i < args->top_k; i++) {
        if (args->renormalize && sum != 0)
            weights[i] /= sum;
        weights[i] *= args->scale;
    }
}

void imx_gate_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_gate_args *args = untyped;
    int64_t last = args->tokens * (block->index + 1) / block->count;
    token t = { .args = args };
    for (int64_t i = args->tokens * block->index / block->count; i < last; i++) {
        imx_dtype_widen(args->dtype, imx_dtype_at(args->dtype, args->logits, i * args->experts),
                        t.score, args->experts);
        find_keys(&t);
        if (t.is_number && args->top_groups < args->groups)
            drop_groups(&t);
        choose(&t, args->ids + i * args->top_k, args->weights + i * args->top_k);
    }
}
