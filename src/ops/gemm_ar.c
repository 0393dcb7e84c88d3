/* gemm_ar.c - c[m, n] = the sum over ranks of a[m, k] * b, plus bias, on every rank.
 *
 * sequential  caller   | all tiles | push all blocks, flags | wait for all parts | reduce, into own
 *                        rows of c | push them | wait for all | copy all to c |
 *
 * copy        caller   | tiles of all ranks' chunk 0 | chunk 1 | ... | wait 0 | copy 0 to c | ...
 *             second   | wait done 0 | push chunk 0 | chunk 1 | add up own chunk 0, push it | ...
 *
 * store       caller   | gemm_rs's kernel: own rows of the sum | one kernel: to all peers and to c,
 *                        what arrives to c |
 *
 * ll          caller   | all tiles | one kernel: every rank sends all, adds all |: data with flags
 *                                     where it is little
 *
 * reduce_push caller   | tiles, each to all ranks; all of them, plus what comes |: of few rows
 *             reduce_push2: each row to its owner, and sums to all ranks
 *
 * ll2         caller   | all tiles | one kernel, in two shots: parts to owners, sums from them |
 *
 * hierarchical         over nodes: hierarchical.h, each chunk as the product makes it; then the
 * sums
 *
 * Partials are rounded to the type of c, added in rank order, then bias and residual, one rounding,
 * whoever does it: the bits are those of a gemm_rs and an all_gather behind it.  norm.h has what
 * may follow.
 */
#include "hierarchical.h"
#include "norm.h"
#include "partials.h"
#include "sum_all.h"

/* Kernels; over nodes several, from there on. */
enum { GEMM, REDUCE, BESIDE, PUSH = REDUCE, LL = REDUCE, HIERARCHICAL = REDUCE };

static imbrex_status prepare_gemm(imx_variant *variant, int reserved_sms)
{
    imx_gemm_args largest = imx_partials_args(variant, variant->shape.m, reserved_sms);
    return imx_variant_prepare(variant, GEMM, &imx_kernel_gemm, &largest);
}

/* The product to its place, which nothing runs beside. */
static imbrex_status multiply(const imx_run *run)
{
    imx_gemm_args args = imx_partials_args(run->variant, run->m, 0);
    imx_partials_bind(run, imx_partials_place(run), &args);
    return imx_run_gemm(run, GEMM, &args);
}

static void lay_out_sum(const imx_variant *variant, imx_needs *n)
{
    imx_sum_all_needs(variant, n);
    imx_partials_needs(variant, n);
}

/* ---- sequential ------------------------------------------------------------------------------ */

static double sequential_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_sum_all_cost(rates, p->sent);
}

static imbrex_status prepare_sequential(imx_variant *variant)
{
    IMX_TRY(prepare_gemm(variant, 0));
    return imx_transfer_scatter_prepare(variant, REDUCE);
}

static imbrex_status run_sequential(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(multiply(run));
    IMX_TRY(imx_sum_all(run, REDUCE, imx_partials_place(run)));
    return imx_run_end(run);
}

/* ---- copy ------------------------------------------------------------------------------------ */

/* What goes out twice, and what few multiprocessors add up of it, one after the other: the product
 * hides all but the last chunk's.  Not measured. */
static double copy_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double begins = 70, felt = 0.35; /* by the product, of what it hides */
    static const double added = 50e3;             /* bytes a microsecond, of a multiprocessor */
    double sending = 2 * p->sent / rates->copy, ranks = p->in->ranks;
    double matrix = p->sent * ranks / (ranks - 1), hides = 1 - 1.0 / p->config->chunks;
    if (p->config->spanning)
        return imx_sum_all_cost(rates, p->sent);
    double adding = matrix * (1 + 1 / ranks) / (added * fmax(p->config->reserved_sms, 1));
    double left = imx_cost_left((sending + adding) * hides, p->product * hides);
    return imx_cost_of_copies(rates, begins) + felt * sending * hides + left +
           sending * (1 - hides);
}

/* Chunk 0 of all ranks' rows first, then all second ones: each rank's sums are spread over the run,
 * and so is what it sends of them. */
