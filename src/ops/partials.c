/* partials.c - the product of an operator that adds up over ranks. */
#include "partials.h"

#include "gemm_alone.h"

/* The next rank of the next node; on one node that is the next rank. */
static int first_rank(const imx_nodes *nodes)
{
    return nodes->first[(nodes->own + 1) % nodes->count] + (nodes->local + 1) % nodes->ranks;
}

imx_gemm_args imx_partials_args(const imx_variant *variant, int64_t m, int reserved_sms)
{
    if (variant->config.alone)
        return imx_gemm_alone_args(variant, m);
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

void *imx_partials_place(const imx_run *run)
{
    return imx_transfer_adds(run) ? imx_run_local(run) : run->args->c;
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

double imx_partials_left(const imx_problem *p, double sending)
{
    double parts = p->config->parts;
    return fmax(sending / parts, imx_cost_left(sending, p->product * (1 - 1 / parts)));
}

/* ---- where the kernel is the whole run ------------------------------------------------------- */

imbrex_status imx_partials_run(const imx_run *run, int kernel, imx_gemm_args args,
                               int64_t slot_bytes)
{
    if (!run->m || !run->variant->shape.n)
        return IMBREX_OK; /* no rank has anything to do */
    imx_partials_bind(run, run->args->c, &args);
    args.bias = run->args->bias;
    args.residual = run->args->residual;
    args.slot_bytes = slot_bytes;
    args.team = imx_run_team(run);
    args.ahead = 1;
    args.ended = imx_run_ended(run);
    return imx_run_gemm(run, kernel, &args);
}

/* A column of tiles is added up when the last of them is made. */
imx_gemm_args imx_partials_push_args(const imx_variant *variant, int64_t m, imx_push_way way)
{
    imx_gemm_args args = imx_partials_args(variant, m, 0);
    args.schedule.group = (int)imx_max(1, imx_ceil_div(variant->shape.m, args.schedule.tile_rows));
    args.features |= IMX_GEMM_REDUCE_PUSH;
    args.features |= way == IMX_PUSH_ALL ? IMX_GEMM_REDUCE_ALL : 0;
    args.features |= way == IMX_PUSH_FANS ? IMX_GEMM_REDUCE_FAN : 0;
    args.team.size = variant->plan->group->size;
    return args;
}

static int64_t push_slot_bytes(const imx_variant *variant, imx_push_way way)
{
    const imx_shape *s = &variant->shape;
    int owners = way == IMX_PUSH_ALL ? 1 : variant->plan->group->size;
    return imx_sum_slot_bytes(s->m, s->n, owners, variant->config.tile_cols,
                              (int)imx_dtype_bytes(s->out));
}

/* Signals are of the form for CPUs; where a GPU's kernel adds up, data tells by itself. */
void imx_partials_push_needs(const imx_variant *variant, imx_push_way way, imx_needs *n)
{
    size_t ranks = (size_t)variant->plan->group->size, slots = ranks;
    if (way == IMX_PUSH_FANS)
        slots *= 2;
    n->data_bytes = slots * (size_t)push_slot_bytes(variant, way);
    n->signals =
        slots * (size_t)imx_sum_tiles(variant->shape.m, variant->shape.n, variant->config.tile_rows,
                                      variant->config.tile_cols);
}

imbrex_status imx_partials_push(const imx_run *run, int kernel, imx_push_way way)
{
    return imx_partials_run(run, kernel, imx_partials_push_args(run->variant, run->m, way),
                            push_slot_bytes(run->variant, way));
}
