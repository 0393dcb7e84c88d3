/* moe.c - a layer of experts on one rank: its plans, and one run of them. */
#include "mlp.h"

#include <string.h>

#include "matrix.h"

/* ---- What a rank has ------------------------------------------------------------------------- */

static int first_expert(const mlp_expert_set *set, int rank, int ranks)
{
    return set->whole ? (int)((int64_t)rank * set->experts / ranks) : 0;
}

static int end_expert(const mlp_expert_set *set, int rank, int ranks)
{
    return set->whole ? first_expert(set, rank + 1, ranks) : set->experts;
}

static mlp_expert_set set_of(int experts, const imbrex_gate *gate, const mlp_weights *one,
                             bool whole, int rank, int ranks)
{
    mlp_expert_set set = {
        .experts = experts, .gate = *gate, .whole = whole, .scaling = one->fp8.scaling
    };
    set.first = first_expert(&set, rank, ranks);
    set.here = end_expert(&set, rank, ranks) - set.first;
    set.width = shard_features(one, whole ? 1 : ranks);
    return set;
}

mlp_shape mlp_shape_of(const mlp_model *m, bool replicated, bool whole, int rank, int ranks)
{
    static const imbrex_gate one = { .experts = 1, .top_k = 1, .sigmoid = 1, .dtype = IMBREX_F32 };
    const mlp_experts *x = &m->experts;
    mlp_shape shape = {
        .tokens = m->x.rows,
        .hidden = m->weights.hidden,
        .width = shard_features(&m->weights, ranks),
        .dtype = m->dtype,
        .activation = m->weights.activation,
        .ungated = m->weights.ungated,
        .replicated = replicated,
        .scaling = m->weights.fp8.scaling,
        .fixed = m->weights.fp8.fixed,
    };
    if (m->after.gamma.rows)
        shape.norm = (imbrex_norm){ .rms = 1,
                                    .eps = (float)m->after.eps,
                                    .gamma_offset = (float)m->after.offset };
    if (x->count)
        shape.routed = set_of(x->count, &x->gate, &m->weights, whole, rank, ranks);
    if (x->shared.ffn)
        shape.shared = set_of(1, &one, &x->shared, false, rank, ranks);
    return shape;
}

void moe_keep_own(const mlp_expert_set *set, int64_t tokens, int32_t *ids)
{
    for (int64_t i = 0; i < tokens * set->gate.top_k; i++)
        ids[i] = ids[i] >= set->first && ids[i] < set->first + set->here ? ids[i] - set->first : -1;
}

void moe_count_pairs(const mlp_expert_set *set, int ranks, int64_t tokens, const int32_t *ids,
                     int64_t *by_rank, int64_t *most_of_expert)
{
    *most_of_expert = 0;
    memset(by_rank, 0, (size_t)ranks * sizeof *by_rank);
    for (int e = 0; e < set->experts; e++) {
        int64_t pairs = 0;
        for (int64_t i = 0; i < tokens * set->gate.top_k; i++)
            pairs += ids[i] == e;
        for (int r = 0; r < ranks; r++)
            if (e >= first_expert(set, r, ranks) && e < end_expert(set, r, ranks))
                by_rank[r] += pairs;
        if (pairs > *most_of_expert)
            *most_of_expert = pairs;
    }
}

/* ---- Plans and memory ------------------------------------------------------------------------ */

static imbrex_status take(imbrex_group *group, int64_t elements, int64_t bytes, void *out)
{
    size_t all = (size_t)(elements * bytes);
    return imbrex_mem_alloc(group, all ? all : 1, (void **)out);
}

static imbrex_status take_routing(imbrex_group *group, moe_set *set, int experts, int64_t pairs)
{
    imbrex_routing *r = &set->routing;
    TRY(take(group, 2 * experts + 1 + set->capacity + 3 * pairs, sizeof(int32_t), &set->words));
    r->expert_begin = set->words;
    r->expert_rows = r->expert_begin + experts + 1;
    r->row_pair = r->expert_rows + experts;
    r->pair_row = r->row_pair + set->capacity;
    r->pair_expert = r->pair_row + pairs;
    r->weights = (float *)(void *)(r->pair_expert + pairs);
    return IMBREX_OK;
}

