/* combine.c - what experts made of dispatch's rows goes back to the tokens' owners, weighted and
 * added up: c[own, n].
 *
 * store       caller   | one kernel: of each token that has rows here their sum, to its owner |
 *                        flag to all | wait for all | add ranks, residual |
 *
 * ll          caller   | one kernel: sums in lines with their flags, and the sum of those |
 *
 * sequential  caller   | the same of all tokens into local memory | push each rank its tokens,
 *                        flag | wait for all | add ranks, residual |
 *
 * In shared data: slots [ranks][rank_tokens, n], slot r what rank r has of own tokens; signal r: it
 * is here.  Local, of sequential: parts [ranks * rank_tokens, n].
 */
#include "dispatch.h"
#include "kernels/combine/args.h"
#include "token_lines.h"
#include "token_sums.h"

enum { COMBINE, LL }; /* kernels */

static int64_t slot_bytes(const imbrex_plan *plan)
{
    return plan->shape.m * plan->shape.n * (int64_t)imx_dtype_bytes(plan->shape.dtype);
}

static void lay_out_store(const imx_variant *variant, imx_needs *needs)
{
    const imbrex_plan *plan = variant->plan;
    needs->data_bytes = (size_t)plan->group->size * (size_t)slot_bytes(plan);
    needs->signals = (size_t)plan->group->size;
}

static void lay_out_sequential(const imx_variant *variant, imx_needs *needs)
{
    lay_out_store(variant, needs);
    needs->local_bytes = needs->data_bytes;
}

static imx_combine_args combine_args(const imbrex_plan *plan)
{
    const imbrex_dispatch_desc *desc = imx_dispatch_desc_of(plan);
    return (imx_combine_args){
        .n = desc->n,
        .top_k = desc->top_k,
        .dtype = (int)desc->dtype,
        .ranks = plan->group->size,
        .own = plan->group->rank,
        .end = plan->group->size,
        .experts = desc->experts,
        .whole = 1,
        .slot_bytes = slot_bytes(plan),
    };
}

static imbrex_status prepare(imx_variant *variant)
{
    const imx_combine_args any = combine_args(variant->plan);
    return imx_variant_prepare(variant, COMBINE, &imx_kernel_combine, &any);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static imbrex_status add_places(const imx_run *run, bool stores)
{
    imx_combine_args args = combine_args(run->plan);
    args.step = IMX_COMBINE_PLACES;
    args.tokens = imx_dispatch_slots(run->plan);
    args.from = run->args->a;
    args.rows = imx_dispatch_rows(run->plan);
    args.pair_row = run->args->routing->pair_row;
    args.weights = run->args->routing->weights;
    args.to = imx_run_local(run);
    args.stores = stores;
    for (int r = 0; r < run->ranks && stores; r++)
        args.data[r] = imx_run_data(run, r);
    return imx_run_launch(run, run->stream, COMBINE, &args, sizeof args);
}

/* Of own tokens, but for whose parts those are. */
static imx_combine_args own_args(const imx_run *run)
{
    imx_combine_args args = combine_args(run->plan);
    args.step = IMX_COMBINE_RANKS;
    args.tokens = run->m;
    args.first = run->rank * run->plan->shape.m;
    args.pair_expert = run->args->routing->pair_expert;
    args.residual = run->args->residual;
    args.to = run->args->c;
    return args;
}

/* What this rank has of own tokens lies at own_part. */
static imbrex_status add_ranks(const imx_run *run, const void *own_part)
{
    imx_combine_args args = own_args(run);
    args.slots = imx_run_data(run, run->rank);
    args.own_part = own_part;
    return imx_run_launch(run, run->stream, COMBINE, &args, sizeof args);
}

static imbrex_status receive(const imx_run *run, const void *own_part)
{
    IMX_TRY(imx_run_meet(run, run->rank, 1, IMX_POINT_PART));
    IMX_TRY(add_ranks(run, own_part));
    return imx_run_end(run);
}

/* ---- store, sequential ----------------------------------------------------------------------- */

static imbrex_status run_store(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(add_places(run, true));
    return receive(run,
                   (const char *)imx_run_data(run, run->rank) + run->rank * slot_bytes(run->plan));
}

static imbrex_status run_sequential(const imx_run *run)
{
    const char *parts = imx_run_local(run);
    int64_t bytes = slot_bytes(run->plan);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(add_places(run, false));
    for (int i = 1; i < run->ranks; i++) {
        int to = (run->rank + i) % run->ranks;
        IMX_TRY(imx_run_copy(run, run->stream, (char *)imx_run_data(run, to) + run->rank * bytes,
                             parts + to * bytes, (size_t)bytes, to));
    }
    return receive(run, parts + run->rank * bytes);
}

/* ---- ll -------------------------------------------------------------------------------------- */

static void lay_out_ll(const imx_variant *variant, imx_needs *needs)
{
    const imbrex_plan *plan = variant->plan;
    imx_token_lines_needs(variant, plan->shape.m, imx_dispatch_slots(plan), needs);
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    return imx_token_lines_prepare(variant, LL);
}

static imbrex_status run_ll(const imx_run *run)
{
    const imbrex_routing *routing = run->args->routing;
    imx_combine_args args = own_args(run);
    args.tokens = imx_dispatch_slots(run->plan);
    args.from = run->args->a;
    args.rows = imx_dispatch_rows(run->plan);
    args.pair_row = routing->pair_row;
    args.weights = routing->weights;
    return imx_token_lines_add(run, LL, &args, run->m, run->plan->shape.m, imx_run_local(run));
}

/* ---- over nodes ------------------------------------------------------------------------------ */

static size_t parts_bytes(const imbrex_plan *plan)
{
    return imx_align((size_t)plan->group->size * (size_t)slot_bytes(plan), 256);
}

static size_t node_slot_bytes(const imbrex_plan *plan)
{
    return imx_align((size_t)slot_bytes(plan), 256);
}

static void lay_out_nodes(const imx_variant *variant, imx_needs *needs)
{
    size_t local;
    imx_token_sums_needs(variant, node_slot_bytes(variant->plan), needs, &local);
    needs->local_bytes = parts_bytes(variant->plan) + local;
}

/* Others do not know how many tokens an owner has: sums of all that it might have travel. */
static imbrex_status run_nodes(const imx_run *run, bool overlapped)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, overlapped);
    char *parts = imx_run_local(run);
    const imx_token_sums sums = {
        .kernel = COMBINE,
        .tokens = imx_dispatch_slots(run->plan),
        .parts = parts,
        .local = parts + parts_bytes(run->plan),
        .slot_bytes = node_slot_bytes(run->plan),
        .own = own_args(run),
    };
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(add_places(run, false));
    if (overlapped)
        IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_token_sums_add(run, &lanes, &sums));
    return imx_run_end(run);
}

