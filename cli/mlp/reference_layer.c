/* reference_layer.c - reads every tensor of the layer by its name, and what config.json says of
 * them, and asks nobody what the run made of both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mlp.h"

/* Where the config is looked into: the whole, and then the language model's own part. */
enum { SECTIONS = 2 };

static const char *section_of(const model_config *config, int i)
{
    return i ? model_config_own(config) : "";
}

/* ---- A dense layer --------------------------------------------------------------------------- */

/* A matrix of any dtype that can be computed with; of one dimension a column, of none a number. */
static bool read_any(checkpoint *file, const char *name, matrix *out, st_error *error)
{
    const st_tensor *tensor;
    if (!checkpoint_tensor(file, name, &tensor, error))
        return false;
    if (tensor->rank > 2 || (tensor->dtype > ST_F32 && tensor->dtype != ST_F8_E4M3))
        return st_fail(error, "--check cannot read the tensor %.80s", name);
    *out = (matrix){ .rows = tensor->rank > 0 ? tensor->shape[0] : 1,
                     .cols = tensor->rank > 1 ? tensor->shape[1] : 1,
                     .dtype =
                         tensor->dtype == ST_F8_E4M3 ? IMBREX_E4M3 : st_dtype_imbrex(tensor->dtype),
                     .data = tensor->data };
    return true;
}

/* gate_up_proj: up is its lower half. */
static bool read_fused(checkpoint *file, const char *name, mlp_weights *to, st_error *error)
{
    if (!checkpoint_matrix(file, name, &to->gate, error))
        return false;
    to->gate.rows /= 2;
    to->up = to->gate;
    to->up.data = (const char *)to->gate.data +
                  to->gate.rows * to->gate.cols * matrix_dtype_bytes(to->gate.dtype);
    return true;
}

static bool read_tensor(checkpoint *file, const char *name, const char *rest, mlp_weights *to,
                        st_error *error)
{
    static const char *const projections[] = { "gate_proj.", "up_proj.", "down_proj." };
    matrix *const weights[] = { &to->gate, &to->up, &to->down };
    matrix *const biases[] = { &to->gate_bias, &to->up_bias, &to->down_bias };
    matrix *const scales[] = { &to->fp8.gate, &to->fp8.up, &to->fp8.down };
    if (strcmp(rest, "gate_up_proj.weight") == 0)
        return read_fused(file, name, to, error);
    for (int i = 0; i < 3; i++) {
        const char *what = rest + strlen(projections[i]);
        if (strncmp(rest, projections[i], strlen(projections[i])) != 0)
            continue;
        if (strcmp(what, "weight") == 0)
            return read_any(file, name, weights[i], error);
        if (strcmp(what, "bias") == 0)
            return checkpoint_vector(file, name, biases[i], error);
        if (strncmp(what, "weight_scale", 12) == 0)
            return read_any(file, name, scales[i], error);
        if (strcmp(what, "input_scale") == 0)
            return true; /* of what the run rounds, and float64 does not */
    }
    return st_fail(error, "--check does not know the tensor %.80s", name);
}

static bool read_layer(checkpoint *file, const char *prefix, mlp_weights *to, st_error *error)
{
    for (size_t i = 0; i < checkpoint_count(file); i++) {
        const char *name = checkpoint_name(file, i);
        size_t length = strlen(prefix);
        if (strncmp(name, prefix, length) == 0 &&
            !read_tensor(file, name, name + length, to, error))
            return false;
    }
    to->ungated = to->gate.rows == 0;
    to->ffn = to->down.cols;
    to->hidden = to->down.rows;
    return true;
}

/* The last name that config.json has for it, that of the language model's part after the whole's:
 * several that differ were refused, or one was asked for. */
