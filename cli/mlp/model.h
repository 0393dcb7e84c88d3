/* model.h - the weights and the input of `imbrex mlp`, wherever they come from. */
#ifndef CLI_MODEL_H
#define CLI_MODEL_H

#include <stdbool.h>

#include "checkpoint.h"

/* How weights of 8 bits are scaled, and what they are multiplied by. */
typedef struct mlp_fp8 {
    imbrex_scaling scaling; /* UNSCALED: weights are not of 8 bits; PER_ROW, PER_BLOCK */
    bool fixed;             /* activations have scales that the checkpoint has; else as they come */
    float x_scale, act_scale; /* those */
    matrix gate, up, down;    /* scales of weights: [rows, 1], or [1, 1]; [rows, cols] of blocks */
} mlp_fp8;

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
    mlp_fp8 fp8;
} mlp_weights;

/* Random weights, scaled by 1 / sqrt(columns) so that activations keep their size, and a random
 * input[tokens, hidden] for them, scaled by 1. */
mlp_weights shard_random_weights(int64_t hidden, int64_t ffn);
matrix shard_random_input(int64_t tokens, int64_t hidden);

/* Experts, each of the same shapes, and how a token chooses among them. */
typedef struct mlp_experts {
    int count;          /* 0: there are none, the layer is dense */
    mlp_weights *list;  /* [count]; freed by mlp_experts_free */
    matrix router;      /* [count, hidden]: logits */
    matrix correction;  /* [1, count]: it chooses and is in no weight; no rows: none */
    imbrex_gate gate;   /* the choice */
    mlp_weights shared; /* what all tokens take; ffn 0: none */
    matrix shared_gate; /* [1, hidden]: its weight is the sigmoid of that; no rows: it is 1 */
} mlp_experts;

mlp_experts shard_random_experts(int64_t hidden, int64_t ffn, int count, int top_k);
void mlp_experts_free(mlp_experts *experts);

/* ---- layer.c: the tensors of a layer's MLP in a checkpoint: each of them is used or refused -- */

enum { MLP_LAYER_PREFIX = 128 };

/* What stands before the names of a layer's MLP, to prefix[MLP_LAYER_PREFIX]:
 * "<model>layers.<layer>.mlp." or "....block_sparse_moe.".  model: "model." and such, or NULL: the
 * one of "model.", nothing, "language_model.model." and "model.language_model." that is there. */
bool mlp_layer_prefix(const checkpoint *from, const char *model, int layer, char *prefix,
                      st_error *error) ST_MUST_CHECK;

/* Whether the layer has tensors that speak of experts, computed or not; model: as above. */
bool mlp_layer_has_experts(const checkpoint *from, const char *model, int layer);

/* Whether the sizes of a layer, or of an expert of it, are at most MLP_SIZE_MOST. */
enum { MLP_SIZE_MOST = 1 << 20 };
bool mlp_layer_fits(const checkpoint *from, int layer, const mlp_weights *weights,
                    st_error *error) ST_MUST_CHECK;

/* Refuses a tensor of the layer by its name, and returns false. */
bool mlp_layer_refuse(const checkpoint *from, int layer, const char *name, st_error *error);

/* Finds {gate,up,down}_proj.{weight,bias} below the prefix: shapes that fit each other, one dtype;
 * the gate and each bias may be missing, and gate over up may be gate_up_proj.weight.  Any other
 * tensor there is refused by its name, but for scales beside weights of 8 bits.  Neither
 * weights->activation nor ->fp8 is set. */
bool mlp_layer_find(checkpoint *from, const char *model, int layer, mlp_weights *weights,
                    char *prefix, st_error *error) ST_MUST_CHECK;

/* ---- fp8.c: weights of 8 bits, F8_E4M3 ------------------------------------------------------- */

extern const char *const mlp_fp8_dense[]; /* "gate_proj", "up_proj", "down_proj" */

/* Whether the weight called `down` below the prefix is such; and the name of scales, of weights
 * with these three names. */
bool mlp_fp8_is(checkpoint *from, const char *prefix, const char *down);
bool mlp_fp8_knows(const char *rest, const char *const *names);

bool mlp_fp8_matrix(checkpoint *from, const char *name, matrix *out, st_error *error) ST_MUST_CHECK;

/* What quantization_config says: "fp8" or "compressed-tensors"; scales are not set. */
bool mlp_fp8_apply(const model_config *config, mlp_fp8 *out, st_error *error) ST_MUST_CHECK;