static imx_gemm_args copy_args(const imx_variant *variant, int64_t m)
{
    imx_gemm_args args = imx_partials_args(variant, m, variant->config.reserved_sms);
    if (!variant->config.spanning)
        args.schedule.local = args.schedule.solo = variant->plan->group->size;
    return args;
}

/* Beside the product run kernels that wait for its chunks, and those that add up, which take no
 * more than is left free for them. */
static imbrex_status prepare_copy(imx_variant *variant)
{
    imx_gemm_args largest = copy_args(variant, variant->shape.m);
    int left = (int)imx_max(1, variant->config.reserved_sms);
    IMX_TRY(imx_variant_prepare(variant, GEMM, &imx_kernel_gemm, &largest));
    IMX_TRY(imx_transfer_scatter_prepare(variant, REDUCE));
    return imx_transfer_scatter_prepare_blocks(variant, BESIDE, left);
}

static imbrex_status run_copy(const imx_run *run)
{
    imx_gemm_args args = copy_args(run->variant, run->m);
    void *product = imx_run_local(run);
    imx_partials_bind(run, product, &args);
    args.done = imx_partials_done(run);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    IMX_TRY(imx_sum_all_chunks(run, run->plan->comm, BESIDE, REDUCE, product, args.done));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

/* ---- store: gemm_rs's kernel, then the push kernel ------------------------------------------- */

/* That of gemm_rs's kernels which is for a product that is cut this way: one of them is. */
static const imx_algorithm *scatter_of(const imx_config *config)
{
    const imx_problem p = { .config = config };
    char reason[256];
    const imx_algorithm *a = imx_op_gemm_rs.algorithms;
    for (;; a++) {
        imx_text why_not = { .at = reason, .size = sizeof reason };
        if (a->stores && (!a->can || a->can(&p, &why_not)))
            return a;
    }
}

static double store_cost(const imx_problem *p, const imx_rates *rates)
{
    return scatter_of(p->config)->cost(p, rates) + imx_transfer_push_cost(rates, p->sent);
}

/* Two kernels that begin and end by themselves; own rows of the sum are in local data between. */
static imx_needs scatter_needs(const imx_variant *variant)
{
    imx_needs needs = { 0 };
    scatter_of(&variant->config)->layout(variant, &needs);
    needs.local_bytes = imx_align(needs.local_bytes, 256);
    return needs;
}

static void lay_out_store(const imx_variant *variant, imx_needs *n)
{
    imx_needs scatter = scatter_needs(variant), gather = { 0 };
    imx_transfer_push_needs(variant, IMX_PUSH_GATHERS, &gather);
    *n = imx_transfer_both_apart(variant, &scatter, &gather);
    n->local_bytes += imx_transfer_slot_bytes(variant);
}

static imbrex_status prepare_store(imx_variant *variant)
{
    IMX_TRY(scatter_of(&variant->config)->prepare(variant));
    return imx_transfer_push_prepare(variant, PUSH, IMX_PUSH_GATHERS);
}

static imbrex_status run_store(const imx_run *run)
{
    imx_needs scatter = scatter_needs(run->variant);
    imbrex_args args;
    imx_run first = imx_sum_all_first(run, &args), second = imx_transfer_apart(run, &scatter);
    args.c = (char *)imx_run_local(run) + scatter.local_bytes;
    IMX_TRY(scatter_of(&run->variant->config)->run(&first));
    return imx_transfer_push(&second, PUSH, IMX_PUSH_GATHERS, args.c, NULL);
}

/* ---- ll, ll2 --------------------------------------------------------------------------------- */

/* The ll kernel begins when all tiles are done: fitted to four H200s, up to 1024 rows. */
static double ll_cost(const imx_problem *p, const imx_rates *rates)
{
    return 1.1 + imx_sum_all_ll_cost(p, rates);
}

static double ll2_cost(const imx_problem *p, const imx_rates *rates)
{
    return 1.8 + imx_sum_all_ll2_cost(p, rates);
}

static void lay_out_lines(const imx_variant *variant, imx_ll_how how, imx_needs *n)
{
    imx_needs product = { 0 };
    imx_sum_all_ll_needs(variant, how, n);
    imx_partials_needs(variant, &product);
    n->local_bytes = product.local_bytes;
    n->done = imx_max(n->done, product.done);
}

static imbrex_status prepare_lines(imx_variant *variant, imx_ll_how how)
{
    IMX_TRY(prepare_gemm(variant, 0));
    return imx_sum_all_ll_prepare(variant, LL, how);
}

static imbrex_status run_lines(const imx_run *run, imx_ll_how how)
{
    IMX_TRY(multiply(run));
    return imx_sum_all_ll(run, LL, how, imx_run_local(run));
}

static void lay_out_ll(const imx_variant *variant, imx_needs *n)
{
    lay_out_lines(variant, IMX_LL_REDUCES, n);
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    return prepare_lines(variant, IMX_LL_REDUCES);
}

static imbrex_status run_ll(const imx_run *run)
{
    return run_lines(run, IMX_LL_REDUCES);
}

static void lay_out_ll2(const imx_variant *variant, imx_needs *n)
{
    lay_out_lines(variant, IMX_LL_FANS, n);
}

static imbrex_status prepare_ll2(imx_variant *variant)
{
    return prepare_lines(variant, IMX_LL_FANS);
}

static imbrex_status run_ll2(const imx_run *run)
{
    return run_lines(run, IMX_LL_FANS);
}

/* ---- reduce_push, reduce_push2 --------------------------------------------------------------- */

/* Slots of a run, for so many whole products. */
static bool can_push(const imx_problem *p, int products, imx_text *why_not)
{
    static const double slots_most = 256 << 20;
    double bytes = (double)p->in->shape.m * (double)p->in->shape.n *
                   (double)imx_dtype_bytes(p->in->shape.out) * products;
    if (!p->config->reduce_push)
        imx_text_add(why_not, "which is for few rows, whose tiles a GPU makes all at once, or in "
                              "turns: choose \"store\"");
    else if (bytes > slots_most)
        imx_text_add(why_not, "whose slots would take %.0f MB, of at most %.0f: choose \"store\"",
                     bytes / (1 << 20), slots_most / (1 << 20));
    return p->config->reduce_push && bytes <= slots_most && imx_sum_all_can_ll(p, why_not);
}

static bool can_reduce_push(const imx_problem *p, imx_text *why_not)
{
    return can_push(p, p->in->ranks, why_not);
}

static bool can_reduce_push2(const imx_problem *p, imx_text *why_not)
{
    return can_push(p, 2, why_not);
}

/* As gemm_rs's, of all rows to all: fitted to two and four H200s, of 1 to 256 rows. */
static double reduce_push_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double begins = 1.8, share = 1.1;
    return imx_cost_of_signals(rates, begins) + share * p->sent * p->in->ranks / rates->store;
}

