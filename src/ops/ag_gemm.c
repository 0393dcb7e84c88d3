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
 * hierarchical         over nodes: hierarchical.h, the product waiting for each chunk
 *
 * sequential  caller   | push all chunks, flags | wait for all | all tiles |
 *
 * The product reads own rows straight from the caller's a and goes round the ranks from there, one
 * by one or, behind the first, two together; it waits before a chunk's first load.  Where ranks are
 * spanning it has one chunk, for which all ranks' rows must be here, its own too: "copy" and
 * "sequential" copy them there before the product starts.
 */
#include "hierarchical.h"
#include "plan/descs.h"

enum { GEMM, LL, LL_SCALES }; /* kernels */

/* ---- the product ----------------------------------------------------------------------------- */

/* Where the scales of a's rows come in, behind the rows: [m, row_scales]. */
static size_t scales_at(const imx_variant *variant)
{
    const imx_shape *s = &variant->shape;
    return imx_align((size_t)s->m * (size_t)s->k * imx_dtype_bytes(s->dtype), 256);
}

static size_t scale_row_bytes(const imx_variant *variant)
{
    return (size_t)imx_shape_row_scales(&variant->shape) * sizeof(float);
}

/* Bytes of both. */
static size_t gathered_bytes(const imx_variant *variant)
{
    return scales_at(variant) + imx_align((size_t)variant->shape.m * scale_row_bytes(variant), 256);
}

/* The run whose rows have their scales with them. */
static imx_run with_scales(const imx_run *run)
{
    imx_run with = *run;
    with.along =
        (imx_along){ run->args->scale_a, scale_row_bytes(run->variant), scales_at(run->variant) };
    return with;
}

/* Others' rows come rank by rank.  reserved_sms: of the device, for what runs beside the
 * product. */
static imx_gemm_args gemm_args(const imx_variant *variant, int64_t m, int reserved_sms)
{
    imx_gemm_args args = {
        .schedule = imx_variant_schedule(variant, m, variant->plan->group->rank, 0),
        .k = variant->shape.k,
        .dtype = (int)variant->shape.dtype,
        .layout = (int)variant->shape.layout,
        .out = (int)variant->shape.out,
        .scaling = (int)variant->shape.scaling,
        .row_scales = (int)imx_shape_row_scales(&variant->shape),
        .reserved_sms = reserved_sms,
        .features = IMX_GEMM_GATHERS | (variant->config.invariant ? IMX_GEMM_INVARIANT : 0) |
                    (variant->shape.fast_accumulation ? IMX_GEMM_FAST : 0),
        .own = variant->config.spanning ? -1 : variant->plan->group->rank,
        .slices = 1,
        .slice_k = (int)variant->shape.k,
        .push_pace = { variant->config.push_pace[0], variant->config.push_pace[1] },
        .plan = imx_variant_point(variant),
        .scales = (int64_t)scales_at(variant),
    };
    args.schedule.band = 0;
    return args;
}

static imbrex_status prepare_gemm(imx_variant *variant, imx_gemm_args largest)
{
    return imx_variant_prepare(variant, GEMM, &imx_kernel_gemm, &largest);
}

/* ready: signals of the rows that come; NULL: all are here. */
static void bind(const imx_run *run, uint64_t *ready, imx_gemm_args *args)
{
    args->a = run->args->a;
    args->gathered = imx_run_data(run, run->rank);
    args->b = run->args->b;
    args->scale_a = run->args->scale_a;
    args->scale_b = run->args->scale_b;
    args->gathered_scales = (const float *)((const char *)args->gathered + args->scales);
    args->bias = run->args->bias;
    args->c = run->args->c;
    args->epoch = run->epoch;
    args->ready = ready;
    args->team = imx_run_team(run);
}

