/* shard.h - the weights of a transformer's MLP, and the part of them that each rank multiplies.
 *
 * The features f of the FFN are dealt out in equal widths W = ceil(ffn / R); rank r has those from
 * r*W on.  The last ranks may run past ffn: their surplus rows and columns are zero, which changes
 * nothing, since silu(0) * 0 = 0.
 *
 *     gate_up[2W, hidden]  = gate[f, :] over up[f, :]: one product makes both halves
 *     down[hidden, W]      = down[:, f]
 */
#ifndef CLI_SHARD_H
#define CLI_SHARD_H

#include "matrix.h"

typedef struct mlp_weights {
    int64_t hidden, ffn;
    matrix gate, up; /* [ffn, hidden] */
    matrix down;     /* [hidden, ffn] */
} mlp_weights;

/* Random weights, scaled by 1 / sqrt(columns) so that activations keep their size, and a random
 * input[tokens, hidden] for them, scaled by 1. */
mlp_weights shard_random_weights(int64_t hidden, int64_t ffn);
matrix shard_random_input(int64_t tokens, int64_t hidden);

int64_t shard_width(int64_t ffn, int ranks);

/* Fill all of out, dense, in dtype to; only the rank's part of the weights is read. */
void shard_gate_up(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out);
void shard_down(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out);

/* The rank's rows of x, rank*rows/R up to (rank+1)*rows/R, as imbrex deals them out. */
int64_t shard_first_row(int64_t rows, int rank, int ranks);
void shard_rows(const matrix *x, int rank, int ranks, imbrex_dtype to, void *out);

#endif /* CLI_SHARD_H */
