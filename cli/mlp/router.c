/* router.c - what config.json says of experts: how many there are, how a token chooses among them,
 * and in which layers.  What a model's code does and its config does not say goes by model_type. */
#include "mlp.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#ifdef IMX_HAVE_JANSSON

#include <jansson.h>

typedef struct family {
    const char *name;                 /* model_type */
    const char *count, *ffn, *shared; /* keys of numbers and sizes */
    bool deepseek, mixtral;
} family;

static const family families[] = {
    { "mixtral", "num_local_experts", "intermediate_size", NULL, false, true },
    { "qwen2_moe", "num_experts", "moe_intermediate_size", "shared_expert_intermediate_size", false,
      false },
    { "qwen3_moe", "num_experts", "moe_intermediate_size", NULL, false, false },
    { "deepseek_v2", "n_routed_experts", "moe_intermediate_size", "n_shared_experts", true, false },
    { "deepseek_v3", "n_routed_experts", "moe_intermediate_size", "n_shared_experts", true, false },
};

/* Why others are not computed, as far as it is known. */
static const struct {
    const char *name, *says;
} refused[] = {
    { "llama4", "its experts have their weights on the input" },
    { "llama4_text", "its experts have their weights on the input" },
    { "gpt_oss", "its experts have biases and clamped activations" },
    { "phimoe", "its router is another" },
};

static const char *model_type(const model_config *config)
{
    const char *name = json_string_value(model_config_value(config, "model_type"));
    return name ? name : "";
}

static const family *find_family(const model_config *config)
{
    for (size_t i = 0; config && i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].name, model_type(config)) == 0)
            return &families[i];
    return NULL;
}

bool mlp_router_known(const model_config *config, st_error *error)
{
    const char *name = model_type(config), *path = st_path_tail(model_config_path(config));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (strcmp(refused[i].name, name) == 0)
            return st_fail(error, "%s: model_type is %s: %s: that is not computed", path, name,
                           refused[i].says);
    return find_family(config) ||
           st_fail(error,
                   "%s: model_type is %s: experts are computed of mixtral, qwen2_moe, qwen3_moe, "
                   "deepseek_v2 and deepseek_v3",
                   path, st_json_show(model_config_value(config, "model_type")).text);
}

/* ---- Values ---------------------------------------------------------------------------------- */

static bool fail_value(const model_config *config, const char *key, const char *want,
                       st_error *error)
{
    return st_fail(error, "%s: %s is %s: want %s", st_path_tail(model_config_path(config)), key,
                   st_json_show(model_config_value(config, key)).text, want);
}

/* A whole number of at least 1; otherwise: where there is none; 0: there must be one. */
static bool read_count(const model_config *config, const char *key, int otherwise, int *out,
                       st_error *error)
{
    const json_t *value = model_config_value(config, key);
    *out = otherwise;
    if (!value && otherwise)
        return true;
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > 1 << 20)
        return fail_value(config, key, "a whole number of 1 or more", error);
    *out = (int)json_integer_value(value);
    return true;
}

static bool read_truth(const model_config *config, const char *key, int *out, st_error *error)
{
    const json_t *value = model_config_value(config, key);
    *out = json_is_true(value);
    return json_is_boolean(value) || fail_value(config, key, "true or false", error);
}

/* ---- Which layers ---------------------------------------------------------------------------- */

/* Whether a list of layers, where there is one, has this one. */
static bool read_layers(const model_config *config, const char *key, int layer, bool *has,
                        st_error *error)
{
    const json_t *list = model_config_value(config, key), *one;
    size_t i;
    *has = false;
    if (list && !json_is_array(list))
        return fail_value(config, key, "a list of layers", error);
    json_array_foreach(list, i, one)
    {
        if (!json_is_integer(one))
            return fail_value(config, key, "whole numbers in it", error);
        *has = *has || json_integer_value(one) == layer;
    }
    return true;
}

