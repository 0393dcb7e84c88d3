/* config.c - reads config.json, and refuses what it does not understand of an MLP: a number
 * that is left out makes another model. */
#include "mlp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

const char *const mlp_config_activations[MLP_CONFIG_ACTIVATIONS] = {
    [IMBREX_SILU] = "silu", [IMBREX_GELU] = "gelu",   [IMBREX_GELU_TANH] = "gelu_tanh",
    [IMBREX_RELU] = "relu", [IMBREX_RELU2] = "relu2",
};

static imbrex_activation_kind asked_kind(const char *asked)
{
    return (imbrex_activation_kind)options_index(mlp_config_activations, MLP_CONFIG_ACTIVATIONS,
                                                 asked);
}

#ifdef IMX_HAVE_JANSSON

#include <jansson.h>

/* ---- The activation -------------------------------------------------------------------------- */

static const char *const activation_keys[] = { "hidden_act", "hidden_activation",
                                               "activation_function", "mlp_hidden_act", "act_fn" };

/* As Hugging Face's code calls them. */
static const struct {
    const char *name;
    imbrex_activation_kind kind;
} activation_names[] = {
    { "silu", IMBREX_SILU },
    { "swish", IMBREX_SILU },
    { "gelu", IMBREX_GELU },
    { "gelu_python", IMBREX_GELU },
    { "gelu_tanh", IMBREX_GELU_TANH },
    { "gelu_new", IMBREX_GELU_TANH },
    { "gelu_fast", IMBREX_GELU_TANH },
    { "gelu_accurate", IMBREX_GELU_TANH },
    { "gelu_pytorch_tanh", IMBREX_GELU_TANH },
    { "gelu_python_tanh", IMBREX_GELU_TANH },
    { "relu", IMBREX_RELU },
    { "relu2", IMBREX_RELU2 },
};

/* All that the config calls the activation. */
typedef struct naming {
    const char *key, *name;
    imbrex_activation_kind kind;
} naming;

static bool read_naming(const model_config *config, const char *key, const json_t *value,
                        naming *out, st_error *error)
{
    const char *name = json_string_value(value);
    for (size_t i = 0; name && i < sizeof activation_names / sizeof *activation_names; i++) {
        if (strcmp(activation_names[i].name, name) == 0) {
            *out = (naming){ key, name, activation_names[i].kind };
            return true;
        }
    }
    return st_fail(error,
                   "%s: %s is %s: computed are silu, gelu, gelu_pytorch_tanh, relu and relu2",
                   st_path_tail(model_config_path(config)), key, st_json_show(value).text);
}

static bool read_namings(const model_config *config, naming *out, int *count, st_error *error)
{
    const int keys = sizeof activation_keys / sizeof *activation_keys;
    *count = 0;
    for (int i = 0; i < 2 * keys; i++) {
        const char *key = activation_keys[i / 2];
        const json_t *value = model_config_value_in(config, i % 2, key);
        if (value && !read_naming(config, key, value, &out[*count], error))
            return false;
        *count += value != NULL;
    }
    return true;
}

/* Gemma's first configs say gelu, which its code reads as the other form, or does not.  The code of
 * later ones reads hidden_activation alone, and takes that form where it is missing. */
static bool is_doubtful(const model_config *config, const naming *names, int count)
{
    const char *model = json_string_value(model_config_value(config, "model_type"));
    return model && strncmp(model, "gemma", 5) == 0 && count && names[0].kind != IMBREX_GELU_TANH &&
           (names[0].kind == IMBREX_GELU || strcmp(names[0].key, "hidden_act") == 0);
}

static bool find_activation(const model_config *config, const char *asked,
                            imbrex_activation_kind *out, st_error *error)
{
    naming names[2 * sizeof activation_keys / sizeof *activation_keys];
    const char *path = st_path_tail(model_config_path(config));
    int count, other = 0;
    if (!read_namings(config, names, &count, error))
        return false;
    while (other < count && names[other].kind == names[0].kind)
        other++;
    bool doubtful = is_doubtful(config, names, count);
    if (asked) {
        *out = asked_kind(asked);
        for (int i = 0; i < count; i++)
            if (names[i].kind == *out)
                return true;
        return count == 0 || (doubtful && *out == IMBREX_GELU_TANH) ||
               st_fail(error, "%s: %s is %s, but --activation is %s", path, names[0].key,
                       names[0].name, asked);
    }
    if (count == 0)
        return st_fail(error, "%s: names no activation (hidden_act): say --activation", path);
    if (other < count)
        return st_fail(error, "%s: %s is %s, but %s is %s: say --activation", path, names[0].key,
                       names[0].name, names[other].key, names[other].name);
    if (doubtful)
        return st_fail(error,
                       "%s: %s is %s, which Gemma's code may take for gelu_pytorch_tanh: say "
                       "--activation",
                       path, names[0].key, names[0].name);
    *out = names[0].kind;
    return true;
}

