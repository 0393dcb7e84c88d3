/* decode.h - the layer, the tokens and the cache of `imbrex decode`, wherever they come from; what
 * a rank does with them, what it found out, and the forms in which it says so. */
#ifndef CLI_DECODE_H
#define CLI_DECODE_H

#include <stdbool.h>

#include "checkpoint.h"
#include "cli.h"
#include "share.h"

/* ---- A layer's attention --------------------------------------------------------------------- */

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

/* ---- layer.c: a layer's attention in a checkpoint: all that it has is used or refused -------- */

/* Finds {q,k,v,o}_proj.{weight,bias} and {q,k}_norm.weight below
 * "<model>layers.<layer>.self_attn.", where <model>, NULL if it is to be looked for, is "model.",
 * nothing, "language_model.model." or "model.language_model.".  Any other tensor there is
 * refused by its name.  prefix[DECODE_PREFIX] gets what was before the names.  Whether shapes fit
 * each other decode_layer_check says, once the heads are known. */
bool decode_layer_find(checkpoint *from, const char *model, int layer, decode_weights *weights,
                       char *prefix, st_error *error) ST_MUST_CHECK;
bool decode_layer_check(const checkpoint *from, int layer, const decode_weights *weights,
                        st_error *error) ST_MUST_CHECK;

/* What the config.json beside a checkpoint says: sets heads, kv_heads, head_dim, eps and rope, for
 * a step after which a sequence has `tokens` at most.  False where the config asks for something
 * that is not computed: the sentence names it. */
bool decode_config_apply(const checkpoint *from, int layer, int64_t tokens, decode_weights *weights,
                         st_error *error) ST_MUST_CHECK;

/* ---- model.c: the layer, the tokens and the cache -------------------------------------------- */