/* Signals for chunks, or for slices where tiles span ranks. */
static void layout(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_gather_needs(variant, variant->shape.k, n);
    if (scale_row_bytes(variant) && n->data_bytes)
        n->data_bytes = gathered_bytes(variant);
    size_t parts = (size_t)imx_max(variant->config.chunks, variant->config.slices);
    n->done = (size_t)variant->plan->group->size * parts;
    if (n->signals)
        n->signals = n->done;
}

/* ---- copy ------------------------------------------------------------------------------------ */

/* What a second stream hides still takes memory and links from the product. */
static double copy_cost(const imx_problem *p, const imx_rates *rates)
{
    double sending = p->sent / rates->copy;
    if (p->config->spanning)
        return imx_cost_of_copies(rates, 45) + sending;
    return imx_cost_of_copies(rates, 30) + 0.06 * sending + imx_cost_left(sending, p->covering);
}

/* Between ranks on one GPU it is multiprocessors that copy. */
static imbrex_status prepare_copy(imx_variant *variant)
{
    return prepare_gemm(variant,
                        gemm_args(variant, variant->shape.m, variant->config.reserved_for_copies));
}

static imbrex_status run_copy(const imx_run *run)
{
    const imx_run with = with_scales(run);
    imx_gemm_args args = gemm_args(run->variant, run->m, run->variant->config.reserved_for_copies);
    bind(run, imx_run_signal(run, run->rank), &args);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_transfer_keep(&with, run->stream, run->args->a, run->variant->shape.k));
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    IMX_TRY(imx_transfer_gather(&with, run->plan->comm, run->args->a, run->variant->shape.k));
    IMX_TRY(imx_transfer_gathered(run, run->plan->comm, false));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

/* ---- sequential ------------------------------------------------------------------------------ */

static double sequential_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_cost_of_copies(rates, 55) + 0.8 * p->sent / rates->copy;
}

static imbrex_status prepare_sequential(imx_variant *variant)
{
    return prepare_gemm(variant, gemm_args(variant, variant->shape.m, 0));
}

static imbrex_status run_sequential(const imx_run *run)
{
    const imx_run with = with_scales(run);
    imx_gemm_args args = gemm_args(run->variant, run->m, 0);
    bind(run, NULL, &args);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_transfer_keep(&with, run->stream, run->args->a, run->variant->shape.k));
    IMX_TRY(imx_transfer_gather(&with, run->stream, run->args->a, run->variant->shape.k));
    IMX_TRY(imx_transfer_gather_wait(run, run->stream));
    IMX_TRY(imx_transfer_gathered(run, run->stream, true));
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    return imx_run_end(run);
}

/* ---- pull ------------------------------------------------------------------------------------ */

static double pull_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double meet = 10; /* all ranks tell all, and wait */
    return copy_cost(p, rates) + meet;
}

/* Beside the product flags are copied within the device, by multiprocessors. */
static imbrex_status prepare_pull(imx_variant *variant)
{
    return prepare_gemm(variant,
                        gemm_args(variant, variant->shape.m, variant->config.reserved_sms));
}

/* The ranks meet before the product starts, not beneath it: a kernel that waits beneath a product
 * which fills the device might never start. */
static imbrex_status run_pull(const imx_run *run)
{
    const imx_run with = with_scales(run);
    imx_gemm_args args = gemm_args(run->variant, run->m, run->variant->config.reserved_sms);
    bind(run, imx_run_done(run), &args);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_transfer_offer(&with, run->args->a, run->variant->shape.k));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    IMX_TRY(imx_transfer_fetch(&with, run->plan->comm, run->variant->shape.k, imx_run_done(run)));
    IMX_TRY(imx_transfer_gathered(run, run->plan->comm, true));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

/* ---- store and ring: one kernel is the whole run --------------------------------------------- */

/* Whether there is something to launch.  Else the run is one of signals: one of nothing would give
 * no credit to a peer whose caller wants `gathered`, and who waits. */