/* The key by which the config says that the layer is dense, or NULL: that it has experts. */
static bool find_dense(const model_config *config, const family *f, int layer, const char **key,
                       st_error *error)
{
    int step = 1;
    bool listed;
    *key = NULL;
    if (f->mixtral)
        return true;
    if (f->deepseek) {
        const json_t *first = model_config_value(config, "first_k_dense_replace");
        if (first && (!json_is_integer(first) || json_integer_value(first) < 0))
            return fail_value(config, "first_k_dense_replace", "a whole number of 0 or more",
                              error);
        if (first && layer < json_integer_value(first))
            *key = "first_k_dense_replace";
        if (!read_count(config, "moe_layer_freq", 1, &step, error))
            return false;
        if (!*key && layer % step != 0)
            *key = "moe_layer_freq";
        return true;
    }
    if (!read_count(config, "decoder_sparse_step", 1, &step, error) ||
        !read_layers(config, "mlp_only_layers", layer, &listed, error))
        return false;
    if (listed)
        *key = "mlp_only_layers";
    else if ((layer + 1) % step != 0)
        *key = "decoder_sparse_step";
    return true;
}

bool mlp_router_absent(const model_config *config, int layer, st_error *error)
{
    const family *f = find_family(config);
    const char *key = NULL;
    if (!f || !model_config_value(config, f->count))
        return true;
    if (!find_dense(config, f, layer, &key, error))
        return false;
    return key ||
           st_fail(error,
                   "%s: %s is %s, but layer %d has no experts: is the checkpoint whole, and is it "
                   "this config's?",
                   st_path_tail(model_config_path(config)), f->count,
                   st_json_show(model_config_value(config, f->count)).text, layer);
}

/* ---- The choice ------------------------------------------------------------------------------ */

static bool is_text(const model_config *config, const char *key, const char *otherwise,
                    const char *text)
{
    const char *value = json_string_value(model_config_value(config, key));
    return strcmp(value ? value : otherwise, text) == 0;
}

/* otherwise: where the config says nothing; 0: it must. */
static bool read_groups(const model_config *config, bool best_two, int otherwise, imbrex_gate *gate,
                        st_error *error)
{
    if (!read_count(config, "n_group", otherwise, &gate->groups, error) ||
        !read_count(config, "topk_group", otherwise, &gate->top_groups, error))
        return false;
    gate->group_best = best_two ? 2 : 1;
    if (gate->groups == 1)
        gate->groups = gate->top_groups = gate->group_best = 0;
    else if (gate->experts % gate->groups != 0)
        return fail_value(config, "n_group", "a number that the number of experts is a multiple of",
                          error);
    else if (gate->top_groups > gate->groups)
        return fail_value(config, "topk_group", "at most n_group", error);
    else if (gate->experts / gate->groups * gate->top_groups < gate->top_k)
        return fail_value(config, "topk_group", "groups enough for num_experts_per_tok", error);
    return true;
}

static bool read_deepseek(const model_config *config, const family *f, mlp_experts *x,
                          st_error *error)
{
    const bool third = strcmp(f->name, "deepseek_v3") == 0;
    const char *scoring = third ? "sigmoid" : "softmax", *method = third ? "noaux_tc" : "greedy";
    imbrex_gate *gate = &x->gate;
    gate->sigmoid = is_text(config, "scoring_func", scoring, "sigmoid");
    if (!gate->sigmoid && !is_text(config, "scoring_func", scoring, "softmax"))
        return fail_value(config, "scoring_func", "softmax or sigmoid", error);
    const bool corrected = is_text(config, "topk_method", method, "noaux_tc");
    const bool grouped = is_text(config, "topk_method", method, "group_limited_greedy");
    if (!corrected && !grouped && !is_text(config, "topk_method", method, "greedy"))
        return fail_value(config, "topk_method", "greedy, group_limited_greedy or noaux_tc", error);
    if ((x->correction.rows > 0) != corrected)
        return st_fail(
            error, "%s: topk_method is %s, but the layer has %s gate.e_score_correction_bias",
            st_path_tail(model_config_path(config)),
            st_json_show(model_config_value(config, "topk_method")).text, corrected ? "no" : "a");
    const json_t *scale = model_config_value(config, "routed_scaling_factor");
    gate->scale = (float)json_number_value(scale);
    if (!json_is_number(scale) || !(gate->scale > 0) || !isfinite(gate->scale))
        return fail_value(config, "routed_scaling_factor", "a number above 0", error);
    if (!read_truth(config, "norm_topk_prob", &gate->renormalize, error))
        return false;
    if (!third && gate->renormalize && gate->scale != 1) /* its codes differ in what they do */
        return fail_value(config, "routed_scaling_factor", "1 where norm_topk_prob is true", error);
    return (!corrected && !grouped) || read_groups(config, corrected, third ? 0 : 1, gate, error);
}

