/* ag_moe.c - c[rows, n] = all_gather(a)[token of row] * b[expert of row], rows by expert.
 *
 * copy        caller   | pack own ids and weights | gather them by one kernel | route |
 *                        tiles of own tokens | the others, once all of a is here |
 *             second   | push a, chunk by chunk, to each peer, flags | ...
 *
 * ll          caller   | pack | gather ids and weights, and a, each by one kernel, data with
 *                        flags | route | all tiles |
 *
 * sequential  caller   | pack own ids and weights | push them and a, flags | wait for all | route |
 *                        all experts' tiles, whose rows of a are found by index |
 *
 * over nodes  as sequential, but that both are gathered by hierarchical.h; the ids first, and, as
 *             hierarchical, on other streams, so that a comes in while pairs are placed
 *
 * Where tokens are on every rank nothing is sent: pack all, route, all tiles.
 *
 * The product reads own tokens from the caller's a, and others where they came in.
 */
#include "hierarchical.h"
#include "moe.h"
#include "plan/descs.h"

enum { ROUTE, GROUPED, LL, LL_PACKED }; /* kernels */

/* ---- ids and weights, which travel as one matrix --------------------------------------------- */

/* Of a token: top_k ids, as many weights, and what scales it. */
static int32_t pack_words(const imx_variant *variant)
{
    const imbrex_moe_desc *desc = imx_moe_desc_of(variant->plan);
    return imx_route_words(desc->top_k, (int32_t)imx_moe_scales(desc));
}

/* In elements of dtype. */
static int64_t pack_width(const imx_variant *variant)
{
    size_t bytes = sizeof(int32_t) * (size_t)pack_words(variant);
    return (int64_t)(bytes / imx_dtype_bytes(variant->shape.dtype));
}

/* In local data: own tokens' behind all ranks'. */
static size_t pack_bytes(const imx_variant *variant, int64_t tokens)
{
    return imx_align((size_t)(tokens * pack_width(variant)) * imx_dtype_bytes(variant->shape.dtype),
                     256);
}

static void *packed_all(const imx_run *run)
{
    return imx_run_local(run);
}

static void *packed_own(const imx_run *run)
{
    return (char *)imx_run_local(run) + pack_bytes(run->variant, run->variant->shape.m);
}

/* ---- all ------------------------------------------------------------------------------------- */

static bool is_replicated(const imx_variant *variant)
{
    return imx_moe_desc_of(variant->plan)->replicate;
}

/* Of two movements: a, and what was packed.  by_ll: how that travels. */
static void add_needs(const imx_variant *variant, const imx_needs *a, bool by_ll, imx_needs *n)
{
    imx_needs packed = { 0 };
    size_t local = n->local_bytes;
    if (by_ll)
        imx_transfer_ll_needs(variant, pack_width(variant), IMX_LL_GATHERS, &packed);
    else
        imx_transfer_gather_needs(variant, pack_width(variant), &packed);
    *n = by_ll ? imx_transfer_both_ll(a, &packed) : imx_transfer_both(a, &packed);
    n->local_bytes = local;
}

/* reserved_sms: of the device, for what runs beside the product. */
static imbrex_status prepare(imx_variant *variant, int reserved_sms)
{
    const imx_route_args route = imx_moe_route_args(variant->plan, variant->shape.m);
    imx_grouped_args product = imx_moe_grouped_largest(variant);
    product.reserved_sms = reserved_sms;
    IMX_TRY(imx_variant_prepare(variant, ROUTE, &imx_kernel_route, &route));
    return imx_variant_prepare(variant, GROUPED, &imx_kernel_grouped, &product);
}

static imbrex_status pack(const imx_run *run, int64_t tokens, void *packed)
{
    imx_route_args args = imx_moe_route_args(run->plan, tokens);
    args.step = IMX_ROUTE_PACKS;
    args.ids = run->args->ids;
    args.weights_in = run->args->weights;
    args.scales_in = run->args->scale_a;
    args.packed = packed;
    return imx_run_launch(run, run->stream, ROUTE, &args, sizeof args);
}

static imbrex_status route(const imx_run *run)
{
    imx_route_args args = imx_moe_route_args(run->plan, run->m);
    const imbrex_routing *routing = run->args->routing;
    args.step = IMX_ROUTE_ROUTES;
    args.packed = packed_all(run);
    args.expert_begin = routing->expert_begin;
    args.expert_rows = routing->expert_rows;
    args.row_pair = routing->row_pair;
    args.pair_row = routing->pair_row;
    args.pair_expert = routing->pair_expert;
    args.weights = routing->weights;
    return imx_run_launch(run, run->stream, ROUTE, &args, sizeof args);
}

