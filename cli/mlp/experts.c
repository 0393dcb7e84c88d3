/* experts.c - finds the experts of a layer by their names, as Mixtral, Qwen2-MoE, Qwen3-MoE and
 * DeepSeek have them, and refuses what it does not know. */
#include "mlp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = MLP_LAYER_PREFIX + 64, MOST = 1024 };
enum { GATE, UP, DOWN, PROJECTIONS };

/* By what stands before them. */
static const struct {
    const char *part, *names[PROJECTIONS];
} namings[] = {
    { "block_sparse_moe.", { "w1", "w3", "w2" } },
    { "mlp.", { "gate_proj", "up_proj", "down_proj" } },
};

static const char *const shared_names[] = { "shared_expert.", "shared_experts." };

/* A layer while its tensors are looked up. */
typedef struct finding {
    checkpoint *from;
    int layer;
    const char *prefix, *const *names; /* names: [PROJECTIONS] */
    const char *shared;                /* "shared_expert."; NULL: there is none */
    bool fp8;                          /* weights have 8 bits, and scales */
} finding;

void mlp_experts_free(mlp_experts *experts)
{
    free(experts->list);
    experts->list = NULL;
}

/* ---- Names ----------------------------------------------------------------------------------- */

static bool is_weight(const char *rest, const char *const *names, bool fp8)
{
    if (fp8 && mlp_fp8_knows(rest, names))
        return true;
    for (int i = 0; i < PROJECTIONS; i++) {
        size_t length = strlen(names[i]);
        if (strncmp(rest, names[i], length) == 0 && strcmp(rest + length, ".weight") == 0)
            return true;
    }
    return false;
}

/* The number of the expert whose weight this is, or -1. */
static int expert_of(const char *rest, const char *const *names, bool fp8)
{
    char again[32];
    int expert, end = 0;
    if (sscanf(rest, "experts.%9d.%n", &expert, &end) != 1 || !end)
        return -1;
    snprintf(again, sizeof again, "experts.%d.", expert); /* not experts.01. */
    return strncmp(rest, again, strlen(again)) == 0 && is_weight(rest + end, names, fp8) ? expert
                                                                                         : -1;
}

static bool is_known(const char *rest, const char *const *names, bool fp8)
{
    const char *const *projections = namings[1].names;
    if (strcmp(rest, "gate.weight") == 0 || strcmp(rest, "gate.e_score_correction_bias") == 0 ||
        strcmp(rest, "shared_expert_gate.weight") == 0)
        return true;
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(shared_names[i]);
        if (strncmp(rest, shared_names[i], length) == 0 &&
            is_weight(rest + length, projections, fp8))
            return true;
    }
    return expert_of(rest, names, fp8) >= 0;
}

/* Why experts are not computed that have such a tensor; NULL: its name is none of theirs. */
static const char *says_of(const char *rest)
{
    if (strstr(rest, "bias"))
        return "experts with biases are not computed";
    if (strstr(rest, "scale"))
        return "experts whose weights are quantised are not computed: convert them to BF16, F16 "
               "or F32";
    if (strcmp(rest, "experts.gate_up_proj") == 0 || strcmp(rest, "experts.down_proj") == 0)
        return "all experts lie in one tensor: give each its own, experts.0.gate_proj.weight and "
               "so on";
    return NULL;
}

