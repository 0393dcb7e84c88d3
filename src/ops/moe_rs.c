/* moe_rs.c - c[own tokens, n] = the sum over places of weight * (a[row] * b[expert]), over all
 * ranks, + bias + residual.
 *
 * store       caller   | all experts' tiles | one kernel: of each token that has rows here their
 *                        sum, to its owner | flag to all | wait for all | add ranks, bias |
 *
 * ll          caller   | all experts' tiles | one kernel: sums to their owners in lines with their
 *                        flags, and the sum of those |
 *
 * sequential  caller   | all experts' tiles | weigh and add places | push each rank its tokens,
 *                        flags | wait for all | add ranks, bias |
 *
 * over nodes  caller   | all experts' tiles | weigh and add places |, then token_sums.h; sequential
 *                        without other streams
 *
 * Where tokens are on every rank: then | push own sums to all, flags | wait for all | copy |, in ll
 * by one more kernel.
 *
 * A product is rounded to dtype, and so is what a rank sends of a token.  By copies rows of tokens
 * that a rank has nothing of are sent, too, and not read.
 */
#include "moe.h"
#include "plan/descs.h"
#include "sum_all.h"
#include "token_lines.h"
#include "token_sums.h"

enum { GROUPED, COMBINE, LL = COMBINE, LL_SUMS }; /* kernels, of ll behind the product others */

/* ---- local data: | products [capacity, n] | parts [tokens, n] | over nodes: sums | ----------- */

static size_t products_bytes(const imx_variant *variant)
{
    size_t elements = (size_t)imx_moe_rows(variant->plan) * (size_t)variant->shape.n;
    return imx_align(elements * imx_dtype_bytes(variant->shape.out), 256);
}

static size_t parts_bytes(const imx_variant *variant)
{
    size_t elements = (size_t)variant->shape.m * (size_t)variant->shape.n;
    return imx_align(elements * imx_dtype_bytes(variant->shape.out), 256);
}

static void *products(const imx_run *run)
{
    return imx_run_local(run);
}

static void *parts(const imx_run *run)
{
    return (char *)imx_run_local(run) + products_bytes(run->variant);
}

/* ---- sequential ------------------------------------------------------------------------------ */

/* To weigh and add up places: rows of the product are read, and sums written. */
static double places_us(const imx_problem *p, const imx_rates *rates)
{
    static const double share = 0.875; /* of the memory's rate */
    const imx_shape *s = &p->in->shape;
    double row = (double)s->n * (double)imx_dtype_bytes(s->out);
    return (p->in->expert_rows + (double)s->m) * row / (share * rates->memory);
}

static double cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_cost_of_copies(rates, 30) + places_us(p, rates) + p->sent / rates->copy;
}

static void layout(const imx_variant *variant, imx_needs *n)
{
    if (imx_moe_desc_of(variant->plan)->replicate)
        imx_sum_all_needs(variant, n);
    else
        imx_transfer_scatter_needs(variant, n);
    n->local_bytes = products_bytes(variant) + parts_bytes(variant);
}

static imbrex_status prepare(imx_variant *variant)
{
    const imx_grouped_args product = imx_moe_grouped_largest(variant);
    const imx_combine_args any = { .dtype = (int)variant->shape.out };
    IMX_TRY(imx_variant_prepare(variant, GROUPED, &imx_kernel_grouped, &product));
    return imx_variant_prepare(variant, COMBINE, &imx_kernel_combine, &any);
}

static imbrex_status multiply(const imx_run *run)
{
    imx_grouped_args args = imx_moe_grouped_args(run);
    args.own = run->args->a;
    args.c = products(run);
    args.scale_a = run->args->scale_a;
    args.scale_stride = imx_moe_scales(imx_moe_desc_of(run->plan));
    return imx_run_launch(run, run->stream, GROUPED, &args, sizeof args);
}