/* Own tokens, which the caller's a has, are `tokens` from `first` on. */
static imx_grouped_args product_args(const imx_run *run, int64_t first, int64_t tokens)
{
    imx_grouped_args args = imx_moe_grouped_args(run);
    args.top_k = imx_moe_desc_of(run->plan)->top_k;
    args.own = run->args->a;
    args.own_first = first;
    args.own_rows = tokens;
    args.c = run->args->c;
    args.scale_stride = pack_words(run->variant);
    args.scale_a = (const float *)packed_all(run) + 2 * args.top_k;
    return args;
}

/* all: the matrix that peers' tokens are in.  ready: signals of those that come; NULL: all are
 * there. */
static imbrex_status multiply(const imx_run *run, const void *all, const uint64_t *ready)
{
    imx_grouped_args args =
        product_args(run, imx_run_row(run, run->rank), imx_run_rows(run, run->rank));
    args.gathered = all;
    args.ready = ready;
    args.epoch = run->epoch;
    args.rank = run->rank;
    args.ranks = run->ranks;
    args.chunks = run->variant->config.chunks;
    args.chunk_rows = imx_variant_chunk_rows(run->variant, run->m);
    args.plan = imx_variant_point(run->variant);
    return imx_run_launch(run, run->stream, GROUPED, &args, sizeof args);
}

static imbrex_status run_replicated(const imx_run *run)
{
    const imx_grouped_args args = product_args(run, 0, run->m);
    IMX_TRY(pack(run, run->m, packed_all(run)));
    IMX_TRY(route(run));
    return imx_run_launch(run, run->stream, GROUPED, &args, sizeof args);
}

/* Own ids and weights to all, and all of them into one place; a: what the rows of a need. */
static imbrex_status gather_packed_by_ll(const imx_run *run, const imx_needs *a)
{
    imbrex_args args = *run->args;
    imx_run packed = imx_transfer_second_ll(run, a);
    args.a = packed_own(run);
    packed.args = &args;
    IMX_TRY(pack(run, imx_run_rows(run, run->rank), packed_own(run)));
    return imx_transfer_ll(&packed, LL_PACKED, pack_width(run->variant), IMX_LL_GATHERS,
                           packed_all(run));
}

static imbrex_status prepare_packed(imx_variant *variant)
{
    if (is_replicated(variant))
        return IMBREX_OK;
    return imx_transfer_ll_prepare(variant, LL_PACKED, pack_width(variant), IMX_LL_GATHERS);
}

/* ---- copy ------------------------------------------------------------------------------------ */

/* What a second stream hides still takes memory and links from the product. */
static double copy_cost(const imx_problem *p, const imx_rates *rates)
{
    double sending = p->sent / rates->copy;
    return imx_cost_of_copies(rates, 30) + 0.06 * sending + imx_cost_left(sending, p->covering);
}

static void lay_out_copy(const imx_variant *variant, imx_needs *n)
{
    imx_needs a = { 0 };
    n->local_bytes = 2 * pack_bytes(variant, variant->shape.m);
    if (is_replicated(variant))
        return;
    imx_transfer_gather_needs(variant, variant->shape.k, &a);
    add_needs(variant, &a, true, n);
}

/* Between ranks on one GPU it is multiprocessors that copy. */
static imbrex_status prepare_copy(imx_variant *variant)
{
    IMX_TRY(prepare(variant, variant->config.reserved_for_copies));
    return prepare_packed(variant);
}

/* On a GPU: whether the product begins when all tokens are there.  Tiles of own tokens, made ahead
 * of the others, read experts' b once more: that must not take longer than what they hide, which is
 * what is left of the copies when pairs have their places. */
static bool begins_late(const imx_run *run, const imx_grouped_args *product)
{
    static const double routing = 30;
    const imx_rates *rates = &run->plan->group->rates;
    const imx_shape *s = &run->variant->shape;
    double element = (double)imx_dtype_bytes(s->dtype), ranks = run->ranks;
    double b = product->here * (double)s->n * (double)s->k * element;
    double sent = (double)run->m / ranks * (ranks - 1) * (double)s->k * element;
    if (product->here > IMX_GROUPED_ORDERED)
        return true;
    return run->plan->group->target->arch && !imx_moe_desc_of(run->plan)->chunk_rows &&
           b / rates->memory > sent / rates->copy - routing;
}

