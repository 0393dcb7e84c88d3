/* block.c - cuts a rank's part out of the weights of an MLP, and makes and runs its two plans. */
#include "mlp.h"

#include <string.h>

#include "matrix.h"

enum { BLOCK = 128 }; /* rows and columns that share a scale */

/* ---- The rank's part of the weights ---------------------------------------------------------- */

int64_t shard_width(int64_t ffn, int ranks)
{
    return ffn / ranks + (ffn % ranks != 0);
}

int64_t shard_features(const mlp_weights *weights, int ranks)
{
    const imbrex_scaling scaling = weights->fp8.scaling;
    int64_t grain = scaling == IMBREX_PER_BLOCK ? BLOCK : scaling == IMBREX_PER_ROW ? 16 : 1;
    return (shard_width(weights->ffn, ranks) + grain - 1) / grain * grain;
}

/* Where rank's features begin, at most ffn; they end where the next rank's begin. */
static int64_t first_feature(const mlp_weights *weights, int rank, int ranks)
{
    int64_t begin = rank * shard_features(weights, ranks);
    return begin < weights->ffn ? begin : weights->ffn;
}

int64_t shard_up_rows(const mlp_weights *weights, int ranks)
{
    return (weights->ungated ? 1 : 2) * shard_features(weights, ranks);
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
    int64_t width = shard_features(weights, ranks), hidden = weights->hidden;
    int64_t begin = first_feature(weights, rank, ranks);
    int64_t end = first_feature(weights, rank + 1, ranks);
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
    int64_t width = shard_features(weights, ranks), bytes = width * matrix_dtype_bytes(to);
    int64_t begin = first_feature(weights, rank, ranks);
    int64_t end = first_feature(weights, rank + 1, ranks);
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
    int64_t width = shard_features(weights, ranks);
    int64_t begin = first_feature(weights, rank, ranks);
    int64_t end = first_feature(weights, rank + 1, ranks);
    if (width == 0 || weights->hidden == 0)
        return;
    if (end - begin < width)
        memset(out, 0, (size_t)(weights->hidden * width * matrix_dtype_bytes(to)));
    matrix_copy(&weights->down, 0, weights->hidden, begin, end, to, out, width);
}

/* ---- Scales of the rank's part --------------------------------------------------------------- */

/* Of a row, where all may have one. */
static float row_scale(const matrix *scales, int64_t row)
{
    float one;
    row = scales->rows == 1 ? 0 : row;
    matrix_copy(scales, row, row + 1, 0, 1, IMBREX_F32, &one, 1);
    return one;
}

static int64_t blocks_of(int64_t elements)
{
    return (elements + BLOCK - 1) / BLOCK;
}

/* Of features begin to end of a half, and zeros up to the width. */
static int64_t half_scales(const matrix *scales, bool blocks, int64_t begin, int64_t end,
                           int64_t width, float *out)
{
    int64_t rows = blocks ? width / BLOCK : width, cols = blocks ? scales->cols : 1;
    int64_t here = blocks ? blocks_of(end - begin) : end - begin;
    if (!out)
        return rows * cols;
    memset(out, 0, (size_t)(rows * cols) * sizeof *out);
    if (blocks)
        matrix_copy(scales, begin / BLOCK, begin / BLOCK + here, 0, cols, IMBREX_F32, out, cols);
    for (int64_t i = 0; i < here && !blocks; i++)
        out[i] = row_scale(scales, begin + i);
    return rows * cols;
}

int64_t shard_gate_up_scales(const mlp_weights *weights, int rank, int ranks, float *out)
{
    const mlp_fp8 *fp8 = &weights->fp8;
    const bool blocks = fp8->scaling == IMBREX_PER_BLOCK;
    int64_t begin = first_feature(weights, rank, ranks), count = 0;
    int64_t end = first_feature(weights, rank + 1, ranks), width = shard_features(weights, ranks);
    if (!weights->ungated)
        count = half_scales(&fp8->gate, blocks, begin, end, width, out);
    return count + half_scales(&fp8->up, blocks, begin, end, width, out ? out + count : NULL);
}

