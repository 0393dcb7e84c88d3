/* all_gather.c - c[m, n] = the shards of all ranks, each at its rows.
 *
 * copy        caller   | own rows to c | wait 0 | copy 0 | wait 1 | copy 1 | ...
 *             second   | push chunk 0 | flag | push chunk 1 | flag | ...
 *
 * sequential  caller   | push all chunks, flags | wait for all | copy all to c |
 */
#include "exchange.h"

static void needs(const imbrex_plan *plan, imx_needs *n)
{
    imx_exchange_gather_needs(plan, plan->shape.n, n);
}

static imbrex_status run_copy(const imx_run *run)
{
    int64_t width = run->plan->shape.n;
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_exchange_gather(run, run->plan->comm, run->args->a, width));
    IMX_TRY(imx_exchange_gather_out(run, run->stream, run->args->a, width, run->args->c, false));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_sequential(const imx_run *run)
{
    int64_t width = run->plan->shape.n;
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_exchange_gather(run, run->stream, run->args->a, width));
    IMX_TRY(imx_exchange_gather_wait(run, run->stream));
    IMX_TRY(imx_exchange_gather_out(run, run->stream, run->args->a, width, run->args->c, true));
    return imx_run_end(run);
}

const imx_op imx_op_all_gather = {
    .name = "all_gather",
    .a_is_share = true,
    .algorithms = { { "copy", run_copy, false }, { "sequential", run_sequential, false } },
    .needs = needs,
};
