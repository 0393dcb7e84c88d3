/* operands.c - brings a rank's part of a model into memory of its device, piece by piece. */
#include <stdlib.h>
#include <string.h>

#include "matrix.h"
#include "mlp.h"

typedef struct loader {
    imbrex_group *group;
    const mlp_model *model;
    const mlp_shape *shape;
    progress *shown;
    int rank, ranks;
    int64_t most_rows, rows; /* of x: of the rank with the most, and of this one */
} loader;

/* ---- What goes into a piece: all of out, dense ----------------------------------------------- */

typedef void (*filler)(const loader *l, void *out);

static void fill_whole(const matrix *from, imbrex_dtype to, void *out)
{
    matrix_copy(from, 0, from->rows, 0, from->cols, to, out, from->cols);
}

static void fill_x(const loader *l, void *out)
{
    shard_rows(&l->model->x, l->rank, l->ranks, l->shape->dtype, out);
}

static void fill_all_x(const loader *l, void *out)
{
    fill_whole(&l->model->x, l->shape->dtype, out);
}

/* As the products have it: rounded to dtype first. */
static void fill_wide_x(const loader *l, void *out)
{
    enum { RUN = 512 };
    const matrix *x = &l->model->x;
    const bool all = l->shape->replicated;
    int64_t first = all ? 0 : shard_first_row(x->rows, l->rank, l->ranks);
    int64_t rows = all ? x->rows : l->rows;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < x->cols; c += RUN) {
            float room[RUN];
            int64_t n = x->cols - c < RUN ? x->cols - c : RUN;
            matrix part = { .rows = 1, .cols = n, .dtype = l->shape->dtype, .data = room };
            matrix_copy(x, first + r, first + r + 1, c, c + n, l->shape->dtype, room, n);
            matrix_copy(&part, 0, 1, 0, n, IMBREX_F32, (float *)out + r * x->cols + c, n);
        }
    }
}

static void fill_residual(const loader *l, void *out)
{
    const matrix *residual = &l->model->after.residual;
    if (l->shape->replicated)
        fill_whole(residual, l->shape->dtype, out);
    else
        shard_rows(residual, l->rank, l->ranks, l->shape->dtype, out);
}

static void fill_gamma(const loader *l, void *out)
{
    fill_whole(&l->model->after.gamma, l->shape->dtype, out);
}

static imbrex_dtype dtype_of_weights(const loader *l)
{
    return l->shape->scaling != IMBREX_UNSCALED ? IMBREX_E4M3 : l->shape->dtype;
}

static void fill_gate_up(const loader *l, void *out)
{
    shard_gate_up(&l->model->weights, l->rank, l->ranks, dtype_of_weights(l), out);
}

static void fill_up_bias(const loader *l, void *out)
{
    shard_up_bias(&l->model->weights, l->rank, l->ranks, l->shape->dtype, out);
}

static void fill_down(const loader *l, void *out)
{
    shard_down(&l->model->weights, l->rank, l->ranks, dtype_of_weights(l), out);
}

static void fill_bias(const loader *l, void *out)
{
    fill_whole(&l->model->weights.down_bias, l->shape->dtype, out);
}

static void fill_gate_up_scales(const loader *l, void *out)
{
    shard_gate_up_scales(&l->model->weights, l->rank, l->ranks, out);
}

static void fill_down_scales(const loader *l, void *out)
{
    shard_down_scales(&l->model->weights, l->rank, l->ranks, out);
}

static void fill_x_scales(const loader *l, void *out)
{
    for (int64_t t = 0; t < l->shape->tokens; t++)
        ((float *)out)[t] = l->model->weights.fp8.x_scale;
}

static void fill_act_scales(const loader *l, void *out)
{
    for (int64_t t = 0; t < l->shape->tokens; t++)
        ((float *)out)[t] = l->model->weights.fp8.act_scale;
}

static imbrex_dtype dtype_of_set(const loader *l, const mlp_expert_set *set)
{
    return set->scaling != IMBREX_UNSCALED ? IMBREX_E4M3 : l->shape->dtype;
}

/* This rank's experts, one after another: whole, or its part of each. */
static void fill_experts(const loader *l, bool down, void *out)
{
    const mlp_expert_set *set = &l->shape->routed;
    const int rank = set->whole ? 0 : l->rank, ranks = set->whole ? 1 : l->ranks;
    const int64_t elements = (down ? 1 : 2) * set->width * l->shape->hidden;
    for (int e = 0; e < set->here; e++) {
        const mlp_weights *one = &l->model->experts.list[set->first + e];
        char *at = (char *)out + e * elements * matrix_dtype_bytes(dtype_of_set(l, set));
        (down ? shard_down : shard_gate_up)(one, rank, ranks, dtype_of_set(l, set), at);
    }
}