/* Then the scales, of the shapes that this wants. */
bool mlp_fp8_find(checkpoint *from, const char *prefix, const char *const *names,
                  mlp_weights *weights, st_error *error) ST_MUST_CHECK;

/* ---- experts.c: those of a layer that has experts -------------------------------------------- */

/* Finds the router, experts.E and the shared expert, if there is one, as Mixtral, Qwen2-MoE,
 * Qwen3-MoE and DeepSeek name them.  Any other tensor is refused by its name.  The choice is not
 * set, nor are activations. */
bool mlp_experts_find(checkpoint *from, const char *model, int layer, mlp_experts *experts,
                      char *prefix, st_error *error) ST_MUST_CHECK;

/* Whether their weights have 8 bits; and then all their scales, as mlp_fp8_find has them. */
bool mlp_experts_are_fp8(const mlp_experts *experts);
bool mlp_experts_scales(checkpoint *from, const char *prefix, const mlp_fp8 *how,
                        mlp_experts *experts, st_error *error) ST_MUST_CHECK;

/* ---- router.c: what config.json says of experts ---------------------------------------------- */

/* Refuses models whose experts are not computed, by model_type. */
bool mlp_router_known(const model_config *config, st_error *error) ST_MUST_CHECK;

/* Sets the choice, and compares the config with what was found.  *ffn_key: what the model calls the
 * size of an expert. */
bool mlp_router_apply(const model_config *config, int layer, mlp_experts *experts,
                      const char **ffn_key, st_error *error) ST_MUST_CHECK;

/* Of a dense layer: false where the config says that it has experts. */
bool mlp_router_absent(const model_config *config, int layer, st_error *error) ST_MUST_CHECK;

/* ---- config.c: what the config.json beside a checkpoint says of its MLPs --------------------- */

enum { MLP_CONFIG_ACTIVATIONS = IMBREX_RELU2 + 1 };
extern const char *const mlp_config_activations[MLP_CONFIG_ACTIVATIONS]; /* "silu", by kind */

/* ffn_key: what the config calls the layer's ffn, "intermediate_size".
 *
 * Sets weights->activation: what the config says, or `asked` (NULL: not asked) where it says
 * nothing or two things; without a config what is asked, or SiLU.  False where the layer cannot be
 * computed from its weights and biases alone, or contradicts the config: the sentence names what
 * does. */
bool mlp_config_apply(const model_config *config, int layer, const char *ffn_key, const char *asked,
                      mlp_weights *weights, st_error *error) ST_MUST_CHECK;

/* ---- model.c: all of it ---------------------------------------------------------------------- */

typedef struct mlp_source {
    const char *weights; /* a checkpoint, see checkpoint.h */
    const char *prefix;  /* of all layers, "model."; NULL: looked for */
    int64_t layer;
    const char *shape;      /* instead of weights: "HIDDEN,FFN" */
    int64_t experts, top_k; /* > 0: the shape has experts, of which a token takes top_k */
    const char *input;      /* safetensors with x[tokens, hidden] */
    int64_t tokens;         /* > 0: instead of an input, so many random ones */
    const char *dtype;      /* NULL: the weights' own; of a shape: f32 */
    const char *activation; /* see mlp_config_apply; of a shape: NULL is silu */
    bool residual;          /* the input has residual[tokens, hidden], too */
    const char *norm; /* "input_layernorm": of the layer, what y is normed by; NULL: nothing */
} mlp_source;

/* What happens to y: it gets the residual, and becomes y / rms(y) * (gamma + offset). */
typedef struct mlp_after {
    matrix residual; /* [tokens, hidden]; no rows: none */
    matrix gamma;    /* [1, hidden]; no rows: y is not normed */
    double eps, offset;
} mlp_after;

typedef struct mlp_model {
    checkpoint *weights_file, *input_file;
    mlp_weights weights; /* of experts: hidden, the ffn of each, the activation */
    mlp_experts experts; /* count 0: none */
    matrix x;
    mlp_after after;
    imbrex_dtype dtype;            /* to compute in */
    char name[200];                /* for people */
    char prefix[MLP_LAYER_PREFIX]; /* of the layer's tensors */
    const char *activation_from;   /* "config.json", "--activation" or so; NULL: assumed */
} mlp_model;

/* "HIDDEN,FFN": whether they are such. */
bool mlp_model_parse_shape(const char *text, int64_t sizes[2]);

bool mlp_model_open(const mlp_source *source, mlp_model *model, st_error *error) ST_MUST_CHECK;
void mlp_model_close(mlp_model *model);

#endif /* CLI_MODEL_H */