/* All names below the prefix are known; *count: one more than the highest number of an expert. */
static bool check_names(finding *f, int *count, st_error *error)
{
    size_t length = strlen(f->prefix);
    const char *other = NULL;
    *count = 0;
    for (size_t i = 0; i < checkpoint_count(f->from); i++) {
        const char *name = checkpoint_name(f->from, i), *rest = name + length;
        if (strncmp(name, f->prefix, length) != 0)
            continue;
        int expert = expert_of(rest, f->names, f->fp8);
        if (expert >= *count)
            *count = expert + 1;
        for (int k = 0; k < 2; k++) {
            if (strncmp(rest, shared_names[k], strlen(shared_names[k])) != 0)
                continue;
            other = f->shared && f->shared != shared_names[k] ? name : other;
            f->shared = shared_names[k];
        }
        if (is_known(rest, f->names, f->fp8))
            continue;
        const char *says = says_of(rest);
        return says ? st_fail(error, "%s: layer %d has the tensor %.120s: %s",
                              st_path_tail(checkpoint_holder(f->from, name)), f->layer, name, says)
                    : mlp_layer_refuse(f->from, f->layer, name, error);
    }
    if (other)
        return st_fail(error,
                       "%s: layer %d has %.120s, and others below %s: name a file with one of both",
                       st_path_tail(checkpoint_holder(f->from, other)), f->layer, other,
                       strstr(other, shared_names[0]) ? shared_names[1] : shared_names[0]);
    return *count <= MOST ||
           st_fail(error, "%s: layer %d has an expert %d: at most %d experts are computed",
                   st_path_tail(checkpoint_path(f->from)), f->layer, *count - 1, MOST);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

static bool fail_shape(const finding *f, const char *name, const matrix *one, int64_t rows,
                       int64_t cols, const char *why, st_error *error)
{
    return st_fail(error,
                   "%s: layer %d: %.120s is [%" PRId64 ", %" PRId64 "], but it must be [%" PRId64
                   ", %" PRId64 "]: %s",
                   st_path_tail(checkpoint_holder(f->from, name)), f->layer, name, one->rows,
                   one->cols, rows, cols, why);
}

/* Gate, up and down below `below`, "experts.3."; hidden and ffn: what they must have; 0: what the
 * gate has. */
static bool read_three(finding *f, const char *below, const char *const *names, int64_t hidden,
                       int64_t ffn, const char *why, mlp_weights *out, st_error *error)
{
    matrix *const to[] = { &out->gate, &out->up, &out->down };
    char name[NAME_BYTES];
    for (int i = 0; i < PROJECTIONS; i++) {
        snprintf(name, sizeof name, "%s%s%s.weight", f->prefix, below, names[i]);
        if (!checkpoint_has(f->from, name))
            return st_fail(error, "%s: layer %d has no tensor %.120s: is the checkpoint whole?",
                           st_path_tail(checkpoint_path(f->from)), f->layer, name);
        if (!(f->fp8 ? mlp_fp8_matrix : checkpoint_matrix)(f->from, name, to[i], error))
            return false;
        hidden = hidden ? hidden : out->gate.cols;
        ffn = ffn ? ffn : out->gate.rows;
        int64_t rows = i == DOWN ? hidden : ffn, cols = i == DOWN ? ffn : hidden;
        if (to[i]->rows != rows || to[i]->cols != cols)
            return fail_shape(f, name, to[i], rows, cols, why, error);
    }
    out->hidden = hidden;
    out->ffn = ffn;
    return mlp_layer_fits(f->from, f->layer, out, error);
}

static bool read_experts(finding *f, mlp_experts *x, st_error *error)
{
    x->list = calloc((size_t)x->count, sizeof *x->list);
    if (!x->list)
        return st_fail(error, "no memory is left for %d experts", x->count);
    for (int e = 0; e < x->count; e++) {
        mlp_weights *one = &x->list[e], *first = &x->list[0];
        char below[32];
        snprintf(below, sizeof below, "experts.%d.", e);
        if (!read_three(f, below, f->names, first->hidden, first->ffn,
                        "an expert's tensors fit each other, and all experts are alike", one,
                        error))
            return false;
        const matrix *parts[] = { &one->gate, &one->up, &one->down };
        for (int i = 0; i < PROJECTIONS; i++)
            if (parts[i]->dtype != first->gate.dtype) /* not of 8 bits: those are alike */
                return st_fail(error,
                               "%s: layer %d: %s%s is %s, but experts.0.%s is %s: convert them to "
                               "one dtype",
                               st_path_tail(checkpoint_path(f->from)), f->layer, below, f->names[i],
                               st_dtype_name(st_dtype_of(parts[i]->dtype)), f->names[GATE],
                               st_dtype_name(st_dtype_of(first->gate.dtype)));
    }
    return true;
}

/* Experts are counted by their tensors; the router knows of more. */
static bool fail_missing(const finding *f, int expert, const char *router, int64_t rows,
                         st_error *error)
{
    return st_fail(error,
                   "%s: layer %d has no tensor %sexperts.%d.%s.weight, but %.120s has rows for "
                   "%" PRId64 " experts: is the checkpoint whole?",
                   st_path_tail(checkpoint_path(f->from)), f->layer, f->prefix, expert,
                   f->names[GATE], router, rows);
}

static bool read_router(finding *f, mlp_experts *x, st_error *error)
{
    const int64_t hidden = x->list[0].hidden;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%sgate.weight", f->prefix);
    if (!checkpoint_matrix(f->from, name, &x->router, error))
        return false;
    if (x->router.rows > x->count && x->router.cols == hidden)
        return fail_missing(f, x->count, name, x->router.rows, error);
    if (x->router.rows != x->count || x->router.cols != hidden)
        return fail_shape(f, name, &x->router, x->count, hidden,
                          "a row for each expert that is there", error);
    snprintf(name, sizeof name, "%sgate.e_score_correction_bias", f->prefix);
    if (!checkpoint_has(f->from, name))
        return true;
    if (!checkpoint_vector(f->from, name, &x->correction, error))
        return false;
    return x->correction.cols == x->count ||
           fail_shape(f, name, &x->correction, 1, x->count, "a number for each expert", error);
}

static bool read_shared(finding *f, mlp_experts *x, st_error *error)
{
    const int64_t hidden = x->list[0].hidden;
    char name[NAME_BYTES];
    if (f->shared && !read_three(f, f->shared, namings[1].names, hidden, 0,
                                 "it fits the experts' hidden size", &x->shared, error))
        return false;
    snprintf(name, sizeof name, "%sshared_expert_gate.weight", f->prefix);
    if (!checkpoint_has(f->from, name))
        return true;
    if (!f->shared)
        return st_fail(error, "%s: layer %d has %.120s, but no shared expert",
                       st_path_tail(checkpoint_holder(f->from, name)), f->layer, name);
    if (!checkpoint_matrix(f->from, name, &x->shared_gate, error))
        return false;
    return (x->shared_gate.rows == 1 && x->shared_gate.cols == hidden) ||
           fail_shape(f, name, &x->shared_gate, 1, hidden, "one number a token comes of it", error);
}

bool mlp_experts_find(checkpoint *from, const char *model, int layer, mlp_experts *experts,
                      char *prefix, st_error *error)
{
    finding f = { .from = from, .layer = layer, .prefix = prefix, .names = namings[1].names };
    mlp_experts x = { 0 };
    *experts = x;
    if (!mlp_layer_prefix(from, model, layer, prefix, error))
        return false;
    size_t length = strlen(prefix), part = strlen(namings[0].part);
    if (length >= part && strcmp(prefix + length - part, namings[0].part) == 0)
        f.names = namings[0].names;
    char first[NAME_BYTES];
    snprintf(first, sizeof first, "%sexperts.0.", prefix);
    f.fp8 = mlp_fp8_is(from, first, f.names[DOWN]);
    if (!check_names(&f, &x.count, error))
        return false;
    if (x.count == 0)
        return st_fail(error, "%s: layer %d has a router or a shared expert, but no %sexperts.0",
                       st_path_tail(checkpoint_path(from)), layer, prefix);
    bool good = read_experts(&f, &x, error) && read_router(&f, &x, error) &&
                read_shared(&f, &x, error) && checkpoint_all_listed(from, prefix, error);
    *experts = x; /* the list is freed by the caller */
    return good;
}

/* ---- Scales ---------------------------------------------------------------------------------- */

bool mlp_experts_are_fp8(const mlp_experts *x)
{
    return x->list[0].down.dtype == IMBREX_E4M3;
}

bool mlp_experts_scales(checkpoint *from, const char *prefix, const mlp_fp8 *how, mlp_experts *x,
                        st_error *error)
{
    char below[NAME_BYTES];
    size_t length = strlen(prefix), part = strlen(namings[0].part);
    bool block = length >= part && strcmp(prefix + length - part, namings[0].part) == 0;
    if (how->fixed)
        return st_fail(error,
                       "%s: experts whose activations have scales in the checkpoint (static) are "
                       "not computed, only those quantised as they come (dynamic)",
                       st_path_tail(checkpoint_path(from)));
    for (int e = 0; e < x->count; e++) {
        snprintf(below, sizeof below, "%sexperts.%d.", prefix, e);
        x->list[e].fp8 = *how;
        if (!mlp_fp8_find(from, below, namings[block ? 0 : 1].names, &x->list[e], error))
            return false;
    }
    for (int i = 0; i < 2 && x->shared.ffn; i++) {
        snprintf(below, sizeof below, "%s%s", prefix, shared_names[i]);
        if (!mlp_fp8_is(from, below, namings[1].names[DOWN]))
            continue;
        x->shared.fp8 = *how;
        if (!mlp_fp8_find(from, below, namings[1].names, &x->shared, error))
            return false;
    }
    return true;
}
