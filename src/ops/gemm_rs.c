/* gemm_rs.c - c[rows, n] = this rank's rows of the sum over ranks of a[m, k] * b, plus bias.
 *
 * store       caller   | tiles of next rank's rows, into its slot | ... | own rows, plus slots |
 *
 *  (sums)     caller   | tiles of all rows, each rank's to it; own rows, plus what comes |
 *  (collects) caller   | tiles of all rows, columns by columns, a flag to all behind each part |
 *                              | read own rows of all ranks' part 0, add | of part 1 | ...
 *
 * copy        caller   | tiles of next rank's rows | ... | own rows | reduce, as parts arrive
 *             second   | wait done 0 | push chunk 0 | flag | wait done 1 | push chunk 1 | ...
 *
 * sequential  caller   | all tiles | push all chunks, flags | wait for all parts | reduce |
 *
 * ll          caller   | all tiles | scatter and sum by one kernel |: data with flags where it is
 *                                     little
 *
 * hierarchical         over nodes: across.h, each chunk as the product makes it
 *
 * The product counts the tiles of each chunk; the last one posts done, and the chunk leaves for its
 * owner while the product goes on.  Partials are rounded to dtype before they are added, one's own
 * too, so that it does not matter whose they are.
 */
#include "across.h"

enum { GEMM, REDUCE };
enum { ACROSS = 1 }; /* over nodes: its kernels in the place of REDUCE */

static imbrex_status run_copy(const imx_run *run);
static imbrex_status run_store(const imx_run *run);
static imbrex_status run_ll(const imx_run *run);

static bool stores(const imbrex_plan *plan)
{
    return imx_plan_sends_by(plan, run_store) && !plan->config.merged;
}

/* Tiles have rows of several ranks, each of which goes to its own. */
static bool sums(const imbrex_plan *plan)
{
    return imx_plan_sends_by(plan, run_store) && plan->config.sums;
}

/* Or, for what cannot be added up so, every rank keeps them, and its peers come to read. */
static bool collects(const imbrex_plan *plan)
{
    return imx_plan_sends_by(plan, run_store) && plan->config.merged && !plan->config.sums;
}

static int64_t slot_bytes(const imbrex_plan *plan)
{
    const imx_shape *s = &plan->shape;
    if (!sums(plan))
        return (int64_t)imx_exchange_slot_bytes(plan);
    return imx_sum_slot_bytes(s->m, s->n, plan->group->size, plan->config.tile_cols,
                              (int)imx_dtype_bytes(s->dtype));
}

/* The next rank of the next node; on one node that is the next rank. */
static int first_rank(const imx_nodes *nodes)
{
    return nodes->first[(nodes->own + 1) % nodes->count] + (nodes->local + 1) % nodes->ranks;
}

static imx_gemm_args gemm_args(const imbrex_plan *plan, int64_t m)
{
    /* Whose waits, and over nodes kernels, run beside the product. */
    bool beside = imx_plan_sends_by(plan, run_copy) || imx_plan_overlaps_nodes(plan);
    imx_schedule schedule =
        imx_plan_schedule(plan, m, first_rank(&plan->group->nodes), plan->group->size - 1);
    if (sums(plan)) /* a column of tiles is added up when the last of them is made */
        schedule.group = (int)imx_max(1, imx_ceil_div(plan->shape.m, schedule.tile_rows));
    if (collects(plan)) {
        schedule.chunk_cols = plan->config.part_cols;
        schedule.chunks = plan->config.parts;
    }
    return (imx_gemm_args){
        .schedule = schedule,
        .k = plan->shape.k,
        .dtype = (int)plan->shape.dtype,
        .layout = (int)plan->shape.layout,
        .leave = beside ? plan->config.leave : 0,
        .sides = IMX_GEMM_SCATTERS | (stores(plan) ? IMX_GEMM_STORES : 0) |
                 (sums(plan) ? IMX_GEMM_SUMS : 0) | (collects(plan) ? IMX_GEMM_COLLECTS : 0) |
                 (plan->config.merged ? IMX_GEMM_MERGED : 0) |
                 (plan->config.summable ? IMX_GEMM_SUMMABLE : 0),
        .plan = plan->number,
        .team.size = collects(plan) || sums(plan) ? plan->group->size : 0,
    };
}

