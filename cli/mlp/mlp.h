/* mlp.h - what a rank of `imbrex mlp` does, what it found out, and the forms in which it says
 * so. */
#ifndef CLI_MLP_H
#define CLI_MLP_H

#include <stdbool.h>

#include "cli.h"
#include "model.h"
#include "share.h"

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
int64_t shard_up_rows(const mlp_weights *weights, int ranks); /* 2W, or W */
bool shard_has_up_bias(const mlp_weights *weights);           /* of gate or up */

/* Fill all of out, dense, in dtype to; only the rank's part of the weights is read. */
void shard_gate_up(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out);
void shard_up_bias(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out);
void shard_down(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out);

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
typedef struct mlp_shape {
    int64_t tokens, hidden, width; /* T, H, W: features of a rank */
    imbrex_dtype dtype;
    imbrex_activation_kind activation;
    bool ungated, replicated;
    imbrex_norm norm; /* of y */
} mlp_shape;

/* What a block runs on: all in memory of the group's device. */
typedef struct mlp_operands {
    const void *x;        /* [rows, H], or [T, H] */
    const void *gate_up;  /* [2W, H] */
    const void *up_bias;  /* [2W], or NULL */
    const void *down;     /* [H, W] */
    const void *bias;     /* [H], or NULL */
    const void *residual; /* as x, or NULL */
    const void *gamma;    /* [H] where y is normed, else NULL */
    void *y;              /* as x */
    imbrex_stream stream; /* to run on; NULL: the group's default */
} mlp_operands;

typedef struct mlp_block {
    imbrex_group *group;
    mlp_shape shape;
    imbrex_plan *gate_up, *down;
    void *up, *act;
    mlp_operands on;
} mlp_block;

/* Collective.  algorithm as in imbrex_gemm_desc.  products: the local products alone, without
 * peers, for a group of one rank; x and y are then [T, H]. */
IMBREX_TRY mlp_block_create(imbrex_group *group, const mlp_shape *shape, const char *algorithm,
                            int products, const mlp_operands *on, mlp_block *out);
void mlp_block_destroy(mlp_block *block);

/* Enqueues the block on its stream; ctx is the mlp_block. */
IMBREX_TRY mlp_block_run(void *ctx);

/* ---- reference.c: the layer that --check compares with --------------------------------------- */

/* Read from its files once more by code of its own: what the run leaves out, or takes for another
 * function, is then seen. */
typedef struct mlp_reference {
    checkpoint *file; /* that weights point into; NULL: random ones */
    mlp_weights weights;
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
    int odd_weights; /* 1: a weight or a bias is NaN or infinite */
    int lost;        /* 1: x or a weight holds a number that the dtype makes infinite */
    int apart;       /* 1: ranks that are to have the same y do not */
} mlp_error;

/* Compares y[rows, hidden], rows row0 and on of the whole, with the reference from the whole
 * weights as dtype rounds them.  False if memory runs out. */
bool mlp_check(const mlp_reference *reference, const matrix *x, imbrex_dtype dtype, int64_t row0,
               int64_t rows, const void *y, progress *bar, mlp_error *out);

/* Adds the error of other rows to sum. */
void mlp_check_add(mlp_error *sum, const mlp_error *more);

/* ||y - reference|| / ||reference||. */
double mlp_check_relative(const mlp_error *error);

/* How large that, and error.worst, may be: three roundings to dtype, and float32 sums. */
double mlp_check_allowed(imbrex_dtype dtype);
double mlp_check_worst_allowed(imbrex_dtype dtype);

bool mlp_check_passed(const mlp_error *error, imbrex_dtype dtype); /* false for NaN, too */

/* ---- rank.c: from making its group to the result --------------------------------------------- */

typedef struct mlp_request {
    const mlp_model *model;
    const mlp_reference *reference; /* with check */
    const char *device, *algorithm; /* NULL: chosen */
    const char *norm;               /* as in mlp_source */
    bool replicated;                /* x and y, on all ranks */
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
    imbrex_dtype dtype;
    bool replicated;
    const char *activation;      /* "gelu_tanh" */
    const char *activation_from; /* "config.json" or "--activation"; NULL: assumed */
    bool gated, biases, residual;
    const char *norm;             /* "input_layernorm", or NULL */
    char gate_up[400], down[400]; /* imbrex_plan_describe */
    double products_us, sequential_us, overlapped_us;
    bool device_clock, graph; /* how they were timed */
    bool checked;
    mlp_error error; /* of all ranks together */
} mlp_result;

/* 1 - (overlapped - products) / (sequential - products): how much of the time that communication
 * adds is no longer seen; NAN where it adds nothing. */
double mlp_hidden(const mlp_result *result);

void mlp_print_table(const mlp_result *result);
void mlp_print_json(const mlp_result *result);

/* Two panels: one overlapped run above one sequential run. */
bool mlp_write_timeline(const mlp_result *result, const spans *overlapped, const spans *sequential,
                        const char *path, char *error, size_t size);

#endif /* CLI_MLP_H */
