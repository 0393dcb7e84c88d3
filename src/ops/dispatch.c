/* dispatch.c - tokens go to the ranks that have their experts, and lie there by expert:
 * c[capacity, n], and where each pair is.
 *
 * store       caller   | one kernel: each own token's row to the ranks that want it, its ids to
 *                        all | flag to all | wait for all | places of pairs | slots to c |
 *
 * ll          caller   | one kernel: rows, ids and weights in lines with their flags, places of
 *                        pairs, rows to c |
 *
 * sequential  caller   | the same into own slots | copy all of them to each peer, flag | wait for
 *                        all | places of pairs | slots to c |
 *
 * over nodes  caller   | the same into own slots | wait for all | places | slots to c |
 *             inner    | own slots to the ranks of this node, flags | those from node + 1 | ... |
 *             net      | own slots to node - 1, from node + 1 | node -+ 2 | ...
 *                        sequential: all on the caller's stream
 *
 * Rows leave before anybody knows how many there are: a slot for each token of each rank waits for
 * them.  In shared data: kernels/dispatch/args.h; signal r: rank r's tokens are here.
 */
#include "dispatch.h"

#include "hierarchical.h"
#include "kernels/dispatch_ll/args.h"
#include "kernels/route/args.h"

enum { DISPATCH, ROUTE, LL }; /* kernels */

enum { ALIGN_MOST = 512, TOP_K_MOST = 64, ALIGNMENT = 256, ROW_ALIGNMENT = 16 };

/* ---- the desc -------------------------------------------------------------------------------- */

const imbrex_field imx_dispatch_desc[IMX_DISPATCH_FIELDS] = {
    IMX_FIELD(imbrex_dispatch_desc, rank_tokens, IMX_SIZE, "int64",
              IMBREX_FIELD_REQUIRED | IMBREX_FIELD_RUN, "of one rank"),
    IMX_FIELD(imbrex_dispatch_desc, n, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED,
              "the width of a token"),
    IMX_FIELD(imbrex_dispatch_desc, experts, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED,
              "of all ranks"),
    IMX_FIELD(imbrex_dispatch_desc, top_k, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED,
              "experts of a token"),
    IMX_FIELD(imbrex_dispatch_desc, dtype, IMX_DTYPE, "dtype", 0, "of tokens"),
    IMX_FIELD(imbrex_dispatch_desc, wire, IMX_WIRE, "dtype", 0,
              "as which dispatch sends them, and c has them: e4m3, or dtype"),
    IMX_FIELD(imbrex_dispatch_desc, align, IMX_COUNT, "int", 0,
              "an expert's rows begin at a multiple of it; 0: 16"),
    IMX_FIELD(imbrex_dispatch_desc, expert_capacity, IMX_SIZE, "int64", 0,
              "rows of each expert, which begin at a multiple of it; 0: as many as it has"),
    IMX_FIELD(imbrex_dispatch_desc, rows, IMX_SIZE, "int64", 0,
              "rows that there is room for; 0: as many as there can be"),
    IMX_FIELD(imbrex_dispatch_desc, algorithm, IMX_NAME, "string", 0, "how; none: chosen"),
    IMX_FIELD(imbrex_dispatch_desc, sms, IMX_COUNT, "int", 0,
              "SMs or threads that a run may hold; 0: all"),
};

static int64_t experts_of(const imbrex_dispatch_desc *desc, int ranks, int rank)
{
    return imx_team_row(desc->experts, ranks, rank + 1) - imx_team_row(desc->experts, ranks, rank);
}

/* The worst case is that all pairs are on one rank, and each expert of it that has any leaves a
 * gap. */
static int64_t capacity(const imbrex_dispatch_desc *desc, int ranks, int rank)
{
    int64_t pairs = ranks * desc->rank_tokens * desc->top_k;
    int64_t most = imx_ceil_div(desc->experts, ranks);
    if (desc->expert_capacity)
        return experts_of(desc, ranks, rank) * desc->expert_capacity;
    if (desc->rows)
        return desc->rows;
    return pairs + imx_min(most, pairs) * (imx_dispatch_align(desc) - 1);
}

int64_t imx_dispatch_rows(const imbrex_plan *plan)
{
    return capacity(imx_dispatch_desc_of(plan), plan->group->size, plan->group->rank);
}

