/* model.h - the weights and the input of `imbrex mlp`, wherever they come from. */
#ifndef CLI_MODEL_H
#define CLI_MODEL_H

#include <stdbool.h>

#include "model_config.h"

/* y = down (f(gate x + gate_bias) * (up x + up_bias)) + down_bias, or without a gate
 * y = down f(up x + up_bias) + down_bias. */
typedef struct mlp_weights {
    int64_t hidden, ffn;
    imbrex_activation_kind activation; /* f */
    bool ungated;
    matrix gate, up;           /* [ffn, hidden] */
    matrix down;               /* [hidden, ffn] */
    matrix gate_bias, up_bias; /* [1, ffn]; no rows: none */
    matrix down_bias;          /* [1, hidden] */
} mlp_weights;

/* Random weights, scaled by 1 / sqrt(columns) so that activations keep their size, and a random
 * input[tokens, hidden] for them, scaled by 1. */
mlp_weights shard_random_weights(int64_t hidden, int64_t ffn);
matrix shard_random_input(int64_t tokens, int64_t hidden);

/* ---- model.c: the tensors of a layer's MLP in a checkpoint: each of them is used or refused -- */

enum { MLP_LAYER_PREFIX = 64 };

/* Finds {gate,up,down}_proj.{weight,bias} below "<model>layers.<layer>.mlp.", where <model> is
 * "model.", nothing, "language_model.model." or "model.language_model.": shapes that fit each
 * other, one dtype; the gate and each bias may be missing.  Any other tensor there is refused by
 * its name.  prefix[MLP_LAYER_PREFIX] gets what was before the names; weights->activation is not
 * set. */
bool mlp_layer_find(checkpoint *from, int layer, mlp_weights *weights, char *prefix,
                    st_error *error) ST_MUST_CHECK;

/* ---- config.c: what the config.json beside a checkpoint says of its MLPs --------------------- */

enum { MLP_CONFIG_ACTIVATIONS = IMBREX_RELU2 + 1 };
extern const char *const mlp_config_activations[MLP_CONFIG_ACTIVATIONS]; /* "silu", by kind */

/* Sets weights->activation: what the config says, or `asked` (NULL: not asked) where it says
 * nothing or two things; without a config what is asked, or SiLU.  False where the layer cannot be
 * computed from its weights and biases alone, or contradicts the config: the sentence names what
 * does. */
bool mlp_config_apply(const model_config *config, int layer, const char *asked,
                      mlp_weights *weights, st_error *error) ST_MUST_CHECK;

/* ---- model.c: all of it ---------------------------------------------------------------------- */

typedef struct mlp_source {
    const char *weights; /* a checkpoint, see safetensors.h */
    int64_t layer;
    const char *input;      /* safetensors with x[tokens, hidden] */
    const char *random;     /* instead of the three above: "HIDDEN,FFN,TOKENS" */
    const char *dtype;      /* NULL: the weights' own; random: f32 */
    const char *activation; /* see mlp_config_apply; random: NULL is silu */
    bool residual;          /* the input has residual[tokens, hidden], too */
    const char *norm; /* "input_layernorm": of the layer, what y is normed by; NULL: nothing */
} mlp_source;

/* What happens to y: it gets the residual, and becomes y / rms(y) * (gamma + offset). */
typedef struct mlp_after {
    matrix residual; /* [tokens, hidden]; no rows: none */
    matrix gamma;    /* [1, hidden]; no rows: y is not normed */
    double eps, offset;
} mlp_after;

/* The layer's weight of a norm, "post_attention_layernorm", and what config.json, or NULL, says of
 * norms: prefix, the mlp's, ends in "mlp.".  Refused where the norm has a bias. */
bool mlp_norm_find(checkpoint *from, const char *prefix, const char *norm, int64_t hidden,
                   const model_config *config, mlp_after *after, st_error *error) ST_MUST_CHECK;

typedef struct mlp_model {
    checkpoint *weights_file, *input_file;
    mlp_weights weights;
    matrix x;
    mlp_after after;
    imbrex_dtype dtype;            /* to compute in */
    char name[200];                /* for people */
    char prefix[MLP_LAYER_PREFIX]; /* of the layer's tensors */
    const char *activation_from;   /* "config.json", "--activation", or NULL: assumed */
} mlp_model;

typedef struct mlp_sizes {
    int64_t hidden, ffn, tokens;
} mlp_sizes;

/* "HIDDEN,FFN,TOKENS", each at least 1; sizes may be NULL. */
bool mlp_model_parse(const char *text, mlp_sizes *sizes);

bool mlp_model_open(const mlp_source *source, mlp_model *model, st_error *error) ST_MUST_CHECK;
void mlp_model_close(mlp_model *model);

#endif /* CLI_MODEL_H */
