/* mlp_model.c - opens what `imbrex mlp` computes on, and checks that it fits together. */
#include "mlp_model.h"

#include <stdio.h>
#include <string.h>

#include "mlp_config.h"
#include "options.h"

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
    mlp_config *config = NULL;
    bool good = checkpoint_open(q->weights, &m->weights_file, error) &&
                mlp_layer_find(m->weights_file, (int)q->layer, &m->weights, m->prefix, error) &&
                mlp_config_open(m->weights_file, &config, error) &&
                mlp_config_apply(config, (int)q->layer, q->activation, &m->weights, error);
    m->activation_from = q->activation ? "--activation" : config ? "config.json" : NULL;
    mlp_config_close(config);
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
    return true;
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
        m->weights = shard_random_weights(sizes.hidden, sizes.ffn);
        m->x = shard_random_input(sizes.tokens, sizes.hidden);
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