int64_t imx_dispatch_capacity(const imx_asked *asked)
{
    return capacity(asked->desc, asked->group->size, asked->group->rank);
}

int64_t imx_dispatch_extent(const imx_asked *asked, int64_t m, int which)
{
    const imbrex_dispatch_desc *desc = asked->desc;
    int rank = asked->group->rank, ranks = asked->group->size;
    (void)m;
    switch (which) {
    case IMX_ROUTING_TOP_K:
        return desc->top_k;
    case IMX_ROUTING_HERE:
        return experts_of(desc, ranks, rank);
    case IMX_ROUTING_BEGINS:
        return experts_of(desc, ranks, rank) + 1;
    case IMX_ROUTING_CAPACITY:
        return capacity(desc, ranks, rank);
    case IMX_DISPATCH_BLOCKS:
        return imx_ceil_div(desc->n, IMX_DISPATCH_BLOCK);
    default:
        return ranks * desc->rank_tokens * desc->top_k;
    }
}

/* ---- what is wrong --------------------------------------------------------------------------- */

static imbrex_status check_choices(const imbrex_dispatch_desc *d)
{
    int64_t align = imx_dispatch_align(d);
    IMX_TRY(imx_status_range("desc", "experts", d->experts, 1, INT32_MAX));
    IMX_TRY(imx_status_range("desc", "top_k", d->top_k, 1, TOP_K_MOST));
    if (align > ALIGN_MOST || align & (align - 1))
        return imx_fail(IMBREX_INVALID, "desc.align is %d: want a power of two up to %d", d->align,
                        ALIGN_MOST);
    if (d->expert_capacity && (d->rows || d->align))
        return imx_fail(IMBREX_INVALID,
                        "desc.expert_capacity is %lld, and desc.%s %lld: want 0, each expert has "
                        "so many rows",
                        (long long)d->expert_capacity, d->rows ? "rows" : "align",
                        (long long)(d->rows ? d->rows : d->align));
    if (d->wire != d->dtype && d->wire != IMBREX_E4M3)
        return imx_fail(IMBREX_INVALID, "desc.wire is %s: want e4m3, or %s as desc.dtype",
                        imx_dtype_name(d->wire), imx_dtype_name(d->dtype));
    return IMBREX_OK;
}

imbrex_status imx_dispatch_check(const imbrex_group *group, const imx_request *request)
{
    const imbrex_dispatch_desc *d = (const imbrex_dispatch_desc *)(const void *)request->desc;
    const int64_t most = (int64_t)1 << IMX_ELEMENTS_MOST_LOG2;
    IMX_TRY(check_choices(d));
    if (imx_ceil_div(d->experts, group->size) > IMX_ROUTE_EXPERTS)
        return imx_fail(IMBREX_UNSUPPORTED, "desc.experts is %d: want at most %d on a rank",
                        d->experts, IMX_ROUTE_EXPERTS);
    if (d->rank_tokens > ((int64_t)1 << IMX_ROUTE_PAIRS_LOG2) / d->top_k / group->size)
        return imx_fail(
            IMBREX_UNSUPPORTED,
            "desc.rank_tokens x desc.top_k x ranks is %lld x %d x %d: want at most 2^%d "
            "pairs",
            (long long)d->rank_tokens, d->top_k, group->size, IMX_ROUTE_PAIRS_LOG2);
    /* The first rank has no more experts than the last. */
    int64_t rows = capacity(d, group->size, group->size - 1);
    if (rows > INT32_MAX || rows > most / imx_max(1, d->n) ||
        d->rank_tokens * group->size > most / imx_max(1, d->n))
        return imx_fail(IMBREX_UNSUPPORTED,
                        "%lld rows of desc.n = %lld are too many: want at most 2^31 - 1, and 2^%d "
                        "elements",
                        (long long)imx_max(rows, d->rank_tokens * group->size), (long long)d->n,
                        IMX_ELEMENTS_MOST_LOG2);
    return IMBREX_OK;
}

/* ---- what kernels get ------------------------------------------------------------------------ */

