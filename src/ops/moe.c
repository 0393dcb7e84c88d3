/* moe.c - the desc of ag_moe and moe_rs, and what follows from it. */
#include "moe.h"

#include "plan/descs.h"

_Static_assert((int)IMX_ROUTE_EXPERTS == (int)IMX_GROUPED_EXPERTS, "one limit, one sentence");

enum { ALIGN_MOST = 512, TOP_K_MOST = 64 };

const imbrex_field imx_moe_desc[IMX_MOE_FIELDS] = {
    IMX_FIELD(imbrex_moe_desc, tokens, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED | IMBREX_FIELD_RUN,
              "of all ranks"),
    IMX_FIELD(imbrex_moe_desc, n, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED,
              "columns of one expert's product on one rank"),
    IMX_FIELD(imbrex_moe_desc, k, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED, "what is summed over"),
    IMX_FIELD(imbrex_moe_desc, experts, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED, "of all ranks"),
    IMX_FIELD(imbrex_moe_desc, top_k, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED,
              "experts of a token"),
    IMX_FIELD(imbrex_moe_desc, parallel, IMX_EXPERTS, "experts", 0,
              "tensor: every rank has a part of every expert; whole: it has whole ones"),
    IMX_FIELD(imbrex_moe_desc, align, IMX_COUNT, "int", 0,
              "an expert's rows begin at a multiple of it; 0: 16"),
    IMX_FIELD(imbrex_moe_desc, rows, IMX_SIZE, "int64", 0,
              "rows that there is room for; 0: as many as there can be"),
    IMX_FIELD(imbrex_moe_desc, dtype, IMX_DTYPE, "dtype", 0, "of a and b"),
    IMX_FIELD(imbrex_moe_desc, layout, IMX_LAYOUT, "layout", 0, "how each expert of b lies"),
    IMX_DESC_TAIL(imbrex_moe_desc),
    IMX_FIELD(imbrex_moe_desc, replicate, IMX_FLAG, "int", 0, "1: tokens are on every rank"),
    IMX_FIELD(imbrex_moe_desc, out, IMX_DTYPE, "dtype", 0, "of c, bias, residual; default: dtype"),
    IMX_FIELD(imbrex_moe_desc, scaling, IMX_SCALES, "scaling", 0, "of a and b"),
};

static int align_of(const imbrex_moe_desc *desc)
{
    return desc->align ? desc->align : 16;
}

/* The first expert of rank. */
static int64_t first_expert(const imbrex_moe_desc *desc, int ranks, int rank)
{
    return desc->parallel == IMBREX_EXPERTS_WHOLE ? imx_team_row(desc->experts, ranks, rank) : 0;
}

static int64_t experts_here(const imbrex_moe_desc *desc, int ranks, int rank)
{
    if (desc->parallel == IMBREX_EXPERTS_TENSOR)
        return desc->experts;
    return first_expert(desc, ranks, rank + 1) - first_expert(desc, ranks, rank);
}

/* Alike on all ranks: the worst case is that all pairs are on one, and each expert of it that has
 * any leaves a gap. */
static int64_t capacity(const imbrex_moe_desc *desc, int ranks)
{
    if (desc->rows)
        return desc->rows;
    bool whole = desc->parallel == IMBREX_EXPERTS_WHOLE;
    int64_t here = whole ? imx_ceil_div(desc->experts, ranks) : desc->experts;
    int64_t pairs = desc->tokens * desc->top_k;
    return pairs + imx_min(here, pairs) * (align_of(desc) - 1);
}

int64_t imx_moe_capacity(const imx_asked *asked)
{
    return capacity(asked->desc, asked->group->size);
}

int64_t imx_moe_rows(const imbrex_plan *plan)
{
    return capacity(imx_moe_desc_of(plan), plan->group->size);
}

int64_t imx_moe_scales(const imbrex_moe_desc *desc)
{
    if (desc->scaling == IMBREX_PER_BLOCK)
        return imx_ceil_div(desc->k, IMX_SCALING_BLOCK);
    return desc->scaling == IMBREX_PER_ROW;
}

int64_t imx_moe_extent(const imx_asked *asked, int64_t m, int which)
{
    const imbrex_moe_desc *desc = asked->desc;
    int ranks = asked->group->size, rank = asked->group->rank;
    int64_t here = experts_here(desc, ranks, rank);
    switch (which) {
    case IMX_ROUTING_TOP_K:
        return desc->top_k;
    case IMX_ROUTING_HERE:
        return here;
    case IMX_ROUTING_BEGINS:
        return here + 1;
    case IMX_ROUTING_CAPACITY:
        return imx_moe_capacity(asked);
    case IMX_MOE_SCALE_COLS:
        return desc->scaling == IMBREX_PER_BLOCK ? imx_moe_scales(desc) : IMX_NO_EXTENT;
    case IMX_MOE_SCALE_B_ROWS:
        return desc->scaling == IMBREX_PER_BLOCK ? imx_ceil_div(desc->n, IMX_SCALING_BLOCK)
                                                 : desc->n;
    case IMX_MOE_TOKENS:
        return desc->replicate ? m
                               : imx_team_row(m, ranks, rank + 1) - imx_team_row(m, ranks, rank);
    default:
        return m * desc->top_k;
    }
}

