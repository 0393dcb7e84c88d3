/* layer.c - a layer's attention in a checkpoint: finds its tensors by their names, reads what
 * config.json says of it, and refuses what it does not know: a tensor or a number that is left out
 * makes another model. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#ifdef IMX_HAVE_JANSSON
#include <jansson.h>
#endif

#include "decode.h"

enum { NAME_BYTES = DECODE_PREFIX + 32 };

/* ---- What is there beside the weights -------------------------------------------------------- */

/* Words of names, and what they say of the layer; the first that a name has counts.  NULL: those
 * of quantised ones. */
static const struct {
    const char *word, *says;
} strange[] = {
    { "qkv_proj", "split what is fused into q_proj, k_proj and v_proj" },
    { "kv_a_proj", "attention with a latent cache (MLA) is not computed" },
    { "sinks", "attention sinks are not computed" },
    { "lora_", "merge the adapter into the weights" },
    { NULL, "the layer is quantised: convert it to BF16, F16 or F32" },
    { "norm.bias", "only RMSNorm is computed, which has no bias" },
};

static bool refuse(const checkpoint *from, int layer, const char *name, const char *rest,
                   st_error *error)
{
    const char *says = "only q_proj, k_proj, v_proj and o_proj, q_norm and k_norm are computed";
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        const char *word = strange[i].word;
        if (word ? strstr(rest, word) != NULL : checkpoint_is_quantised(rest)) {
            says = strange[i].says;
            break;
        }
    }
    return st_fail(error, "%s: layer %d has the tensor %.120s: %s",
                   st_path_tail(checkpoint_holder(from, name)), layer, name, says);
}

/* ---- Which layer ----------------------------------------------------------------------------- */

static const char *const below[] = { "self_attn." };

/* model: as it was asked for, or NULL. */
static bool fail_layer(const checkpoint *from, const char *model, int layer, st_error *error)
{
    int first, last;
    char name[NAME_BYTES];
    checkpoint_find_layers(from, model, below, 1, &first, &last);
    snprintf(name, sizeof name, "%slayers.%d.self_attn.q_proj.weight",
             model ? model : checkpoint_models[0], layer);
    if (first < 0)
        return checkpoint_fail_missing(from, name, error);
    return st_fail(error, "%s: has attention in layers %d to %d, and not in %d",
                   st_path_tail(checkpoint_path(from)), first, last, layer);
}

static bool find_prefix(const checkpoint *from, const char *asked, int layer, char *prefix,
                        st_error *error)
{
    checkpoint_layer found[2];
    int count = checkpoint_find_layer(from, asked, below, 1, layer, found);
    if (count > 1)
        return st_fail(error,
                       "%s: has a layer %d below both '%s' and '%s': name one by --prefix, or a "
                       "file that has one",
                       st_path_tail(checkpoint_path(from)), layer, found[0].model, found[1].model);
    if (!count)
        return fail_layer(from, asked, layer, error);
    int length = snprintf(prefix, DECODE_PREFIX, "%slayers.%d.self_attn.", found[0].model, layer);
    return length < DECODE_PREFIX ||
           st_fail(error, "--prefix is longer than %d characters", DECODE_PREFIX - 32);
}

/* ---- The tensors ----------------------------------------------------------------------------- */

enum { WEIGHTS = 4, TENSORS = 10 };

/* rows and cols: what it must be. */
typedef struct tensor {
    const char *name;
    matrix *at;
    bool optional;
    int64_t rows, cols;
} tensor;

static void list(decode_weights *w, tensor out[TENSORS])
{
    int64_t q = (int64_t)w->heads * w->head_dim, kv = (int64_t)w->kv_heads * w->head_dim;
    const tensor all[TENSORS] = {
        { "q_proj.weight", &w->q, false, q, w->hidden },
        { "k_proj.weight", &w->k, false, kv, w->hidden },
        { "v_proj.weight", &w->v, false, kv, w->hidden },
        { "o_proj.weight", &w->o, false, w->hidden, q },
        { "q_proj.bias", &w->q_bias, true, 1, q },
        { "k_proj.bias", &w->k_bias, true, 1, kv },
        { "v_proj.bias", &w->v_bias, true, 1, kv },
        { "o_proj.bias", &w->o_bias, true, 1, w->hidden },
        { "q_norm.weight", &w->q_norm, true, 1, w->head_dim },
        { "k_norm.weight", &w->k_norm, true, 1, w->head_dim },
    };
    memcpy(out, all, sizeof all);
}

