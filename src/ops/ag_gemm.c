/* ag_gemm.c - c[m, n] = all_gather(a)[m, k] * b + bias, the gather running under the product.
 *
 * store       caller   | tiles of own rows | tiles of next rank's rows, as chunks arrive | ...
 *             (beside) | push chunk 0 to rank before | flag | ... : the product's blocks
 *
 * pull        caller   | show a, until all do | tiles of own rows | tiles of next rank's rows | ...
 *             second                            | fetch next rank's chunk 0 | flag | chunk 1 | ...
 *
 * ring        caller   | tiles of own rows | tiles of next rank's rows, as they arrive | ...
 *             (beside) | slices of each tile row, on first visits, on to rank before | ...
 *
 * copy        caller   | tiles of own rows | tiles of next rank's rows, as chunks arrive | ...
 *             second   | push chunk 0 to rank before | flag | chunk 1 | flag | ... | next | ...
 *
 * ll          caller   | gather by one kernel, data with flags | all tiles |: where a is so small
 *                        that this is over before a first chunk would be there
 *
 * hierarchical         over nodes: across.h, the product waiting for each chunk
 *
 * sequential  caller   | push all chunks, flags | wait for all | all tiles |
 *
 * The product reads own rows straight from the caller's a and goes round the ranks from there, one
 * by one or, behind the first, two together; it waits before a chunk's first load.  Where ranks are
 * merged it has one chunk, for which all ranks' rows must be here, its own too: "copy" and
 * "sequential" copy them there before the product starts.
 */
#include "across.h"

enum { GEMM, LL };

static imbrex_status run_copy(const imx_run *run);
static imbrex_status run_pull(const imx_run *run);
static imbrex_status run_store(const imx_run *run);
static imbrex_status run_ring(const imx_run *run);
static imbrex_status run_ll(const imx_run *run);

/* Of the device, for what runs beside the product: over nodes kernels, with pull flags that are
 * copied within the device. */
static int leave(const imbrex_plan *plan)
{
    if (imx_plan_sends_by(plan, run_copy))
        return plan->config.leave_copies;
    if (imx_plan_sends_by(plan, run_pull) || imx_plan_overlaps_nodes(plan))
        return plan->config.leave;
    return 0;
}

/* Behind the gathered rows, where merged ones come in. */
static int64_t inbox_at(const imbrex_plan *plan)
{
    const imx_shape *s = &plan->shape;
    return (int64_t)imx_align((size_t)s->m * (size_t)s->k * imx_dtype_bytes(s->dtype), 256);
}

static bool has_inbox(const imbrex_plan *plan)
{
    return imx_plan_sends_by(plan, run_store) && plan->config.merged && plan->config.pushes_beside;
}

static imx_gemm_args gemm_args(const imbrex_plan *plan, int64_t m)
{
    bool pushes = imx_plan_sends_by(plan, run_store);
    imx_gemm_args args = {
        /* The first peer's rows are here soonest, and are not walked with others'. */
        .schedule = imx_plan_schedule(plan, m, plan->group->rank, pushes ? 1 : 0),
        .k = plan->shape.k,
        .dtype = (int)plan->shape.dtype,
        .layout = (int)plan->shape.layout,
        .leave = leave(plan),
        .sides = IMX_GEMM_GATHERS | (pushes ? IMX_GEMM_PUSHES : 0),
        .own = plan->config.merged ? -1 : plan->group->rank,
        .slices = pushes ? plan->config.slices : 1,
        .slice_k = pushes ? plan->config.slice_k : (int)plan->shape.k,
        .push_pace = { plan->config.push_pace[0], plan->config.push_pace[1] },
        .plan = plan->number,
        .inbox = has_inbox(plan) ? inbox_at(plan) : 0,
    };
    if (!pushes) /* others' rows come rank by rank */
        args.schedule.band = 0;
    if (imx_plan_sends_by(plan, run_ring)) {
        args.sides |= IMX_GEMM_FORWARDS;
        args.slices = imx_ring_slices(args.k);
        args.slice_k = imx_ring_slice_k(args.k);
    }
    return args;
}