static bool has_kernel(const imx_run *run)
{
    return run->m && run->variant->shape.n;
}

/* A gathered output is copied after the kernel, before peers get credit. */
static imbrex_status run_kernel(const imx_run *run, imx_gemm_args *args)
{
    if (!run->args->gathered) {
        args->ahead = 1;
        args->ended = imx_run_ended(run);
        return imx_run_gemm(run, GEMM, args);
    }
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_gemm(run, GEMM, args));
    IMX_TRY(imx_transfer_gathered(run, run->stream, true));
    return imx_run_end(run);
}

/* ---- store ----------------------------------------------------------------------------------- */

/* A product of spanning tiles waits for the first slices of a only.  Stores of a product's blocks
 * hold up its loads. */
static double store_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double slices_begin = 8;    /* until the first one is here */
    static const double slices_share = 0.35; /* and of the time that all of them take to send */
    double sending = p->sent / rates->store;
    if (!p->config->pushes_beside) /* those that multiply send */
        return 12 + sending;
    if (p->config->spanning)
        return slices_begin + fmax(imx_cost_left(sending, p->product), slices_share * sending);
    return 5 + 0.1 * sending + imx_cost_left(sending, p->covering);
}

/* Behind what is gathered, where rows of spanning tiles come in. */
static int64_t inbox_at(const imx_variant *variant)
{
    return (int64_t)gathered_bytes(variant);
}

static bool has_inbox(const imx_variant *variant)
{
    return variant->config.passes;
}

/* The first peer's rows are here soonest, and are not walked with others'. */
static imx_gemm_args store_args(const imx_variant *variant, int64_t m)
{
    imx_gemm_args args = gemm_args(variant, m, 0);
    args.schedule = imx_variant_schedule(variant, m, variant->plan->group->rank, 1);
    args.features |= IMX_GEMM_PUSHES;
    args.slices = variant->config.slices;
    args.slice_k = variant->config.slice_k;
    args.inbox = has_inbox(variant) ? inbox_at(variant) : 0;
    return args;
}

static void lay_out_store(const imx_variant *variant, imx_needs *n)
{
    layout(variant, n);
    if (has_inbox(variant)) {
        n->data_bytes += (size_t)inbox_at(variant);
        n->done = (size_t)variant->config.slices * imx_align((size_t)variant->config.blocks, 2);
    }
}

static imbrex_status prepare_store(imx_variant *variant)
{
    return prepare_gemm(variant, store_args(variant, variant->shape.m));
}

static imbrex_status run_store(const imx_run *run)
{
    if (!has_kernel(run))
        return run_sequential(run);
    imx_gemm_args args = store_args(run->variant, run->m);
    bind(run, imx_run_signal(run, run->rank), &args);
    args.push_first = imx_run_row(run, run->rank);
    args.push_rows = imx_run_rows(run, run->rank);
    args.counters = imx_run_counters(run);
    if (has_inbox(run->variant))
        args.done = imx_run_done(run);
    return run_kernel(run, &args);
}

/* ---- ring ------------------------------------------------------------------------------------ */

static bool can_ring(const imx_problem *p, imx_text *why_not)
{
    bool spans = p->config->spanning || p->config->spans_chunks;
    if (spans)
        imx_text_add(why_not,
                     "which passes on rows of one rank at a time, and with m = %lld and no "
                     "desc.chunk_rows tiles have rows of several: choose \"store\", or give that",
                     (long long)p->in->shape.m);
    return !spans;
}

/* Tiles that pass rows on hold their stages a little longer, and the steps' seams show.  On two
 * H200s it took 0.01 to 0.04 more than store, so it is not among those to choose from. */
static double ring_cost(const imx_problem *p, const imx_rates *rates)
{
    double sending = p->sent / rates->store;
    if (!p->config->pushes_beside) /* the kernel has no such form */
        return IMX_COST_NEVER;
    return 4 * (p->in->ranks - 1) + 0.35 * sending + imx_cost_left(sending, p->covering);
}