static imbrex_status run_copy(const imx_run *run)
{
    imx_needs a = { 0 };
    const uint64_t *ready = imx_run_signal(run, run->rank);
    if (is_replicated(run->variant))
        return run_replicated(run);
    imx_transfer_gather_needs(run->variant, run->variant->shape.k, &a);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_transfer_gather(run, run->plan->comm, run->args->a, run->variant->shape.k));
    IMX_TRY(imx_transfer_gathered(run, run->plan->comm, false));
    IMX_TRY(gather_packed_by_ll(run, &a));
    IMX_TRY(route(run));
    const imx_grouped_args product = imx_moe_grouped_args(run);
    if (begins_late(run, &product)) {
        IMX_TRY(imx_transfer_gather_wait(run, run->stream));
        ready = NULL;
    }
    IMX_TRY(multiply(run, imx_run_data(run, run->rank), ready));
    IMX_TRY(imx_run_join(run));
    return imx_run_end(run);
}

/* ---- ll -------------------------------------------------------------------------------------- */

static double ll_cost(const imx_problem *p, const imx_rates *rates)
{
    static const double sent_most = 8 << 20; /* of a rank, before a product */
    return imx_transfer_ll_cost(rates, p->sent, sent_most);
}

/* In local data: all ranks' tokens behind what was packed. */
static size_t tokens_at(const imx_variant *variant)
{
    return 2 * pack_bytes(variant, variant->shape.m);
}

static void lay_out_ll(const imx_variant *variant, imx_needs *n)
{
    const imx_shape *s = &variant->shape;
    imx_needs a = { 0 };
    n->local_bytes = tokens_at(variant) + (size_t)s->m * (size_t)s->k * imx_dtype_bytes(s->dtype);
    if (is_replicated(variant))
        return;
    imx_transfer_ll_needs(variant, s->k, IMX_LL_GATHERS, &a);
    add_needs(variant, &a, true, n);
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    IMX_TRY(prepare(variant, 0));
    IMX_TRY(prepare_packed(variant));
    if (is_replicated(variant))
        return IMBREX_OK;
    return imx_transfer_ll_prepare(variant, LL, variant->shape.k, IMX_LL_GATHERS);
}

static imbrex_status run_ll(const imx_run *run)
{
    imx_needs a = { 0 };
    void *all = (char *)imx_run_local(run) + tokens_at(run->variant);
    if (is_replicated(run->variant))
        return run_replicated(run);
    if (run->args->gathered)
        all = run->args->gathered;
    imx_transfer_ll_needs(run->variant, run->variant->shape.k, IMX_LL_GATHERS, &a);
    IMX_TRY(gather_packed_by_ll(run, &a));
    IMX_TRY(imx_transfer_ll(run, LL, run->variant->shape.k, IMX_LL_GATHERS, all));
    IMX_TRY(route(run));
    return multiply(run, all, NULL);
}

/* ---- sequential ------------------------------------------------------------------------------ */

static double sequential_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_transfer_sequential_cost(rates, p->sent);
}

static void lay_out_sequential(const imx_variant *variant, imx_needs *n)
{
    imx_needs a = { 0 };
    n->local_bytes = 2 * pack_bytes(variant, variant->shape.m);
    if (is_replicated(variant))
        return;
    imx_transfer_gather_needs(variant, variant->shape.k, &a);
    add_needs(variant, &a, false, n);
}

static imbrex_status prepare_sequential(imx_variant *variant)
{
    return prepare(variant, 0);
}

