/* all_reduce.c - c[m, n] = the sum of all ranks' a[m, n], in rank order, on every rank; c may be a.
 *
 * sequential  caller   | reduce_scatter: push all blocks, flags | wait for all parts | reduce, into
 *                        own rows of c | all_gather: push them | wait for all | copy all to c |
 *
 * copy        caller   | add up own chunk 0, push to all | chunk 1 | ...
 *             second   | push others' chunk 0 | chunk 1 | ... | copy what comes into c |
 *
 * hierarchical         over nodes: the same by hierarchical.h
 *
 * store       caller   | one kernel, reduce_scatter's: parts to their owners, who add what arrives,
 *                        into own rows of c | another one, all_gather's: own rows to all peers |
 *
 * ll          caller   | one kernel: each thread stores its bytes, which carry their flags, at all
 *                        peers, looks for theirs until they are here, and adds them |: every rank
 *                        sends all and adds all, with nothing to wait for but one way between GPUs
 *
 * ll2         caller   | one kernel, in two shots: of the matrix, cut into as many shards of whole
 *                        lines as there are ranks, each thread stores parts at their owners, adds
 *                        up own ones, stores the sums at all peers, and looks for theirs |
 *
 * All add the ranks' numbers in the same order, then bias and residual, and round once: on one node
 * the bits are the same.  norm.h has what may follow.
 */
#include "hierarchical.h"
#include "norm.h"
#include "sum_all.h"

enum {
    REDUCE,
    LL = REDUCE,
    PUSH_PARTS = REDUCE,
    PUSH_SUMS,
    HIERARCHICAL = REDUCE
}; /* kernels; over nodes several, from there on */

/* ---- sequential ------------------------------------------------------------------------------ */

static double sequential_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_sum_all_cost(rates, p->sent);
}

static imbrex_status prepare_scatter(imx_variant *variant)
{
    return imx_transfer_scatter_prepare(variant, REDUCE);
}

static imbrex_status run_sequential(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_sum_all(run, REDUCE, run->args->a));
    return imx_run_end(run);
}

/* ---- copy ------------------------------------------------------------------------------------ */

static double copy_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_transfer_copy_cost(rates, 2 * p->sent);
}

static imbrex_status run_copy(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_sum_all_copies(run, run->plan->comm, REDUCE, run->args->a));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

/* ---- store ----------------------------------------------------------------------------------- */

/* Fitted to two and four H200s, from 4 to 64 MB; what is less, ll2 has sooner. */
static double store_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double begins = 13, of_rank = 2;
    return begins + of_rank * p->in->ranks + 2 * p->sent / rates->store;
}

static void lay_out_store(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_push_needs(variant, IMX_PUSH_REDUCES, n);
}

static imbrex_status prepare_store(imx_variant *variant)
{
    IMX_TRY(imx_transfer_push_prepare(variant, PUSH_PARTS, IMX_PUSH_REDUCES));
    return imx_transfer_push_prepare(variant, PUSH_SUMS, IMX_PUSH_GATHERS);
}

/* Each kernel is an epoch of its own. */
static imbrex_status run_store(const imx_run *run)
{
    imbrex_args args, kept = *run->args;
    imx_run sums = *run;
    sums.args = &kept;
    kept.c = imx_norm_kept(run);
    imx_run parts = imx_sum_all_first(&sums, &args);
    IMX_TRY(imx_transfer_push(&parts, PUSH_PARTS, IMX_PUSH_REDUCES, args.a, args.bias));
    return imx_transfer_push(run, PUSH_SUMS, IMX_PUSH_GATHERS, args.c, NULL);
}

/* ---- ll -------------------------------------------------------------------------------------- */

static void lay_out_ll(const imx_variant *variant, imx_needs *n)
{
    imx_sum_all_ll_needs(variant, IMX_LL_REDUCES, n);
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    return imx_sum_all_ll_prepare(variant, LL, IMX_LL_REDUCES);
}

