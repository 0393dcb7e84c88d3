/* partials.c - the product of an operator that adds up over ranks. */
#include "partials.h"

/* The next rank of the next node; on one node that is the next rank. */
static int first_rank(const imx_nodes *nodes)
{
    return nodes->first[(nodes->own + 1) % nodes->count] + (nodes->local + 1) % nodes->ranks;
}

imx_gemm_args imx_partials_args(const imx_variant *variant, int64_t m, int reserved_sms)
{
    return (imx_gemm_args){
        .schedule = imx_variant_schedule(variant, m, first_rank(&variant->plan->group->nodes),
                                         variant->plan->group->size - 1),
        .k = variant->shape.k,
        .dtype = (int)variant->shape.dtype,
        .layout = (int)variant->shape.layout,
        .out = (int)variant->shape.out,
        .scaling = (int)variant->shape.scaling,
        .row_scales = (int)imx_shape_row_scales(&variant->shape),
        .reserved_sms = reserved_sms,
        .features = IMX_GEMM_SCATTERS | (variant->config.invariant ? IMX_GEMM_INVARIANT : 0) |
                    (variant->config.spanning ? IMX_GEMM_SPANNING : 0) |
                    (variant->config.summable ? IMX_GEMM_SUMMABLE : 0) |
                    (variant->shape.fast_accumulation ? IMX_GEMM_FAST : 0),
        .plan = imx_variant_point(variant),
    };
}

void imx_partials_bind(const imx_run *run, void *c, imx_gemm_args *args)
{
    args->a = run->args->a;
    args->b = run->args->b;
    args->scale_a = run->args->scale_a;
    args->scale_b = run->args->scale_b;
    args->c = c;
    args->epoch = run->epoch;
    args->counters = imx_run_counters(run);
}

void imx_partials_needs(const imx_variant *variant, imx_needs *n)
{
    const imx_shape *s = &variant->shape;
    n->done = (size_t)variant->plan->group->size * (size_t)variant->config.chunks;
    n->local_bytes = (size_t)s->m * (size_t)s->n * imx_dtype_bytes(s->out);
}

uint64_t *imx_partials_done(const imx_run *run)
{
    return run->m && run->variant->shape.n ? imx_run_done(run) : NULL;
}
