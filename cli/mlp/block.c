/* block.c - cuts a rank's part out of the weights of an MLP, and makes and runs its two plans. */
#include "mlp.h"

#include <string.h>

#include "matrix.h"

/* ---- The rank's part of the weights ---------------------------------------------------------- */

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

/* ---- The block ------------------------------------------------------------------------------- */

static imbrex_status take(imbrex_group *group, const mlp_shape *s, int64_t columns, void **out)
{
    size_t bytes = (size_t)(s->tokens * columns * matrix_dtype_bytes(s->dtype));
    return imbrex_mem_alloc(group, bytes ? bytes : 1, out);
}

static imbrex_status create_experts(imbrex_group *group, const mlp_shape *s, const char *algorithm,
                                    int products, const mlp_operands *on, mlp_block *out)
{
    mlp_block block = { .group = group, .shape = *s, .on = *on, .products = products };
    imbrex_status status = moe_block_create(&block, algorithm);
    if (status == IMBREX_OK)
        *out = block;
    else
        mlp_block_destroy(&block);
    return status;
}

imbrex_status mlp_block_create(imbrex_group *group, const mlp_shape *s, const char *algorithm,
                               int products, const mlp_operands *on, mlp_block *out)
{
    int64_t up = (s->ungated ? 1 : 2) * s->width;
    if (s->routed.experts)
        return create_experts(group, s, algorithm, products, on, out);
    imbrex_gemm_desc first = {
        .m = s->tokens,
        .n = up,
        .k = s->hidden,
        .dtype = s->dtype,
        .algorithm = algorithm,
        .m_least = s->tokens,
    };
    imbrex_gemm_desc second = {
        .m = s->tokens,
        .n = s->hidden,
        .k = s->width,
        .dtype = s->dtype,
        .algorithm = algorithm,
        .m_least = s->tokens,
    };
    mlp_block block = { .group = group, .shape = *s, .on = *on, .products = products };
    bool replicated = s->replicated && !products;
    if (products) {
        block.on.residual = NULL; /* what is added to y belongs to no product */
        block.on.gamma = NULL;
    } else {
        second.norm = s->norm;
    }
    if (replicated)
        first.algorithm = "sequential"; /* the only one of what has no peers */
    imbrex_status status = replicated ? imbrex_plan_gemm(group, &first, &block.gate_up)
                                      : imbrex_plan_ag_gemm(group, &first, &block.gate_up);
    if (status == IMBREX_OK)
        status = products     ? imbrex_plan_ag_gemm(group, &second, &block.down)
                 : replicated ? imbrex_plan_gemm_ar(group, &second, &block.down)
                              : imbrex_plan_gemm_rs(group, &second, &block.down);
    if (status == IMBREX_OK)
        status = take(group, s, up, &block.up);
    if (status == IMBREX_OK)
        status = take(group, s, s->width, &block.act);
    if (status == IMBREX_OK)
        *out = block;
    else
        mlp_block_destroy(&block);
    return status;
}

void mlp_block_destroy(mlp_block *block)
{
    imbrex_plan_destroy(block->gate_up);
    imbrex_plan_destroy(block->down);
    if (block->group) {
        imbrex_mem_free(block->group, block->up);
        imbrex_mem_free(block->group, block->act);
        moe_block_destroy(block);
    }
    memset(block, 0, sizeof *block);
}

imbrex_status mlp_block_run(void *ctx)
{
    const mlp_block *b = ctx;
    const mlp_shape *s = &b->shape;
    if (s->routed.experts)
        return moe_block_run(b);
    imbrex_args first = { .a = b->on.x, .b = b->on.gate_up, .bias = b->on.up_bias, .c = b->up };
    imbrex_args second = {
        .a = b->act,
        .b = b->on.down,
        .bias = b->on.bias,
        .c = b->on.y,
        .residual = b->on.residual,
        .gamma = b->on.gamma,
    };
    imbrex_activation activation = { .kind = s->activation,
                                     .gated = !s->ungated,
                                     .dtype = s->dtype };
    imbrex_status status = imbrex_plan_run(b->gate_up, &first, b->on.stream);
    if (status == IMBREX_OK)
        status = imbrex_activate(b->group, &activation, s->tokens, s->width, b->up, b->act, NULL,
                                 NULL, b->on.stream);
    if (status == IMBREX_OK)
        status = imbrex_plan_run(b->down, &second, b->on.stream);
    return status;
}