static imbrex_status create_router(imbrex_group *group, const mlp_shape *s, moe_set *set)
{
    const int64_t experts = set->shape.gate.experts, top_k = set->shape.gate.top_k;
    const int64_t rows = set->routed_rows;
    imbrex_gemm_desc logits = {
        .m = rows, .n = experts, .k = s->hidden, .dtype = IMBREX_F32, .m_least = rows
    };
    TRY(take(group, rows * top_k, sizeof(int32_t), &set->ids));
    if (!set->on.router)
        return IMBREX_OK;
    TRY(imbrex_plan_gemm(group, &logits, &set->logits));
    TRY(take(group, rows * experts, sizeof(float), &set->scores));
    return take(group, rows * top_k, sizeof(float), &set->weights);
}

/* Alone, for products, a rank has its own experts only, and all pairs come to it. */
static imbrex_status create_set(mlp_block *b, const mlp_expert_set *shape,
                                const mlp_expert_operands *on, const char *algorithm, moe_set *set)
{
    const mlp_shape *s = &b->shape;
    const int ranks = imbrex_group_size(b->group), rank = imbrex_group_rank(b->group);
    const int experts = b->products ? shape->here : shape->experts, top_k = shape->gate.top_k;
    const int64_t bytes = matrix_dtype_bytes(s->dtype), t = s->tokens;
    imbrex_moe_desc desc = {
        .tokens = t,
        .n = 2 * shape->width,
        .k = s->hidden,
        .experts = experts,
        .top_k = top_k,
        .parallel = shape->whole ? IMBREX_EXPERTS_WHOLE : IMBREX_EXPERTS_TENSOR,
        .dtype = s->dtype,
        .algorithm = algorithm,
        .replicate = s->replicated && !b->products,
    };
    if (shape->scaling != IMBREX_UNSCALED) {
        desc.dtype = IMBREX_E4M3;
        desc.out = s->dtype;
        desc.scaling = shape->scaling;
    }
    *set = (moe_set){ .shape = *shape, .on = *on };
    if (experts == 0)
        return IMBREX_OK;
    const bool all = s->replicated || b->products;
    set->rows = all ? t : shard_first_row(t, rank + 1, ranks) - shard_first_row(t, rank, ranks);
    set->routed_rows = all ? t : t / ranks + (t % ranks != 0);
    TRY(create_router(b->group, s, set));
    TRY(imbrex_plan_ag_moe(b->group, &desc, &set->gate_up));
    desc.n = s->hidden;
    desc.k = shape->width;
    if (algorithm && (strcmp(algorithm, "copy") == 0 || strcmp(algorithm, "ll") == 0))
        desc.algorithm = "store"; /* what moe_rs has beside it */
    TRY(imbrex_plan_moe_rs(b->group, &desc, &set->down));
    set->capacity = imbrex_plan_rows(set->gate_up);
    TRY(take_routing(b->group, set, experts, t * top_k));
    TRY(take(b->group, set->capacity * 2 * shape->width, bytes, &set->up));
    if (shape->scaling != IMBREX_UNSCALED) /* a row has one, or one for 128 columns */
        TRY(take(b->group, set->capacity * (shape->width / 128 + 1), sizeof(float),
                 &set->act_scales));
    return take(b->group, set->capacity * shape->width, bytes, &set->act);
}

imbrex_status moe_block_create(mlp_block *b, const char *algorithm)
{
    const mlp_shape *s = &b->shape;
    const int64_t bytes = matrix_dtype_bytes(s->dtype);
    if (s->scaling != IMBREX_UNSCALED)
        TRY(mlp_block_take_low(b));
    TRY(create_set(b, &s->routed, &b->on.routed, algorithm, &b->routed));
    if (!s->shared.experts)
        return IMBREX_OK;
    TRY(take(b->group, s->tokens * s->hidden, bytes, &b->shared_y));
    return create_set(b, &s->shared, &b->on.shared, algorithm, &b->shared);
}