static imx_dispatch_args dispatch_args(const imbrex_plan *plan)
{
    const imbrex_dispatch_desc *desc = imx_dispatch_desc_of(plan);
    int64_t slots = imx_dispatch_slots(plan);
    imx_dispatch_args args = {
        .rank = plan->group->rank,
        .ranks = plan->group->size,
        .dtype = (int)desc->dtype,
        .wire = (int)desc->wire,
        .most = (int32_t)desc->rank_tokens,
        .top_k = desc->top_k,
        .experts = desc->experts,
        .n = desc->n,
        .row_bytes =
            (int64_t)imx_align((size_t)desc->n * imx_dtype_bytes(desc->wire), ROW_ALIGNMENT),
    };
    size_t packed = (size_t)slots * 2 * (size_t)desc->top_k * sizeof(int32_t);
    args.scales_at = (int64_t)imx_align(packed, ALIGNMENT);
    size_t scales = (size_t)(slots * imx_dispatch_blocks(&args)) * sizeof(float);
    args.rows_at = (int64_t)imx_align((size_t)args.scales_at + scales, ALIGNMENT);
    return args;
}

/* Into all ranks' slots, or only into own ones. */
static imbrex_status send(const imx_run *run, bool stores)
{
    imx_dispatch_args args = dispatch_args(run->plan);
    args.step = IMX_DISPATCH_SENDS;
    args.stores = stores;
    args.tokens = (int32_t)run->m;
    args.a = run->args->a;
    args.ids = run->args->ids;
    args.weights = run->args->weights;
    args.data[0] = imx_run_data(run, run->rank);
    for (int r = 0; r < run->ranks && stores; r++)
        args.data[r] = imx_run_data(run, r);
    return imx_run_launch(run, run->stream, DISPATCH, &args, sizeof args);
}

static imx_route_args route_args(const imbrex_dispatch_desc *desc, const imbrex_group *group)
{
    int ranks = group->size, rank = group->rank;
    return (imx_route_args){
        .step = IMX_ROUTE_ROUTES,
        .tokens = (int32_t)(ranks * desc->rank_tokens),
        .top_k = desc->top_k,
        .experts = desc->experts,
        .first = (int32_t)imx_team_row(desc->experts, ranks, rank),
        .here = (int32_t)experts_of(desc, ranks, rank),
        .align = (int32_t)imx_dispatch_align(desc),
        .rows = (int32_t)capacity(desc, ranks, rank),
        .capacity = (int32_t)desc->expert_capacity,
    };
}

void imx_dispatch_timed_integers(const imx_asked *asked, const imbrex_field *operand, int64_t count,
                                 int32_t *to)
{
    const imbrex_dispatch_desc *desc = asked->desc;
    const imx_route_args route = route_args(desc, asked->group);
    imx_routing_timed(operand, &route, asked->group->rank * desc->rank_tokens * desc->top_k, count,
                      to);
}

/* Of a run, but for where ids and weights are. */
static imx_route_args run_route_args(const imx_run *run)
{
    const imbrex_plan *plan = run->plan;
    const imbrex_routing *routing = run->args->routing;
    imx_route_args args = route_args(imx_dispatch_desc_of(plan), plan->group);
    args.plan = plan->object.number;
    args.expert_begin = routing->expert_begin;
    args.expert_rows = routing->expert_rows;
    args.row_pair = routing->row_pair;
    args.pair_row = routing->pair_row;
    args.pair_expert = routing->pair_expert;
    args.weights = routing->weights;
    return args;
}

static imbrex_status route(const imx_run *run)
{
    imx_route_args args = run_route_args(run);
    args.packed = imx_run_data(run, run->rank);
    return imx_run_launch(run, run->stream, ROUTE, &args, sizeof args);
}

static imbrex_status take(const imx_run *run)
{
    imx_dispatch_args args = dispatch_args(run->plan);
    args.step = IMX_DISPATCH_TAKES;
    args.data[0] = imx_run_data(run, run->rank);
    args.pair_row = run->args->routing->pair_row;
    args.c = run->args->c;
    args.scale_c = run->args->scale_c;
    return imx_run_launch(run, run->stream, DISPATCH, &args, sizeof args);
}

/* ---- store, sequential ----------------------------------------------------------------------- */

static void layout(const imx_variant *variant, imx_needs *needs)
{
    const imx_dispatch_args args = dispatch_args(variant->plan);
    int64_t rows = imx_dispatch_slots(variant->plan) * args.row_bytes;
    needs->data_bytes = (size_t)(args.rows_at + rows);
    needs->signals = (size_t)variant->plan->group->size;
}

