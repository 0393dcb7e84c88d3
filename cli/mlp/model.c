/* model.c - opens what `imbrex mlp` computes on, and checks that it fits together: finds a layer's
 * tensors by their names, and refuses names that it does not know, as a tensor that is left out
 * makes another model. */
#include "model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "options.h"

enum { NAME_BYTES = 96 };

static const char *const models[] = { "model.", "", "language_model.model.",
                                      "model.language_model." };
enum { MODELS = sizeof models / sizeof *models };

/* ---- What is there beside the weights -------------------------------------------------------- */

static const char experts[] = "a mixture of experts is not computed";
static const char quantised[] = "the layer is quantised: convert it to BF16, F16 or F32";
static const char others[] =
    "only weights and biases of gate_proj, up_proj and down_proj are computed";

/* Words of names, and what they say of the layer; the first that a name has counts. */
static const struct {
    const char *word, *says;
} strange[] = {
    { "expert", experts },
    { "router", experts },
    { "gate.", experts },
    { "layer_scale", others },
    { "qweight", quantised },
    { "qzeros", quantised },
    { "g_idx", quantised },
    { "scale", quantised },
    { "zero_point", quantised },
    { "packed", quantised },
    { "weight_shape", quantised },
    { "absmax", quantised },
    { "quant", quantised },
    { ".SCB", quantised },
    { "lora_", "merge the adapter into the weights" },
    { "gate_up_proj", "split what is fused into gate_proj and up_proj" },
    { "norm", "a norm inside the MLP is not computed" },
};

static const char *find_strange(const char *name)
{
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++)
        if (strstr(name, strange[i].word))
            return strange[i].says;
    return others;
}

static bool refuse(const checkpoint *from, int layer, const char *name, const char *says,
                   st_error *error)
{
    return st_fail(error, "%s: layer %d has the tensor %.120s: %s",
                   st_path_tail(checkpoint_holder(from, name)), layer, name, says);
}

/* ---- Which layer ----------------------------------------------------------------------------- */

/* The layer's number in "<model>layers.<n>.mlp.<anything>", else -1. */
static int layer_of(const char *name, const char *model)
{
    int layer, end = 0;
    size_t length = strlen(model);
    if (strncmp(name, model, length) != 0 ||
        sscanf(name + length, "layers.%9d.mlp.%n", &layer, &end) != 1 || !end)
        return -1;
    return layer;
}

static bool has_layer(const checkpoint *from, const char *model, int layer)
{
    for (size_t i = 0; i < checkpoint_count(from); i++)
        if (layer_of(checkpoint_name(from, i), model) == layer)
            return true;
    return false;
}

/* Experts may lie elsewhere than below an mlp: block_sparse_moe, feed_forward. */
static bool is_expert(const char *name, int layer)
{
    char part[32];
    snprintf(part, sizeof part, "layers.%d.", layer);
    const char *at = strstr(name, part);
    return at && find_strange(at) == experts;
}

static bool fail_layer(const checkpoint *from, int layer, st_error *error)
{
    int first = -1, last = -1;
    char name[NAME_BYTES];
    for (size_t i = 0; i < checkpoint_count(from) * MODELS; i++) {
        int other = layer_of(checkpoint_name(from, i / MODELS), models[i % MODELS]);
        if (other >= 0 && (first < 0 || other < first))
            first = other;
        if (other > last)
            last = other;
    }
    for (size_t i = 0; i < checkpoint_count(from); i++)
        if (is_expert(checkpoint_name(from, i), layer))
            return refuse(from, layer, checkpoint_name(from, i), experts, error);
    snprintf(name, sizeof name, "model.layers.%d.mlp.gate_proj.weight", layer);
    if (first < 0)
        return checkpoint_fail_missing(from, name, error);
    return st_fail(error, "%s: has no layer %d: ask for one from %d to %d",
                   st_path_tail(checkpoint_path(from)), layer, first, last);
}

static bool find_prefix(const checkpoint *from, int layer, char *prefix, st_error *error)
{
    const char *model = NULL;
    for (int i = 0; i < MODELS; i++) {
        if (layer < 0 || !has_layer(from, models[i], layer))
            continue;
        if (model)
            return st_fail(error,
                           "%s: has a layer %d below both '%s' and '%s': name a file that has one",
                           st_path_tail(checkpoint_path(from)), layer, model, models[i]);
        model = models[i];
    }
    if (!model)
        return fail_layer(from, layer, error);
    snprintf(prefix, MLP_LAYER_PREFIX, "%slayers.%d.mlp.", model, layer);
    return true;
}