static imx_combine_args combine_args(const imx_run *run, int step)
{
    const imbrex_moe_desc *desc = imx_moe_desc_of(run->plan);
    return (imx_combine_args){
        .step = step,
        .n = desc->n,
        .top_k = desc->top_k,
        .dtype = (int)desc->out,
        .ranks = run->ranks,
        .own = run->rank,
        .end = run->ranks,
        .experts = desc->experts,
        .whole = desc->parallel == IMBREX_EXPERTS_WHOLE,
        .pair_row = run->args->routing->pair_row,
        .pair_expert = run->args->routing->pair_expert,
        .weights = run->args->routing->weights,
    };
}

/* Of all tokens, into parts. */
static imx_combine_args places_args(const imx_run *run)
{
    imx_combine_args args = combine_args(run, IMX_COMBINE_PLACES);
    args.tokens = run->m;
    args.from = products(run);
    args.rows = imx_moe_rows(run->plan);
    args.to = parts(run);
    return args;
}

static imbrex_status add_places(const imx_run *run)
{
    const imx_combine_args args = places_args(run);
    return imx_run_launch(run, run->stream, COMBINE, &args, sizeof args);
}

/* Of own tokens, but for whose parts those are. */
static imx_combine_args own_args(const imx_run *run, void *to)
{
    imx_combine_args args = combine_args(run, IMX_COMBINE_RANKS);
    args.tokens = imx_run_rows(run, run->rank);
    args.first = imx_run_row(run, run->rank);
    args.bias = run->args->bias;
    args.residual = run->args->residual;
    if (args.residual && imx_moe_desc_of(run->plan)->replicate) /* which has all rows */
        args.residual = (const char *)args.residual +
                        imx_transfer_rank_at(run, run->rank, run->variant->shape.n);
    args.to = to;
    return args;
}

/* What this rank has of own tokens lies at own_part. */
static imbrex_status add_ranks(const imx_run *run, const void *own_part, void *to)
{
    imx_combine_args args = own_args(run, to);
    args.slots = imx_run_data(run, run->rank);
    args.slot_bytes = (int64_t)imx_transfer_slot_bytes(run->variant);
    args.own_part = own_part;
    return imx_run_launch(run, run->stream, COMBINE, &args, sizeof args);
}

/* Own tokens' sums, which lie in c, to everybody. */
static imbrex_status gather_sums(const imx_run *run, const void *own)
{
    int64_t width = run->variant->shape.n;
    imx_needs scatter = { 0 };
    imx_transfer_scatter_needs(run->variant, &scatter);
    const imx_run gather = imx_transfer_second(run, &scatter);
    IMX_TRY(imx_transfer_gather(&gather, run->stream, own, width));
    IMX_TRY(imx_transfer_gather_wait(&gather, run->stream));
    return imx_transfer_gather_out(&gather, run->stream, own, width, run->args->c, true);
}

static imbrex_status run_sequential(const imx_run *run)
{
    bool replicate = imx_moe_desc_of(run->plan)->replicate;
    void *own = replicate ? imx_sum_all_own_rows(run) : run->args->c;
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(multiply(run));
    IMX_TRY(add_places(run));
    IMX_TRY(imx_transfer_scatter(run, run->stream, parts(run), NULL));
    IMX_TRY(imx_transfer_scatter_wait(run, run->stream));
    IMX_TRY(add_ranks(
        run, (const char *)parts(run) + imx_transfer_rank_at(run, run->rank, run->variant->shape.n),
        own));
    if (replicate)
        IMX_TRY(gather_sums(run, own));
    return imx_run_end(run);
}

/* ---- store ----------------------------------------------------------------------------------- */

static double store_cost(const imx_problem *p, const imx_rates *rates)
{
    return 30 + fmax(places_us(p, rates), p->sent / rates->store);
}

/* Sums of places go to where tokens' owners have a slot for this rank. */
static imx_combine_args sends_args(const imx_run *run)
{
    imx_combine_args args = places_args(run);
    args.stores = 1;
    args.slot_bytes = (int64_t)imx_transfer_slot_bytes(run->variant);
    for (int r = 0; r < run->ranks; r++)
        args.data[r] = imx_run_data(run, r);
    return args;
}

static imbrex_status send_sums(const imx_run *run)
{
    const imx_combine_args args = sends_args(run);
    return imx_run_launch(run, run->stream, COMBINE, &args, sizeof args);
}

