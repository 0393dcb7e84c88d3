/* reduce_scatter.c - c[rows, n] = this rank's rows of the sum of all ranks' a[m, n], in rank order.
 *
 * copy        caller   | reduce: wait chunk 0, add | wait chunk 1, add | ...
 *             second   | push next rank's chunk 0 | flag | chunk 1 | flag | ... rank after | ...
 *
 * sequential  caller   | push all chunks, flags | wait for all parts | reduce |
 *
 * hierarchical         over nodes: across.h
 *
 * store       caller   | one kernel: half of its threads store parts at their owners, the others
 *                        add what arrives |
 */
#include "across.h"

enum { REDUCE, PUSH };
enum { ACROSS }; /* over nodes: these kernels alone */

static imbrex_status run_store(const imx_run *run);

static void needs(const imbrex_plan *plan, imx_needs *n)
{
    if (imx_plan_over_nodes(plan)) {
        imx_across_scatter_needs(plan, n);
        return;
    }
    if (imx_plan_sends_by(plan, run_store))
        imx_exchange_push_needs(plan, true, n);
    else
        imx_exchange_scatter_needs(plan, n);
}

static imbrex_status prepare(imbrex_plan *plan)
{
    if (imx_plan_over_nodes(plan))
        return imx_across_scatter_prepare(plan, ACROSS);
    if (imx_plan_sends_by(plan, run_store))
        return imx_exchange_push_prepare(plan, PUSH, true);
    return imx_exchange_scatter_prepare(plan, REDUCE);
}

static imbrex_status run_copy(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_exchange_scatter(run, run->plan->comm, run->args->a, NULL));
    IMX_TRY(imx_exchange_reduce(run, run->stream, REDUCE, run->args->a, true));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_across(const imx_run *run, bool overlapped)
{
    const imx_lanes lanes = imx_across_lanes(run, overlapped);
    IMX_TRY(imx_run_begin(run));
    if (overlapped)
        IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_across_scatter(run, &lanes, ACROSS, run->args->a, NULL));
    if (overlapped)
        IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_sequential(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_exchange_scatter(run, run->stream, run->args->a, NULL));
    IMX_TRY(imx_exchange_scatter_wait(run, run->stream));
    IMX_TRY(imx_exchange_reduce(run, run->stream, REDUCE, run->args->a, false));
    return imx_run_end(run);
}

static imbrex_status run_store(const imx_run *run)
{
    if (run->ranks == 1)
        return run_sequential(run);
    return imx_exchange_push(run, PUSH, true, run->args->a, NULL);
}

const imx_op imx_op_reduce_scatter = {
    .name = "reduce_scatter",
    .c_is_share = true,
    .algorithms = { { "copy", run_copy, .by_kernel = false },
                    { "sequential", run_sequential, .over_nodes = true },
                    { "store", run_store, .by_kernel = true },
                    { "hierarchical", .over_nodes = true } },
    .across = run_across,
    .needs = needs,
    .prepare = prepare,
};