static imx_gemm_args ring_args(const imx_variant *variant, int64_t m)
{
    imx_gemm_args args = gemm_args(variant, m, 0);
    args.features |= IMX_GEMM_FORWARDS;
    args.slices = imx_ring_slices(args.k);
    args.slice_k = imx_ring_slice_k(args.k);
    return args;
}

static void lay_out_ring(const imx_variant *variant, imx_needs *n)
{
    imx_gemm_args args = ring_args(variant, variant->shape.m);
    layout(variant, n);
    args.schedule.chunk_rows = variant->config.chunk_rows; /* the most, of runs of any m */
    n->signals =
        (size_t)args.schedule.ranks * (size_t)imx_ring_strips(&args.schedule) * (size_t)args.slices;
}

static imbrex_status prepare_ring(imx_variant *variant)
{
    return prepare_gemm(variant, ring_args(variant, variant->shape.m));
}

static imbrex_status run_ring(const imx_run *run)
{
    if (!has_kernel(run))
        return run_sequential(run);
    imx_gemm_args args = ring_args(run->variant, run->m);
    bind(run, imx_run_signal(run, run->rank), &args);
    return run_kernel(run, &args);
}

/* ---- ll -------------------------------------------------------------------------------------- */

static double ll_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double sent_most = 2 << 20; /* of a rank, before a product */
    return imx_transfer_ll_cost(rates, p->sent, sent_most);
}

static void lay_out_ll(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_ll_needs(variant, variant->shape.k, IMX_LL_GATHERS, n);
    n->local_bytes = gathered_bytes(variant);
    if (scale_row_bytes(variant)) {
        imx_needs scales = { 0 };
        imx_transfer_ll_needs(variant, (int64_t)scale_row_bytes(variant), IMX_LL_GATHERS, &scales);
        *n = imx_transfer_both_ll(n, &scales);
    }
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    int64_t scales = (int64_t)scale_row_bytes(variant);
    IMX_TRY(prepare_sequential(variant));
    if (scales)
        IMX_TRY(imx_transfer_ll_prepare(variant, LL_SCALES, scales, IMX_LL_GATHERS));
    return imx_transfer_ll_prepare(variant, LL, variant->shape.k, IMX_LL_GATHERS);
}

/* A gather of their own, whose elements have the 8 bits of a's, behind that of the rows. */
static imbrex_status gather_scales(const imx_run *run, void *all)
{
    int64_t width = (int64_t)scale_row_bytes(run->variant);
    imx_needs rows = { 0 };
    if (!width)
        return IMBREX_OK;
    imx_transfer_ll_needs(run->variant, run->variant->shape.k, IMX_LL_GATHERS, &rows);
    imbrex_args args = *run->args;
    imx_run scales = imx_transfer_second_ll(run, &rows);
    args.a = run->args->scale_a;
    scales.args = &args;
    return imx_transfer_ll(&scales, LL_SCALES, width, IMX_LL_GATHERS, all);
}

