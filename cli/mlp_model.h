/* mlp_model.h - the weights and the input of `imbrex mlp`, wherever they come from. */
#ifndef CLI_MLP_MODEL_H
#define CLI_MLP_MODEL_H

#include "mlp_layer.h"

typedef struct mlp_source {
    const char *weights; /* a checkpoint, see checkpoint.h */
    int64_t layer;
    const char *input;      /* safetensors with x[tokens, hidden] */
    const char *random;     /* instead of the three above: "HIDDEN,FFN,TOKENS" */
    const char *dtype;      /* NULL: the weights' own; random: f32 */
    const char *activation; /* see mlp_config_apply; random: NULL is silu */
} mlp_source;

typedef struct mlp_model {
    checkpoint *weights_file, *input_file;
    mlp_weights weights;
    matrix x;
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

#endif /* CLI_MLP_MODEL_H */