static imbrex_status prepare(imx_variant *variant)
{
    const imx_dispatch_args all = dispatch_args(variant->plan);
    const imx_route_args pairs =
        route_args(imx_dispatch_desc_of(variant->plan), variant->plan->group);
    IMX_TRY(imx_variant_prepare(variant, DISPATCH, &imx_kernel_dispatch, &all));
    return imx_variant_prepare(variant, ROUTE, &imx_kernel_route, &pairs);
}

/* What own slots have, from byte `at` on, to the same place of a peer. */
static imbrex_status copy_part(const imx_run *run, int to, int64_t at, int64_t bytes)
{
    return imx_run_copy(run, run->stream, (char *)imx_run_data(run, to) + at,
                        (const char *)imx_run_data(run, run->rank) + at, (size_t)bytes, to);
}

static imbrex_status copy_slots(const imx_run *run, int to)
{
    const imx_dispatch_args args = dispatch_args(run->plan);
    int64_t ids = 2 * args.top_k * (int64_t)sizeof(int32_t), first = (int64_t)run->rank * args.most;
    int64_t scales = imx_dispatch_blocks(&args) * (int64_t)sizeof(float);
    IMX_TRY(copy_part(run, to, first * ids, args.most * ids));
    IMX_TRY(copy_part(run, to, args.scales_at + first * scales, run->m * scales));
    return copy_part(run, to, args.rows_at + first * args.row_bytes, run->m * args.row_bytes);
}

static imbrex_status receive(const imx_run *run)
{
    IMX_TRY(imx_run_meet(run, run->rank, 1, IMX_POINT_CHUNK));
    IMX_TRY(route(run));
    IMX_TRY(take(run));
    return imx_run_end(run);
}

static imbrex_status run_store(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(send(run, true));
    return receive(run);
}

static imbrex_status run_sequential(const imx_run *run)
{
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(send(run, false));
    for (int i = 1; i < run->ranks; i++)
        IMX_TRY(copy_slots(run, (run->rank + i) % run->ranks));
    return receive(run);
}

/* ---- ll -------------------------------------------------------------------------------------- */

bool imx_dispatch_can_ll(const imx_problem *p, imx_text *why_not)
{
    enum { KEPT = 32 << 10 }; /* of a block's shared memory, beside two bytes a pair */
    const imx_shape *shape = &p->in->shape;
    int64_t tokens = shape->m * p->in->ranks, most = IMX_DISPATCH_LL_TOKENS;
    if (p->in->arch)
        most = imx_min(most, ((int64_t)p->in->shared_bytes - KEPT) / (2 * TOP_K_MOST));
    bool few = tokens <= most && shape->n <= IMX_DISPATCH_LL_COLUMNS;
    if (!p->in->whole_lines)
        imx_text_add(why_not, "whose lines of 128 bytes would not arrive whole here: choose "
                              "\"store\"");
    else if (!few)
        imx_text_add(why_not,
                     "which is for few tokens: want desc.rank_tokens x ranks, %lld, of at most "
                     "%lld, and desc.n of at most %d, or choose \"store\"",
                     (long long)tokens, (long long)most, IMX_DISPATCH_LL_COLUMNS);
    return p->in->whole_lines && few;
}

static imx_dispatch_ll_args ll_args(const imx_variant *variant)
{
    imx_dispatch_ll_args args = { .dispatch = dispatch_args(variant->plan) };
    args.dispatch.stores = 1;
    args.plan = imx_variant_point(variant);
    args.part_bytes = imx_dispatch_ll_part_bytes(&args.dispatch);
    return args;
}

static void lay_out_ll(const imx_variant *variant, imx_needs *needs)
{
    const imx_dispatch_ll_args args = ll_args(variant);
    imx_needs slots = { 0 };
    layout(variant, &slots);
    needs->data_bytes = 2 * (size_t)variant->plan->group->size * (size_t)args.part_bytes;
    needs->lines_bytes = needs->data_bytes;
    needs->local_bytes = slots.data_bytes;
    needs->done = (size_t)variant->config.blocks;
}

static imbrex_status prepare_ll(imx_variant *variant)
{
    const imx_dispatch_ll_args largest = ll_args(variant);
    return imx_variant_prepare(variant, LL, &imx_kernel_dispatch_ll, &largest);
}

