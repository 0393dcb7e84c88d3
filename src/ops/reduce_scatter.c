/* reduce_scatter.c - c[rows, n] = this rank's rows of the sum of all ranks' a[m, n], in rank order.
 *
 * copy        caller   | reduce: wait chunk 0, add | wait chunk 1, add | ...
 *             second   | push next rank's chunk 0 | flag | chunk 1 | flag | ... rank after | ...
 *
 * sequential  caller   | push all chunks, flags | wait for all parts | reduce |
 *
 * hierarchical         over nodes: hierarchical.h
 *
 * store       caller   | one kernel: half of its threads store parts at their owners, the others
 *                        add what arrives |
 *
 * Each adds bias and residual to the sum; norm.h has what may follow.
 */
#include "hierarchical.h"
#include "norm.h"

enum {
    REDUCE,
    PUSH = REDUCE,
    HIERARCHICAL = REDUCE
}; /* kernels; over nodes several, from there on */

static imbrex_status prepare(imx_variant *variant)
{
    return imx_transfer_scatter_prepare(variant, REDUCE);
}

/* ---- copy ------------------------------------------------------------------------------------ */

static double copy_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_transfer_copy_cost(rates, p->sent);
}

static imbrex_status run_copy(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_transfer_scatter(run, run->plan->comm, run->args->a, NULL));
    IMX_TRY(imx_transfer_reduce(run, run->stream, REDUCE, run->args->a, true));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

/* ---- sequential ------------------------------------------------------------------------------ */

static double sequential_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_transfer_sequential_cost(rates, p->sent);
}

static imbrex_status run_sequential(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_transfer_scatter(run, run->stream, run->args->a, NULL));
    IMX_TRY(imx_transfer_scatter_wait(run, run->stream));
    IMX_TRY(imx_transfer_reduce(run, run->stream, REDUCE, run->args->a, false));
    return imx_run_end(run);
}

/* ---- store ----------------------------------------------------------------------------------- */

static double store_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_transfer_push_cost(rates, p->sent);
}

static void lay_out_store(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_push_needs(variant, IMX_PUSH_REDUCES, n);
}

static imbrex_status prepare_store(imx_variant *variant)
{
    return imx_transfer_push_prepare(variant, PUSH, IMX_PUSH_REDUCES);
}

static imbrex_status run_store(const imx_run *run)
{
    return imx_transfer_push(run, PUSH, IMX_PUSH_REDUCES, run->args->a, run->args->bias);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

static imbrex_status prepare_scatter(imx_variant *variant)
{
    return imx_hierarchical_scatter_prepare(variant, HIERARCHICAL);
}

static imbrex_status run_hierarchical(const imx_run *run)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, true);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_hierarchical_scatter(run, &lanes, HIERARCHICAL, run->args->a, NULL));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_sequential_nodes(const imx_run *run)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, false);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_hierarchical_scatter(run, &lanes, HIERARCHICAL, run->args->a, NULL));
    return imx_run_end(run);
}

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, false, "[m, n]", "all rows", IMX_ROWS, IMX_N),
    IMX_MATRIX_OF(bias, IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false, "[n]",
                  "added to the sum", IMX_N),
    IMX_OPERAND(c, IMX_RESULT, "result", IMBREX_FIELD_OUTPUT, false, IMX_APART, "[rows, n]",
                "own rows of the sum", IMX_OWN_ROWS, IMX_N),
    IMX_NORM_ARGS(false, IMX_OWN_ROWS, IMX_NORM_SCALES_OWN, IMX_OWN_ROWS, "[rows, n]",
                  "[rows, n/128]"),
    IMX_ARGS_M,
};

const imx_op imx_op_reduce_scatter = {
    IMX_OP(reduce_scatter, "c = own rows of the sum of a", imbrex_coll_desc, imx_norm_coll_desc,
           args),
    IMX_NORM_RUNS(imbrex_coll_desc),
    .scatters = true,
    .algorithms = {
        { .name = "copy",
          .cost = copy_cost,
          .layout = imx_transfer_scatter_needs,
          .prepare = prepare,
          .run = run_copy },
        { .name = "sequential",
          .cost = sequential_cost,
          .layout = imx_transfer_scatter_needs,
          .prepare = prepare,
          .run = run_sequential },
        { .name = "sequential",
          .over_nodes = true,
          .layout = imx_hierarchical_scatter_needs,
          .prepare = prepare_scatter,
          .run = run_sequential_nodes },
        { .name = "store",
          .by_kernel = true,
          .stores = true,
          .at_once = true,
          .cost = store_cost,
          .layout = lay_out_store,
          .prepare = prepare_store,
          .run = run_store },
        { .name = "hierarchical",
          .over_nodes = true,
          .layout = imx_hierarchical_scatter_needs,
          .prepare = prepare_scatter,
          .run = run_hierarchical },
    },
};

imbrex_status imbrex_plan_reduce_scatter(imbrex_group *group, const imbrex_coll_desc *desc,
                                         imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_reduce_scatter, desc, plan);
}