/* ---- The weights ----------------------------------------------------------------------------- */

static const char *const projections[] = { "gate", "up", "down" };
enum { GATE, UP, DOWN, PROJECTIONS };

/* "gate_proj.weight" and such. */
static bool is_known(const char *rest)
{
    for (int i = 0; i < PROJECTIONS; i++) {
        size_t length = strlen(projections[i]);
        if (strncmp(rest, projections[i], length) == 0 &&
            (strcmp(rest + length, "_proj.weight") == 0 ||
             strcmp(rest + length, "_proj.bias") == 0))
            return true;
    }
    return false;
}

static bool check_names(const checkpoint *from, int layer, const char *prefix, st_error *error)
{
    size_t length = strlen(prefix);
    for (size_t i = 0; i < checkpoint_count(from); i++) {
        const char *name = checkpoint_name(from, i);
        if (strncmp(name, prefix, length) == 0 && !is_known(name + length))
            return refuse(from, layer, name, find_strange(name + length), error);
    }
    return true;
}

/* The matrix, which is in that file, must be [rows, cols], of gate's or up's dtype. */
static bool check_one(const char *file, int layer, const mlp_weights *mlp, const matrix *one,
                      const char *name, int64_t rows, int64_t cols, st_error *error)
{
    const matrix *first = mlp->ungated ? &mlp->up : &mlp->gate;
    const char *than = mlp->ungated ? "up" : "gate";
    if (one->rows != rows || one->cols != cols)
        return st_fail(error,
                       "%s: layer %d: %s_proj is [%" PRId64 ", %" PRId64 "], so %s must be "
                       "[%" PRId64 ", %" PRId64 "], but it is [%" PRId64 ", %" PRId64
                       "]: choose a layer with a plain MLP",
                       file, layer, than, mlp->ffn, mlp->hidden, name, rows, cols, one->rows,
                       one->cols);
    if (one->dtype != first->dtype)
        return st_fail(error,
                       "%s: layer %d: %s_proj is %s, but %s is %s: convert them to one dtype", file,
                       layer, than, st_dtype_name(st_dtype_of(first->dtype)), name,
                       st_dtype_name(st_dtype_of(one->dtype)));
    return true;
}

static bool check_all(const checkpoint *from, int layer, const char *prefix, const mlp_weights *mlp,
                      st_error *error)
{
    const struct {
        const matrix *one;
        const char *name;
        int64_t rows, cols;
    } parts[] = {
        { &mlp->gate, "gate_proj", mlp->ffn, mlp->hidden },
        { &mlp->up, "up_proj", mlp->ffn, mlp->hidden },
        { &mlp->down, "down_proj", mlp->hidden, mlp->ffn },
        { &mlp->gate_bias, "gate_proj.bias", 1, mlp->ffn },
        { &mlp->up_bias, "up_proj.bias", 1, mlp->ffn },
        { &mlp->down_bias, "down_proj.bias", 1, mlp->hidden },
    };
    for (int i = 0; i < 6; i++) {
        bool missing = i == GATE ? mlp->ungated : i >= PROJECTIONS && !parts[i].one->rows;
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "%s%s%s", prefix, parts[i].name,
                 i < PROJECTIONS ? ".weight" : "");
        const char *file = st_path_tail(checkpoint_holder(from, name));
        if (!missing && !check_one(file, layer, mlp, parts[i].one, parts[i].name, parts[i].rows,
                                   parts[i].cols, error))
            return false;
    }
    return true;
}