/* The product finds all rows in one place, its own too. */
static imbrex_status run_ll(const imx_run *run)
{
    imx_gemm_args args = gemm_args(run->variant, run->m, 0);
    bind(run, NULL, &args);
    void *all = run->args->gathered ? run->args->gathered : imx_run_local(run);
    args.gathered = all;
    args.gathered_scales =
        (const float *)((const char *)imx_run_local(run) + scales_at(run->variant));
    IMX_TRY(gather_scales(run, (void *)args.gathered_scales));
    IMX_TRY(imx_transfer_ll(run, LL, run->variant->shape.k, IMX_LL_GATHERS, all));
    return imx_run_gemm(run, GEMM, &args);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

/* Beside the product run kernels of the engine. */
static imbrex_status prepare_hierarchical(imx_variant *variant)
{
    return prepare_gemm(variant,
                        gemm_args(variant, variant->shape.m, variant->config.reserved_sms));
}

static imbrex_status run_hierarchical(const imx_run *run)
{
    const imx_run with = with_scales(run);
    const imx_net_streams lanes = imx_hierarchical_streams(run, true);
    imx_gemm_args args = gemm_args(run->variant, run->m, run->variant->config.reserved_sms);
    bind(run, imx_run_signal(run, run->rank), &args);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    IMX_TRY(imx_hierarchical_gather(&with, &lanes, run->args->a, run->variant->shape.k));
    IMX_TRY(imx_transfer_gathered(run, lanes.inner, false));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status run_sequential_nodes(const imx_run *run)
{
    const imx_run with = with_scales(run);
    const imx_net_streams lanes = imx_hierarchical_streams(run, false);
    imx_gemm_args args = gemm_args(run->variant, run->m, 0);
    bind(run, NULL, &args);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_hierarchical_gather(&with, &lanes, run->args->a, run->variant->shape.k));
    IMX_TRY(imx_transfer_gathered(run, lanes.inner, false));
    IMX_TRY(imx_transfer_gather_wait(run, run->stream));
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    return imx_run_end(run);
}

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, true, "[rows, k]", "own rows", IMX_OWN_ROWS, IMX_K),
    IMX_GEMM_B,
    IMX_GEMM_BIAS,
    IMX_OPERAND(c, IMX_OUT, "out", IMBREX_FIELD_OUTPUT, true, IMX_APART, "[m, n]", "all rows",
                IMX_ROWS, IMX_N),
    IMX_MATRIX_OF(gathered, IMBREX_FIELD_OUTPUT | IMBREX_FIELD_OPTIONAL, true, "[m, k]",
                  "a of all ranks", IMX_ROWS, IMX_K),
    IMX_GEMM_SCALES(IMX_SCALE_OWN_ROWS, "[rows, k/128]"),
    IMX_ARGS_M,
};

const imx_op imx_op_ag_gemm = {
    IMX_OP(ag_gemm, "c = all_gather(a) * b + bias", imbrex_gemm_desc, imx_gemm_desc, args),
    .blanks[1] = IMX_BLANK_OF_OTHERS(imbrex_gemm_desc, norm),
    .product = true,
    .scaled = true,
    .algorithms = {
        { .name = "copy",
          .cost = copy_cost,
          .layout = layout,
          .prepare = prepare_copy,
          .run = run_copy },
        { .name = "sequential",
          .cost = sequential_cost,
          .layout = layout,
          .prepare = prepare_sequential,
          .run = run_sequential },
        { .name = "sequential",
          .over_nodes = true,
          .layout = layout,
          .prepare = prepare_sequential,
          .run = run_sequential_nodes },
        { .name = "store",
          .by_kernel = true,
          .slices = true,
          .stores = true,
          .at_once = true,
          .cost = store_cost,
          .layout = lay_out_store,
          .prepare = prepare_store,
          .run = run_store },
        { .name = "pull",
          .cost = pull_cost,
          .layout = layout,
          .prepare = prepare_pull,
          .run = run_pull },
        { .name = "hierarchical",
          .over_nodes = true,
          .layout = layout,
          .prepare = prepare_hierarchical,
          .run = run_hierarchical },
        { .name = "ll",
          .by_kernel = true,
          .cost = ll_cost,
          .layout = lay_out_ll,
          .prepare = prepare_ll,
          .run = run_ll },
        { .name = "ring",
          .by_kernel = true,
          .on_request = true,
          .apart = true,
          .can = can_ring,
          .cost = ring_cost,
          .layout = lay_out_ring,
          .prepare = prepare_ring,
          .run = run_ring },
    },
};

imbrex_status imbrex_plan_ag_gemm(imbrex_group *group, const imbrex_gemm_desc *desc,
                                  imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_ag_gemm, desc, plan);
}