/* Old checkpoints hold the frequencies, too, which the models' code makes anew. */
static bool is_known(const char *rest, const tensor *tensors)
{
    for (int i = 0; i < TENSORS; i++)
        if (strcmp(rest, tensors[i].name) == 0)
            return true;
    return strcmp(rest, "rotary_emb.inv_freq") == 0;
}

static bool read_one(checkpoint *from, const char *prefix, const tensor *t, bool vector,
                     st_error *error)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", prefix, t->name);
    if (t->optional && !checkpoint_has(from, name))
        return true;
    return vector ? checkpoint_vector(from, name, t->at, error)
                  : checkpoint_matrix(from, name, t->at, error);
}

bool decode_layer_find(checkpoint *from, const char *model, int layer, decode_weights *weights,
                       char *prefix, st_error *error)
{
    tensor tensors[TENSORS];
    list(weights, tensors);
    if (!find_prefix(from, model, layer, prefix, error))
        return false;
    size_t length = strlen(prefix);
    for (size_t i = 0; i < checkpoint_count(from); i++) {
        const char *name = checkpoint_name(from, i);
        if (strncmp(name, prefix, length) == 0 && !is_known(name + length, tensors))
            return refuse(from, layer, name, name + length, error);
    }
    for (int i = 0; i < TENSORS; i++)
        if (!read_one(from, prefix, &tensors[i], i >= WEIGHTS, error))
            return false;
    if (!checkpoint_all_listed(from, prefix, error))
        return false;
    weights->hidden = weights->q.cols;
    return true;
}

bool decode_layer_check(const checkpoint *from, int layer, const decode_weights *weights,
                        st_error *error)
{
    decode_weights copy = *weights;
    tensor tensors[TENSORS];
    const char *file = st_path_tail(checkpoint_path(from));
    list(&copy, tensors);
    for (int i = 0; i < TENSORS; i++) {
        const tensor *t = &tensors[i];
        if (t->optional && !t->at->rows)
            continue;
        if (t->at->rows != t->rows || t->at->cols != t->cols)
            return st_fail(error,
                           "%s: layer %d: %s is [%" PRId64 ", %" PRId64 "]: want [%" PRId64
                           ", %" PRId64 "] for the %d heads of %d, %d of the cache, of config.json",
                           file, layer, t->name, t->at->rows, t->at->cols, t->rows, t->cols,
                           copy.heads, copy.head_dim, copy.kv_heads);
        if (t->at->dtype != copy.q.dtype)
            return st_fail(error,
                           "%s: layer %d: q_proj.weight is %s, but %s is %s: convert them to one "
                           "dtype",
                           file, layer, st_dtype_name(st_dtype_of(copy.q.dtype)), t->name,
                           st_dtype_name(st_dtype_of(t->at->dtype)));
    }
    return true;
}

/* ---- config.json ----------------------------------------------------------------------------- */

#ifdef IMX_HAVE_JANSSON

/* Where values are looked for: the config, or an object in it. */
typedef struct reader {
    const model_config *config;
    const char *path;
    st_error *error;
} reader;

static bool wrong(const reader *r, const char *key, const json_t *value, const char *want)
{
    return st_fail(r->error, "%s: %s is %s: %s", r->path, key, st_json_show(value).text, want);
}

/* ---- The models ------------------------------------------------------------------------------ */

/* Those whose attention is what is computed here, and nothing else. */
static const char *const known_models[] = { "llama",     "mistral", "mixtral",  "qwen2",
                                            "qwen2_moe", "qwen3",   "qwen3_moe" };

static bool check_model(const reader *r)
{
    const json_t *value = model_config_value(r->config, "model_type");
    const char *name = json_string_value(value);
    if (!value)
        return st_fail(r->error, "%s: names no model_type: want that of the model", r->path);
    for (size_t i = 0; name && i < sizeof known_models / sizeof *known_models; i++)
        if (strcmp(name, known_models[i]) == 0)
            return true;
    return wrong(r, "model_type", value,
                 "computed is the attention of llama, mistral, mixtral, qwen2, qwen2_moe, qwen3 "
                 "and qwen3_moe");
}

/* Of a model that check_model knows. */
static const char *model_type(const reader *r)
{
    return json_string_value(model_config_value(r->config, "model_type"));
}

