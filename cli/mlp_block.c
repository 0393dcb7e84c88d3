/* mlp_block.c - makes and runs the two plans of an MLP block. */
#include "mlp_block.h"

#include <string.h>

#include "matrix.h"

static imbrex_status take(imbrex_group *group, const mlp_shape *s, int64_t columns, void **out)
{
    size_t bytes = (size_t)(s->tokens * columns * matrix_dtype_bytes(s->dtype));
    return imbrex_mem_alloc(group, bytes ? bytes : 1, out);
}

imbrex_status mlp_block_create(imbrex_group *group, const mlp_shape *s, const char *algorithm,
                               int products, const mlp_operands *on, mlp_block *out)
{
    int64_t up = (s->ungated ? 1 : 2) * s->width;
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
    mlp_block block = { .group = group, .shape = *s, .on = *on };
    imbrex_status status = imbrex_plan_ag_gemm(group, &first, &block.gate_up);
    if (status == IMBREX_OK)
        status = products ? imbrex_plan_ag_gemm(group, &second, &block.down)
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
    }
    memset(block, 0, sizeof *block);
}

imbrex_status mlp_block_run(void *ctx)
{
    const mlp_block *b = ctx;
    const mlp_shape *s = &b->shape;
    imbrex_args first = { .a = b->on.x, .b = b->on.gate_up, .bias = b->on.up_bias, .c = b->up };
    imbrex_args second = { .a = b->act, .b = b->on.down, .bias = b->on.bias, .c = b->on.y };
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
