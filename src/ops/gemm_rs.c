/* gemm_rs.c - c[rows, n] = this rank's rows of the sum over ranks of a[m, k] * b, plus bias.
 *
 * scatter_push  caller | tiles of next rank's rows, into its slot | ... | own rows, plus slots |
 *
 * reduce_push   caller | tiles of all rows, each rank's to it; own rows, plus what comes |
 *
 * reduce_pull   caller | tiles of all rows, columns by columns, a flag to all behind each part |
 *                              | read own rows of all ranks' part 0, add | of part 1 | ...
 *
 * copy        caller   | tiles of next rank's rows | ... | own rows | reduce, as parts arrive
 *             second   | wait done 0 | push chunk 0 | flag | wait done 1 | push chunk 1 | ...
 *
 * sequential  caller   | all tiles | push all chunks, flags | wait for all parts | reduce |
 *
 * ll          caller   | all tiles | scatter and sum by one kernel |: data with flags where it is
 *                                     little; of more rows, where tiles of a product alone are less
 *
 * hierarchical         over nodes: hierarchical.h, each chunk as the product makes it
 *
 * The product counts the tiles of each chunk; the last one posts done, and the chunk leaves for its
 * owner while the product goes on.  Partials are rounded to the type of c before they are added,
 * one's own too, so that it does not matter whose they are.  Each adds bias and residual to the
 * sum; norm.h has what may follow.
 */
#include <string.h>

#include "hierarchical.h"
#include "norm.h"
#include "partials.h"

enum {
    GEMM,
    REDUCE,
    PUSH = REDUCE,
    HIERARCHICAL = REDUCE
}; /* kernels; over nodes several, from there */

static imbrex_status prepare_gemm(imx_variant *variant, imx_gemm_args largest)
{
    return imx_variant_prepare(variant, GEMM, &imx_kernel_gemm, &largest);
}

static void layout(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_scatter_needs(variant, n);
    imx_partials_needs(variant, n);
}

/* ---- copy ------------------------------------------------------------------------------------ */

/* A product made alone says nothing of its chunks.  It is not made so where this is named. */
static bool can_copy(const imx_problem *p, imx_text *why_not)
{
    (void)why_not;
    return !p->config->alone;
}

/* What a second stream hides still takes memory and links from the product. */
static double copy_cost(const imx_problem *p, const imx_rates *rates)
{
    double sending = p->sent / rates->copy;
    if (p->config->spanning)
        return imx_cost_of_copies(rates, 45) + sending;
    return imx_cost_of_copies(rates, 30) + 0.35 * sending + imx_cost_left(sending, p->covering);
}

/* Beside the product run kernels that wait for its chunks. */
static imbrex_status prepare_copy(imx_variant *variant)
{
    IMX_TRY(prepare_gemm(
        variant, imx_partials_args(variant, variant->shape.m, variant->config.reserved_sms)));
    return imx_transfer_scatter_prepare(variant, REDUCE);
}

static imbrex_status run_copy(const imx_run *run)
{
    imx_gemm_args args = imx_partials_args(run->variant, run->m, run->variant->config.reserved_sms);
    imx_partials_bind(run, imx_run_local(run), &args);
    args.done = imx_partials_done(run);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    IMX_TRY(imx_transfer_scatter(run, run->plan->comm, imx_run_local(run), args.done));
    IMX_TRY(imx_transfer_reduce(run, run->stream, REDUCE, imx_run_local(run), true));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

/* ---- sequential ------------------------------------------------------------------------------ */

static double sequential_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_cost_of_copies(rates, 45) + 1.05 * p->sent / rates->copy;
}

static imbrex_status prepare_sequential(imx_variant *variant)
{
    IMX_TRY(prepare_gemm(variant, imx_partials_args(variant, variant->shape.m, 0)));
    return imx_transfer_scatter_prepare(variant, REDUCE);
}

static imbrex_status run_sequential(const imx_run *run)
{
    imx_gemm_args args = imx_partials_args(run->variant, run->m, 0);
    void *product = imx_partials_place(run);
    imx_partials_bind(run, product, &args);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    IMX_TRY(imx_transfer_scatter(run, run->stream, product, NULL));
    IMX_TRY(imx_transfer_scatter_wait(run, run->stream));
    IMX_TRY(imx_transfer_reduce(run, run->stream, REDUCE, product, false));
    return imx_run_end(run);
}

/* ---- one kernel is the whole run, in one of three ways --------------------------------------- */

/* The tiles decide: each way is for tiles that the others cannot take. */
static const char *way_of(const imx_config *config)
{
    return config->alone         ? "ll"
           : !config->spanning   ? "scatter_push"
           : config->reduce_push ? "reduce_push"
                                 : "reduce_pull";
}

