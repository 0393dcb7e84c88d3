/* mlp.h - the weights and the input of `imbrex mlp`, wherever they come from; what a rank does with
 * them, what it found out, and the forms in which it says so. */
#ifndef CLI_MLP_H
#define CLI_MLP_H

#include <stdbool.h>

#include "checkpoint.h"
#include "cli.h"
#include "share.h"

/* ---- A layer's weights ----------------------------------------------------------------------- */

/* How weights of 8 bits are scaled, and what they are multiplied by. */
typedef struct mlp_fp8 {
    imbrex_scaling scaling; /* UNSCALED: weights are not of 8 bits; PER_ROW, PER_BLOCK */
    bool inverse;           /* scales of blocks ought to be weight_scale_inv, not weight_scale */
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

/* ---- model.c: the layer and the tokens ------------------------------------------------------- */

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

/* ---- block.c: the part of the weights that each rank multiplies ------------------------------ */

/* The features f of the FFN are dealt out in equal widths W = ceil(ffn / R); rank r has those from
 * r*W on.  The last ranks may run past ffn: their surplus rows and columns are zero, which changes
 * nothing, since every activation of 0 is 0.
 *
 *     gate_up[2W, hidden]  = gate[f, :] over up[f, :]: one product makes both halves
 *     bias[2W]             = gate_bias[f] before up_bias[f]
 *     down[hidden, W]      = down[:, f]
 *
 * Without a gate there are up's halves alone, [W, hidden] and [W]. */

int64_t shard_width(int64_t ffn, int ranks);

/* W of these weights: those of 8 bits have it in multiples of 16, or of their blocks, 128. */
int64_t shard_features(const mlp_weights *weights, int ranks);
int64_t shard_up_rows(const mlp_weights *weights, int ranks); /* 2W, or W */
bool shard_has_up_bias(const mlp_weights *weights);           /* of gate or up */

/* Fill all of out, dense, in dtype to; only the rank's part of the weights is read. */
void shard_gate_up(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out);
void shard_up_bias(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out);
void shard_down(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out);

/* Scales of these two, as products take them: a row's, or of 128 x 128.  Of what is no feature they
 * are 0. */
int64_t shard_gate_up_scales(const mlp_weights *weights, int rank, int ranks, float *out);
int64_t shard_down_scales(const mlp_weights *weights, int rank, int ranks, float *out);

/* The rank's rows of x, rank*rows/R up to (rank+1)*rows/R, as imbrex deals them out. */
int64_t shard_first_row(int64_t rows, int rank, int ranks);
void shard_rows(const matrix *x, int rank, int ranks, imbrex_dtype to, void *out);

/* ---- block.c: a transformer's MLP on one rank ------------------------------------------------ */

/* Two overlapped operators with the activation between.  Each rank has its rows of x and y,
 *
 *     x[rows, H] --ag_gemm--> up[T, 2W] --activate--> act[T, W] --gemm_rs--> y[rows, H]
 *
 * or, replicated, every rank has all of them, as where tokens are few:
 *
 *     x[T, H] ------gemm----> up[T, 2W] --activate--> act[T, W] --gemm_ar--> y[T, H]
 *
 * Gate and up shards lie over each other as one b[2W, H].  Without a gate there is up alone, W for
 * 2W.  y may get a residual, and be normed, by the operator that adds it up. */
/* Experts of which a token takes some; those that all tokens share are a set of one. */
typedef struct mlp_expert_set {
    int experts;            /* of all ranks; 0: there are none */
    int here, first;        /* of this rank, and the first of them */
    bool whole;             /* IMBREX_EXPERTS_WHOLE */
    int64_t width;          /* features of each here */
    imbrex_scaling scaling; /* of weights of 8 bits; else UNSCALED */
    imbrex_gate gate;       /* the choice */
} mlp_expert_set;

typedef struct mlp_shape {
    int64_t tokens, hidden, width; /* T, H, W: features of a rank; with experts W is theirs */
    imbrex_dtype dtype;
    imbrex_activation_kind activation;
    bool ungated, replicated;
    imbrex_scaling scaling;        /* of weights of 8 bits; else UNSCALED */
    bool fixed;                    /* their activations' scales are operands */
    imbrex_norm norm;              /* of y */
    mlp_expert_set routed, shared; /* routed.experts 0: the layer is dense */
} mlp_shape;

/* The shape of a model's layer on one of `ranks` ranks. */
mlp_shape mlp_shape_of(const mlp_model *model, bool replicated, bool whole, int rank, int ranks);

/* Of a set of experts. */
typedef struct mlp_expert_operands {
    const float *router; /* [experts, H]; NULL: every token takes the first, with a weight of 1 */
    const float *correction;                   /* [experts], or NULL */
    const void *gate_up;                       /* [here, 2W, H] */
    const void *down;                          /* [here, H, W] */
    const float *gate_up_scales, *down_scales; /* of weights of 8 bits; else NULL */
    const int32_t *ids; /* NULL: as the router chooses; else of all tokens, in their place */
} mlp_expert_operands;

/* What a block runs on: all in memory of the group's device. */
typedef struct mlp_operands {
    const void *x;       /* [rows, H], or [T, H] */
    const float *wide_x; /* the same in float32, for routers: ceil(T / R) rows, or T */
    mlp_expert_operands routed, shared;  /* where there are experts, instead of the next three */
    const void *gate_up;                 /* [2W, H] */
    const void *up_bias;                 /* [2W], or NULL */
    const void *down;                    /* [H, W] */
    float *gate_up_scales, *down_scales; /* of weights of 8 bits; else NULL */
    float *x_scales, *act_scales;        /* [T]: where they are fixed T times the same; else NULL */
    const void *bias;                    /* [H], or NULL */
    const void *residual;                /* as x, or NULL */
    const void *gamma;                   /* [H] where y is normed, else NULL */
    void *y;                             /* as x */
    imbrex_stream stream;                /* to run on; NULL: the group's default */
} mlp_operands;

/* A set of experts on one rank: the router's product and choice, ag_moe, the activation, moe_rs. */
typedef struct moe_set {
    mlp_expert_set shape;
    mlp_expert_operands on;
    imbrex_plan *logits, *gate_up, *down;
    int64_t routed_rows, rows, capacity; /* of wide_x, of x; room for pairs */
    float *scores, *weights;             /* [routed_rows, experts], [routed_rows, top_k] */
    int32_t *ids;                        /* [routed_rows, top_k] */
    imbrex_routing routing;
    void *words; /* that routing points into */
    void *up, *act;
    float *act_scales; /* of act of 8 bits; else NULL */
} moe_set;

typedef struct mlp_block {
    imbrex_group *group;
    mlp_shape shape;
    imbrex_plan *gate_up, *down;
    void *up, *act;
    void *low_x;                  /* of 8 bits, as x */
    float *x_scales, *act_scales; /* of it and of act; NULL: the operands' */
    moe_set routed, shared;
    void *shared_y; /* [rows, H]: what the shared experts make */
    mlp_operands on;
    bool products;
} mlp_block;

/* Room for x of 8 bits and its scales; and x into it, by which scaling, of this many rows. */
IMBREX_TRY mlp_block_take_low(mlp_block *block);
IMBREX_TRY mlp_block_quantize(const mlp_block *block, imbrex_scaling scaling, float *scales);

/* Collective.  algorithm as in imbrex_gemm_desc.  products: the local products alone, without
 * peers, for a group of one rank; x and y are then [T, H]. */
IMBREX_TRY mlp_block_create(imbrex_group *group, const mlp_shape *shape, const char *algorithm,
                            int products, const mlp_operands *on, mlp_block *out);
void mlp_block_destroy(mlp_block *block);

/* Enqueues the block on its stream; ctx is the mlp_block. */
IMBREX_TRY mlp_block_run(void *ctx);

/* ---- moe.c: the same of a layer with experts ------------------------------------------------- */

/*     x[rows, H] --> logits --> ids, weights
 *     x, ids --ag_moe--> up[pairs, 2W] --activate--> act[pairs, W] --moe_rs--> y[rows, H]
 *
 * Shared experts are one expert that all tokens take, cut over all ranks, and added to y; so are a
 * residual and a norm, here, behind the sum. */
IMBREX_TRY moe_block_create(mlp_block *block, const char *algorithm);
void moe_block_destroy(mlp_block *block);
IMBREX_TRY moe_block_run(const mlp_block *block);

/* Blocks: what the block's last run chose for all T tokens, on the host: [T, top_k] each. */
IMBREX_TRY moe_block_choice(const mlp_block *block, int32_t *ids, float *weights);

/* Of the pairs, those of each rank and the most of an expert. */
void moe_count_pairs(const mlp_expert_set *set, int ranks, int64_t tokens, const int32_t *ids,
                     int64_t *by_rank, int64_t *most_of_expert);

/* The ids of a rank that is alone with its experts: counted from its first; -1: another rank's. */
void moe_keep_own(const mlp_expert_set *set, int64_t tokens, int32_t *ids);

/* ---- operands.c: a rank's operands, in memory of its device ---------------------------------- */

typedef struct mlp_loaded {
    mlp_operands own; /* with this rank's x and y, or where they are replicated all of them */
    mlp_operands all; /* with all of x and y, and without routers: for products alone */
    void *own_y, *all_y;
} mlp_loaded;

/* How many steps loading has. */
int mlp_operands_steps(const mlp_model *model);

/* Collective; blocks.  Each rank reads its part of the weights alone. */
IMBREX_TRY mlp_operands_load(imbrex_group *group, const mlp_model *model, const mlp_shape *shape,
                             imbrex_stream stream, progress *shown, mlp_loaded *out);

/* ---- reference_layer.c: the layer that --check compares with --------------------------------- */

/* Read from its files once more by code of its own: what the run leaves out, or takes for another
 * function, is then seen. */
typedef struct mlp_reference {
    checkpoint *file; /* that weights point into; NULL: random ones */
    mlp_weights weights;
    mlp_experts experts; /* count 0: none; random ones are the model's */
    mlp_after after;
    double (*activation)(double x);
} mlp_reference;

/* The function of a name in config.json or of --activation; NULL: unknown. */
double (*mlp_reference_function(const char *name))(double);

/* Of the layer whose tensors have the model's prefix. */
bool mlp_reference_open(const mlp_source *source, const mlp_model *model, mlp_reference *out,
                        st_error *error) ST_MUST_CHECK;
void mlp_reference_close(mlp_reference *reference);

/* ---- reference.c: the MLP in float64, for one rank's rows ------------------------------------ */

/* An element's spread is what its sum over the features comes to if signs fall at random,
 * sqrt(sum of (act down)^2 + bias^2): rounding errors grow with it and not with the element itself,
 * and a token or a feature that stands out does not hide the errors of the others.  A residual is
 * one more term of the sum; where y is normed, the spread is what becomes of it.
 *
 * Where x or a weight is infinite or NaN, so may the reference be, and no such y is an error. */
typedef struct mlp_error {
    double largest;  /* |y - reference| */
    double scale;    /* largest |reference| */
    double worst;    /* largest |y - reference| / spread */
    double squares;  /* sum of (y - reference)^2 */
    double norm;     /* sum of reference^2 */
    double odd_rows; /* rows of x with NaN or infinities */
    double near;     /* tokens that chose other experts than in float64, of nearly equal scores */
    double strayed;  /* tokens whose experts have lower scores than others that they left out */
    double weight;   /* the largest error of a weight, of what float32 allows */
    int odd_weights; /* 1: a weight or a bias is NaN or infinite */
    int lost;        /* 1: x or a weight holds a number that the dtype makes infinite */
    int apart;       /* 1: ranks that are to have the same y do not */
} mlp_error;

/* What tokens chose: top_k of each, in a row. */
typedef struct mlp_choice {
    int32_t *ids; /* NULL: there are no experts */
    float *weights;
} mlp_choice;

/* The same from a token on. */
mlp_choice mlp_choice_from(const mlp_choice *all, int top_k, int64_t token);

/* Compares y[rows, hidden], rows row0 and on of the whole, with the reference from the whole
 * weights as dtype rounds them.  choice: of these rows; each token's experts are judged, and then
 * y by the experts that it chose, with float64's weights for them.  False if memory runs out. */
bool mlp_check(const mlp_reference *reference, const matrix *x, imbrex_dtype dtype, int64_t row0,
               int64_t rows, const void *y, const mlp_choice *choice, progress *bar,
               mlp_error *out);

/* Adds the error of other rows to sum. */
void mlp_check_add(mlp_error *sum, const mlp_error *more);

/* ||y - reference|| / ||reference||. */
double mlp_check_relative(const mlp_error *error);

/* How large that, and error.worst, may be: three roundings to dtype, and float32 sums; E4M3: what
 * activations of 8 bits may cost. */
double mlp_check_allowed(imbrex_dtype dtype);
double mlp_check_worst_allowed(imbrex_dtype dtype);

bool mlp_check_passed(const mlp_error *error, imbrex_dtype dtype); /* false for NaN, too */

/* ---- choice.c: a token's experts in float64 -------------------------------------------------- */

/* One token's logits[experts] in float64, and how far off each may be in float32 (unsure); what it
 * chose, ids and weights[top_k].  correction: [experts], or NULL.
 *
 * Two numbers are nearly equal where what each may be off overlaps.  A choice is right if its
 * experts are distinct, the best key first, each of a group that is among the best ones, and no
 * expert left out of these groups has a larger key: MLP_CHOSE_NEAR where that holds only because
 * numbers are nearly equal.  right[top_k]: the weights of what was chosen, in float64. */
typedef enum mlp_verdict { MLP_CHOSE_SAME, MLP_CHOSE_NEAR, MLP_STRAYED } mlp_verdict;

mlp_verdict mlp_judge(const imbrex_gate *gate, const double *logits, const double *unsure,
                      const float *correction, const int32_t *ids, double *right);

/* ---- rank.c: from making its group to the result --------------------------------------------- */

typedef struct mlp_request {
    const mlp_model *model;
    const mlp_reference *reference; /* with check */
    const char *device, *algorithm; /* NULL: chosen */
    const char *norm;               /* as in mlp_source */
    bool replicated;                /* x and y, on all ranks */
    bool whole;                     /* experts */
    const char *output, *timeline;  /* files to write, or NULL */
    bool check, json;
    bool graph; /* time CUDA graphs of a block each */
    int64_t rounds;
} mlp_request;

/* Collective over the ranks of the environment.  Rank 0 prints and writes; the exit code. */
int mlp_rank(const mlp_request *request);

/* ---- report.c -------------------------------------------------------------------------------- */

typedef struct mlp_result {
    const char *source; /* "model.safetensors, layer 3" */
    int ranks;
    const char *device;
    int64_t tokens, hidden, ffn;
    imbrex_dtype dtype, bound; /* of x and y; what bounds the error: E4M3, with weights of it */
    imbrex_scaling scaling;    /* of weights of 8 bits */
    bool fixed;                /* their activations have scales of the checkpoint's */
    bool replicated;
    const char *activation;      /* "gelu_tanh" */
    const char *activation_from; /* "config.json" or "--activation"; NULL: assumed */
    bool gated, biases, residual;
    int experts, top_k;           /* 0: none */
    bool whole;                   /* experts */
    int64_t shared;               /* features of shared experts */
    int64_t *pairs;               /* [ranks]: of each rank's experts */
    int64_t most_of_expert;       /* pairs */
    const char *norm;             /* "input_layernorm", or NULL */
    char gate_up[400], down[400]; /* imbrex_plan_describe */
    double products_us, sequential_us, overlapped_us;
    bool device_clock, graph; /* how they were timed */
    bool checked;
    mlp_error error; /* of all ranks together */
} mlp_result;

void mlp_print_table(const mlp_result *result);
void mlp_print_json(const mlp_result *result);

/* Two panels: one overlapped run above one sequential run. */
bool mlp_write_timeline(const mlp_result *result, const spans *overlapped, const spans *sequential,
                        const char *path, char *error, size_t size);

#endif /* CLI_MLP_H */
