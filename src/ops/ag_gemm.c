/* ag_gemm.c - c[m, n] = all_gather(a)[m, k] * b + bias, the gather running under the product.
 *
 * copy        caller   | tiles of own rows | tiles of next rank's rows, as chunks arrive | ...
 *             second   | push chunk 0 to rank before | flag | chunk 1 | flag | ... | next | ...
 *
 * sequential  caller   | push all chunks, flags | wait for all | all tiles |
 *
 * The product reads own rows straight from the caller's a and goes round the ranks from there; it
 * waits once a chunk, before the chunk's first load.
 */
#include "exchange.h"

enum { GEMM };

static imx_gemm_args gemm_args(const imbrex_plan *plan, int64_t m)
{
    return (imx_gemm_args){
        .schedule = imx_plan_schedule(plan, m, plan->group->rank),
        .k = plan->shape.k,
        .dtype = (int)plan->shape.dtype,
        .layout = (int)plan->shape.layout,
        .own = plan->group->rank,
        .plan = plan->number,
    };
}

static void needs(const imbrex_plan *plan, imx_needs *n)
{
    imx_exchange_gather_needs(plan, plan->shape.k, n);
}

static imbrex_status prepare(imbrex_plan *plan)
{
    imx_gemm_args largest = gemm_args(plan, plan->shape.m);
    return imx_plan_prepare(plan, GEMM, &imx_kernel_gemm, &largest);
}

static imbrex_status multiply(const imx_run *run, bool arriving)
{
    imx_gemm_args args = gemm_args(run->plan, run->m);
    args.a = run->args->a;
    args.gathered = imx_run_data(run, run->rank);
    args.b = run->args->b;
    args.bias = run->args->bias;
    args.c = run->args->c;
    args.use = run->use;
    args.ready = arriving ? imx_run_signal(run, run->rank) : NULL;
    if (!run->m || !run->plan->shape.n)
        return IMBREX_OK;
    return imx_run_launch(run, run->stream, GEMM, &args, sizeof args);
}

static imbrex_status gathered(const imx_run *run, imbrex_stream stream)
{
    if (!run->args->gathered)
        return IMBREX_OK;
    return imx_exchange_gather_out(run, stream, run->args->a, run->plan->shape.k,
                                   run->args->gathered);
}

static imbrex_status run_copy(const imx_run *run)
{
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(multiply(run, true));
    IMX_TRY(imx_exchange_gather(run, run->plan->comm, run->args->a, run->plan->shape.k));
    IMX_TRY(gathered(run, run->plan->comm));
    return imx_run_join(run);
}

static imbrex_status run_sequential(const imx_run *run)
{
    IMX_TRY(imx_exchange_gather(run, run->stream, run->args->a, run->plan->shape.k));
    IMX_TRY(imx_exchange_gather_wait(run, run->stream));
    IMX_TRY(gathered(run, run->stream));
    return multiply(run, false);
}

const imx_op imx_op_ag_gemm = {
    .name = "ag_gemm",
    .product = true,
    .a_is_share = true,
    .takes_gathered = true,
    .algorithms = { { "copy", run_copy }, { "sequential", run_sequential } },
    .needs = needs,
    .prepare = prepare,
};
