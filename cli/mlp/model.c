/* model.c - opens what `imbrex mlp` computes on, and checks that it fits together. */
#include "mlp.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

/* ---- What happens to y ----------------------------------------------------------------------- */

static bool is_gemma(const model_config *config)
{
    const char *model = model_config_text(config, "", "model_type");
    return model && strncmp(model, "gemma", 5) == 0;
}

/* The layer's weight of a norm, "post_attention_layernorm", and what config.json, or NULL, says of
 * norms; prefix: the mlp's.  Refused where the norm has a bias. */
static bool find_norm(checkpoint *from, const char *prefix, const char *norm, int64_t hidden,
                      const model_config *config, mlp_after *after, st_error *error)
{
    char name[MLP_LAYER_PREFIX + 96];
    int layer = (int)strlen(prefix) - 1;
    while (layer > 0 && prefix[layer - 1] != '.') /* "mlp." goes */
        layer--;
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
    after->eps = 1e-6;
    after->offset = config && is_gemma(config) ? 1 : 0;
    return !config || model_config_real(config, "rms_norm_eps", 1e-6, &after->eps, error);
}

/* ---- Random ones ----------------------------------------------------------------------------- */

enum {
    SEED_GATE = 1,
    SEED_UP,
    SEED_DOWN,
    SEED_INPUT,
    SEED_RESIDUAL,
    SEED_GAMMA,
    SEED_ROUTER,
    SEED_EXPERTS
};

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

mlp_experts shard_random_experts(int64_t hidden, int64_t ffn, int count, int top_k)
{
    mlp_experts x = { .count = count, .list = calloc((size_t)count, sizeof *x.list) };
    for (int e = 0; x.list && e < count; e++) {
        uint64_t seed = SEED_EXPERTS + 3 * (uint64_t)e;
        x.list[e] = (mlp_weights){ .hidden = hidden,
                                   .ffn = ffn,
                                   .gate = random_weight(seed, ffn, hidden),
                                   .up = random_weight(seed + 1, ffn, hidden),
                                   .down = random_weight(seed + 2, hidden, ffn) };
    }
    x.router = random_weight(SEED_ROUTER, count, hidden);
    x.gate =
        (imbrex_gate){ .experts = count, .top_k = top_k, .renormalize = 1, .dtype = IMBREX_F32 };
    return x;
}

matrix shard_random_input(int64_t tokens, int64_t hidden)
{
    return matrix_random(SEED_INPUT, tokens, hidden, 1);
}

/* ---- The model ------------------------------------------------------------------------------- */

void mlp_model_close(mlp_model *m)
{
    mlp_experts_free(&m->experts);
    checkpoint_close(m->weights_file);
    checkpoint_close(m->input_file);
}

bool mlp_model_parse_shape(const char *text, int64_t sizes[2])
{
    long long hidden, ffn;
    char rest;
    if (sscanf(text, "%lld,%lld%c", &hidden, &ffn, &rest) != 2 || hidden < 1 || ffn < 1 ||
        hidden > MLP_SIZE_MOST || ffn > MLP_SIZE_MOST)
        return false;
    sizes[0] = hidden;
    sizes[1] = ffn;
    return true;
}

static bool find_experts(const mlp_source *q, const model_config *config, mlp_model *m,
                         st_error *error)
{
    const int layer = (int)q->layer;
    const char *ffn_key;
    mlp_fp8 how = { 0 };
    if (!config)
        return st_fail(error,
                       "%s: layer %d has experts, but no config.json lies beside it: put it there, "
                       "it says how many of them a token takes",
                       st_path_tail(checkpoint_path(m->weights_file)), layer);
    if (!mlp_router_known(config, error) ||
        !mlp_experts_find(m->weights_file, q->prefix, layer, &m->experts, m->prefix, error) ||
        !mlp_router_apply(config, layer, &m->experts, &ffn_key, error))
        return false;
    if (mlp_experts_are_fp8(&m->experts) &&
        (!mlp_fp8_apply(config, &how, error) ||
         !mlp_experts_scales(m->weights_file, m->prefix, &how, &m->experts, error)))
        return false;
    m->weights = m->experts.list[0];
    return mlp_config_apply(config, layer, ffn_key, q->activation, &m->weights, error);
}