static imbrex_status run_ll(const imx_run *run)
{
    return imx_sum_all_ll(run, LL, IMX_LL_REDUCES, run->args->a);
}

/* ---- ll2 ------------------------------------------------------------------------------------- */

static void lay_out_ll2(const imx_variant *variant, imx_needs *n)
{
    imx_sum_all_ll_needs(variant, IMX_LL_FANS, n);
}

static imbrex_status prepare_ll2(imx_variant *variant)
{
    return imx_sum_all_ll_prepare(variant, LL, IMX_LL_FANS);
}

static imbrex_status run_ll2(const imx_run *run)
{
    return imx_sum_all_ll(run, LL, IMX_LL_FANS, run->args->a);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

static imbrex_status prepare_nodes(imx_variant *variant)
{
    return imx_hierarchical_scatter_prepare(variant, HIERARCHICAL);
}

static imbrex_status run_hierarchical(const imx_run *run)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, true);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_hierarchical_sum(run, &lanes, HIERARCHICAL, run->args->a, NULL));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_sequential_nodes(const imx_run *run)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, false);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_hierarchical_sum(run, &lanes, HIERARCHICAL, run->args->a, NULL));
    return imx_run_end(run);
}

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, false, "[m, n]", "this rank's numbers", IMX_ROWS, IMX_N),
    IMX_MATRIX_OF(bias, IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false, "[n]",
                  "added to the sum", IMX_N),
    IMX_OPERAND(c, IMX_RESULT, "result", IMBREX_FIELD_OUTPUT, false, IMX_MAY_BE_A, "[m, n]",
                "their sum over ranks; may be a", IMX_ROWS, IMX_N),
    IMX_NORM_ARGS(false, IMX_NORM_RESIDUAL_ROWS, IMX_NORM_SCALES, IMX_ROWS, "[m, n]", "[m, n/128]"),
    IMX_ARGS_M,
};

const imx_op imx_op_all_reduce = {
    IMX_OP(all_reduce, "c = the sum of a over ranks", imbrex_coll_desc, imx_norm_coll_desc, args),
    IMX_NORM_RUNS(imbrex_coll_desc),
    .scatters = true,
    .algorithms = {
        { .name = "sequential",
          .cost = sequential_cost,
          .layout = imx_sum_all_needs,
          .prepare = prepare_scatter,
          .run = run_sequential },
        { .name = "copy",
          .on_request = true, /* on two H200s "store" is faster at every size */
          .cost = copy_cost,
          .layout = imx_sum_all_needs,
          .prepare = prepare_scatter,
          .run = run_copy },
        { .name = "sequential",
          .over_nodes = true,
          .layout = imx_hierarchical_sum_needs,
          .prepare = prepare_nodes,
          .run = run_sequential_nodes },
        { .name = "store",
          .by_kernel = true,
          .stores = true,
          .norms = true,
          .at_once = true,
          .cost = store_cost,
          .layout = lay_out_store,
          .prepare = prepare_store,
          .run = run_store },
        { .name = "ll",
          .by_kernel = true,
          .norms = true,
          .can = imx_sum_all_can_ll,
          .cost = imx_sum_all_ll_cost,
          .layout = lay_out_ll,
          .prepare = prepare_ll,
          .run = run_ll },
        { .name = "ll2",
          .by_kernel = true,
          .norms = true,
          .can = imx_sum_all_can_ll,
          .cost = imx_sum_all_ll2_cost,
          .layout = lay_out_ll2,
          .prepare = prepare_ll2,
          .run = run_ll2 },
        { .name = "hierarchical",
          .over_nodes = true,
          .layout = imx_hierarchical_sum_needs,
          .prepare = prepare_nodes,
          .run = run_hierarchical },
    },
};

imbrex_status imbrex_plan_all_reduce(imbrex_group *group, const imbrex_coll_desc *desc,
                                     imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_all_reduce, desc, plan);
}