/* Their scales. */
static void fill_expert_scales(const loader *l, bool down, float *out)
{
    const mlp_expert_set *set = &l->shape->routed;
    const int rank = set->whole ? 0 : l->rank, ranks = set->whole ? 1 : l->ranks;
    for (int e = 0; e < set->here; e++)
        out += (down ? shard_down_scales : shard_gate_up_scales)(
            &l->model->experts.list[set->first + e], rank, ranks, out);
}

static void fill_expert_gate_up_scales(const loader *l, void *out)
{
    fill_expert_scales(l, false, out);
}

static void fill_expert_down_scales(const loader *l, void *out)
{
    fill_expert_scales(l, true, out);
}

static void fill_shared_gate_up_scales(const loader *l, void *out)
{
    shard_gate_up_scales(&l->model->experts.shared, l->rank, l->ranks, out);
}

static void fill_shared_down_scales(const loader *l, void *out)
{
    shard_down_scales(&l->model->experts.shared, l->rank, l->ranks, out);
}

static void fill_expert_gate_up(const loader *l, void *out)
{
    fill_experts(l, false, out);
}

static void fill_expert_down(const loader *l, void *out)
{
    fill_experts(l, true, out);
}

static void fill_router(const loader *l, void *out)
{
    fill_whole(&l->model->experts.router, IMBREX_F32, out);
}

static void fill_correction(const loader *l, void *out)
{
    fill_whole(&l->model->experts.correction, IMBREX_F32, out);
}

static void fill_shared_gate_up(const loader *l, void *out)
{
    shard_gate_up(&l->model->experts.shared, l->rank, l->ranks, dtype_of_set(l, &l->shape->shared),
                  out);
}

static void fill_shared_down(const loader *l, void *out)
{
    shard_down(&l->model->experts.shared, l->rank, l->ranks, dtype_of_set(l, &l->shape->shared),
               out);
}