static void needs(const imbrex_plan *plan, imx_needs *n)
{
    if (imx_plan_sends_by(plan, run_ll)) {
        imx_exchange_ll_needs(plan, plan->shape.k, n);
        n->local_bytes =
            (size_t)plan->shape.m * (size_t)plan->shape.k * imx_dtype_bytes(plan->shape.dtype);
        return;
    }
    imx_exchange_gather_needs(plan, plan->shape.k, n);
    size_t parts = (size_t)imx_max(plan->config.chunks, plan->config.slices);
    n->done = (size_t)plan->group->size * parts;
    if (n->signals)
        n->signals = n->done;
    if (has_inbox(plan)) {
        n->data_bytes += (size_t)inbox_at(plan);
        n->done = (size_t)plan->config.slices * imx_align((size_t)plan->config.blocks, 2);
    }
    if (imx_plan_sends_by(plan, run_ring)) {
        imx_gemm_args args = gemm_args(plan, plan->shape.m);
        args.schedule.chunk_rows = plan->config.chunk_rows; /* the most, of runs of any m */
        n->signals = (size_t)args.schedule.ranks * (size_t)imx_ring_strips(&args.schedule) *
                     (size_t)args.slices;
    }
}

static imbrex_status prepare(imbrex_plan *plan)
{
    imx_gemm_args largest = gemm_args(plan, plan->shape.m);
    bool ring = imx_plan_sends_by(plan, run_ring);
    if (ring && plan->config.merged)
        return imx_fail(
            IMBREX_UNSUPPORTED,
            "%s is \"ring\", which passes on rows of one rank at a time, and with m = %lld and no "
            "desc.chunk_rows tiles have rows of several: choose \"store\", or give that",
            plan->why, (long long)plan->shape.m);
    IMX_TRY(imx_plan_prepare(plan, GEMM, &imx_kernel_gemm, &largest));
    return imx_plan_sends_by(plan, run_ll) ? imx_exchange_ll_prepare(plan, LL, plan->shape.k)
                                           : IMBREX_OK;
}

static imx_gemm_args product(const imx_run *run, bool arriving)
{
    imx_gemm_args args = gemm_args(run->plan, run->m);
    args.a = run->args->a;
    args.gathered = imx_run_data(run, run->rank);
    args.b = run->args->b;
    args.bias = run->args->bias;
    args.c = run->args->c;
    args.use = run->use;
    args.ready = arriving ? imx_run_signal(run, run->rank) : NULL;
    args.team = imx_run_team(run);
    return args;
}

static imbrex_status gathered(const imx_run *run, imbrex_stream stream, bool all_here)
{
    if (!run->args->gathered)
        return IMBREX_OK;
    return imx_exchange_gather_out(run, stream, run->args->a, run->plan->shape.k,
                                   run->args->gathered, all_here);
}

static imbrex_status run_copy(const imx_run *run)
{
    imx_gemm_args args = product(run, true);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_exchange_keep(run, run->stream, run->args->a, run->plan->shape.k));
    IMX_TRY(imx_run_multiply(run, GEMM, &args));
    IMX_TRY(imx_exchange_gather(run, run->plan->comm, run->args->a, run->plan->shape.k));
    IMX_TRY(gathered(run, run->plan->comm, false));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_across(const imx_run *run, bool overlapped)
{
    int64_t width = run->plan->shape.k;
    const imx_lanes lanes = imx_across_lanes(run, overlapped);
    imx_gemm_args args = product(run, overlapped);
    IMX_TRY(imx_run_begin(run));
    if (overlapped) {
        IMX_TRY(imx_run_fork(run));
        IMX_TRY(imx_run_multiply(run, GEMM, &args));
    }
    IMX_TRY(imx_across_gather(run, &lanes, run->args->a, width));
    IMX_TRY(gathered(run, lanes.inner, false));
    if (overlapped) {
        IMX_TRY(imx_run_join(run));
    } else {
        IMX_TRY(imx_exchange_gather_wait(run, run->stream));
        IMX_TRY(imx_run_multiply(run, GEMM, &args));
    }
    return imx_run_end(run);
}