/* What these models' code has in every layer: without it, another model is computed. */
static bool check_parts(const reader *r, int layer, const decode_weights *w)
{
    const char *name = model_type(r);
    const json_t *biased = model_config_value(r->config, "qkv_bias");
    const matrix *norms[] = { &w->q_norm, &w->k_norm };
    const matrix *biases[] = { &w->q_bias, &w->k_bias, &w->v_bias };
    bool normed = strncmp(name, "qwen3", 5) == 0;
    for (int i = 0; i < 2; i++)
        if ((norms[i]->rows > 0) != normed)
            return st_fail(r->error,
                           "%s: model_type is %s, but layer %d has %s %c_norm.weight: is it the "
                           "config of this checkpoint, and is that whole?",
                           r->path, name, layer, normed ? "no" : "a", "qk"[i]);
    if (strncmp(name, "qwen2", 5) != 0 || (strcmp(name, "qwen2_moe") == 0 && json_is_false(biased)))
        return true;
    for (int i = 0; i < 3; i++)
        if (!biases[i]->rows)
            return st_fail(r->error,
                           "%s: model_type is %s, but layer %d has no %c_proj.bias: is the "
                           "checkpoint whole?",
                           r->path, name, layer, "qkv"[i]);
    return true;
}

/* What other models' attention has beyond theirs. */
static bool check_beyond(const reader *r)
{
    static const char *const keys[] = {
        "attn_logit_softcapping", "attention_multiplier",
        "query_pre_attn_scalar",  "clip_qkv",
        "attention_chunk_size",   "no_rope_layers",
        "quantization_config",    "compression_config",
        "quantization",
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = model_config_value(r->config, keys[i]);
        if (value)
            return wrong(r, keys[i], value, "that is not computed");
    }
    return true;
}

/* A window that is not exceeded changes nothing. */
static bool check_window(const reader *r, int layer, int64_t tokens)
{
    const json_t *types = model_config_value(r->config, "layer_types");
    const json_t *uses = model_config_value(r->config, "use_sliding_window");
    const json_t *window = model_config_value(r->config, "sliding_window");
    const json_t *type = json_array_get(types, (size_t)layer);
    if (types && !type)
        return wrong(r, "layer_types", types, "want one for each layer");
    if (type && strcmp(json_is_string(type) ? json_string_value(type) : "", "full_attention") == 0)
        return true;
    if (!type && (!window || json_is_false(uses)))
        return true;
    if (window && json_is_number(window) && json_number_value(window) >= (double)tokens)
        return true;
    if (type)
        return st_fail(r->error,
                       "%s: layer_types says %s of layer %d: only full_attention is computed",
                       r->path, st_json_show(type).text, layer);
    return st_fail(r->error,
                   "%s: sliding_window is %s, and a sequence has %lld tokens: sliding windows are "
                   "not computed",
                   r->path, st_json_show(window).text, (long long)tokens);
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static bool read_count(const reader *r, const char *key, int64_t most, int *out)
{
    const json_t *value = model_config_value(r->config, key);
    if (!value)
        return st_fail(r->error, "%s: has no %s", r->path, key);
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > most)
        return wrong(r, key, value, "want a whole number, at least 1");
    *out = (int)json_integer_value(value);
    return true;
}

static bool read_heads(const reader *r, decode_weights *w)
{
    enum { HEADS_MOST = 65536 };
    const json_t *size = model_config_value(r->config, "hidden_size");
    if (size && !(json_is_integer(size) && json_integer_value(size) == w->hidden))
        return st_fail(r->error,
                       "%s: hidden_size is %s, but q_proj has %lld columns: is it the config of "
                       "this checkpoint?",
                       r->path, st_json_show(size).text, (long long)w->hidden);
    if (!read_count(r, "num_attention_heads", HEADS_MOST, &w->heads))
        return false;
    w->kv_heads = w->heads;
    if (model_config_value(r->config, "num_key_value_heads") &&
        !read_count(r, "num_key_value_heads", HEADS_MOST, &w->kv_heads))
        return false;
    if (model_config_value(r->config, "head_dim"))
        return read_count(r, "head_dim", HEADS_MOST, &w->head_dim);
    w->head_dim = (int)(w->hidden / w->heads);
    return true;
}

static bool check_biases(const reader *r, int layer, const decode_weights *w)
{
    const json_t *value = model_config_value(r->config, "attention_bias");
    const matrix *biases[] = { &w->q_bias, &w->k_bias, &w->v_bias, &w->o_bias };
    for (int i = 0; i < 4; i++) {
        bool there = biases[i]->rows > 0;
        if ((json_is_false(value) && there) || (json_is_true(value) && !there))
            return st_fail(r->error, "%s: attention_bias is %s, but layer %d has %s %c_proj.bias",
                           r->path, there ? "false" : "true", layer, there ? "a" : "no", "qkvo"[i]);
    }
    return true;
}