static imbrex_status run_store(const imx_run *run)
{
    bool replicate = imx_moe_desc_of(run->plan)->replicate;
    void *own = replicate ? imx_sum_all_own_rows(run) : run->args->c;
    size_t slot = imx_transfer_slot_bytes(run->variant);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(multiply(run));
    IMX_TRY(send_sums(run));
    IMX_TRY(imx_run_meet(run, run->rank, 1, IMX_POINT_PART));
    IMX_TRY(
        add_ranks(run, (const char *)imx_run_data(run, run->rank) + (size_t)run->rank * slot, own));
    if (replicate)
        IMX_TRY(gather_sums(run, own));
    return imx_run_end(run);
}

/* ---- ll -------------------------------------------------------------------------------------- */

static bool can_ll(const imx_problem *p, imx_text *why_not)
{
    const int64_t most = (int64_t)1 << 28;
    bool few = p->in->shape.m <= most / imx_max(1, p->in->shape.n);
    if (!p->in->whole_lines)
        imx_text_add(why_not, "whose lines of 128 bytes would not arrive whole here: choose "
                              "\"store\"");
    else if (!few)
        imx_text_add(why_not,
                     "which is for few tokens: want desc.tokens x desc.n of at most 2^28, or "
                     "choose \"store\"");
    return p->in->whole_lines && few;
}

static double ll_cost(const imx_problem *p, const imx_rates *rates)
{
    return places_us(p, rates) + imx_token_lines_cost(rates, p->sent);
}

static int64_t most_own(const imx_variant *variant)
{
    return imx_ceil_div(variant->shape.m, variant->plan->group->size);
}

/* Of the sums, without the products. */
static void sums_by_ll(const imx_variant *variant, imx_needs *n)
{
    imx_token_lines_needs(variant, most_own(variant), variant->shape.m, n);
}

static void lay_out_ll(const imx_variant *variant, imx_needs *n)
{
    imx_needs sums = { 0 }, gather = { 0 };
    sums_by_ll(variant, &sums);
    if (imx_moe_desc_of(variant->plan)->replicate)
        imx_transfer_ll_needs(variant, variant->shape.n, IMX_LL_GATHERS, &gather);
    *n = imx_transfer_both_ll(&sums, &gather);
    n->local_bytes = products_bytes(variant) + sums.local_bytes;
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    const imx_grouped_args product = imx_moe_grouped_largest(variant);
    IMX_TRY(imx_variant_prepare(variant, GROUPED, &imx_kernel_grouped, &product));
    IMX_TRY(imx_token_lines_prepare(variant, LL));
    if (!imx_moe_desc_of(variant->plan)->replicate)
        return IMBREX_OK;
    return imx_transfer_ll_prepare(variant, LL_SUMS, variant->shape.n, IMX_LL_GATHERS);
}