static imbrex_status run_sequential_nodes(const imx_run *run)
{
    return run_nodes(run, false);
}

static imbrex_status run_hierarchical(const imx_run *run)
{
    return run_nodes(run, true);
}

/* ---- costs ----------------------------------------------------------------------------------- */

static double store_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_dispatch_us(p, rates, 35, 5.1);
}

static double ll_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_dispatch_us(p, rates, 6.5, 6);
}

static double sequential_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_dispatch_us(p, rates, 40, 6.1);
}

/* ---- the operator ---------------------------------------------------------------------------- */

/* What it does not read it takes as it is in dispatch's struct. */
static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, false, "[capacity, n]", "rows by expert",
                  IMX_ROUTING_CAPACITY, IMX_N),
    IMX_MATRIX_OF(residual, IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false, "[own, n]",
                  "added to the sum", IMX_ROWS, IMX_N),
    IMX_MATRIX_OF(c, IMBREX_FIELD_OUTPUT, false, "[own, n]", "own tokens' sums", IMX_ROWS, IMX_N),
    IMX_ROUTING_ROWS(IMBREX_FIELD_INPUT, IMBREX_FIELD_OPTIONAL),
    IMX_FIELD(imbrex_args, own, IMX_SIZE, "int64", IMBREX_FIELD_RUN,
              "tokens of this rank in this run; 0: all of the plan's"),
};

const imx_op imx_op_combine = {
    IMX_OP(combine, "c = the sum over ranks and places of weight * a[row], + residual",
           imbrex_dispatch_desc, imx_dispatch_desc, args),
    .scatters = true,
    .own_rows = true,
    .check = imx_dispatch_check,
    .extent = imx_dispatch_extent,
    .capacity = imx_dispatch_capacity,
    .timed_integers = imx_dispatch_timed_integers,
    .algorithms = {
        { .name = "store",
          .by_kernel = true,
          .stores = true,
          .cost = store_cost,
          .layout = lay_out_store,
          .prepare = prepare,
          .run = run_store },
        { .name = "ll",
          .by_kernel = true,
          .at_once = true,
          .can = imx_dispatch_can_ll,
          .cost = ll_cost,
          .layout = lay_out_ll,
          .prepare = prepare_ll,
          .run = run_ll },
        { .name = "sequential",
          .cost = sequential_cost,
          .layout = lay_out_sequential,
          .prepare = prepare,
          .run = run_sequential },
        { .name = "sequential",
          .over_nodes = true,
          .layout = lay_out_nodes,
          .prepare = prepare,
          .run = run_sequential_nodes },
        { .name = "hierarchical",
          .over_nodes = true,
          .layout = lay_out_nodes,
          .prepare = prepare,
          .run = run_hierarchical },
    },
};

imbrex_status imbrex_plan_combine(imbrex_group *group, const imbrex_dispatch_desc *desc,
                                  imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_combine, desc, plan);
}