static void fill_shared_gate(const loader *l, void *out)
{
    fill_whole(&l->model->experts.shared_gate, IMBREX_F32, out);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static imbrex_status take(const loader *l, int64_t bytes, void *out)
{
    return imbrex_mem_alloc(l->group, bytes ? (size_t)bytes : 1, (void **)out);
}

/* room: elements, alike on all ranks, of which the first `elements` are filled. */
static imbrex_status load(const loader *l, filler fill, int64_t room, int64_t elements,
                          imbrex_dtype dtype, void *out)
{
    const int64_t each = matrix_dtype_bytes(dtype);
    size_t bytes = (size_t)(elements * each);
    void **device = out, *host = malloc(bytes + 1);
    imbrex_status status = host ? take(l, room * each, device) : IMBREX_NO_MEMORY;
    if (status == IMBREX_OK) {
        fill(l, host);
        status = imbrex_copy(l->group, *device, host, bytes, NULL);
        status = failure_drain(status, l->group, NULL);
    }
    free(host);
    progress_step(l->shown);
    return status;
}

static imbrex_status load_floats(const loader *l, filler fill, int64_t count, float **out)
{
    return load(l, fill, count, count, IMBREX_F32, out);
}

static imbrex_status load_scales(const loader *l, mlp_operands *on)
{
    const mlp_weights *w = &l->model->weights;
    int64_t up = shard_gate_up_scales(w, l->rank, l->ranks, NULL);
    int64_t down = shard_down_scales(w, l->rank, l->ranks, NULL);
    TRY(load_floats(l, fill_gate_up_scales, up, &on->gate_up_scales));
    TRY(load_floats(l, fill_down_scales, down, &on->down_scales));
    if (!w->fp8.fixed)
        return IMBREX_OK;
    TRY(load_floats(l, fill_x_scales, l->shape->tokens, &on->x_scales));
    return load_floats(l, fill_act_scales, l->shape->tokens, &on->act_scales);
}

static imbrex_status load_dense(const loader *l, mlp_operands *on)
{
    const mlp_weights *weights = &l->model->weights;
    const imbrex_dtype dtype = l->shape->dtype, own = dtype_of_weights(l);
    int64_t h = l->shape->hidden, down = h * l->shape->width;
    int64_t up = shard_up_rows(weights, l->ranks);
    TRY(load(l, fill_gate_up, up * h, up * h, own, &on->gate_up));
    TRY(load(l, fill_down, down, down, own, &on->down));
    if (shard_has_up_bias(weights))
        TRY(load(l, fill_up_bias, up, up, dtype, &on->up_bias));
    if (weights->down_bias.rows)
        TRY(load(l, fill_bias, h, h, dtype, &on->bias));
    if (weights->fp8.scaling != IMBREX_UNSCALED)
        TRY(load_scales(l, on));
    return IMBREX_OK;
}

/* How to fill what a set has. */
typedef struct set_fillers {
    filler gate_up, down, gate_up_scales, down_scales;
} set_fillers;

/* one: an expert of the set, as all are. */
static imbrex_status load_set(const loader *l, const mlp_expert_set *set, const mlp_weights *one,
                              const set_fillers *fill, mlp_expert_operands *on)
{
    const imbrex_dtype dtype = dtype_of_set(l, set);
    const int ranks = set->whole ? 1 : l->ranks;
    int64_t elements = set->width * l->shape->hidden, here = set->here;
    int64_t most =
        set->whole ? set->experts / l->ranks + (set->experts % l->ranks != 0) : set->experts;
    TRY(load(l, fill->gate_up, most * 2 * elements, here * 2 * elements, dtype, &on->gate_up));
    TRY(load(l, fill->down, most * elements, here * elements, dtype, &on->down));
    if (set->scaling == IMBREX_UNSCALED)
        return IMBREX_OK;
    int64_t up = shard_gate_up_scales(one, 0, ranks, NULL);
    int64_t down = shard_down_scales(one, 0, ranks, NULL);
    TRY(load(l, fill->gate_up_scales, most * up, here * up, IMBREX_F32, &on->gate_up_scales));
    return load(l, fill->down_scales, most * down, here * down, IMBREX_F32, &on->down_scales);
}

static imbrex_status load_experts(const loader *l, mlp_operands *on)
{
    const mlp_shape *s = l->shape;
    const mlp_experts *x = &l->model->experts;
    int64_t h = s->hidden, rows = s->replicated ? s->tokens : l->rows;
    int64_t room = s->replicated ? s->tokens : l->most_rows;
    TRY(load(l, fill_wide_x, room * h, rows * h, IMBREX_F32, &on->wide_x));
    TRY(load(l, fill_router, x->count * h, x->count * h, IMBREX_F32, &on->routed.router));
    if (x->correction.rows)
        TRY(load(l, fill_correction, x->count, x->count, IMBREX_F32, &on->routed.correction));
    static const set_fillers routed = { fill_expert_gate_up, fill_expert_down,
                                        fill_expert_gate_up_scales, fill_expert_down_scales };
    static const set_fillers shared = { fill_shared_gate_up, fill_shared_down,
                                        fill_shared_gate_up_scales, fill_shared_down_scales };
    TRY(load_set(l, &s->routed, &x->list[0], &routed, &on->routed));
    if (!s->shared.experts)
        return IMBREX_OK;
    if (x->shared_gate.rows)
        TRY(load(l, fill_shared_gate, h, h, IMBREX_F32, &on->shared.router));
    return load_set(l, &s->shared, &x->shared, &shared, &on->shared);
}

int mlp_operands_steps(const mlp_model *m)
{
    const mlp_experts *x = &m->experts;
    int steps = 2 + (m->after.residual.rows > 0) + (m->after.gamma.rows > 0);
    if (!x->count)
        return steps + 2 + shard_has_up_bias(&m->weights) + (m->weights.down_bias.rows > 0) +
               (m->weights.fp8.scaling != IMBREX_UNSCALED ? 2 : 0) + (m->weights.fp8.fixed ? 2 : 0);
    return steps + 4 + (x->correction.rows > 0) + (x->shared_gate.rows > 0) +
           (x->shared.ffn > 0 ? 2 : 0) + (m->weights.fp8.scaling != IMBREX_UNSCALED ? 2 : 0) +
           (x->shared.fp8.scaling != IMBREX_UNSCALED ? 2 : 0);
}

imbrex_status mlp_operands_load(imbrex_group *group, const mlp_model *model, const mlp_shape *s,
                                imbrex_stream stream, progress *shown, mlp_loaded *out)
{
    loader l = { .group = group,
                 .model = model,
                 .shape = s,
                 .shown = shown,
                 .rank = imbrex_group_rank(group),
                 .ranks = imbrex_group_size(group) };
    const int64_t t = s->tokens, h = s->hidden, each = matrix_dtype_bytes(s->dtype);
    l.rows = shard_first_row(t, l.rank + 1, l.ranks) - shard_first_row(t, l.rank, l.ranks);
    l.most_rows = t / l.ranks + (t % l.ranks != 0);
    int64_t room = s->replicated ? t : l.most_rows, rows = s->replicated ? t : l.rows;
    mlp_operands own = { .stream = stream }, all;
    *out = (mlp_loaded){ 0 };
    TRY(take(&l, l.most_rows * h * each, &out->own_y));
    TRY(take(&l, t * h * each, &out->all_y));
    TRY(load(&l, fill_x, l.most_rows * h, l.rows * h, s->dtype, &own.x));
    if (model->experts.count)
        TRY(load_experts(&l, &own));
    else
        TRY(load_dense(&l, &own));
    if (model->after.residual.rows)
        TRY(load(&l, fill_residual, room * h, rows * h, s->dtype, &own.residual));
    if (model->after.gamma.rows)
        TRY(load(&l, fill_gamma, h, h, s->dtype, &own.gamma));
    own.y = out->own_y;
    all = own;
    TRY(load(&l, fill_all_x, t * h, t * h, s->dtype, &all.x));
    all.y = out->all_y;
    if (s->replicated) {
        own.x = all.x;
        own.y = all.y;
    }
    all.routed.router = all.shared.router = all.routed.correction = NULL;
    out->own = own;
    out->all = all;
    return IMBREX_OK;
}
