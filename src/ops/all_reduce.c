/* all_reduce.c - c[m, n] = the sum of all ranks' a[m, n], in rank order, on every rank; c may be a.
 *
 * sequential  caller   | reduce_scatter: push all blocks, flags | wait for all parts | reduce, into
 *                        own rows of c | all_gather: push them | wait for all | copy all to c |
 *
 * hierarchical         over nodes: the same by across.h
 *
 * ll          caller   | one kernel: each thread stores its bytes, which carry their flags, at all
 *                        peers, looks for theirs until they are here, and adds them |: every rank
 *                        sends all and adds all, with nothing to wait for but one way between GPUs
 *
 * All add the ranks' numbers in the same order, and round once: on one node the bits are the same.
 */
#include "across.h"
#include "plan/descs.h"

enum { REDUCE, LL = REDUCE, ACROSS = REDUCE }; /* kernels; over nodes several, from there on */

/* ---- reduce_scatter, then all_gather of the sums --------------------------------------------- */

/* This rank's rows of c. */
static void *own_rows(const imx_run *run)
{
    return (char *)run->args->c + imx_exchange_rank_at(run, run->rank, run->variant->shape.n);
}

/* The run of the first movement, whose output is own rows. */
static imx_run scatter_run(const imx_run *run, imbrex_args *args)
{
    imx_run first = *run;
    *args = *run->args;
    args->c = own_rows(run);
    first.args = args;
    return first;
}

/* ---- sequential ------------------------------------------------------------------------------ */

static double sequential_cost(const imx_problem *p, const imx_rates *rates)
{
    return 2 * imx_exchange_sequential_cost(rates, p->sent);
}

static void lay_out_sequential(const imx_variant *variant, imx_needs *n)
{
    imx_needs scatter = { 0 }, gather = { 0 };
    imx_exchange_scatter_needs(variant, &scatter);
    imx_exchange_gather_needs(variant, variant->shape.n, &gather);
    *n = imx_exchange_both(&scatter, &gather);
}

static imbrex_status prepare_sequential(imx_variant *variant)
{
    return imx_exchange_scatter_prepare(variant, REDUCE);
}

static imbrex_status run_sequential(const imx_run *run)
{
    int64_t width = run->variant->shape.n;
    imx_needs scatter = { 0 };
    imbrex_args args;
    imx_exchange_scatter_needs(run->variant, &scatter);
    const imx_run first = scatter_run(run, &args), second = imx_exchange_second(run, &scatter);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_exchange_scatter(&first, run->stream, args.a, NULL));
    IMX_TRY(imx_exchange_scatter_wait(&first, run->stream));
    IMX_TRY(imx_exchange_reduce(&first, run->stream, REDUCE, args.a, false));
    IMX_TRY(imx_exchange_gather(&second, run->stream, args.c, width));
    IMX_TRY(imx_exchange_gather_wait(&second, run->stream));
    IMX_TRY(imx_exchange_gather_out(&second, run->stream, args.c, width, run->args->c, true));
    return imx_run_end(run);
}

/* ---- ll -------------------------------------------------------------------------------------- */

/* Every rank sends all of its rows to all.  NEVER beyond what was measured.  On 4 H200s, bf16, in
 * lines: 512 KB 7.7 us, 2 MB 24.4, 8 MB 88.8, 32 MB 363; sequential 81, 92, 125, 307. */
static double ll_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double begins = 2.2, in_lines = 1.23, in_words = 2.3; /* of what its bytes take */
    static const double most = 24e6;                                   /* to each peer */
    double share = p->in->whole_lines ? in_lines : in_words;
    if (p->sent * p->in->ranks > most * (p->in->ranks - 1))
        return IMX_COST_NEVER;
    return begins + share * p->sent * p->in->ranks / rates->store;
}

static void lay_out_ll(const imx_variant *variant, imx_needs *n)
{
    imx_exchange_ll_needs(variant, variant->shape.n, true, n);
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    return imx_exchange_ll_prepare(variant, LL, variant->shape.n, true);
}

static imbrex_status run_ll(const imx_run *run)
{
    return imx_exchange_ll(run, LL, run->variant->shape.n, true, run->args->c);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

static void lay_out_nodes(const imx_variant *variant, imx_needs *n)
{
    imx_needs scatter = { 0 }, gather = { 0 };
    imx_across_scatter_needs(variant, &scatter);
    imx_exchange_gather_needs(variant, variant->shape.n, &gather);
    *n = imx_exchange_both(&scatter, &gather);
}

static imbrex_status prepare_nodes(imx_variant *variant)
{
    return imx_across_scatter_prepare(variant, ACROSS);
}

static imbrex_status scatter_across(const imx_run *run, const imx_lanes *lanes)
{
    imbrex_args args;
    const imx_run first = scatter_run(run, &args);
    return imx_across_scatter(&first, lanes, ACROSS, args.a, NULL);
}

static imbrex_status gather_across(const imx_run *run, const imx_lanes *lanes)
{
    int64_t width = run->variant->shape.n;
    imx_needs scatter = { 0 };
    imx_across_scatter_needs(run->variant, &scatter);
    const imx_run second = imx_exchange_second(run, &scatter);
    IMX_TRY(imx_across_gather(&second, lanes, own_rows(run), width));
    return imx_exchange_gather_out(&second, run->stream, own_rows(run), width, run->args->c, false);
}

/* The streams meet in between: the sums are there when all that made them is done. */
static imbrex_status run_hierarchical(const imx_run *run)
{
    const imx_lanes lanes = imx_across_lanes(run, true);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(scatter_across(run, &lanes));
    IMX_TRY(imx_run_join(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(gather_across(run, &lanes));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_sequential_nodes(const imx_run *run)
{
    const imx_lanes lanes = imx_across_lanes(run, false);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(scatter_across(run, &lanes));
    IMX_TRY(gather_across(run, &lanes));
    return imx_run_end(run);
}

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, false, "[m, n]", "this rank's numbers", IMX_ROWS, IMX_N),
    IMX_OPERAND(c, IMX_MATRIX, "matrix", IMBREX_FIELD_OUTPUT, false, IMX_MAY_BE_A, "[m, n]",
                "their sum over ranks; may be a", IMX_ROWS, IMX_N),
    IMX_ARGS_M,
};

const imx_op imx_op_all_reduce = {
    IMX_OP(all_reduce, "c = the sum of a over ranks", imbrex_coll_desc, imx_coll_desc, args),
    .scatters = true,
    .algorithms = {
        { .name = "sequential",
          .cost = sequential_cost,
          .layout = lay_out_sequential,
          .prepare = prepare_sequential,
          .run = run_sequential },
        { .name = "sequential",
          .over_nodes = true,
          .layout = lay_out_nodes,
          .prepare = prepare_nodes,
          .run = run_sequential_nodes },
        { .name = "ll",
          .by_kernel = true,
          .cost = ll_cost,
          .layout = lay_out_ll,
          .prepare = prepare_ll,
          .run = run_ll },
        { .name = "hierarchical",
          .over_nodes = true,
          .layout = lay_out_nodes,
          .prepare = prepare_nodes,
          .run = run_hierarchical },
    },
};

imbrex_status imbrex_plan_all_reduce(imbrex_group *group, const imbrex_coll_desc *desc,
                                     imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_all_reduce, desc, plan);
}
