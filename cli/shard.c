/* shard.c - cuts a rank's part out of the weights of an MLP. */
#include "shard.h"

#include <math.h>
#include <string.h>

enum { SEED_GATE = 1, SEED_UP, SEED_DOWN, SEED_INPUT };

static matrix random_weight(uint64_t seed, int64_t rows, int64_t cols)
{
    return matrix_random(seed, rows, cols, cols ? 1 / sqrt((double)cols) : 1);
}

mlp_weights shard_random_weights(int64_t hidden, int64_t ffn)
{
    return (mlp_weights){ .hidden = hidden,
                          .ffn = ffn,
                          .gate = random_weight(SEED_GATE, ffn, hidden),
                          .up = random_weight(SEED_UP, ffn, hidden),
                          .down = random_weight(SEED_DOWN, hidden, ffn) };
}

matrix shard_random_input(int64_t tokens, int64_t hidden)
{
    return matrix_random(SEED_INPUT, tokens, hidden, 1);
}

int64_t shard_width(int64_t ffn, int ranks)
{
    return ffn / ranks + (ffn % ranks != 0);
}

/* Where rank's features begin, at most ffn; they end where the next rank's begin. */
static int64_t first_feature(int64_t ffn, int rank, int ranks)
{
    int64_t begin = rank * shard_width(ffn, ranks);
    return begin < ffn ? begin : ffn;
}

int64_t shard_up_rows(const mlp_weights *weights, int ranks)
{
    return (weights->ungated ? 1 : 2) * shard_width(weights->ffn, ranks);
}

bool shard_has_up_bias(const mlp_weights *weights)
{
    return weights->gate_bias.rows || weights->up_bias.rows;
}

/* The rank's rows begin to end of a half, and zeros up to the width. */
static void copy_half(const matrix *half, int64_t begin, int64_t end, int64_t width,
                      imbrex_dtype to, char *out)
{
    size_t line = (size_t)(half->cols * matrix_dtype_bytes(to));
    matrix_copy(half, begin, end, 0, half->cols, to, out, half->cols);
    memset(out + (size_t)(end - begin) * line, 0, (size_t)(width - (end - begin)) * line);
}

void shard_gate_up(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out)
{
    int64_t width = shard_width(weights->ffn, ranks), hidden = weights->hidden;
    int64_t begin = first_feature(weights->ffn, rank, ranks);
    int64_t end = first_feature(weights->ffn, rank + 1, ranks);
    char *up = out;
    if (width == 0 || hidden == 0)
        return;
    if (!weights->ungated) {
        copy_half(&weights->gate, begin, end, width, to, out);
        up += width * hidden * matrix_dtype_bytes(to);
    }
    copy_half(&weights->up, begin, end, width, to, up);
}

/* A bias lies as a row, and is cut as a column: of a half that has none all are zero. */
void shard_up_bias(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out)
{
    int64_t width = shard_width(weights->ffn, ranks), bytes = width * matrix_dtype_bytes(to);
    int64_t begin = first_feature(weights->ffn, rank, ranks);
    int64_t end = first_feature(weights->ffn, rank + 1, ranks);
    const matrix *halves[] = { &weights->gate_bias, &weights->up_bias };
    char *at = out;
    for (int half = weights->ungated ? 1 : 0; half < 2; half++, at += bytes) {
        memset(at, 0, (size_t)bytes);
        if (halves[half]->rows)
            matrix_copy(halves[half], 0, 1, begin, end, to, at, width);
    }
}

void shard_down(const mlp_weights *weights, int rank, int ranks, imbrex_dtype to, void *out)
{
    int64_t width = shard_width(weights->ffn, ranks);
    int64_t begin = first_feature(weights->ffn, rank, ranks);
    int64_t end = first_feature(weights->ffn, rank + 1, ranks);
    if (width == 0 || weights->hidden == 0)
        return;
    if (end - begin < width)
        memset(out, 0, (size_t)(weights->hidden * width * matrix_dtype_bytes(to)));
    matrix_copy(&weights->down, 0, weights->hidden, begin, end, to, out, width);
}

/* rank * rows may not fit 64 bits, so the whole and the rest of rows / ranks go their own way. */
int64_t shard_first_row(int64_t rows, int rank, int ranks)
{
    return rows / ranks * rank + rows % ranks * rank / ranks;
}

void shard_rows(const matrix *x, int rank, int ranks, imbrex_dtype to, void *out)
{
    matrix_copy(x, shard_first_row(x->rows, rank, ranks), shard_first_row(x->rows, rank + 1, ranks),
                0, x->cols, to, out, x->cols);
}
