/* partials.c - the product of an operator that adds up over ranks. */
#include "partials.h"

/* The next rank of the next node; on one node that is the next rank. */
static int first_rank(const imx_nodes *nodes)
{
    return nodes->first[(nodes->own + 1) % nodes->count] + (nodes->local + 1) % nodes->ranks;
}

imx_gemm_args imx_partials_args(const imbrex_plan *plan, int64_t m, int leave)
{
    return (imx_gemm_args){
        .schedule =
            imx_plan_schedule(plan, m, first_rank(&plan->group->nodes), plan->group->size - 1),
        .k = plan->shape.k,
        .dtype = (int)plan->shape.dtype,
        .layout = (int)plan->shape.layout,
        .leave = leave,
        .sides = IMX_GEMM_SCATTERS | (plan->config.merged ? IMX_GEMM_MERGED : 0) |
                 (plan->config.summable ? IMX_GEMM_SUMMABLE : 0),
        .plan = plan->number,
    };
}

void imx_partials_bind(const imx_run *run, void *c, imx_gemm_args *args)
{
    args->a = run->args->a;
    args->b = run->args->b;
    args->c = c;
    args->use = run->use;
    args->counters = imx_run_counters(run);
}

void imx_partials_needs(const imbrex_plan *plan, imx_needs *n)
{
    const imx_shape *s = &plan->shape;
    n->done = (size_t)plan->group->size * (size_t)plan->config.chunks;
    n->local_bytes = (size_t)s->m * (size_t)s->n * imx_dtype_bytes(s->dtype);
}

uint64_t *imx_partials_done(const imx_run *run)
{
    return run->m && run->plan->shape.n ? imx_run_done(run) : NULL;
}