static bool is_way(const imx_problem *p, const char *name, const char *wants, imx_text *why_not)
{
    const char *way = way_of(p->config);
    if (strcmp(way, name) == 0)
        return true;
    imx_text_add(why_not, "which is for %s: choose \"%s\"", wants, way);
    return false;
}

/* ---- scatter_push: tiles of one rank's rows, into its slot ----------------------------------- */

static bool can_scatter_push(const imx_problem *p, imx_text *why_not)
{
    return is_way(p, "scatter_push", "tiles of one rank's rows, and these have several ranks'",
                  why_not);
}

/* All blocks make tiles for a peer at the same time: what of these leaves before the next ones'
 * products, nothing hides. */
static double scatter_push_cost(const imx_problem *p, const imx_rates *rates)
{
    double sending = p->sent / rates->store, alone = p->config->halved ? sending / 2 : 0;
    if (!p->config->pushes_beside) /* those that multiply send */
        return 12 + 3.3 * sending;
    return 10 + 0.2 * sending + alone + imx_cost_left(sending - alone, p->covering);
}

static imx_gemm_args scatter_push_args(const imx_variant *variant, int64_t m)
{
    imx_gemm_args args = imx_partials_args(variant, m, 0);
    args.features |= IMX_GEMM_SCATTER_PUSH;
    return args;
}

static void lay_out_scatter_push(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_scatter_needs(variant, n);
    n->done = (size_t)variant->plan->group->size * (size_t)variant->config.chunks;
}

static imbrex_status prepare_scatter_push(imx_variant *variant)
{
    return prepare_gemm(variant, scatter_push_args(variant, variant->shape.m));
}

static imbrex_status run_scatter_push(const imx_run *run)
{
    return imx_partials_run(run, GEMM, scatter_push_args(run->variant, run->m),
                            (int64_t)imx_transfer_slot_bytes(run->variant));
}

/* ---- reduce_push: rows of a tile go to their owners, who add them up as they come ------------ */

static bool can_reduce_push(const imx_problem *p, imx_text *why_not)
{
    return is_way(p, "reduce_push",
                  "tiles of several ranks' rows, of which a GPU makes all at once, or in turns",
                  why_not);
}

static double reduce_push_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double begins = 1.8; /* what tells itself that it came, out of registers */
    static const double share = 1.2;  /* and its bytes, of the time that stores take */
    return imx_cost_of_signals(rates, begins) +
           share * imx_partials_left(p, p->sent / rates->store);
}

static void lay_out_reduce_push(const imx_variant *variant, imx_needs *n)
{
    imx_partials_push_needs(variant, IMX_PUSH_OWNERS, n);
}

static imbrex_status prepare_reduce_push(imx_variant *variant)
{
    return prepare_gemm(variant,
                        imx_partials_push_args(variant, variant->shape.m, IMX_PUSH_OWNERS));
}

static imbrex_status run_reduce_push(const imx_run *run)
{
    return imx_partials_push(run, GEMM, IMX_PUSH_OWNERS);
}

/* ---- reduce_pull: every rank keeps its tiles, and owners read their rows of them, by parts --- */

static bool can_reduce_pull(const imx_problem *p, imx_text *why_not)
{
    return is_way(p, "reduce_pull",
                  "tiles of several ranks' rows that do not go by \"reduce_push\"", why_not);
}

static double reduce_pull_cost(const imx_problem *p, const imx_rates *rates)
{
    return 10 + imx_partials_left(p, p->sent / rates->store);
}

static imx_gemm_args reduce_pull_args(const imx_variant *variant, int64_t m)
{
    imx_gemm_args args = imx_partials_args(variant, m, 0);
    args.schedule.chunk_cols = variant->config.part_cols;
    args.schedule.chunks = variant->config.parts;
    args.features |= IMX_GEMM_REDUCE_PULL;
    args.team.size = variant->plan->group->size;
    return args;
}

static void lay_out_reduce_pull(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_scatter_needs(variant, n);
    n->signals = (size_t)variant->plan->group->size * (size_t)variant->config.parts;
    n->done = (size_t)variant->config.parts; /* counters */
}

static imbrex_status prepare_reduce_pull(imx_variant *variant)
{
    return prepare_gemm(variant, reduce_pull_args(variant, variant->shape.m));
}

static imbrex_status run_reduce_pull(const imx_run *run)
{
    return imx_partials_run(run, GEMM, reduce_pull_args(run->variant, run->m),
                            (int64_t)imx_transfer_slot_bytes(run->variant));
}

/* ---- ll -------------------------------------------------------------------------------------- */

static double ll_cost(const imx_problem *p, const imx_rates *rates)
{
    if (p->config->alone)
        return imx_cost_behind(p->in, 0);
    return imx_transfer_ll_cost(rates, p->sent, IMX_TRANSFER_LL_SENT(p));
}