/* ---- Positions ------------------------------------------------------------------------------- */

static bool read_real(const reader *r, const json_t *from, const char *what, const char *key,
                      double least, double *out)
{
    const json_t *value = json_object_get(from, key);
    if (!json_is_number(value) || !(json_number_value(value) > least))
        return st_fail(r->error, "%s: %s of %s is %s: want a number above %g", r->path, key, what,
                       value ? st_json_show(value).text : "missing", least);
    *out = json_number_value(value);
    return true;
}

static bool read_scaling(const reader *r, const json_t *scaling, const char *what,
                         decode_rope *rope)
{
    const json_t *type = json_object_get(scaling, "rope_type");
    type = type ? type : json_object_get(scaling, "type");
    const char *name = json_is_string(type) ? json_string_value(type) : "";
    if (strcmp(name, "default") == 0)
        return true;
    if (strcmp(name, "linear") == 0) {
        rope->kind = DECODE_ROPE_LINEAR;
        return read_real(r, scaling, what, "factor", 0, &rope->factor);
    }
    if (strcmp(name, "llama3") != 0)
        return st_fail(r->error, "%s: %s is of type %s: computed are default, linear and llama3",
                       r->path, what, type ? st_json_show(type).text : "none");
    rope->kind = DECODE_ROPE_LLAMA3;
    return read_real(r, scaling, what, "factor", 0, &rope->factor) &&
           read_real(r, scaling, what, "low_freq_factor", 0, &rope->low) &&
           read_real(r, scaling, what, "high_freq_factor", rope->low, &rope->high) &&
           read_real(r, scaling, what, "original_max_position_embeddings", 0, &rope->original);
}

/* rope_theta and rope_scaling, or both in one of rope_parameters, as later configs have them, and
 * rope_scaling. */
static bool read_rope(const reader *r, decode_rope *rope)
{
    const json_t *parameters = model_config_value(r->config, "rope_parameters");
    const json_t *scaling = model_config_value(r->config, "rope_scaling");
    const json_t *theta = model_config_value(r->config, "rope_theta");
    const json_t *part = model_config_value(r->config, "partial_rotary_factor");
    const json_t *in = parameters ? parameters : scaling;
    const json_t *theta_in = json_object_get(in, "rope_theta");
    if (parameters && scaling)
        return wrong(r, "rope_scaling", scaling,
                     "there is a rope_parameters, too: leave one of them out");
    part = part ? part : json_object_get(in, "partial_rotary_factor");
    if (part && !(json_is_number(part) && json_number_value(part) == 1))
        return wrong(r, "partial_rotary_factor", part, "only 1 is computed");
    theta = theta_in ? theta_in : theta;
    if (!theta && strcmp(model_type(r), "mixtral") == 0)
        return st_fail(r->error, "%s: has no rope_theta: give that of the model", r->path);
    rope->theta = 10000;
    if (theta && !(json_is_number(theta) && json_number_value(theta) > 0))
        return wrong(r, "rope_theta", theta, "want a number above 0");
    if (theta)
        rope->theta = json_number_value(theta);
    return !in || read_scaling(r, in, parameters ? "rope_parameters" : "rope_scaling", rope);
}

static bool apply(const reader *r, int layer, int64_t tokens, decode_weights *w)
{
    return check_model(r) && check_beyond(r) && check_window(r, layer, tokens) &&
           read_heads(r, w) && check_biases(r, layer, w) && check_parts(r, layer, w) &&
           read_rope(r, &w->rope) &&
           model_config_real(r->config, "rms_norm_eps", 1e-6, &w->eps, r->error);
}

bool decode_config_apply(const checkpoint *from, int layer, int64_t tokens, decode_weights *weights,
                         st_error *error)
{
    model_config *config;
    if (!model_config_open(from, &config, error))
        return false;
    if (!config)
        return st_fail(error,
                       "%s: no config.json lies beside it, which says how many heads there are",
                       st_path_tail(checkpoint_path(from)));
    const reader r = { config, st_path_tail(model_config_path(config)), error };
    bool good = apply(&r, layer, tokens, weights);
    model_config_close(config);
    return good;
}

#else /* no jansson: no checkpoint can be opened, either */

bool decode_config_apply(const checkpoint *from, int layer, int64_t tokens, decode_weights *weights,
                         st_error *error)
{
    (void)from, (void)layer, (void)tokens, (void)weights;
    return st_fail(error, "this build cannot read config.json: install libjansson-dev");
}

#endif