static bool find_dense(const mlp_source *q, const model_config *config, mlp_model *m,
                       st_error *error)
{
    const int layer = (int)q->layer;
    mlp_weights *w = &m->weights;
    if (!mlp_layer_find(m->weights_file, q->prefix, layer, w, m->prefix, error))
        return false;
    if (w->down.dtype == IMBREX_E4M3 &&
        (!mlp_fp8_apply(config, &w->fp8, error) ||
         !mlp_fp8_find(m->weights_file, m->prefix, mlp_fp8_dense, w, error)))
        return false;
    return mlp_router_absent(config, layer, error) &&
           mlp_config_apply(config, layer, "intermediate_size", q->activation, w, error);
}

static bool find_layer(const mlp_source *q, mlp_model *m, st_error *error)
{
    model_config *config = NULL;
    if (!checkpoint_open(q->weights, &m->weights_file, error) ||
        !model_config_open(m->weights_file, &config, error))
        return false;
    bool experts = mlp_layer_has_experts(m->weights_file, q->prefix, (int)q->layer);
    bool good = (experts ? find_experts : find_dense)(q, config, m, error) &&
                (!q->norm || find_norm(m->weights_file, m->prefix, q->norm, m->weights.hidden,
                                       config, &m->after, error));
    m->activation_from = q->activation ? "--activation" : config ? "config.json" : NULL;
    model_config_close(config);
    return good;
}

static bool read_input(const mlp_source *q, mlp_model *m, st_error *error)
{
    if (!checkpoint_open(q->input, &m->input_file, error) ||
        !checkpoint_matrix(m->input_file, "x", &m->x, error))
        return false;
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

static void make_input(const mlp_source *q, mlp_model *m)
{
    m->x = shard_random_input(q->tokens, m->weights.hidden);
    if (q->residual)
        m->after.residual = matrix_random(SEED_RESIDUAL, q->tokens, m->weights.hidden, 1);
}

static bool open_weights(const mlp_source *q, mlp_model *m, st_error *error)
{
    const char *file = strrchr(q->weights, '/');
    snprintf(m->name, sizeof m->name, "%s, layer %lld", file && file[1] ? file + 1 : q->weights,
             (long long)q->layer);
    if (!find_layer(q, m, error))
        return false;
    m->dtype = m->experts.count ? m->weights.gate.dtype : m->weights.up.dtype;
    if (m->dtype == IMBREX_E4M3)
        m->dtype = IMBREX_BF16; /* of x and y */
    return true;
}

static bool make_weights(const mlp_source *q, mlp_model *m, st_error *error)
{
    int64_t sizes[2];
    if (!mlp_model_parse_shape(q->shape, sizes))
        return st_fail(error, "--shape is '%s': want HIDDEN,FFN", q->shape);
    snprintf(m->name, sizeof m->name, "random weights");
    m->weights = shard_random_weights(sizes[0], sizes[1]);
    if (q->experts) {
        m->experts = shard_random_experts(sizes[0], sizes[1], (int)q->experts, (int)q->top_k);
        if (!m->experts.list)
            return st_fail(error, "no memory is left for %d experts", (int)q->experts);
    }
    m->after.eps = 1e-6;
    if (q->norm)
        m->after.gamma = matrix_random(SEED_GAMMA, 1, sizes[0], 1);
    m->activation_from = q->activation ? "--activation" : "made-up weights";
    if (q->activation)
        m->weights.activation = (imbrex_activation_kind)options_index(
            mlp_config_activations, MLP_CONFIG_ACTIVATIONS, q->activation);
    return true;
}

bool mlp_model_open(const mlp_source *q, mlp_model *m, st_error *error)
{
    *m = (mlp_model){ .dtype = IMBREX_F32 };
    if (!(q->shape ? make_weights : open_weights)(q, m, error))
        return false;
    if (q->tokens)
        make_input(q, m);
    else if (!read_input(q, m, error))
        return false;
    if (q->dtype)
        m->dtype = (imbrex_dtype)options_index(matrix_dtype_names, MATRIX_DTYPES, q->dtype);
    return true;
}