/* ---- What the tensors must agree with -------------------------------------------------------- */

static bool check_quantised(const model_config *config, st_error *error)
{
    static const char *const keys[] = { "quantization_config", "compression_config",
                                        "quantization" };
    for (size_t i = 0; i < 2 * sizeof keys / sizeof *keys; i++) {
        const json_t *value = model_config_value_in(config, (int)(i % 2), keys[i / 2]);
        const json_t *method = json_object_get(value, "quant_method");
        if (value)
            return st_fail(error,
                           "%s: has a %s (%s): the model is quantised; give one in BF16, F16 or "
                           "F32",
                           st_path_tail(model_config_path(config)), keys[i / 2],
                           st_json_show(method ? method : value).text);
    }
    return true;
}

static bool has_word(const char *key, const char *const *words, size_t count)
{
    for (const char *word = key; *word; word += strcspn(word, "_"), word += *word == '_') {
        size_t length = strcspn(word, "_");
        for (size_t i = 0; i < count; i++)
            if (strlen(words[i]) == length && strncmp(words[i], word, length) == 0)
                return true;
    }
    return false;
}

#define HAS_WORD(key, ...)                              \
    has_word(key, (const char *const[]){ __VA_ARGS__ }, \
             sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(const char *))

/* Keys that speak of the MLP or its activation, and of a number that changes what it computes, such
 * as swiglu_limit, activation_sparsity_pattern, mlp_multipliers; not of sizes and of training. */
static bool changes_mlp(const char *key)
{
    return HAS_WORD(key, "act", "activation", "swiglu", "geglu", "glu", "mlp", "feed", "ffn") &&
           HAS_WORD(key, "alpha", "beta", "clamp", "clip", "limit", "limits", "multiplier",
                    "multipliers", "scale", "scales", "scaling", "sparsity", "threshold") &&
           !HAS_WORD(key, "dim", "dims", "size", "dropout");
}

static bool is_neutral(const char *key, const json_t *value)
{
    bool factor = HAS_WORD(key, "multiplier", "scale", "scaling");
    return json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (factor && json_is_number(value) && json_number_value(value) == 1);
}

static bool check_changes(const model_config *config, st_error *error)
{
    const char *key;
    json_t *value;
    for (int i = 0; i < 2; i++) {
        json_object_foreach((json_t *)model_config_part(config, i), key, value)
        {
            if (changes_mlp(key) && !is_neutral(key, value))
                return st_fail(error, "%s: %.80s is %s: that is not computed",
                               st_path_tail(model_config_path(config)), key,
                               st_json_show(value).text);
        }
    }
    return true;
}

/* A size of the config, or of a list by layers, against that of the tensors. */
static bool check_size(const model_config *config, const char *key, int layer, int64_t have,
                       st_error *error)
{
    const json_t *value = model_config_value(config, key);
    if (!value)
        return true;
    if (json_is_array(value))
        value = json_array_get(value, (size_t)layer);
    if (json_is_number(value) && json_number_value(value) == (double)have)
        return true;
    return st_fail(error,
                   "%s: %s is %s, but layer %d has %lld: is it the config of this checkpoint?",
                   st_path_tail(model_config_path(config)), key, st_json_show(value).text, layer,
                   (long long)have);
}

/* What a config says of a part of the MLP, "yes" and 1 being what Python's code takes for true. */
static bool check_boolean(const model_config *config, const char *key, const json_t *value,
                          st_error *error)
{
    return !value || json_is_boolean(value) ||
           st_fail(error, "%s: %s is %s: want true or false",
                   st_path_tail(model_config_path(config)), key, st_json_show(value).text);
}