static void destroy_set(imbrex_group *group, moe_set *set)
{
    void *const memory[] = { set->scores, set->weights, set->ids,       set->words,
                             set->up,     set->act,     set->act_scales };
    imbrex_plan_destroy(set->logits);
    imbrex_plan_destroy(set->gate_up);
    imbrex_plan_destroy(set->down);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        imbrex_mem_free(group, memory[i]);
}

void moe_block_destroy(mlp_block *b)
{
    destroy_set(b->group, &b->routed);
    destroy_set(b->group, &b->shared);
    imbrex_mem_free(b->group, b->shared_y);
}

/* ---- A run ----------------------------------------------------------------------------------- */

static imbrex_status choose(const mlp_block *b, const moe_set *set)
{
    const imbrex_args logits = { .a = b->on.wide_x, .b = set->on.router, .c = set->scores };
    TRY(imbrex_plan_run(set->logits, &logits, b->on.stream));
    return imbrex_topk_gate(b->group, &set->shape.gate, set->rows, set->scores, set->on.correction,
                            set->ids, set->weights, b->on.stream);
}

static imbrex_status run_set(const mlp_block *b, const moe_set *set, void *y)
{
    const bool low = set->shape.scaling != IMBREX_UNSCALED;
    const imbrex_activation activation = { .kind = b->shape.activation,
                                           .gated = 1,
                                           .dtype = b->shape.dtype,
                                           .quant = set->shape.scaling };
    const imbrex_args first = { .a = low ? b->low_x : b->on.x,
                                .scale_a = low ? b->x_scales : NULL,
                                .scale_b = set->on.gate_up_scales,
                                .b = set->on.gate_up,
                                .c = set->up,
                                .ids = set->on.ids ? set->on.ids : set->ids,
                                .weights = set->logits ? set->weights : NULL,
                                .routing = &set->routing };
    const imbrex_args second = { .a = set->act,
                                 .scale_a = set->act_scales,
                                 .b = set->on.down,
                                 .scale_b = set->on.down_scales,
                                 .c = y,
                                 .routing = &set->routing };
    if (!set->gate_up)
        return IMBREX_OK; /* alone, without an expert */
    if (set->logits)
        TRY(choose(b, set));
    TRY(imbrex_plan_run(set->gate_up, &first, b->on.stream));
    TRY(imbrex_activate(b->group, &activation, set->capacity, set->shape.width, set->up, set->act,
                        set->act_scales, set->routing.expert_begin + set->shape.here,
                        b->on.stream));
    return imbrex_plan_run(set->down, &second, b->on.stream);
}

/* y = norm(y + more), by what of it is asked for. */
static imbrex_status add(const mlp_block *b, const imbrex_norm *norm, const void *more,
                         const void *gamma)
{
    const imbrex_args args = { .a = b->on.y, .residual = more, .gamma = gamma, .c = b->on.y };
    return imbrex_rms_norm(b->group, b->shape.dtype, b->routed.rows, b->shape.hidden, norm, &args,
                           b->on.stream);
}

imbrex_status moe_block_run(const mlp_block *b)
{
    static const imbrex_norm plain = { 0 };
    if (b->low_x)
        TRY(mlp_block_quantize(b, b->shape.scaling, b->x_scales));
    TRY(run_set(b, &b->routed, b->on.y));
    if (b->shared.gate_up)
        TRY(run_set(b, &b->shared, b->shared_y));
    if (b->products)
        return IMBREX_OK;
    if (b->shared.gate_up)
        TRY(add(b, &plain, b->shared_y, NULL));
    if (b->on.residual || b->on.gamma)
        TRY(add(b, &b->shape.norm, b->on.residual, b->on.gamma));
    return IMBREX_OK;
}

imbrex_status moe_block_choice(const mlp_block *b, int32_t *ids, float *weights)
{
    const imbrex_routing *r = &b->routed.routing;
    size_t bytes = (size_t)(b->shape.tokens * b->shape.routed.gate.top_k) * sizeof *ids;
    imbrex_status status = imbrex_copy(b->group, ids, r->pair_expert, bytes, b->on.stream);
    if (status == IMBREX_OK)
        status = imbrex_copy(b->group, weights, r->weights, bytes, b->on.stream);
    return failure_drain(status, b->group, b->on.stream);
}
