/* all_gather.c - c[m, n] = the shards of all ranks, each at its rows.
 *
 * copy        caller   | own rows to c | wait 0 | copy 0 | wait 1 | copy 1 | ...
 *             second   | push chunk 0 | flag | push chunk 1 | flag | ...
 *
 * sequential  caller   | push all chunks, flags | wait for all | copy all to c |
 *
 * hierarchical         over nodes: hierarchical.h
 *
 * store       caller   | one kernel: half of its threads store own rows at all peers and at c, the
 *                        others put what arrives into c |
 *
 * ll          caller   | one kernel: each thread stores its bytes, which carry their flags, at all
 *                        peers and looks for theirs until they are here |
 */
#include "hierarchical.h"
#include "plan/descs.h"

enum { KERNEL };

static void layout(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_gather_needs(variant, variant->shape.n, n);
}

/* ---- copy ------------------------------------------------------------------------------------ */

static double copy_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_transfer_copy_cost(rates, p->sent);
}

static imbrex_status run_copy(const imx_run *run)
{
    int64_t width = run->variant->shape.n;
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_transfer_gather(run, run->plan->comm, run->args->a, width));
    IMX_TRY(imx_transfer_gather_out(run, run->stream, run->args->a, width, run->args->c, false));
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
    int64_t width = run->variant->shape.n;
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_transfer_gather(run, run->stream, run->args->a, width));
    IMX_TRY(imx_transfer_gather_wait(run, run->stream));
    IMX_TRY(imx_transfer_gather_out(run, run->stream, run->args->a, width, run->args->c, true));
    return imx_run_end(run);
}

/* ---- store ----------------------------------------------------------------------------------- */

/* Many bytes begin later than few. */
static double store_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double later = 4, share = 0.5;
    double sending = p->sent / rates->store;
    return imx_transfer_push_cost(rates, p->sent) + fmin(later, share * sending);
}

static void lay_out_store(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_push_needs(variant, IMX_PUSH_GATHERS, n);
}

static imbrex_status prepare_store(imx_variant *variant)
{
    return imx_transfer_push_prepare(variant, KERNEL, IMX_PUSH_GATHERS);
}

static imbrex_status run_store(const imx_run *run)
{
    return imx_transfer_push(run, KERNEL, IMX_PUSH_GATHERS, run->args->a, NULL);
}

/* ---- ll -------------------------------------------------------------------------------------- */

/* On 4 H200s, in lines, of 256 KB, 512 KB, 1, 2 and 4 MB of a rank: 5.8 us, 8.5, 15.3, 26.2, 48.2;
 * "store" 8.4, 12.5, 19.8, 28.4, 47.0.  Two: lines up to 4 MB. */
static double ll_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double in_lines = 1.33; /* of what its bytes take */
    if (p->in->whole_lines)
        return rates->signal_us + in_lines * p->sent / rates->store;
    return imx_transfer_ll_cost(rates, p->sent, IMX_TRANSFER_LL_SENT(p));
}

static void lay_out_ll(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_ll_needs(variant, variant->shape.n, IMX_LL_GATHERS, n);
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    return imx_transfer_ll_prepare(variant, KERNEL, variant->shape.n, IMX_LL_GATHERS);
}

static imbrex_status run_ll(const imx_run *run)
{
    return imx_transfer_ll(run, KERNEL, run->variant->shape.n, IMX_LL_GATHERS, run->args->c);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

static imbrex_status gather_hierarchical(const imx_run *run, const imx_net_streams *lanes)
{
    int64_t width = run->variant->shape.n;
    IMX_TRY(imx_hierarchical_gather(run, lanes, run->args->a, width));
    return imx_transfer_gather_out(run, run->stream, run->args->a, width, run->args->c, false);
}

static imbrex_status run_hierarchical(const imx_run *run)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, true);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(gather_hierarchical(run, &lanes));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_sequential_nodes(const imx_run *run)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, false);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(gather_hierarchical(run, &lanes));
    return imx_run_end(run);
}

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, false, "[rows, n]", "own rows", IMX_OWN_ROWS, IMX_N),
    IMX_MATRIX_OF(c, IMBREX_FIELD_OUTPUT, false, "[m, n]", "all rows", IMX_ROWS, IMX_N),
    IMX_ARGS_M,
};

const imx_op imx_op_all_gather = {
    IMX_OP(all_gather, "c = a of all ranks", imbrex_coll_desc, imx_coll_desc, args),
    .blanks[1] = IMX_BLANK_OF_OTHERS(imbrex_coll_desc, norm),
    .algorithms = {
        { .name = "copy", .cost = copy_cost, .layout = layout, .run = run_copy },
        { .name = "sequential", .cost = sequential_cost, .layout = layout, .run = run_sequential },
        { .name = "sequential", .over_nodes = true, .layout = layout, .run = run_sequential_nodes },
        { .name = "store",
          .by_kernel = true,
          .stores = true,
          .at_once = true,
          .cost = store_cost,
          .layout = lay_out_store,
          .prepare = prepare_store,
          .run = run_store },
        { .name = "ll",
          .by_kernel = true,
          .cost = ll_cost,
          .layout = lay_out_ll,
          .prepare = prepare_ll,
          .run = run_ll },
        { .name = "hierarchical", .over_nodes = true, .layout = layout, .run = run_hierarchical },
    },
};

imbrex_status imbrex_plan_all_gather(imbrex_group *group, const imbrex_coll_desc *desc,
                                     imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_all_gather, desc, plan);
}