static bool read_activation(const checkpoint *file, const char *asked, mlp_reference *to,
                            st_error *error)
{
    static const char *const keys[] = { "hidden_act", "hidden_activation", "activation_function",
                                        "mlp_hidden_act", "act_fn" };
    char name[64] = "silu";
    model_config *config;
    if (!model_config_open(file, &config, error))
        return false;
    for (int i = 0; config && i < SECTIONS * 5; i++) {
        const char *text = model_config_text(config, section_of(config, i / 5), keys[i % 5]);
        if (text)
            snprintf(name, sizeof name, "%s", text);
    }
    model_config_close(config);
    to->activation = mlp_reference_function(asked ? asked : name);
    return to->activation || st_fail(error, "--check does not know the activation %.60s", name);
}

/* The tensor beside the layer's MLP; what norms add to the mean of squares and to their weights, in
 * the model's code, is not in it. */
static bool read_norm(const mlp_source *source, const char *prefix, mlp_reference *to,
                      st_error *error)
{
    char name[MLP_LAYER_PREFIX + 64];
    model_config *config;
    snprintf(name, sizeof name, "%.*s", (int)strlen(prefix) - 1, prefix);
    snprintf(strrchr(name, '.') + 1, 64, "%s.weight", source->norm);
    if (!checkpoint_vector(to->file, name, &to->after.gamma, error) ||
        !model_config_open(to->file, &config, error))
        return false;
    to->after.eps = 1e-6;
    for (int i = 0; config && i < SECTIONS; i++)
        to->after.eps =
            model_config_number(config, section_of(config, i), "rms_norm_eps", to->after.eps);
    const char *model = config ? model_config_text(config, "", "model_type") : NULL;
    to->after.offset = model && strstr(model, "gemma") == model;
    model_config_close(config);
    return true;
}

/* ---- Experts --------------------------------------------------------------------------------- */

static double number_of(const model_config *config, const char *key, double otherwise)
{
    for (int i = 0; i < SECTIONS; i++)
        otherwise = model_config_number(config, section_of(config, i), key, otherwise);
    return otherwise;
}

static const char *text_of(const model_config *config, const char *key, const char *otherwise)
{
    for (int i = 0; i < SECTIONS; i++) {
        const char *text = model_config_text(config, section_of(config, i), key);
        otherwise = text ? text : otherwise;
    }
    return otherwise;
}

/* Gate, up, down as one of the two kinds of names has them, or their scales; NULL: none. */
static matrix *place_of(mlp_weights *weights, const char *name)
{
    if (strcmp(name, "gate_proj.weight") == 0 || strcmp(name, "w1.weight") == 0)
        return &weights->gate;
    if (strcmp(name, "up_proj.weight") == 0 || strcmp(name, "w3.weight") == 0)
        return &weights->up;
    if (strcmp(name, "down_proj.weight") == 0 || strcmp(name, "w2.weight") == 0)
        return &weights->down;
    if (!strstr(name, ".weight_scale"))
        return NULL;
    return strncmp(name, "gate_proj.", 10) == 0 || strncmp(name, "w1.", 3) == 0 ? &weights->fp8.gate
           : strncmp(name, "up_proj.", 8) == 0 || strncmp(name, "w3.", 3) == 0  ? &weights->fp8.up
                                                                               : &weights->fp8.down;
}

static matrix *find_place(mlp_experts *x, const char *rest)
{
    int expert, end = 0;
    if (strcmp(rest, "gate.weight") == 0)
        return &x->router;
    if (strcmp(rest, "shared_expert_gate.weight") == 0)
        return &x->shared_gate;
    if (strncmp(rest, "shared_expert", 13) == 0 && strchr(rest, '.'))
        return place_of(&x->shared, strchr(rest, '.') + 1);
    if (sscanf(rest, "experts.%9d.%n", &expert, &end) == 1 && end && expert < x->count)
        return place_of(&x->list[expert], rest + end);
    return NULL;
}

static bool read_expert_tensors(checkpoint *file, const char *prefix, mlp_experts *to,
                                st_error *error)
{
    const size_t length = strlen(prefix);
    for (size_t i = 0; i < checkpoint_count(file); i++) {
        const char *name = checkpoint_name(file, i), *rest = name + length;
        if (strncmp(name, prefix, length) != 0)
            continue;
        if (strcmp(rest, "gate.e_score_correction_bias") == 0) {
            if (!checkpoint_vector(file, name, &to->correction, error))
                return false;
            continue;
        }
        matrix *place = find_place(to, rest);
        if (!place)
            return st_fail(error, "--check does not know the tensor %.80s", name);
        if (!read_any(file, name, place, error))
            return false;
    }
    return true;
}