static void needs(const imbrex_plan *plan, imx_needs *n)
{
    if (imx_plan_over_nodes(plan)) {
        imx_across_scatter_needs(plan, n);
        return;
    }
    if (sums(plan)) {
        size_t ranks = (size_t)plan->group->size;
        n->data_bytes = ranks * (size_t)slot_bytes(plan);
        /* Of the form for CPUs; where a GPU's kernel adds up, data tells by itself. */
        n->signals = ranks * (size_t)imx_sum_tiles(plan->shape.m, plan->shape.n,
                                                   plan->config.tile_rows, plan->config.tile_cols);
        return;
    }
    if (imx_plan_sends_by(plan, run_ll))
        imx_exchange_push_needs(plan, true, n);
    else
        imx_exchange_scatter_needs(plan, n);
    n->done = (size_t)plan->group->size * (size_t)plan->config.chunks;
    if (collects(plan)) {
        n->signals = (size_t)plan->group->size * (size_t)plan->config.parts;
        n->done = (size_t)plan->config.parts; /* counters */
    }
    if (!imx_plan_sends_by(plan, run_store)) /* whose products lie in shared data */
        n->local_bytes =
            (size_t)plan->shape.m * (size_t)plan->shape.n * imx_dtype_bytes(plan->shape.dtype);
}

static imbrex_status prepare(imbrex_plan *plan)
{
    imx_gemm_args largest = gemm_args(plan, plan->shape.m);
    IMX_TRY(imx_plan_prepare(plan, GEMM, &imx_kernel_gemm, &largest));
    if (imx_plan_sends_by(plan, run_store))
        return IMBREX_OK; /* it adds up, too */
    if (imx_plan_over_nodes(plan))
        return imx_across_scatter_prepare(plan, ACROSS);
    if (imx_plan_sends_by(plan, run_ll))
        return imx_exchange_push_prepare(plan, REDUCE, true);
    return imx_exchange_scatter_prepare(plan, REDUCE);
}

static imx_gemm_args product(const imx_run *run, void *c)
{
    imx_gemm_args args = gemm_args(run->plan, run->m);
    args.a = run->args->a;
    args.b = run->args->b;
    args.c = c;
    args.use = run->use;
    args.counters = imx_run_counters(run);
    return args;
}

static imbrex_status run_copy(const imx_run *run)
{
    /* Without rows or columns there are no tiles, and nobody would post done. */
    uint64_t *done = run->m && run->plan->shape.n ? imx_run_done(run) : NULL;
    imx_gemm_args args = product(run, imx_run_local(run));
    args.done = done;
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_run_multiply(run, GEMM, &args));
    IMX_TRY(imx_exchange_scatter(run, run->plan->comm, imx_run_local(run), done));
    IMX_TRY(imx_exchange_reduce(run, run->stream, REDUCE, imx_run_local(run), true));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_across(const imx_run *run, bool overlapped)
{
    uint64_t *done = overlapped && run->m && run->plan->shape.n ? imx_run_done(run) : NULL;
    const imx_lanes lanes = imx_across_lanes(run, overlapped);
    imx_gemm_args args = product(run, imx_run_local(run));
    args.done = done;
    IMX_TRY(imx_run_begin(run));
    if (overlapped)
        IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_run_multiply(run, GEMM, &args));
    IMX_TRY(imx_across_scatter(run, &lanes, ACROSS, imx_run_local(run), done));
    if (overlapped)
        IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_sequential(const imx_run *run)
{
    imx_gemm_args args = product(run, imx_run_local(run));
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_multiply(run, GEMM, &args));
    IMX_TRY(imx_exchange_scatter(run, run->stream, imx_run_local(run), NULL));
    IMX_TRY(imx_exchange_scatter_wait(run, run->stream));
    IMX_TRY(imx_exchange_reduce(run, run->stream, REDUCE, imx_run_local(run), false));
    return imx_run_end(run);
}

static imbrex_status run_store(const imx_run *run)
{
    if (!run->m || !run->plan->shape.n)
        return IMBREX_OK; /* no rank has anything to do */
    if (run->ranks == 1)
        return run_sequential(run);
    imx_gemm_args args = product(run, run->args->c);
    args.bias = run->args->bias;
    args.slot_bytes = slot_bytes(run->plan);
    args.team = imx_run_team(run);
    args.ahead = 1;
    args.ended = imx_run_ended(run);
    return imx_run_multiply(run, GEMM, &args);
}

static imbrex_status run_ll(const imx_run *run)
{
    if (run->ranks == 1)
        return run_sequential(run);
    imx_gemm_args args = product(run, imx_run_local(run));
    IMX_TRY(imx_run_multiply(run, GEMM, &args));
    return imx_exchange_push(run, REDUCE, true, imx_run_local(run), run->args->bias);
}

const imx_op imx_op_gemm_rs = {
    .name = "gemm_rs",
    .product = true,
    .c_is_share = true,
    .algorithms = { { "copy", run_copy, .by_kernel = false },
                    { "sequential", run_sequential, .over_nodes = true },
                    { "store", run_store, .by_kernel = true },
                    { "ll", run_ll, .by_kernel = true },
                    { "hierarchical", .over_nodes = true } },
    .across = run_across,
    .needs = needs,
    .prepare = prepare,
};