static bool read_all(checkpoint *from, const char *prefix, mlp_weights *mlp, st_error *error)
{
    matrix *const weights[] = { &mlp->gate, &mlp->up, &mlp->down };
    matrix *const biases[] = { &mlp->gate_bias, &mlp->up_bias, &mlp->down_bias };
    char name[NAME_BYTES];
    for (int i = 0; i < PROJECTIONS; i++) {
        snprintf(name, sizeof name, "%s%s_proj.bias", prefix, projections[i]);
        bool bias = checkpoint_has(from, name);
        if (bias && !checkpoint_vector(from, name, biases[i], error))
            return false;
        snprintf(name, sizeof name, "%s%s_proj.weight", prefix, projections[i]);
        if (i == GATE && !bias && !checkpoint_has(from, name))
            mlp->ungated = true;
        else if (!checkpoint_matrix(from, name, weights[i], error))
            return false;
    }
    return true;
}

bool mlp_layer_find(checkpoint *from, int layer, mlp_weights *weights, char *prefix,
                    st_error *error)
{
    mlp_weights mlp = { 0 };
    if (!find_prefix(from, layer, prefix, error) || !check_names(from, layer, prefix, error) ||
        !read_all(from, prefix, &mlp, error))
        return false;
    const char *other = checkpoint_unlisted(from, prefix);
    if (other)
        return st_fail(error,
                       "%s: does not name the tensor %.120s, which is in a file that it names: "
                       "download both again",
                       st_path_tail(checkpoint_path(from)), other);
    mlp.ffn = mlp.up.rows;
    mlp.hidden = mlp.up.cols;
    if (!mlp.ungated) {
        mlp.ffn = mlp.gate.rows;
        mlp.hidden = mlp.gate.cols;
    }
    if (!check_all(from, layer, prefix, &mlp, error))
        return false;
    *weights = mlp;
    return true;
}

/* ---- What happens to y ----------------------------------------------------------------------- */

/* The language model's own, or else that of the whole. */
static double number_of(const model_config *config, const char *key, double otherwise)
{
    static const char *const sections[] = { "text_config", "llm_config", "language_config", "" };
    for (int i = 3; i >= 0; i--)
        otherwise = model_config_number(config, sections[i], key, otherwise);
    return otherwise;
}

static bool is_gemma(const model_config *config)
{
    const char *model = model_config_text(config, "", "model_type");
    return model && strncmp(model, "gemma", 5) == 0;
}

bool mlp_norm_find(checkpoint *from, const char *prefix, const char *norm, int64_t hidden,
                   const model_config *config, mlp_after *after, st_error *error)
{
    char name[NAME_BYTES + 32];
    int layer = (int)(strlen(prefix) - strlen("mlp."));
    snprintf(name, sizeof name, "%.*s%s.bias", layer, prefix, norm);
    if (checkpoint_has(from, name))
        return st_fail(error, "%s: has the tensor %.120s: only RMSNorm is computed, which has none",
                       st_path_tail(checkpoint_holder(from, name)), name);
    snprintf(name, sizeof name, "%.*s%s.weight", layer, prefix, norm);
    if (!checkpoint_vector(from, name, &after->gamma, error))
        return false;
    if (after->gamma.cols != hidden)
        return st_fail(error,
                       "%s: %.120s has %" PRId64 " numbers, but the layer's hidden size is "
                       "%" PRId64,
                       st_path_tail(checkpoint_holder(from, name)), name, after->gamma.cols,
                       hidden);
    after->eps = config ? number_of(config, "rms_norm_eps", 1e-6) : 1e-6;
    after->offset = config && is_gemma(config) ? 1 : 0;
    return true;
}

/* ---- Random ones ----------------------------------------------------------------------------- */

enum { SEED_GATE = 1, SEED_UP, SEED_DOWN, SEED_INPUT, SEED_RESIDUAL, SEED_GAMMA };

static matrix random_weight(uint64_t seed, int64_t rows, int64_t cols)
{
    return matrix_random(seed, rows, cols, cols ? 1 / sqrt((double)cols) : 1);
}

mlp_weights shard_random_weights(int64_t hidden, int64_t ffn)
{
    return (mlp_weights){ .hidden = hidden,
                          .ffn = ffn,
                          .gate = random_weight(SEED_GATE, ffn, hidden),
                          .up = random_weight(SEED_UP, ffn, hidden),
                          .down = random_weight(SEED_DOWN, hidden, ffn) };
}

matrix shard_random_input(int64_t tokens, int64_t hidden)
{
    return matrix_random(SEED_INPUT, tokens, hidden, 1);
}

/* ---- The model ------------------------------------------------------------------------------- */