static imbrex_status run_ll(const imx_run *run)
{
    imx_dispatch_ll_args args = ll_args(run->variant);
    args.dispatch.tokens = (int32_t)run->m;
    args.dispatch.a = run->args->a;
    args.dispatch.ids = run->args->ids;
    args.dispatch.weights = run->args->weights;
    args.dispatch.data[0] = imx_run_local(run);
    args.dispatch.pair_row = run->args->routing->pair_row;
    args.dispatch.c = run->args->c;
    args.dispatch.scale_c = run->args->scale_c;
    args.route = run_route_args(run);
    args.uses = imx_run_done(run);
    args.team = imx_run_team(run);
    return imx_run_launch(run, run->stream, LL, &args, sizeof args);
}

/* ---- over nodes ------------------------------------------------------------------------------ */

enum { REGIONS = 3 };

/* What a rank's slots have of each region of data. */
typedef struct region {
    int64_t at, bytes;
} region;

static void regions_of(const imx_run *run, int rank, region regions[REGIONS])
{
    const imx_dispatch_args args = dispatch_args(run->plan);
    int64_t ids = args.most * 2 * args.top_k * (int64_t)sizeof(int32_t);
    int64_t scales = args.most * imx_dispatch_blocks(&args) * (int64_t)sizeof(float);
    int64_t rows = args.most * args.row_bytes;
    regions[0] = (region){ rank * ids, ids };
    regions[1] = (region){ args.scales_at + rank * scales, scales };
    regions[2] = (region){ args.rows_at + rank * rows, rows };
}

/* A rank's slots, which are here, to the other ranks of this node. */
static imbrex_status spread(const imx_run *run, imbrex_stream stream, int rank)
{
    const imx_nodes *nodes = &run->plan->group->nodes;
    region regions[REGIONS];
    regions_of(run, rank, regions);
    for (int i = 1; i < nodes->ranks; i++) {
        int to = imx_nodes_mate(nodes, i);
        for (int j = 0; j < REGIONS; j++)
            IMX_TRY(imx_run_copy(run, stream, (char *)imx_run_data(run, to) + regions[j].at,
                                 (char *)imx_run_data(run, run->rank) + regions[j].at,
                                 (size_t)regions[j].bytes, to));
        IMX_TRY(imx_run_post(run, stream, imx_run_signal(run, to) + rank, to));
    }
    return IMBREX_OK;
}

/* Own slots to the rank of this one's number on one node, those of its counterpart from another
 * one.  How many tokens it has nobody knows here: all slots travel, once a node. */
static imbrex_status swap(const imx_run *run, const imx_net_streams *lanes, int i, int to, int from)
{
    imx_transfer transfers[2 * REGIONS] = { 0 };
    region own[REGIONS], theirs[REGIONS];
    char *data = imx_run_data(run, run->rank);
    int lane = i % lanes->nets;
    regions_of(run, run->rank, own);
    regions_of(run, from, theirs);
    for (int j = 0; j < REGIONS; j++) {
        transfers[2 * j].op = (imx_net_op){ false, to, data + own[j].at, (size_t)own[j].bytes };
        transfers[2 * j + 1].op =
            (imx_net_op){ true, from, data + theirs[j].at, (size_t)theirs[j].bytes };
    }
    transfers[0].signal = imx_run_signal(run, run->rank) + from;
    return imx_run_step(run, lanes->net[lane], lane, transfers, 2 * REGIONS);
}

static imbrex_status exchange(const imx_run *run, const imx_net_streams *lanes)
{
    const imx_nodes *nodes = &run->plan->group->nodes;
    IMX_TRY(spread(run, lanes->inner, run->rank));
    for (int i = 1; i < nodes->count; i++) {
        int to = nodes->first[(nodes->own + nodes->count - i) % nodes->count] + nodes->local;
        int from = nodes->first[(nodes->own + i) % nodes->count] + nodes->local;
        IMX_TRY(swap(run, lanes, i, to, from));
    }
    for (int i = 1; i < nodes->count; i++) {
        int from = nodes->first[(nodes->own + i) % nodes->count] + nodes->local;
        IMX_TRY(imx_run_wait(run, lanes->inner, imx_run_signal(run, run->rank) + from,
                             IMX_POINT_CHUNK, from, 0));
        IMX_TRY(spread(run, lanes->inner, from));
    }
    return IMBREX_OK;
}