static imbrex_status prepare_push(imx_variant *variant, imx_push_way way)
{
    imx_gemm_args largest = imx_partials_push_args(variant, variant->shape.m, way);
    return imx_variant_prepare(variant, GEMM, &imx_kernel_gemm, &largest);
}

static void lay_out_reduce_push(const imx_variant *variant, imx_needs *n)
{
    imx_partials_push_needs(variant, IMX_PUSH_ALL, n);
}

static imbrex_status prepare_reduce_push(imx_variant *variant)
{
    return prepare_push(variant, IMX_PUSH_ALL);
}

static imbrex_status run_reduce_push(const imx_run *run)
{
    return imx_partials_push(run, GEMM, IMX_PUSH_ALL);
}

/* Twice a way between ranks, and twice what a rank sends in gemm_rs. */
static double reduce_push2_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double begins = 3.6, share = 0.9; /* fitted likewise, of up to 1024 rows */
    return imx_cost_of_signals(rates, begins) +
           share * imx_partials_left(p, 2 * p->sent / rates->store);
}

static void lay_out_reduce_push2(const imx_variant *variant, imx_needs *n)
{
    imx_partials_push_needs(variant, IMX_PUSH_FANS, n);
}

static imbrex_status prepare_reduce_push2(imx_variant *variant)
{
    return prepare_push(variant, IMX_PUSH_FANS);
}