void mlp_model_close(mlp_model *m)
{
    checkpoint_close(m->weights_file);
    checkpoint_close(m->input_file);
}

bool mlp_model_parse(const char *text, mlp_sizes *sizes)
{
    long long h, f, t;
    char rest;
    if (sscanf(text, "%lld,%lld,%lld%c", &h, &f, &t, &rest) != 3 || h < 1 || f < 1 || t < 1 ||
        h > 1 << 20 || f > 1 << 20 || t > 1 << 24)
        return false;
    if (sizes)
        *sizes = (mlp_sizes){ .hidden = h, .ffn = f, .tokens = t };
    return true;
}

static bool find_layer(const mlp_source *q, mlp_model *m, st_error *error)
{
    model_config *config = NULL;
    bool good = checkpoint_open(q->weights, &m->weights_file, error) &&
                mlp_layer_find(m->weights_file, (int)q->layer, &m->weights, m->prefix, error) &&
                model_config_open(m->weights_file, &config, error) &&
                mlp_config_apply(config, (int)q->layer, q->activation, &m->weights, error) &&
                (!q->norm || mlp_norm_find(m->weights_file, m->prefix, q->norm, m->weights.hidden,
                                           config, &m->after, error));
    m->activation_from = q->activation ? "--activation" : config ? "config.json" : NULL;
    model_config_close(config);
    return good;
}

static bool from_files(const mlp_source *q, mlp_model *m, st_error *error)
{
    const char *file = strrchr(q->weights, '/');
    snprintf(m->name, sizeof m->name, "%s, layer %lld", file && file[1] ? file + 1 : q->weights,
             (long long)q->layer);
    if (!find_layer(q, m, error) || !checkpoint_open(q->input, &m->input_file, error) ||
        !checkpoint_matrix(m->input_file, "x", &m->x, error))
        return false;
    m->dtype = m->weights.up.dtype;
    if (m->x.cols != m->weights.hidden)
        return st_fail(error,
                       "%s: x has %lld column%s, but the layer's hidden size is %lld: give an "
                       "--input made for this model",
                       st_path_tail(q->input), (long long)m->x.cols, m->x.cols == 1 ? "" : "s",
                       (long long)m->weights.hidden);
    if (!q->residual)
        return true;
    const matrix *residual = &m->after.residual;
    if (!checkpoint_matrix(m->input_file, "residual", &m->after.residual, error))
        return false;
    return (residual->rows == m->x.rows && residual->cols == m->x.cols) ||
           st_fail(error,
                   "%s: residual is [%" PRId64 ", %" PRId64 "], but x [%" PRId64 ", %" PRId64
                   "]: want both alike",
                   st_path_tail(q->input), residual->rows, residual->cols, m->x.rows, m->x.cols);
}

static void make_up(const mlp_source *q, const mlp_sizes *sizes, mlp_model *m)
{
    m->weights = shard_random_weights(sizes->hidden, sizes->ffn);
    m->x = shard_random_input(sizes->tokens, sizes->hidden);
    m->after.eps = 1e-6;
    if (q->residual)
        m->after.residual = matrix_random(SEED_RESIDUAL, sizes->tokens, sizes->hidden, 1);
    if (q->norm)
        m->after.gamma = matrix_random(SEED_GAMMA, 1, sizes->hidden, 1);
}

bool mlp_model_open(const mlp_source *q, mlp_model *m, st_error *error)
{
    *m = (mlp_model){ .dtype = IMBREX_F32 };
    mlp_sizes sizes;
    if (!q->random) {
        if (!from_files(q, m, error))
            return false;
    } else {
        if (!mlp_model_parse(q->random, &sizes))
            return st_fail(error, "--random is '%s': want HIDDEN,FFN,TOKENS", q->random);
        make_up(q, &sizes, m);
        m->activation_from = q->activation ? "--activation" : "--random";
        if (q->activation)
            m->weights.activation = (imbrex_activation_kind)options_index(
                mlp_config_activations, MLP_CONFIG_ACTIVATIONS, q->activation);
        snprintf(m->name, sizeof m->name, "random weights");
    }
    if (q->dtype)
        m->dtype = (imbrex_dtype)options_index(matrix_dtype_names, MATRIX_DTYPES, q->dtype);
    return true;
}
