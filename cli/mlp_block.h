/* mlp_block.h - a transformer's MLP on one rank: two overlapped operators with the activation
 * between.
 *
 *     x[rows, H] --ag_gemm--> up[T, 2W] --activate--> act[T, W] --gemm_rs--> y[rows, H]
 *
 * x is gathered once: gate and up shards lie over each other as one b[2W, H].  Without a gate there
 * is up alone, W for 2W. */
#ifndef CLI_MLP_BLOCK_H
#define CLI_MLP_BLOCK_H

#include <stdbool.h>

#include "imbrex.h"

typedef struct mlp_shape {
    int64_t tokens, hidden, width; /* T, H, W: features of a rank */
    imbrex_dtype dtype;
    imbrex_activation_kind activation;
    bool ungated;
} mlp_shape;

/* What a block runs on: all in memory of the group's device. */
typedef struct mlp_operands {
    const void *x;        /* [rows, H] */
    const void *gate_up;  /* [2W, H] */
    const void *up_bias;  /* [2W], or NULL */
    const void *down;     /* [H, W] */
    const void *bias;     /* [H], or NULL */
    void *y;              /* [rows, H] */
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

#endif /* CLI_MLP_BLOCK_H */
