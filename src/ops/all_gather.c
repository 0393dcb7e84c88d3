/* all_gather.c - c[m, n] = the shards of all ranks, each at its rows.
 *
 * copy        caller   | own rows to c | wait 0 | copy 0 | wait 1 | copy 1 | ...
 *             second   | push chunk 0 | flag | push chunk 1 | flag | ...
 *
 * sequential  caller   | push all chunks, flags | wait for all | copy all to c |
 *
 * hierarchical         over nodes: across.h
 *
 * store       caller   | one kernel: half of its threads store own rows at all peers and at c, the
 *                        others put what arrives into c |
 *
 * ll          caller   | one kernel: each thread stores its bytes, which carry their flags, at all
 *                        peers and looks for theirs until they are here |
 */
#include "across.h"

enum { PUSH, LL = PUSH }; /* of a plan's kernels */

static imbrex_status run_store(const imx_run *run);
static imbrex_status run_ll(const imx_run *run);

static void needs(const imbrex_plan *plan, imx_needs *n)
{
    if (imx_plan_sends_by(plan, run_ll)) {
        imx_exchange_ll_needs(plan, plan->shape.n, n);
        return;
    }
    if (imx_plan_sends_by(plan, run_store))
        imx_exchange_push_needs(plan, false, n);
    else
        imx_exchange_gather_needs(plan, plan->shape.n, n);
}

static imbrex_status prepare(imbrex_plan *plan)
{
    if (imx_plan_sends_by(plan, run_ll))
        return imx_exchange_ll_prepare(plan, LL, plan->shape.n);
    if (imx_plan_sends_by(plan, run_store))
        return imx_exchange_push_prepare(plan, PUSH, false);
    return IMBREX_OK;
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

static imbrex_status run_across(const imx_run *run, bool overlapped)
{
    int64_t width = run->plan->shape.n;
    const imx_lanes lanes = imx_across_lanes(run, overlapped);
    IMX_TRY(imx_run_begin(run));
    if (overlapped)
        IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_across_gather(run, &lanes, run->args->a, width));
    IMX_TRY(imx_exchange_gather_out(run, run->stream, run->args->a, width, run->args->c, false));
    if (overlapped)
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

static imbrex_status run_store(const imx_run *run)
{
    if (run->ranks == 1)
        return run_sequential(run);
    return imx_exchange_push(run, PUSH, false, run->args->a, NULL);
}

static imbrex_status run_ll(const imx_run *run)
{
    if (run->ranks == 1)
        return run_sequential(run);
    return imx_exchange_ll(run, LL, run->plan->shape.n, run->args->c);
}

const imx_op imx_op_all_gather = {
    .name = "all_gather",
    .a_is_share = true,
    .algorithms = { { "copy", run_copy, .by_kernel = false },
                    { "sequential", run_sequential, .over_nodes = true },
                    { "store", run_store, .by_kernel = true },
                    { "ll", run_ll, .by_kernel = true },
                    { "hierarchical", .over_nodes = true } },
    .across = run_across,
    .needs = needs,
    .prepare = prepare,
};