static bool check_biases(const model_config *config, int layer, const mlp_weights *mlp,
                         st_error *error)
{
    /* Those of the MLP alone promise biases; the others may mean attention's. */
    static const char *const keys[] = { "mlp_bias", "use_mlp_bias", "use_bias", "add_bias_linear",
                                        "bias" };
    const matrix *biases[] = { &mlp->gate_bias, &mlp->up_bias, &mlp->down_bias };
    static const char *const names[] = { "gate", "up", "down" };
    for (int i = 0; i < 5 * 3; i++) {
        const char *key = keys[i / 3];
        const json_t *value = model_config_value(config, key);
        bool there = biases[i % 3]->rows > 0, needed = !(i % 3 == 0 && mlp->ungated);
        if (i / 3 < 2 && !check_boolean(config, key, value, error))
            return false;
        if (json_is_false(value) && there)
            return st_fail(error, "%s: %s is false, but layer %d has %s_proj.bias",
                           st_path_tail(model_config_path(config)), key, layer, names[i % 3]);
        if (i / 3 < 2 && json_is_true(value) && !there && needed)
            return st_fail(error, "%s: %s is true, but layer %d has no %s_proj.bias",
                           st_path_tail(model_config_path(config)), key, layer, names[i % 3]);
    }
    return true;
}

/* A gate that got lost must not make another model: it is missing in models of ReLU, and not in
 * those of these families. */
static bool check_gate(const model_config *config, int layer, const mlp_weights *mlp,
                       st_error *error)
{
    static const char *const gated[] = { "llama", "gemma", "qwen", "mistral", "phi3", "bitnet" };
    const char *model = json_string_value(model_config_value(config, "model_type"));
    static const char *const keys[] = { "use_gated_activation", "use_gated_mlp", "gated_mlp",
                                        "is_gated_act" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = model_config_value(config, keys[i]);
        if (!check_boolean(config, keys[i], value, error))
            return false;
        if (value && json_is_true(value) == mlp->ungated)
            return st_fail(error, "%s: %s is %s, but layer %d has %s gate_proj.weight",
                           st_path_tail(model_config_path(config)), keys[i],
                           st_json_show(value).text, layer, mlp->ungated ? "no" : "a");
    }
    for (size_t i = 0; mlp->ungated && model && i < sizeof gated / sizeof *gated; i++)
        if (strncmp(model, gated[i], strlen(gated[i])) == 0)
            return st_fail(error,
                           "%s: model_type is %s, but layer %d has no gate_proj.weight: is the "
                           "checkpoint whole?",
                           st_path_tail(model_config_path(config)), model, layer);
    return true;
}

static bool check_config(const model_config *config, int layer, const char *ffn_key,
                         const mlp_weights *mlp, st_error *error)
{
    return check_gate(config, layer, mlp, error) &&
           (mlp->fp8.scaling != IMBREX_UNSCALED || check_quantised(config, error)) &&
           check_changes(config, error) &&
           check_size(config, "hidden_size", layer, mlp->hidden, error) &&
           check_size(config, ffn_key, layer, mlp->ffn, error) &&
           check_biases(config, layer, mlp, error);
}

#else /* no jansson: no checkpoint can be opened, either */

static bool find_activation(const model_config *config, const char *asked,
                            imbrex_activation_kind *out, st_error *error)
{
    (void)asked, (void)out;
    return st_fail(error, "%s: cannot be read", model_config_path(config));
}

static bool check_config(const model_config *config, int layer, const char *ffn_key,
                         const mlp_weights *mlp, st_error *error)
{
    (void)layer, (void)ffn_key, (void)mlp;
    return st_fail(error, "%s: cannot be read", model_config_path(config));
}

#endif

bool mlp_config_apply(const model_config *config, int layer, const char *ffn_key, const char *asked,
                      mlp_weights *weights, st_error *error)
{
    weights->activation = asked ? asked_kind(asked) : IMBREX_SILU;
    if (config && (!check_config(config, layer, ffn_key, weights, error) ||
                   !find_activation(config, asked, &weights->activation, error)))
        return false;
    bool relu = weights->activation == IMBREX_RELU || weights->activation == IMBREX_RELU2;
    return !weights->ungated || relu ||
           st_fail(error,
                   "layer %d has no gate_proj.weight: that is computed only where config.json or "
                   "--activation says relu or relu2, not %s",
                   layer, mlp_config_activations[weights->activation]);
}
