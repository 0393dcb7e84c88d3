/* choice.c - whether a token's experts are those that its scores in float64 give. */
#include <math.h>
#include <stdbool.h>

#include "mlp.h"

enum { MOST = 1024 };

/* A number, and how far off it may be in float32. */
typedef struct unsure {
    double is, by;
} unsure;

static bool surely_above(unsure a, unsure b)
{
    return a.is - a.by > b.is + b.by;
}

static unsure sum_of(unsure a, unsure b)
{
    return (unsure){ a.is + b.is, a.by + b.by };
}

/* All experts' scores, whose rounding is about 1e-7. */
static void find_scores(const imbrex_gate *gate, const double *logits, const double *by,
                        unsure *score)
{
    double most = -INFINITY, sum = 0, worst = 0;
    for (int e = 0; e < gate->experts; e++) {
        most = fmax(most, logits[e]);
        worst = fmax(worst, by[e]);
    }
    for (int e = 0; e < gate->experts; e++)
        sum += exp(logits[e] - most);
    for (int e = 0; e < gate->experts; e++) {
        double soft = exp(logits[e] - most) / sum;
        score[e] = gate->sigmoid ? (unsure){ 1 / (1 + exp(-logits[e])), by[e] / 4 + 2e-7 }
                                 : (unsure){ soft, 2 * soft * worst + 2e-7 };
    }
}

static unsure score_of_group(const imbrex_gate *gate, const unsure *key, const unsure *score,
                             const float *correction, int group)
{
    const int each = gate->experts / gate->groups;
    const unsure *from = gate->group_best == 2 && !correction ? score : key;
    unsure first = { -INFINITY, 0 }, second = first;
    for (int e = group * each; e < (group + 1) * each; e++) {
        if (from[e].is > first.is) {
            second = first;
            first = from[e];
        } else if (from[e].is > second.is) {
            second = from[e];
        }
    }
    return gate->group_best == 2 && each > 1 ? sum_of(first, second) : first;
}

/* surely: experts of this group count; maybe: float32 may let them. */
static void find_groups(const imbrex_gate *gate, const unsure *key, const unsure *score,
                        const float *correction, bool *surely, bool *maybe)
{
    static _Thread_local unsure of[MOST];
    if (!gate->groups) {
        surely[0] = maybe[0] = true;
        return;
    }
    for (int g = 0; g < gate->groups; g++)
        of[g] = score_of_group(gate, key, score, correction, g);
    for (int g = 0; g < gate->groups; g++) {
        int above = 0, not_below = 0;
        for (int other = 0; other < gate->groups; other++) {
            above += surely_above(of[other], of[g]);
            not_below += other != g && !surely_above(of[g], of[other]);
        }
        maybe[g] = above < gate->top_groups;
        surely[g] = not_below < gate->top_groups;
    }
}

static int group_of(const imbrex_gate *gate, int expert)
{
    return gate->groups ? expert / (gate->experts / gate->groups) : 0;
}

/* Distinct experts, the best first. */
static bool in_order(const imbrex_gate *gate, const unsure *key, const int32_t *ids, bool *chosen)
{
    for (int i = 0; i < gate->top_k; i++) {
        if (ids[i] < 0 || ids[i] >= gate->experts || chosen[ids[i]])
            return false;
        chosen[ids[i]] = true;
        if (i > 0 && surely_above(key[ids[i]], key[ids[i - 1]]))
            return false;
    }
    return true;
}

static bool is_right(const imbrex_gate *gate, const unsure *key, const unsure *score,
                     const float *correction, const int32_t *ids)
{
    bool surely[MOST], maybe[MOST], touched[MOST] = { false }, chosen[MOST] = { false };
    int groups = 0;
    if (!in_order(gate, key, ids, chosen))
        return false;
    find_groups(gate, key, score, correction, surely, maybe);
    for (int i = 0; i < gate->top_k; i++) {
        int g = group_of(gate, ids[i]);
        if (!maybe[g])
            return false;
        groups += !touched[g];
        touched[g] = true;
    }
    if (gate->groups && groups > gate->top_groups)
        return false;
    for (int e = 0; e < gate->experts; e++) {
        int g = group_of(gate, e);
        if (chosen[e] || !(surely[g] || touched[g]))
            continue;
        for (int i = 0; i < gate->top_k; i++)
            if (surely_above(key[e], key[ids[i]]))
                return false;
    }
    return true;
}

mlp_verdict mlp_judge(const imbrex_gate *gate, const double *logits, const double *by,
                      const float *correction, const int32_t *ids, double *right)
{
    static _Thread_local unsure key[MOST], score[MOST]; /* too much for a stack */
    double sum = 0, scale = gate->scale != 0 ? (double)gate->scale : 1;
    bool is_number = true;
    find_scores(gate, logits, by, score);
    for (int e = 0; e < gate->experts; e++)
        is_number = is_number && !isnan(score[e].is) && (!correction || isfinite(correction[e]));
    if (!is_number) {
        for (int i = 0; i < gate->top_k; i++)
            right[i] = (double)NAN;
        return MLP_CHOSE_SAME;
    }
    for (int e = 0; e < gate->experts; e++) {
        double add = correction ? (double)correction[e] : 0;
        key[e] = correction ? (unsure){ score[e].is + add, score[e].by + 2e-7 * fabs(add) }
                            : (unsure){ logits[e], by[e] };
    }
    if (!is_right(gate, key, score, correction, ids)) {
        for (int i = 0; i < gate->top_k; i++)
            right[i] = 0;
        return MLP_STRAYED;
    }
    for (int i = 0; i < gate->top_k; i++)
        sum += right[i] = score[ids[i]].is;
    for (int i = 0; i < gate->top_k; i++)
        right[i] *= (gate->renormalize && sum != 0 ? 1 / sum : 1) * scale;
    for (int e = 0; e < gate->experts; e++)
        key[e].by = score[e].by = 0;
    return is_right(gate, key, score, correction, ids) ? MLP_CHOSE_SAME : MLP_CHOSE_NEAR;
}
