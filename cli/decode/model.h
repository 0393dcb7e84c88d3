/* model.h - the layer, the tokens and the cache of `imbrex decode`, wherever they come from. */
#ifndef CLI_DECODE_MODEL_H
#define CLI_DECODE_MODEL_H

#include <stdbool.h>

#include "model_config.h"
#include "safetensors.h"

/* How positions turn q and k: the pair (i, i + head_dim / 2) by position * frequency[i]. */
typedef enum decode_rope_kind {
    DECODE_ROPE_DEFAULT, /* theta^(-2i / head_dim) */
    DECODE_ROPE_LINEAR,  /* that / factor */
    DECODE_ROPE_LLAMA3   /* that, or that / factor where the wave is long, or between */
} decode_rope_kind;

typedef struct decode_rope {
    decode_rope_kind kind;
    double theta, factor;
    double low, high, original; /* LLAMA3: low_freq_factor, high_freq_factor, and the context that
                                   the model was made for first */
} decode_rope;

extern const char *const decode_rope_names[DECODE_ROPE_LLAMA3 + 1];

/* One layer's attention.  A bias or a norm that the layer has not has no rows. */
typedef struct decode_weights {
    int64_t hidden;
    int heads, kv_heads, head_dim;
    matrix q;              /* [heads * head_dim, hidden] */
    matrix k, v;           /* [kv_heads * head_dim, hidden] */
    matrix o;              /* [hidden, heads * head_dim] */
    matrix q_bias, k_bias; /* [1, rows of q], and so on */
    matrix v_bias, o_bias;
    matrix q_norm, k_norm; /* [1, head_dim]: of each head, before it is turned */
    double eps;            /* of these norms */
    decode_rope rope;
} decode_weights;

enum { DECODE_PREFIX = 256 };

/* ---- layer.c: the tensors of a layer's attention in a checkpoint: each is used or refused ---- */

/* Finds {q,k,v,o}_proj.{weight,bias} and {q,k}_norm.weight below
 * "<model>layers.<layer>.self_attn.", where <model>, NULL if it is to be looked for, is "model.",
 * nothing, "language_model.model." or "model.language_model.".  Any other tensor there is
 * refused by its name.  prefix[DECODE_PREFIX] gets what was before the names.  Whether shapes fit
 * each other decode_layer_check says, once the heads are known. */
bool decode_layer_find(checkpoint *from, const char *model, int layer, decode_weights *weights,
                       char *prefix, st_error *error) ST_MUST_CHECK;
bool decode_layer_check(const checkpoint *from, int layer, const decode_weights *weights,
                        st_error *error) ST_MUST_CHECK;

/* ---- config.c: what the config.json beside a checkpoint says of its attention ---------------- */

/* Sets heads, kv_heads, head_dim, eps and rope, for a step after which a sequence has `tokens` at
 * most.  False where the config asks for something that is not computed: the sentence names it. */
bool decode_config_apply(const checkpoint *from, int layer, int64_t tokens, decode_weights *weights,
                         st_error *error) ST_MUST_CHECK;

/* ---- rope.c ---------------------------------------------------------------------------------- */

/* turns[head_dim]: cosines of the head_dim / 2 angles of a position, then sines. */
void decode_rope_turns(const decode_rope *rope, int head_dim, int64_t position, float *turns);

/* ---- model.c: all of it ---------------------------------------------------------------------- */

typedef struct decode_source {
    const char *weights; /* a checkpoint, see safetensors.h */
    const char *prefix;  /* of all layers, "model."; NULL: looked for */
    int64_t layer;
    const char *shape;     /* instead of weights: "HIDDEN,HEADS,KV_HEADS,HEAD_DIM" */
    const char *input;     /* safetensors with x, k, v, and maybe lengths */
    const char *sequences; /* instead of it: "BATCH,CONTEXT" */
    const char *dtype;     /* NULL: the weights' own; of a shape: f32 */
} decode_source;

typedef struct decode_model {
    checkpoint *weights_file;
    st_file *input_file;
    decode_weights weights;
    int64_t batch, context; /* sequences; tokens that the longest has before the step */
    int64_t *lengths;       /* [batch]: tokens that each has */
    matrix x;               /* [batch, hidden]: the new token of each */
    matrix k, v;            /* [batch * kv_heads * context, head_dim] */
    int64_t cached_heads;   /* kv_heads, as an input's k and v have it */
    imbrex_dtype dtype;     /* to compute in */
    char name[200];         /* for people */
    char prefix[DECODE_PREFIX];
} decode_model;

/* "HIDDEN,HEADS,KV_HEADS,HEAD_DIM" and "BATCH,CONTEXT": whether they are such. */
bool decode_model_parse_shape(const char *text, int64_t sizes[4]);
bool decode_model_parse_sequences(const char *text, int64_t sizes[2]);

bool decode_model_open(const decode_source *source, decode_model *model,
                       st_error *error) ST_MUST_CHECK;
void decode_model_close(decode_model *model);

#endif /* CLI_DECODE_MODEL_H */