/* ---- What the tensors must agree with -------------------------------------------------------- */

static bool check_count(const model_config *config, const char *key, int layer, int64_t have,
                        const char *of, st_error *error)
{
    const json_t *value = model_config_value(config, key);
    if (json_is_integer(value) && json_integer_value(value) == have)
        return true;
    return st_fail(error,
                   "%s: %s is %s, but layer %d has %lld%s: is the checkpoint whole, and is "
                   "it this config's?",
                   st_path_tail(model_config_path(config)), key, st_json_show(value).text, layer,
                   (long long)have, of);
}

/* DeepSeek counts shared experts, as large as the others, whose tensors are one; others say how
 * large theirs is. */
static bool check_shared(const model_config *config, const family *f, int layer,
                         const mlp_experts *x, st_error *error)
{
    const char *path = st_path_tail(model_config_path(config));
    int64_t have = x->shared.ffn, one = x->list[0].ffn;
    const bool gated = x->shared_gate.rows > 0;
    if (!f->shared && have)
        return st_fail(error, "%s: model_type is %s, but layer %d has a shared expert", path,
                       f->name, layer);
    if (f->deepseek && one > 0 && have % one == 0)
        have /= one;
    if (have && gated == f->deepseek)
        return st_fail(error, "%s: model_type is %s, but layer %d has %s shared_expert_gate.weight",
                       path, f->name, layer, gated ? "a" : "no");
    return !f->shared || (!have && !model_config_value(config, f->shared)) ||
           check_count(config, f->shared, layer, have, f->deepseek ? " shared experts" : "", error);
}

bool mlp_router_apply(const model_config *config, int layer, mlp_experts *x, const char **ffn_key,
                      st_error *error)
{
    const char *key = NULL;
    if (!mlp_router_known(config, error))
        return false;
    const family *f = find_family(config);
    *ffn_key = f->ffn;
    x->gate = (imbrex_gate){ .experts = x->count, .dtype = IMBREX_F32, .renormalize = f->mixtral };
    if (!check_count(config, f->count, layer, x->count, " experts", error) ||
        !find_dense(config, f, layer, &key, error))
        return false;
    if (key)
        return st_fail(error, "%s: %s is %s, so layer %d has no experts, but it has %d",
                       st_path_tail(model_config_path(config)), key,
                       st_json_show(model_config_value(config, key)).text, layer, x->count);
    if (!read_count(config, "num_experts_per_tok", 0, &x->gate.top_k, error))
        return false;
    if (x->gate.top_k > x->count || x->gate.top_k > 64)
        return fail_value(config, "num_experts_per_tok",
                          "at most the number of experts, and at most 64", error);
    if (!f->deepseek && x->correction.rows)
        return st_fail(error,
                       "%s: model_type is %s, but layer %d has a "
                       "gate.e_score_correction_bias",
                       st_path_tail(model_config_path(config)), f->name, layer);
    if (!check_shared(config, f, layer, x, error))
        return false;
    if (f->deepseek)
        return read_deepseek(config, f, x, error);
    return f->mixtral || read_truth(config, "norm_topk_prob", &x->gate.renormalize, error);
}

#else /* no jansson: no checkpoint can be opened, either */

bool mlp_router_known(const model_config *config, st_error *error)
{
    (void)config;
    return st_fail(error, "this build cannot read config.json: install libjansson-dev");
}

bool mlp_router_absent(const model_config *config, int layer, st_error *error)
{
    (void)layer;
    return mlp_router_known(config, error);
}

bool mlp_router_apply(const model_config *config, int layer, mlp_experts *x, const char **ffn_key,
                      st_error *error)
{
    (void)layer, (void)x, (void)ffn_key;
    return mlp_router_known(config, error);
}

#endif
