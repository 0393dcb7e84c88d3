/* all_to_all.c - rank r's block of a[m, n], the rows that r owns, goes to r; c = the blocks of all
 * ranks for this one, in rank order.
 *
 * copy        caller   | own block to c | wait 0 | copy 0 | wait 1 | copy 1 | ...
 *             second   | push next rank's chunk 0 | flag | chunk 1 | flag | ... rank after | ...
 *
 * sequential  caller   | push all chunks, flags | wait for all blocks | copy all to c |
 *
 * store       caller   | one kernel: half of its threads store blocks at their owners, the others
 *                        put what arrives into c |
 */
#include "plan/descs.h"
#include "transfer.h"

enum { PUSH };

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
    IMX_TRY(imx_transfer_scatter_out(run, run->stream, run->args->a, run->args->c, false));
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
    IMX_TRY(imx_transfer_scatter_out(run, run->stream, run->args->a, run->args->c, true));
    return imx_run_end(run);
}

/* ---- store ----------------------------------------------------------------------------------- */

static double store_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_transfer_push_cost(rates, p->sent);
}

static void lay_out_store(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_push_needs(variant, IMX_PUSH_EXCHANGES, n);
}

static imbrex_status prepare_store(imx_variant *variant)
{
    return imx_transfer_push_prepare(variant, PUSH, IMX_PUSH_EXCHANGES);
}

static imbrex_status run_store(const imx_run *run)
{
    return imx_transfer_push(run, PUSH, IMX_PUSH_EXCHANGES, run->args->a, NULL);
}

/* ---- the operator ---------------------------------------------------------------------------- */

/* c's rows: a block of every rank. */
static int64_t rows_of_all(const imx_asked *asked, int64_t m, int which)
{
    int rank = asked->group->rank, ranks = asked->group->size;
    (void)which;
    return ranks * (imx_team_row(m, ranks, rank + 1) - imx_team_row(m, ranks, rank));
}

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, false, "[m, n]", "a block for each rank", IMX_ROWS, IMX_N),
    IMX_MATRIX_OF(c, IMBREX_FIELD_OUTPUT, false, "[size * rows, n]",
                  "the blocks of all ranks for this one", IMX_OF_OP, IMX_N),
    IMX_ARGS_M,
};

const imx_op imx_op_all_to_all = {
    IMX_OP(all_to_all, "c = all ranks' blocks for this one", imbrex_coll_desc, imx_coll_desc, args),
    .blanks[1] = IMX_BLANK_OF_OTHERS(imbrex_coll_desc, norm),
    .scatters = true,
    .extent = rows_of_all,
    .algorithms = {
        { .name = "copy",
          .cost = copy_cost,
          .layout = imx_transfer_scatter_needs,
          .run = run_copy },
        { .name = "sequential",
          .cost = sequential_cost,
          .layout = imx_transfer_scatter_needs,
          .run = run_sequential },
        { .name = "store",
          .by_kernel = true,
          .stores = true,
          .at_once = true,
          .cost = store_cost,
          .layout = lay_out_store,
          .prepare = prepare_store,
          .run = run_store },
    },
};

imbrex_status imbrex_plan_all_to_all(imbrex_group *group, const imbrex_coll_desc *desc,
                                     imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_all_to_all, desc, plan);
}