static void lay_out_ll(const imx_variant *variant, imx_needs *n)
{
    imx_transfer_push_needs(variant, IMX_PUSH_REDUCES, n);
    imx_partials_needs(variant, n);
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    IMX_TRY(prepare_gemm(variant, imx_partials_args(variant, variant->shape.m, 0)));
    return imx_transfer_push_prepare(variant, PUSH, IMX_PUSH_REDUCES);
}

static imbrex_status run_ll(const imx_run *run)
{
    imx_gemm_args args = imx_partials_args(run->variant, run->m, 0);
    imx_partials_bind(run, imx_run_local(run), &args);
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    return imx_transfer_push(run, PUSH, IMX_PUSH_REDUCES, imx_run_local(run), run->args->bias);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

/* Beside the product run kernels that wait, add up and send. */
static imbrex_status prepare_hierarchical(imx_variant *variant)
{
    IMX_TRY(prepare_gemm(
        variant, imx_partials_args(variant, variant->shape.m, variant->config.reserved_sms)));
    return imx_hierarchical_scatter_prepare(variant, HIERARCHICAL);
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
    IMX_TRY(imx_hierarchical_scatter(run, &lanes, HIERARCHICAL, imx_run_local(run), args.done));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

static imbrex_status prepare_sequential_nodes(imx_variant *variant)
{
    IMX_TRY(prepare_gemm(variant, imx_partials_args(variant, variant->shape.m, 0)));
    return imx_hierarchical_scatter_prepare(variant, HIERARCHICAL);
}

static imbrex_status run_sequential_nodes(const imx_run *run)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, false);
    imx_gemm_args args = imx_partials_args(run->variant, run->m, 0);
    imx_partials_bind(run, imx_run_local(run), &args);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_gemm(run, GEMM, &args));
    IMX_TRY(imx_hierarchical_scatter(run, &lanes, HIERARCHICAL, imx_run_local(run), NULL));
    return imx_run_end(run);
}

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, true, "[m, k]", "all rows", IMX_ROWS, IMX_K),
    IMX_GEMM_B,
    IMX_GEMM_BIAS,
    IMX_OPERAND(c, IMX_RESULT, "result", IMBREX_FIELD_OUTPUT, true, IMX_APART, "[rows, n]",
                "own rows of the sum", IMX_OWN_ROWS, IMX_N),
    IMX_NORM_ARGS(true, IMX_OWN_ROWS, IMX_NORM_SCALES_OWN, IMX_OWN_ROWS, "[rows, n]",
                  "[rows, n/128]"),
    IMX_GEMM_SCALES(IMX_SCALE_ROWS, "[m, k/128]"),
    IMX_ARGS_M,
};

const imx_op imx_op_gemm_rs = {
    IMX_OP(gemm_rs, "c = reduce_scatter(a * b) + bias", imbrex_gemm_desc, imx_norm_gemm_desc,
           args),
    IMX_NORM_RUNS(imbrex_gemm_desc),
    .product = true,
    .scaled = true,
    .scatters = true,
    .algorithms = {
        { .name = "copy",
          .can = can_copy,
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
          .layout = imx_hierarchical_scatter_needs,
          .prepare = prepare_sequential_nodes,
          .run = run_sequential_nodes },
        { .name = "scatter_push",
          .by_kernel = true,
          .stores = true,
          .at_once = true,
          .can = can_scatter_push,
          .cost = scatter_push_cost,
          .layout = lay_out_scatter_push,
          .prepare = prepare_scatter_push,
          .run = run_scatter_push },
        { .name = "reduce_push",
          .by_kernel = true,
          .stores = true,
          .at_once = true,
          .can = can_reduce_push,
          .cost = reduce_push_cost,
          .layout = lay_out_reduce_push,
          .prepare = prepare_reduce_push,
          .run = run_reduce_push },
        { .name = "reduce_pull",
          .by_kernel = true,
          .stores = true,
          .at_once = true,
          .can = can_reduce_pull,
          .cost = reduce_pull_cost,
          .layout = lay_out_reduce_pull,
          .prepare = prepare_reduce_pull,
          .run = run_reduce_pull },
        { .name = "ll",
          .by_kernel = true,
          .at_once = true,
          .behind = true,
          .cost = ll_cost,
          .layout = lay_out_ll,
          .prepare = prepare_ll,
          .run = run_ll },
        { .name = "hierarchical",
          .over_nodes = true,
          .layout = imx_hierarchical_scatter_needs,
          .prepare = prepare_hierarchical,
          .run = run_hierarchical },
    },
};

imbrex_status imbrex_plan_gemm_rs(imbrex_group *group, const imbrex_gemm_desc *desc,
                                  imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_gemm_rs, desc, plan);
}