static imbrex_status run_sequential(const imx_run *run)
{
    int64_t k = run->variant->shape.k, packed = pack_width(run->variant);
    imx_needs a = { 0 };
    if (is_replicated(run->variant))
        return run_replicated(run);
    imx_transfer_gather_needs(run->variant, k, &a);
    const imx_run second = imx_transfer_second(run, &a);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(pack(run, imx_run_rows(run, run->rank), packed_own(run)));
    IMX_TRY(imx_transfer_gather(&second, run->stream, packed_own(run), packed));
    IMX_TRY(imx_transfer_gather(run, run->stream, run->args->a, k));
    IMX_TRY(imx_transfer_gather_wait(&second, run->stream));
    IMX_TRY(imx_transfer_gather_out(&second, run->stream, packed_own(run), packed, packed_all(run),
                                    true));
    IMX_TRY(imx_transfer_gather_wait(run, run->stream));
    IMX_TRY(route(run));
    IMX_TRY(imx_transfer_gathered(run, run->stream, true));
    IMX_TRY(multiply(run, imx_run_data(run, run->rank), NULL));
    return imx_run_end(run);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

static imbrex_status run_nodes(const imx_run *run, bool overlapped)
{
    int64_t k = run->variant->shape.k, packed = pack_width(run->variant);
    imx_needs a = { 0 };
    if (is_replicated(run->variant))
        return run_replicated(run);
    imx_transfer_gather_needs(run->variant, k, &a);
    const imx_run second = imx_transfer_second(run, &a);
    const imx_net_streams lanes = imx_hierarchical_streams(run, overlapped);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(pack(run, imx_run_rows(run, run->rank), packed_own(run)));
    if (overlapped)
        IMX_TRY(imx_run_fork(run));
    IMX_TRY(imx_hierarchical_gather(&second, &lanes, packed_own(run), packed));
    IMX_TRY(imx_hierarchical_gather(run, &lanes, run->args->a, k));
    IMX_TRY(imx_transfer_gather_out(&second, run->stream, packed_own(run), packed, packed_all(run),
                                    false));
    IMX_TRY(route(run));
    IMX_TRY(imx_transfer_gather_wait(run, run->stream));
    IMX_TRY(imx_transfer_gathered(run, run->stream, true));
    IMX_TRY(multiply(run, imx_run_data(run, run->rank), NULL));
    if (overlapped)
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
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, true, "[rows, k]", "own tokens", IMX_MOE_TOKENS, IMX_K),
    IMX_OPERAND(ids, IMX_I32, "int32", IMBREX_FIELD_INPUT, false, IMX_APART, "[rows, top_k]",
                "experts of own tokens; outside of 0..experts-1: none", IMX_MOE_TOKENS,
                IMX_ROUTING_TOP_K),
    IMX_OPERAND(weights, IMX_FLOATS, "float32", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false,
                IMX_APART, "[rows, top_k]", "their weights; NULL: 1", IMX_MOE_TOKENS,
                IMX_ROUTING_TOP_K),
    IMX_MOE_B,
    IMX_MOE_SCALES(IMX_MOE_TOKENS, "[rows, k/128]"),
    IMX_OPERAND(c, IMX_OUT, "out", IMBREX_FIELD_OUTPUT, false, IMX_APART, "[capacity, n]",
                "products, by expert", IMX_ROUTING_CAPACITY, IMX_N),
    IMX_MATRIX_OF(gathered, IMBREX_FIELD_OUTPUT | IMBREX_FIELD_OPTIONAL, false, "[m, k]",
                  "all ranks' tokens", IMX_ROWS, IMX_K),
    IMX_ROUTING_ROWS(IMBREX_FIELD_OUTPUT, 0),
    IMX_ARGS_M,
};

static imx_part part(const imx_op *op, const void *untyped, const imbrex_field *operand,
                     const char **because)
{
    const imbrex_moe_desc *desc = untyped;
    (void)op;
    if (!desc->replicate || operand->offset != offsetof(imbrex_args, gathered) ||
        operand->own[IMX_FIELD_IN_ROUTING])
        return IMX_AS_DECLARED;
    *because = "desc.replicate is 1, so that a is it";
    return IMX_MUST_NOT;
}

const imx_op imx_op_ag_moe = {
    IMX_OP(ag_moe, "c = all_gather(a)[token] * b[expert], rows by expert", imbrex_moe_desc,
           imx_moe_desc, args),
    .scaled = true,
    .check = imx_moe_check,
    .part = part,
    .extent = imx_moe_extent,
    .capacity = imx_moe_capacity,
    .spread = imx_moe_spread,
    .timed_integers = imx_moe_timed_integers,
    .algorithms = {
        { .name = "copy",
          .by_kernel = true,
          .cost = copy_cost,
          .layout = lay_out_copy,
          .prepare = prepare_copy,
          .run = run_copy },
        { .name = "ll",
          .by_kernel = true,
          .cost = ll_cost,
          .layout = lay_out_ll,
          .prepare = prepare_ll,
          .run = run_ll },
        { .name = "sequential",
          .cost = sequential_cost,
          .layout = lay_out_sequential,
          .prepare = prepare_sequential,
          .run = run_sequential },
        { .name = "sequential",
          .over_nodes = true,
          .layout = lay_out_sequential,
          .prepare = prepare_sequential,
          .run = run_sequential_nodes },
        { .name = "hierarchical",
          .over_nodes = true,
          .layout = lay_out_sequential,
          .prepare = prepare_sequential,
          .run = run_hierarchical },
    },
};

imbrex_status imbrex_plan_ag_moe(imbrex_group *group, const imbrex_moe_desc *desc,
                                 imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_ag_moe, desc, plan);
}