static imbrex_status run_ll(const imx_run *run)
{
    bool replicate = imx_moe_desc_of(run->plan)->replicate;
    void *own = replicate ? imx_sum_all_own_rows(run) : run->args->c;
    imx_combine_args sums = own_args(run, own);
    int64_t own_tokens = sums.tokens;
    sums.tokens = run->m;
    sums.from = products(run);
    sums.rows = imx_moe_rows(run->plan);
    IMX_TRY(multiply(run));
    IMX_TRY(imx_token_lines_add(run, LL, &sums, own_tokens, most_own(run->variant), parts(run)));
    if (!replicate)
        return IMBREX_OK;
    imx_needs first = { 0 };
    imbrex_args args = *run->args;
    sums_by_ll(run->variant, &first);
    imx_run gather = imx_transfer_second_ll(run, &first);
    args.a = own;
    gather.args = &args;
    return imx_transfer_ll(&gather, LL_SUMS, run->variant->shape.n, IMX_LL_GATHERS, args.c);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

/* Returns the bytes of local data that the sums have, behind the parts. */
static size_t sums_needs(const imx_variant *variant, imx_needs *n)
{
    size_t local;
    imx_token_sums_needs(variant, imx_transfer_slot_bytes(variant), n, &local);
    return local;
}

static void lay_out_nodes(const imx_variant *variant, imx_needs *n)
{
    imx_needs sums = { 0 }, gather = { 0 };
    size_t local = sums_needs(variant, &sums);
    if (imx_moe_desc_of(variant->plan)->replicate)
        imx_transfer_gather_needs(variant, variant->shape.n, &gather);
    *n = imx_transfer_both(&sums, &gather);
    n->local_bytes = products_bytes(variant) + parts_bytes(variant) + local;
}

static imbrex_status gather_sums_nodes(const imx_run *run, const imx_net_streams *lanes,
                                       const void *own)
{
    int64_t width = run->variant->shape.n;
    imx_needs sums = { 0 };
    sums_needs(run->variant, &sums);
    const imx_run gather = imx_transfer_second(run, &sums);
    IMX_TRY(imx_hierarchical_gather(&gather, lanes, own, width));
    return imx_transfer_gather_out(&gather, run->stream, own, width, run->args->c, false);
}

static imbrex_status run_nodes(const imx_run *run, bool overlapped)
{
    bool replicate = imx_moe_desc_of(run->plan)->replicate;
    void *own = replicate ? imx_sum_all_own_rows(run) : run->args->c;
    const imx_net_streams lanes = imx_hierarchical_streams(run, overlapped);
    const imx_token_sums sums = {
        .kernel = COMBINE,
        .tokens = run->m,
        .parts = parts(run),
        .local = (char *)parts(run) + parts_bytes(run->variant),
        .slot_bytes = imx_transfer_slot_bytes(run->variant),
        .own = own_args(run, own),
    };
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(multiply(run));
    IMX_TRY(add_places(run));
    if (overlapped)
        IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_token_sums_add(run, &lanes, &sums));
    if (replicate && overlapped)
        IMX_TRY(imx_run_fork(run));
    if (replicate)
        IMX_TRY(gather_sums_nodes(run, &lanes, own));
    if (replicate && overlapped)
        IMX_TRY(imx_run_join(run));
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

/* ---- the operator ---------------------------------------------------------------------------- */

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, true, "[capacity, k]", "rows by expert",
                  IMX_ROUTING_CAPACITY, IMX_K),
    IMX_MOE_B,
    IMX_MOE_SCALES(IMX_ROUTING_CAPACITY, "[capacity, k/128]"),
    IMX_OPERAND(bias, IMX_OUT, "out", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false, IMX_APART,
                "[n]", "of the columns of c", IMX_N),
    IMX_OPERAND(residual, IMX_OUT, "out", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false,
                IMX_APART, "[rows, n]", "added to the sum", IMX_MOE_TOKENS, IMX_N),
    IMX_OPERAND(c, IMX_OUT, "out", IMBREX_FIELD_OUTPUT, false, IMX_APART, "[rows, n]",
                "own tokens of the sum", IMX_MOE_TOKENS, IMX_N),
    IMX_ROUTING_ROWS(IMBREX_FIELD_INPUT, 0),
    IMX_ARGS_M,
};

const imx_op imx_op_moe_rs = {
    IMX_OP(moe_rs, "c = reduce_scatter of the sum over places of weight * (a * b[expert]) + bias + "
           "residual",
           imbrex_moe_desc, imx_moe_desc, args),
    .scatters = true,
    .scaled = true,
    .check = imx_moe_check,
    .extent = imx_moe_extent,
    .capacity = imx_moe_capacity,
    .spread = imx_moe_spread,
    .timed_integers = imx_moe_timed_integers,
    .algorithms = {
        { .name = "store",
          .by_kernel = true,
          .stores = true,
          .cost = store_cost,
          .layout = layout,
          .prepare = prepare,
          .run = run_store },
        { .name = "ll",
          .by_kernel = true,
          .at_once = true,
          .can = can_ll,
          .cost = ll_cost,
          .layout = lay_out_ll,
          .prepare = prepare_ll,
          .run = run_ll },
        { .name = "sequential",
          .cost = cost,
          .layout = layout,
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

imbrex_status imbrex_plan_moe_rs(imbrex_group *group, const imbrex_moe_desc *desc,
                                 imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_moe_rs, desc, plan);
}
