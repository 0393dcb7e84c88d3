/* load.c - brings what a rank's step runs on into its device's memory. */
#include <stdlib.h>

#include "decode.h"

typedef struct loader {
    imbrex_group *group;
    const decode_model *model;
    const decode_shape *shape;
    int rank, ranks;
    progress *shown;
} loader;

static imbrex_status take(const loader *s, size_t bytes, void **out)
{
    return imbrex_mem_alloc(s->group, bytes ? bytes : 1, out);
}

/* Bytes of elements of the model's dtype. */
static size_t bytes_of(const loader *s, int64_t elements)
{
    return (size_t)elements * (size_t)matrix_dtype_bytes(s->shape->dtype);
}

typedef enum part {
    PART_X,
    PART_PROJECT,
    PART_PROJECT_BIAS,
    PART_OUTPUT,
    PART_OUTPUT_BIAS,
    PART_K,
    PART_V,
    PART_LENGTHS,
    PART_PLACES,
    PART_TURNS,
    PART_Q_NORM,
    PART_K_NORM
} part;

/* All of it. */
static void fill_whole(const matrix *from, imbrex_dtype dtype, void *host)
{
    matrix_copy(from, 0, from->rows, 0, from->cols, dtype, host, from->cols);
}

static void fill_turns(const loader *s, float *host)
{
    for (int64_t row = 0; row < s->shape->batch; row++)
        decode_rope_turns(&s->model->weights.rope, s->shape->head_dim, s->model->lengths[row],
                          host + row * s->shape->head_dim);
}

/* other: room for the lengths or places that are not wanted. */
static void fill(const loader *s, part which, void *host, int32_t *other)
{
    const decode_model *m = s->model;
    const decode_shape *shape = s->shape;
    switch (which) {
    case PART_X:
        fill_whole(&m->x, shape->dtype, host);
        break;
    case PART_PROJECT:
        shard_projections(m, shape, s->rank, s->ranks, host);
        break;
    case PART_PROJECT_BIAS:
        shard_projection_bias(m, shape, s->rank, s->ranks, host);
        break;
    case PART_OUTPUT:
        shard_output(m, shape, s->rank, host);
        break;
    case PART_OUTPUT_BIAS:
        fill_whole(&m->weights.o_bias, shape->dtype, host);
        break;
    case PART_K:
    case PART_V:
        shard_cache(m, shape, which == PART_K ? &m->k : &m->v, s->rank, s->ranks, host);
        break;
    case PART_LENGTHS:
        shard_lengths(m, shape, s->rank, s->ranks, host, other);
        break;
    case PART_PLACES:
        shard_lengths(m, shape, s->rank, s->ranks, other, host);
        break;
    case PART_TURNS:
        fill_turns(s, host);
        break;
    case PART_Q_NORM:
        fill_whole(&m->weights.q_norm, IMBREX_F32, host);
        break;
    case PART_K_NORM:
        fill_whole(&m->weights.k_norm, IMBREX_F32, host);
        break;
    }
}

/* Collective: memory with that in it. */
static imbrex_status load(const loader *s, part which, size_t bytes, const void **out)
{
    void *device, *host = malloc(bytes + 1);
    int32_t *other = calloc((size_t)s->shape->batch, sizeof *other);
    imbrex_status status = host && other ? take(s, bytes, &device) : IMBREX_NO_MEMORY;
    if (status == IMBREX_OK) {
        fill(s, which, host, other);
        status = imbrex_copy(s->group, device, host, bytes, NULL);
        status = failure_drain(status, s->group, NULL);
        *out = device;
    }
    free(host);
    free(other);
    progress_step(s->shown);
    return status;
}

static imbrex_status load_cache(const loader *s, part which, void **out)
{
    const decode_shape *shape = s->shape;
    const void *device;
    TRY(load(s, which,
             bytes_of(s, shape->batch * shape->kv_heads * shape->context * shape->head_dim),
             &device));
    *out = (void *)(uintptr_t)device;
    return IMBREX_OK;
}

static imbrex_status load_numbers(const loader *s, part which, int64_t count, const void **out)
{
    return load(s, which, (size_t)count * sizeof(float), out);
}

static imbrex_status load_all(const loader *s, decode_operands *on)
{
    const decode_shape *shape = s->shape;
    const decode_weights *w = &s->model->weights;
    int64_t b = shape->batch, dim = shape->head_dim;
    const void *numbers;
    TRY(load(s, PART_X, bytes_of(s, b * shape->hidden), &on->x));
    TRY(load(s, PART_PROJECT, bytes_of(s, shape->width * shape->hidden), &on->project));
    TRY(load(s, PART_OUTPUT, bytes_of(s, shape->hidden * shape->own_heads * dim), &on->output));
    if (shard_has_bias(s->model))
        TRY(load(s, PART_PROJECT_BIAS, bytes_of(s, shape->width), &on->project_bias));
    if (w->o_bias.rows)
        TRY(load(s, PART_OUTPUT_BIAS, bytes_of(s, shape->hidden), &on->output_bias));
    TRY(load_cache(s, PART_K, &on->k));
    TRY(load_cache(s, PART_V, &on->v));
    TRY(load_numbers(s, PART_LENGTHS, b, &numbers));
    on->lengths = numbers;
    TRY(load_numbers(s, PART_PLACES, b, &numbers));
    on->places = numbers;
    TRY(load_numbers(s, PART_TURNS, b * dim, &numbers));
    on->turns = numbers;
    if (w->q_norm.rows) {
        TRY(load_numbers(s, PART_Q_NORM, dim, &numbers));
        on->q_norm = numbers;
        TRY(load_numbers(s, PART_K_NORM, dim, &numbers));
        on->k_norm = numbers;
    }
    TRY(take(s, bytes_of(s, b * shape->width), &on->own));
    TRY(take(s, bytes_of(s, s->ranks * b * shape->width), &on->all));
    TRY(take(s, bytes_of(s, b * shape->heads * dim), &on->q));
    TRY(take(s, bytes_of(s, b * shape->heads * dim), &on->o));
    return take(s, bytes_of(s, b * shape->hidden), &on->y);
}

int decode_operands_steps(const decode_model *m)
{
    const decode_weights *w = &m->weights;
    return 8 + (shard_has_bias(m) ? 1 : 0) + (w->o_bias.rows ? 1 : 0) + (w->q_norm.rows ? 2 : 0);
}

imbrex_status decode_operands_load(imbrex_group *group, const decode_model *model,
                                   const decode_shape *shape, progress *bar, decode_operands *out)
{
    const loader s = {
        group, model, shape, imbrex_group_rank(group), imbrex_group_size(group), bar,
    };
    decode_operands on = { .stream = out->stream };
    TRY(load_all(&s, &on));
    *out = on;
    return IMBREX_OK;
}
