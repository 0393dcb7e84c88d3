/* shard.h - the weights of a transformer's MLP, and the part of them that each rank multiplies.
 *
 * The features f of the FFN are dealt out in equal widths W = ceil(ffn / R); rank r has those from
 * r*W on.  The last ranks may run past ffn: their surplus rows and columns are zero, which changes
 * nothing, since every activation of 0 is 0.
 *
 *     gate_up[2W, hidden]  = gate[f, :] over up[f, :]: one product makes both halves
 *     bias[2W]             = gate_bias[f] before up_bias[f]
 *     down[hidden, W]      = down[:, f]
 *
 * Without a gate there are up's halves alone, [W, hidden] and [W]. */
#ifndef CLI_SHARD_H
#define CLI_SHARD_H

#include <stdbool.h>

#include "matrix.h"

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

#endif /* CLI_SHARD_H */
