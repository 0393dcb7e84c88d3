/* gemm_rs.c - c[rows, n] = this rank's rows of the sum over ranks of a[m, k] * b, plus bias.
 *
 * copy        caller   | tiles of next rank's rows | ... | own rows | reduce, as parts arrive
 *             second   | wait done 0 | push chunk 0 | flag | wait done 1 | push chunk 1 | ...
 *
 * sequential  caller   | all tiles | push all chunks, flags | wait for all parts | reduce |
 *
 * The product counts the tiles of each chunk; the last one posts done, and the chunk leaves for its
 * owner while the product goes on.  Partials are rounded to dtype before they are added, one's own
 * too, so that it does not matter whose they are.
 */
#include "exchange.h"

enum { GEMM, REDUCE };

static imx_gemm_args gemm_args(const imbrex_plan *plan, int64_t m)
{
    return (imx_gemm_args){
        .schedule = imx_plan_schedule(plan, m, (plan->group->rank + 1) % plan->group->size),
        .k = plan->shape.k,
        .dtype = (int)plan->shape.dtype,
        .layout = (int)plan->shape.layout,
        .own = -1,
        .plan = plan->number,
    };
}

static void needs(const imbrex_plan *plan, imx_needs *n)
{
    imx_exchange_scatter_needs(plan, n);
    n->local_bytes =
        (size_t)plan->shape.m * (size_t)plan->shape.n * imx_dtype_bytes(plan->shape.dtype);
    n->done = (size_t)plan->group->size * (size_t)plan->config.chunks;
}

static imbrex_status prepare(imbrex_plan *plan)
{
    imx_gemm_args largest = gemm_args(plan, plan->shape.m);
    IMX_TRY(imx_plan_prepare(plan, GEMM, &imx_kernel_gemm, &largest));
    return imx_exchange_scatter_prepare(plan, REDUCE);
}

static imbrex_status multiply(const imx_run *run, bool posting)
{
    imx_gemm_args args = gemm_args(run->plan, run->m);
    args.a = run->args->a;
    args.b = run->args->b;
    args.c = imx_run_local(run);
    args.use = run->use;
    args.done = posting ? imx_run_done(run) : NULL;
    args.counters = imx_run_counters(run);
    if (!run->m || !run->plan->shape.n)
        return IMBREX_OK;
    return imx_run_launch(run, run->stream, GEMM, &args, sizeof args);
}

static imbrex_status run_copy(const imx_run *run)
{
    /* Without columns there are no tiles, and nobody would post done. */
    uint64_t *done = run->plan->shape.n ? imx_run_done(run) : NULL;
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(multiply(run, true));
    IMX_TRY(imx_exchange_scatter(run, run->plan->comm, imx_run_local(run), done));
    IMX_TRY(imx_exchange_reduce(run, run->stream, REDUCE, imx_run_local(run), true));
    return imx_run_join(run);
}

static imbrex_status run_sequential(const imx_run *run)
{
    IMX_TRY(multiply(run, false));
    IMX_TRY(imx_exchange_scatter(run, run->stream, imx_run_local(run), NULL));
    IMX_TRY(imx_exchange_scatter_wait(run, run->stream));
    return imx_exchange_reduce(run, run->stream, REDUCE, imx_run_local(run), false);
}

const imx_op imx_op_gemm_rs = {
    .name = "gemm_rs",
    .product = true,
    .c_is_share = true,
    .algorithms = { { "copy", run_copy }, { "sequential", run_sequential } },
    .needs = needs,
    .prepare = prepare,
};