static imbrex_status run_sequential(const imx_run *run)
{
    imx_gemm_args args = product(run, false);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_exchange_keep(run, run->stream, run->args->a, run->plan->shape.k));
    IMX_TRY(imx_exchange_gather(run, run->stream, run->args->a, run->plan->shape.k));
    IMX_TRY(imx_exchange_gather_wait(run, run->stream));
    IMX_TRY(gathered(run, run->stream, true));
    IMX_TRY(imx_run_multiply(run, GEMM, &args));
    return imx_run_end(run);
}

/* The ranks meet before the product starts, not beneath it: a kernel that waits beneath a product
 * which fills the device might never start. */
static imbrex_status run_pull(const imx_run *run)
{
    if (run->ranks == 1)
        return run_sequential(run);
    imx_gemm_args args = product(run, true);
    args.ready = imx_run_done(run);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_exchange_offer(run, run->args->a, run->plan->shape.k));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_run_multiply(run, GEMM, &args));
    IMX_TRY(imx_exchange_fetch(run, run->plan->comm, run->plan->shape.k, imx_run_done(run)));
    IMX_TRY(gathered(run, run->plan->comm, true));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

/* One kernel is the whole run; a gathered output is copied after it, before peers get credit. */
static imbrex_status run_kernel(const imx_run *run, imx_gemm_args *args)
{
    if (!run->args->gathered) {
        args->ahead = 1;
        args->ended = imx_run_ended(run);
        return imx_run_multiply(run, GEMM, args);
    }
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_multiply(run, GEMM, args));
    IMX_TRY(gathered(run, run->stream, true));
    return imx_run_end(run);
}

/* Whether there is something to launch, and somebody to send to.  Else the run is one of signals:
 * one of nothing would give no credit to a peer whose caller wants `gathered`, and who waits. */
static bool has_kernel(const imx_run *run)
{
    return run->m && run->plan->shape.n && run->ranks > 1;
}

static imbrex_status run_store(const imx_run *run)
{
    if (!has_kernel(run))
        return run_sequential(run);
    imx_gemm_args args = product(run, true);
    args.push_first = imx_run_row(run, run->rank);
    args.push_rows = imx_run_rows(run, run->rank);
    args.counters = imx_run_counters(run);
    if (has_inbox(run->plan))
        args.done = imx_run_done(run);
    return run_kernel(run, &args);
}

static imbrex_status run_ring(const imx_run *run)
{
    if (!has_kernel(run))
        return run_sequential(run);
    imx_gemm_args args = product(run, true);
    return run_kernel(run, &args);
}

/* The product finds all rows in one place, its own too. */
static imbrex_status run_ll(const imx_run *run)
{
    if (run->ranks == 1)
        return run_sequential(run);
    imx_gemm_args args = product(run, false);
    void *all = run->args->gathered ? run->args->gathered : imx_run_local(run);
    args.gathered = all;
    IMX_TRY(imx_exchange_ll(run, LL, run->plan->shape.k, all));
    return imx_run_multiply(run, GEMM, &args);
}

const imx_op imx_op_ag_gemm = {
    .name = "ag_gemm",
    .product = true,
    .a_is_share = true,
    .takes_gathered = true,
    .algorithms = { { "copy", run_copy, .by_kernel = false },
                    { "sequential", run_sequential, .over_nodes = true },
                    { "store", run_store, .by_kernel = true },
                    { "pull", run_pull, .by_kernel = false },
                    { "hierarchical", .over_nodes = true },
                    { "ll", run_ll, .by_kernel = true },
                    { "ring", run_ring, .by_kernel = true } },
    .across = run_across,
    .needs = needs,
    .prepare = prepare,
};