void imx_moe_spread(const imx_asked *asked, imx_tune_input *input)
{
    const imbrex_moe_desc *desc = asked->desc;
    double pairs = (double)(input->shape.m * desc->top_k);
    int ranks = asked->group->size;
    bool whole = desc->parallel == IMBREX_EXPERTS_WHOLE;
    input->experts = (int)imx_ceil_div(desc->experts, whole ? ranks : 1);
    input->expert_rows = whole ? pairs / ranks : pairs;
}

/* ---- what is wrong --------------------------------------------------------------------------- */

static imbrex_status check_8bit(const imbrex_moe_desc *d)
{
    if (imx_dtype_is_8bit(d->dtype) && d->scaling == IMBREX_PER_TENSOR)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "desc.scaling is PER_TENSOR: want PER_ROW or PER_BLOCK for experts");
    return IMBREX_OK;
}

imbrex_status imx_moe_check(const imbrex_group *group, const imx_request *request)
{
    const imbrex_moe_desc *d = (const imbrex_moe_desc *)(const void *)request->desc;
    IMX_TRY(check_8bit(d));
    IMX_TRY(imx_status_range("desc", "experts", d->experts, 1, INT32_MAX));
    IMX_TRY(imx_status_range("desc", "top_k", d->top_k, 1, TOP_K_MOST));
    int align = align_of(d);
    if (align > ALIGN_MOST || align & (align - 1))
        return imx_fail(IMBREX_INVALID, "desc.align is %d: want a power of two up to %d", align,
                        ALIGN_MOST);
    int64_t here = experts_here(d, group->size, 0);
    for (int r = 1; r < group->size; r++)
        here = imx_max(here, experts_here(d, group->size, r));
    if (here > IMX_ROUTE_EXPERTS)
        return imx_fail(IMBREX_UNSUPPORTED, "desc.experts is %d: want at most %d on a rank",
                        d->experts, IMX_ROUTE_EXPERTS);
    if (d->tokens > ((int64_t)1 << IMX_ROUTE_PAIRS_LOG2) / d->top_k)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "desc.tokens x desc.top_k is %lld x %d: want at most 2^%d pairs",
                        (long long)d->tokens, d->top_k, IMX_ROUTE_PAIRS_LOG2);
    int64_t rows = capacity(d, group->size), most = imx_max(d->n, d->k);
    IMX_TRY(imx_status_elements("desc", "rows x n, or x k,", rows, most));
    return imx_status_elements("desc", "n, of a rank's experts, x k", here * d->n, d->k);
}

/* ---- what kernels get ------------------------------------------------------------------------ */

static imx_route_args route_args(const imbrex_moe_desc *desc, const imbrex_group *group, int64_t m)
{
    int ranks = group->size, rank = group->rank;
    return (imx_route_args){
        .tokens = (int32_t)m,
        .top_k = desc->top_k,
        .experts = desc->experts,
        .first = (int32_t)first_expert(desc, ranks, rank),
        .here = (int32_t)experts_here(desc, ranks, rank),
        .align = align_of(desc),
        .rows = (int32_t)capacity(desc, ranks),
        .scales = (int32_t)imx_moe_scales(desc),
    };
}

imx_route_args imx_moe_route_args(const imbrex_plan *plan, int64_t m)
{
    imx_route_args args = route_args(imx_moe_desc_of(plan), plan->group, m);
    args.plan = plan->object.number; /* the fault names the plan */
    return args;
}

void imx_moe_timed_integers(const imx_asked *asked, const imbrex_field *operand, int64_t count,
                            int32_t *to)
{
    const imbrex_moe_desc *desc = asked->desc;
    const imx_route_args route = route_args(desc, asked->group, desc->tokens);
    int64_t first = imx_team_row(desc->tokens, asked->group->size, asked->group->rank);
    imx_routing_timed(operand, &route, desc->replicate ? 0 : first * desc->top_k, count, to);
}

static imx_grouped_args grouped_args(const imbrex_plan *plan)
{
    const imbrex_moe_desc *desc = imx_moe_desc_of(plan);
    return (imx_grouped_args){
        .n = desc->n,
        .k = desc->k,
        .expected = imx_ceil_div(desc->tokens * desc->top_k, desc->experts),
        .dtype = (int)desc->dtype,
        .out = (int)desc->out,
        .scaling = (int)desc->scaling,
        .layout = (int)desc->layout,
        .here = (int)experts_here(desc, plan->group->size, plan->group->rank),
        .rows = capacity(desc, plan->group->size),
    };
}

imx_grouped_args imx_moe_grouped_args(const imx_run *run)
{
    imx_grouped_args args = grouped_args(run->plan);
    const imbrex_routing *routing = run->args->routing;
    args.tokens = run->m;
    args.b = run->args->b;
    args.scale_b = run->args->scale_b;
    args.expert_begin = routing->expert_begin;
    args.expert_rows = routing->expert_rows;
    args.row_pair = routing->row_pair;
    return args;
}

imx_grouped_args imx_moe_grouped_largest(const imx_variant *variant)
{
    return grouped_args(variant->plan);
}