int64_t shard_down_scales(const mlp_weights *weights, int rank, int ranks, float *out)
{
    const mlp_fp8 *fp8 = &weights->fp8;
    const bool blocks = fp8->scaling == IMBREX_PER_BLOCK;
    int64_t begin = first_feature(weights, rank, ranks);
    int64_t end = first_feature(weights, rank + 1, ranks);
    int64_t rows = blocks ? blocks_of(weights->hidden) : weights->hidden;
    int64_t cols = blocks ? shard_features(weights, ranks) / BLOCK : 1;
    if (!out)
        return rows * cols;
    memset(out, 0, (size_t)(rows * cols) * sizeof *out);
    if (blocks)
        matrix_copy(&fp8->down, 0, rows, begin / BLOCK, begin / BLOCK + blocks_of(end - begin),
                    IMBREX_F32, out, cols);
    for (int64_t i = 0; i < rows && !blocks; i++)
        out[i] = row_scale(&fp8->down, i);
    return rows * cols;
}

/* ---- The rank's rows ------------------------------------------------------------------------- */

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

/* How many numbers the scales of [T, columns] are. */
static int64_t scales_of(const mlp_shape *s, int64_t columns)
{
    return s->tokens * (s->scaling == IMBREX_PER_BLOCK ? blocks_of(columns) : 1);
}

static imbrex_status take_floats(imbrex_group *group, int64_t count, float **out)
{
    size_t bytes = (size_t)count * sizeof **out;
    return imbrex_mem_alloc(group, bytes ? bytes : 1, (void **)out);
}

imbrex_status mlp_block_take_low(mlp_block *b)
{
    const mlp_shape *s = &b->shape;
    TRY(take(b->group, s, s->hidden, &b->low_x));
    return take_floats(b->group, scales_of(s, s->hidden), &b->x_scales);
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
    bool replicated = s->replicated && !products, low = s->scaling != IMBREX_UNSCALED;
    if (low) {
        first.dtype = second.dtype = IMBREX_E4M3;
        first.out = second.out = s->dtype;
        first.scaling = second.scaling = s->scaling;
    }
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
    if (status == IMBREX_OK && low)
        status = mlp_block_take_low(&block);
    if (status == IMBREX_OK && low)
        status = take_floats(group, scales_of(s, s->width), &block.act_scales);
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
        imbrex_mem_free(block->group, block->low_x);
        imbrex_mem_free(block->group, block->x_scales);
        imbrex_mem_free(block->group, block->act_scales);
        moe_block_destroy(block);
    }
    memset(block, 0, sizeof *block);
}

imbrex_status mlp_block_quantize(const mlp_block *b, imbrex_scaling scaling, float *scales)
{
    const mlp_shape *s = &b->shape;
    const int rank = imbrex_group_rank(b->group), ranks = imbrex_group_size(b->group);
    int64_t rows = s->tokens;
    if (!s->replicated && !b->products)
        rows = shard_first_row(rows, rank + 1, ranks) - shard_first_row(rows, rank, ranks);
    return imbrex_quantize(b->group, s->dtype, scaling, rows, s->hidden, b->on.x, b->low_x, scales,
                           b->on.stream);
}

/* x as E4M3, and all that goes with 8 bits. */
static imbrex_status quantize(const mlp_block *b, imbrex_args *first, imbrex_args *second,
                              imbrex_activation *activation)
{
    const mlp_shape *s = &b->shape;
    float *x_scales = s->fixed ? b->on.x_scales : b->x_scales;
    activation->quant = s->fixed ? IMBREX_PER_TENSOR : s->scaling; /* the first of all alike */
    first->a = b->low_x;
    first->scale_a = x_scales;
    first->scale_b = b->on.gate_up_scales;
    second->scale_a = s->fixed ? b->on.act_scales : b->act_scales;
    second->scale_b = b->on.down_scales;
    return mlp_block_quantize(b, activation->quant, x_scales);
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
    if (s->scaling != IMBREX_UNSCALED)
        TRY(quantize(b, &first, &second, &activation));
    TRY(imbrex_plan_run(b->gate_up, &first, b->on.stream));
    TRY(imbrex_activate(b->group, &activation, s->tokens, s->width, b->up, b->act,
                        (float *)second.scale_a, NULL, b->on.stream));
    return imbrex_plan_run(b->down, &second, b->on.stream);
}