typedef struct decode_source {
    const char *weights; /* a checkpoint, see checkpoint.h */
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

/* ---- How a layer's attention is shared out over ranks ---------------------------------------- */

/* By tokens: token t of a sequence lies on rank t % R, at place t / R.  Every rank needs all heads
 * of q, and computes an equal share of the projections' columns; it gets the heads r*H/R up to
 * (r+1)*H/R of the result.
 *
 *     x[B, E] --gemm--> own[B, W] --all_gather--> [R, B, W] --place--> q[B, H, D], own k, v
 *     q, cache --flash_decode over ranks--> o[B, H/R, D] --gemm_ar--> y[B, E]
 *
 * By heads: a rank has its heads of the cache whole, and the heads of q that belong to them.  Where
 * there are fewer heads of the cache than ranks, several ranks have the same one.
 *
 *     x[B, E] --gemm--> [B, W] --place--> q[B, H/R, D], own k, v
 *     q, cache --flash_decode alone--> o[B, H/R, D] --gemm_ar--> y[B, E] */
typedef struct decode_shape {
    int64_t batch, hidden; /* B, E */
    int64_t context;       /* tokens that a rank has room for, of a sequence */
    int64_t width;         /* W: columns of the projections that a rank computes */
    int heads, kv_heads;   /* that a rank attends with */
    int own_heads;         /* that it has of o */
    int head_dim;          /* D */
    imbrex_dtype dtype;
    bool by_heads;
    float eps; /* of the norms of q and k */
} decode_shape;

/* Why the layer cannot be shared out so, in `why`; false then. */
bool decode_shape_of(const decode_model *model, int ranks, bool by_heads, decode_shape *out,
                     char *why, size_t size);

/* ---- operands.c: a rank's part of the weights and of the cache, in memory of its device ------ */

/* All fill dense memory of the host in the model's dtype, but turns and the norms' weights, which
 * are float32. */
void shard_projections(const decode_model *model, const decode_shape *shape, int rank, int ranks,
                       void *out); /* [width, hidden] */
bool shard_has_bias(const decode_model *model);
void shard_projection_bias(const decode_model *model, const decode_shape *shape, int rank,
                           int ranks, void *out); /* [width] */
void shard_output(const decode_model *model, const decode_shape *shape, int rank,
                  void *out); /* [hidden, own_heads * head_dim] */
void shard_cache(const decode_model *model, const decode_shape *shape, const matrix *cache,
                 int rank, int ranks, void *out); /* [batch, kv_heads, context, head_dim] */

/* turns[head_dim]: cosines of the head_dim / 2 angles of a position, then sines. */
void decode_rope_turns(const decode_rope *rope, int head_dim, int64_t position, float *turns);

/* [batch]: tokens that lie on this rank after the step; the new one's place, or -1. */
void shard_lengths(const decode_model *model, const decode_shape *shape, int rank, int ranks,
                   int32_t *lengths, int32_t *places);

/* What a step runs on: all in memory of the group's device. */
typedef struct decode_operands {
    const void *x;                /* [B, E] */
    const void *project;          /* [W, E] */
    const void *project_bias;     /* [W], or NULL */
    const void *output;           /* [E, own_heads * D] */
    const void *output_bias;      /* [E], or NULL */
    void *k, *v;                  /* [B, kv_heads, context, D] */
    const int32_t *lengths;       /* [B] tokens here, with the new ones */
    const int32_t *places;        /* [B] */
    const float *turns;           /* [B, D] */
    const float *q_norm, *k_norm; /* [D], or NULL */
    void *own, *all;              /* [B, W]; [R, B, W]: what the projections come to */
    void *q;                      /* [B, heads, D] */
    void *o;                      /* [B, heads, D] */
    void *y;                      /* [B, E] */
    imbrex_stream stream;         /* to run on; NULL: the groups' default */
} decode_operands;

/* Collective: takes symmetric memory, which goes with the group, and fills it; out->stream
 * stays.  steps: so many it makes of a bar. */
IMBREX_TRY decode_operands_load(imbrex_group *group, const decode_model *model,
                                const decode_shape *shape, progress *bar, decode_operands *out);
int decode_operands_steps(const decode_model *model);

/* ---- step.c: a decode step of a layer's attention on one rank -------------------------------- */

typedef struct decode_step {
    imbrex_group *group, *alone; /* alone: this rank by itself */
    decode_shape shape;
    bool peers;
    imbrex_plan *project, *gather, *attend, *output;
    imbrex_kernel *place;
    decode_operands on;
} decode_step;

/* Collective.  algorithm: NULL: chosen; or that of all three operators.  peers: false: the same
 * without communication, whose result says nothing. */
IMBREX_TRY decode_step_create(imbrex_group *group, imbrex_group *alone, const decode_shape *shape,
                              const char *algorithm, bool peers, const decode_operands *on,
                              decode_step *out);
void decode_step_destroy(decode_step *step);

/* The kernel of place_kernel.h: its text, for GPUs, made by the build; where CPU ranks have it. */
extern const char decode_place_text[];
const struct imbrexd_entry *decode_place_entry(void);

/* Enqueue the step, or its attention alone; ctx is the decode_step. */
IMBREX_TRY decode_step_run(void *ctx);
IMBREX_TRY decode_step_attend(void *ctx);

/* ---- reference.c: the step in float64 -------------------------------------------------------- */

/* A layer that --check compares with: read from its files once more by code of its own, so that
 * what the run leaves out is seen. */
typedef struct decode_reference {
    checkpoint *file; /* NULL: random weights */
    int64_t hidden;
    int heads, kv_heads, head_dim;
    matrix weights[4], biases[4], norms[2]; /* of q, k, v, o; no rows: none */
    double eps, theta;
    double factor, low, high, original; /* of llama3; low 0: of linear; factor 1: neither */
    const decode_model *tokens;         /* x, the cache and lengths alone are read */
} decode_reference;

bool decode_reference_open(const decode_source *source, const decode_model *model,
                           decode_reference *out, st_error *error) ST_MUST_CHECK;
void decode_reference_close(decode_reference *reference);

/* An element's spread is what its sum comes to if the signs of its terms fall at random, where each
 * term has the error of a rounded weight of attention, and of a score of rounded q and k: rounding
 * errors grow with it, and not with the element itself. */
typedef struct decode_error {
    double largest; /* |y - reference| */
    double scale;   /* largest |reference| */
    double worst;   /* largest |y - reference| / spread */
    double squares; /* sum of (y - reference)^2 */
    double spread;  /* sum of spread^2 */
    double norm;    /* sum of reference^2 */
    int apart;      /* 1: ranks do not have the same y */
} decode_error;

/* Compares rows row0 to row1 of y[batch, hidden].  False if memory runs out. */
bool decode_check(const decode_reference *reference, imbrex_dtype dtype, int64_t row0, int64_t row1,
                  const void *y, progress *bar, decode_error *out);

/* Adds the error of other rows to sum. */
void decode_check_add(decode_error *sum, const decode_error *more);

/* ||y - reference|| / ||spread||; how large that, and error.worst, may be. */
double decode_check_relative(const decode_error *error);
double decode_check_allowed(imbrex_dtype dtype);
double decode_check_worst_allowed(imbrex_dtype dtype);
/* Whether zeros would be near enough to y, so that nothing can be said. */
bool decode_check_blind(const decode_error *error, imbrex_dtype dtype);
bool decode_check_passed(const decode_error *error, imbrex_dtype dtype); /* false for NaN, too */

/* ---- rank.c: from making its group to the result --------------------------------------------- */

typedef struct decode_request {
    const decode_model *model;
    const decode_reference *reference; /* with check */
    const char *device, *algorithm;    /* NULL: chosen */
    bool by_heads;
    const char *output, *timeline; /* files to write, or NULL */
    bool check, json;
    bool graph; /* time CUDA graphs */
    int64_t rounds;
} decode_request;

/* Collective over the ranks of the environment.  Rank 0 prints and writes; the exit code. */
int decode_rank(const decode_request *request);

/* ---- report.c -------------------------------------------------------------------------------- */

enum {
    DECODE_ATTEND_OWN, /* attention to own tokens, without peers */
    DECODE_ATTEND,     /* over all ranks */
    DECODE_ALONE,      /* a step without communication */
    DECODE_SEQUENTIAL, /* a step, its operators "sequential" */
    DECODE_STEP,
    DECODE_VERSIONS
};

typedef struct decode_result {
    const char *source; /* "model.safetensors, layer 3" */
    int ranks;
    const char *device;
    const decode_model *model;
    decode_shape shape;
    char project[400], gather[400], attend[400], output[400]; /* imbrex_plan_describe; "": none */
    double us[DECODE_VERSIONS];
    bool device_clock, graph; /* how they were timed */
    bool checked;
    decode_error error; /* of all ranks together */
} decode_result;

void decode_print_table(const decode_result *result);
void decode_print_json(const decode_result *result);

/* Two panels: one step as it is above one of sequential operators. */
bool decode_write_timeline(const decode_result *result, const spans *step, const spans *sequential,
                           const char *path, char *error, size_t size);

#endif /* CLI_DECODE_H */