static imbrex_status run_reduce_push2(const imx_run *run)
{
    return imx_partials_push(run, GEMM, IMX_PUSH_FANS);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

static imbrex_status prepare_nodes(imx_variant *variant, int reserved_sms)
{
    IMX_TRY(prepare_gemm(variant, reserved_sms));
    return imx_hierarchical_scatter_prepare(variant, HIERARCHICAL);
}

/* Beside the product run kernels that wait, add up and send. */
static imbrex_status prepare_hierarchical(imx_variant *variant)
{
    return prepare_nodes(variant, variant->config.reserved_sms);
}

static imbrex_status run_hierarchical(const imx_run *run)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, true);
    imx_gemm_args args = imx_partials_args(run->variant, run->m, run->variant->config.reserved_sms);
    imx_partials_bind(run, imx_run_local(run), &args);
    args.done = imx_partials_done(run);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    IMX_TRY(imx_hierarchical_sum(run, &lanes, HIERARCHICAL, imx_run_local(run), args.done));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status prepare_sequential_nodes(imx_variant *variant)
{
    return prepare_nodes(variant, 0);
}

static imbrex_status run_sequential_nodes(const imx_run *run)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, false);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(multiply(run));
    IMX_TRY(imx_hierarchical_sum(run, &lanes, HIERARCHICAL, imx_run_local(run), NULL));
    return imx_run_end(run);
}

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, true, "[m, k]", "all rows", IMX_ROWS, IMX_K),
    IMX_GEMM_B,
    IMX_GEMM_BIAS,
    IMX_OPERAND(c, IMX_RESULT, "result", IMBREX_FIELD_OUTPUT, true, IMX_APART, "[m, n]",
                "all rows of the sum", IMX_ROWS, IMX_N),
    IMX_NORM_ARGS(true, IMX_NORM_RESIDUAL_ROWS, IMX_NORM_SCALES, IMX_ROWS, "[m, n]", "[m, n/128]"),
    IMX_GEMM_SCALES(IMX_SCALE_ROWS, "[m, k/128]"),
    IMX_ARGS_M,
};

const imx_op imx_op_gemm_ar = {
    IMX_OP(gemm_ar, "c = all_reduce(a * b) + bias", imbrex_gemm_desc, imx_norm_gemm_desc, args),
    IMX_NORM_RUNS(imbrex_gemm_desc),
    .product = true,
    .scaled = true,
    .scatters = true,
    .algorithms = {
        { .name = "copy",
          .cost = copy_cost,
          .layout = lay_out_sum,
          .prepare = prepare_copy,
          .run = run_copy },
        { .name = "sequential",
          .cost = sequential_cost,
          .layout = lay_out_sum,
          .prepare = prepare_sequential,
          .run = run_sequential },
        { .name = "sequential",
          .over_nodes = true,
          .layout = imx_hierarchical_sum_needs,
          .prepare = prepare_sequential_nodes,
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
          .cost = ll_cost,
          .layout = lay_out_ll,
          .prepare = prepare_ll,
          .run = run_ll },
        { .name = "ll2",
          .by_kernel = true,
          .norms = true,
          .can = imx_sum_all_can_ll,
          .cost = ll2_cost,
          .layout = lay_out_ll2,
          .prepare = prepare_ll2,
          .run = run_ll2 },
        { .name = "reduce_push",
          .by_kernel = true,
          .stores = true,
          .at_once = true,
          .can = can_reduce_push,
          .cost = reduce_push_cost,
          .layout = lay_out_reduce_push,
          .prepare = prepare_reduce_push,
          .run = run_reduce_push },
        { .name = "reduce_push2",
          .by_kernel = true,
          .stores = true,
          .at_once = true,
          .can = can_reduce_push2,
          .cost = reduce_push2_cost,
          .layout = lay_out_reduce_push2,
          .prepare = prepare_reduce_push2,
          .run = run_reduce_push2 },
        { .name = "hierarchical",
          .over_nodes = true,
          .layout = imx_hierarchical_sum_needs,
          .prepare = prepare_hierarchical,
          .run = run_hierarchical },
    },
};

imbrex_status imbrex_plan_gemm_ar(imbrex_group *group, const imbrex_gemm_desc *desc,
                                  imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_gemm_ar, desc, plan);
}