static imbrex_gate read_choice(const model_config *config, const mlp_experts *x)
{
    const char *type = text_of(config, "model_type", "");
    const bool third = strcmp(type, "deepseek_v3") == 0, mixtral = strcmp(type, "mixtral") == 0;
    const char *method = text_of(config, "topk_method", third ? "noaux_tc" : "greedy");
    imbrex_gate gate = { .experts = x->count, .dtype = IMBREX_F32, .renormalize = mixtral };
    gate.top_k = (int)number_of(config, "num_experts_per_tok", 1);
    gate.sigmoid = strcmp(text_of(config, "scoring_func", third ? "sigmoid" : ""), "sigmoid") == 0;
    gate.scale = (float)number_of(config, "routed_scaling_factor", 1);
    for (int i = 0; i < SECTIONS; i++)
        gate.renormalize |= model_config_is_true(config, section_of(config, i), "norm_topk_prob");
    if (strcmp(method, "greedy") != 0 && number_of(config, "n_group", 1) > 1) {
        gate.groups = (int)number_of(config, "n_group", 1);
        gate.top_groups = (int)number_of(config, "topk_group", 1);
        gate.group_best = strcmp(method, "noaux_tc") == 0 ? 2 : 1;
    }
    return gate;
}

/* run: the choice as the run reads it. */
static bool read_experts(const char *prefix, const imbrex_gate *run, mlp_reference *to,
                         st_error *error)
{
    mlp_experts *x = &to->experts;
    char name[MLP_LAYER_PREFIX + 64];
    model_config *config;
    snprintf(name, sizeof name, "%sgate.weight", prefix);
    if (!checkpoint_matrix(to->file, name, &x->router, error))
        return false;
    x->count = (int)x->router.rows;
    x->list = calloc((size_t)x->count, sizeof *x->list);
    if (!x->list)
        return st_fail(error, "no memory is left for --check");
    if (!read_expert_tensors(to->file, prefix, x, error) ||
        !model_config_open(to->file, &config, error))
        return false;
    if (!config)
        return st_fail(error, "--check finds no config.json");
    x->gate = read_choice(config, x);
    model_config_close(config);
    if (x->count != run->experts || x->gate.top_k != run->top_k || x->gate.groups != run->groups ||
        x->gate.top_groups != run->top_groups)
        return st_fail(error,
                       "--check reads %d of %d experts, %d of %d groups, from config.json, and the "
                       "run %d of %d, %d of %d: give each number once there",
                       x->gate.top_k, x->count, x->gate.top_groups, x->gate.groups, run->top_k,
                       run->experts, run->top_groups, run->groups);
    for (int e = 0; e <= x->count; e++) {
        mlp_weights *one = e < x->count ? &x->list[e] : &x->shared;
        one->hidden = one->down.rows;
        one->ffn = one->down.cols;
    }
    to->weights = x->list[0];
    return true;
}

bool mlp_reference_open(const mlp_source *source, const mlp_model *model, mlp_reference *out,
                        st_error *error)
{
    *out = (mlp_reference){ .weights = model->weights,
                            .experts = model->experts,
                            .after = model->after };
    if (source->shape) {
        out->activation = mlp_reference_function(source->activation ? source->activation : "silu");
        return true;
    }
    out->weights = (mlp_weights){ 0 };
    out->experts = (mlp_experts){ 0 };
    return checkpoint_open(source->weights, &out->file, error) &&
           (model->experts.count ? read_experts(model->prefix, &model->experts.gate, out, error)
                                 : read_layer(out->file, model->prefix, &out->weights, error)) &&
           read_activation(out->file, source->activation, out, error) &&
           (!source->norm || read_norm(source, model->prefix, out, error));
}

void mlp_reference_close(mlp_reference *reference)
{
    if (reference->file)
        mlp_experts_free(&reference->experts);
    checkpoint_close(reference->file);
}