static imbrex_status run_nodes(const imx_run *run, bool overlapped)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, overlapped);
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(send(run, false));
    if (overlapped)
        IMX_TRY(imx_run_fork(run));
    IMX_TRY(exchange(run, &lanes));
    for (int i = 1; i < run->ranks; i++) {
        int from = (run->rank + i) % run->ranks;
        IMX_TRY(imx_run_wait(run, run->stream, imx_run_signal(run, run->rank) + from,
                             IMX_POINT_CHUNK, from, 0));
    }
    IMX_TRY(route(run));
    IMX_TRY(take(run));
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

/* ---- costs ----------------------------------------------------------------------------------- */

static double store_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_dispatch_us(p, rates, 35, 8);
}

static double ll_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_dispatch_us(p, rates, 8.4, 10.8);
}

static double sequential_cost(const imx_problem *p, const imx_rates *rates)
{
    return imx_dispatch_us(p, rates, 40, 8.4);
}

/* ---- the operator ---------------------------------------------------------------------------- */

static bool is_quantized(const imbrex_dispatch_desc *desc)
{
    return desc->wire == IMBREX_E4M3;
}

static imx_part part(const imx_op *op, const void *desc, const imbrex_field *operand,
                     const char **because)
{
    (void)op;
    if (strcmp(operand->name, "scale_c") != 0)
        return IMX_AS_DECLARED;
    *because = is_quantized(desc) ? "desc.wire is E4M3" : "desc.wire is desc.dtype";
    return is_quantized(desc) ? IMX_MUST : IMX_MUST_NOT;
}

static imbrex_dtype result(const imx_asked *asked)
{
    return ((const imbrex_dispatch_desc *)asked->desc)->wire;
}

static const imbrex_field args[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, false, "[own, n]", "own tokens", IMX_ROWS, IMX_N),
    IMX_OPERAND(ids, IMX_I32, "int32", IMBREX_FIELD_INPUT, false, IMX_APART, "[own, top_k]",
                "experts of own tokens; outside of 0..experts-1: none", IMX_ROWS,
                IMX_ROUTING_TOP_K),
    IMX_OPERAND(weights, IMX_FLOATS, "float32", IMBREX_FIELD_INPUT | IMBREX_FIELD_OPTIONAL, false,
                IMX_APART, "[own, top_k]", "their weights; NULL: 1", IMX_ROWS, IMX_ROUTING_TOP_K),
    IMX_OPERAND(c, IMX_RESULT, "matrix", IMBREX_FIELD_OUTPUT, false, IMX_APART, "[capacity, n]",
                "tokens, by expert", IMX_ROUTING_CAPACITY, IMX_N),
    IMX_OPERAND(scale_c, IMX_FLOATS, "float32", IMBREX_FIELD_OUTPUT, false, IMX_APART,
                "[capacity, blocks]", "scales of c, one for 128 columns", IMX_ROUTING_CAPACITY,
                IMX_DISPATCH_BLOCKS),
    IMX_ROUTING_ROWS(IMBREX_FIELD_OUTPUT, 0),
    IMX_FIELD(imbrex_args, own, IMX_SIZE, "int64", IMBREX_FIELD_RUN,
              "tokens of this rank in this run; 0: all of the plan's"),
};

const imx_op imx_op_dispatch = {
    IMX_OP(dispatch, "c = tokens of all ranks for this one's experts, by expert",
           imbrex_dispatch_desc, imx_dispatch_desc, args),
    .own_rows = true,
    .check = imx_dispatch_check,
    .part = part,
    .result = result,
    .extent = imx_dispatch_extent,
    .capacity = imx_dispatch_capacity,
    .timed_integers = imx_dispatch_timed_integers,
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
          .can = imx_dispatch_can_ll,
          .cost = ll_cost,
          .layout = lay_out_ll,
          .prepare = prepare_ll,
          .run = run_ll },
        { .name = "sequential",
          .cost = sequential_cost,
          .layout = layout,
          .prepare = prepare,
          .run = run_sequential },
        { .name = "sequential",
          .over_nodes = true,
          .layout = layout,
          .prepare = prepare,
          .run = run_sequential_nodes },
        { .name = "hierarchical",
          .over_nodes = true,
          .layout = layout,
          .prepare = prepare,
          .run = run_hierarchical },
    },
};

imbrex_status imbrex_plan_dispatch(imbrex_group *group, const imbrex_dispatch_desc *desc,
                                   imbrex_plan **plan)
{
    return imx_plan_create(group, &imx_op_dispatch, desc, plan);
}
