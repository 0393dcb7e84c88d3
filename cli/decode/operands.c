/* operands.c - shares a layer out over ranks, cuts out a rank's part of its weights and its cache,
 * and brings what its step runs on into its device's memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"

/* A rank's columns are a multiple of COLUMNS, so that rows are of 16 bytes; all rows' heads of q, k
 * and v are counted in 32 bits. */
enum { COLUMNS = 8, ROWS_MOST = 1 << 30 };

/* ---- Who has what ---------------------------------------------------------------------------- */

static int64_t all_columns(const decode_weights *w)
{
    return (int64_t)(w->heads + 2 * w->kv_heads) * w->head_dim;
}

/* The first head of the cache that a rank has, where heads are shared out. */
static int first_kv_head(const decode_weights *w, int rank, int ranks)
{
    return (int)((int64_t)rank * w->kv_heads / ranks);
}

/* The cache, with the new tokens, in float32. */
static bool is_too_large(const decode_model *m)
{
    const decode_weights *w = &m->weights;
    const int64_t sizes[] = { w->kv_heads, m->context + 1, w->head_dim, sizeof(float) };
    int64_t bytes = m->batch;
    for (int i = 0; i < 4; i++)
        if (__builtin_mul_overflow(bytes, sizes[i], &bytes))
            return true;
    return m->batch * (w->heads + 2 * (int64_t)w->kv_heads) > ROWS_MOST;
}

bool decode_shape_of(const decode_model *m, int ranks, bool by_heads, decode_shape *out, char *why,
                     size_t size)
{
    const decode_weights *w = &m->weights;
    if (is_too_large(m)) {
        snprintf(why, size,
                 "%lld sequences of %lld tokens are too many for %d heads and %d of the cache: "
                 "give fewer or shorter ones",
                 (long long)m->batch, (long long)m->context, w->heads, w->kv_heads);
        return false;
    }
    if (w->heads % ranks) {
        snprintf(why, size,
                 "the layer's %d heads cannot be shared out evenly over %d ranks: want ranks that "
                 "divide them",
                 w->heads, ranks);
        return false;
    }
    if (by_heads && w->kv_heads % ranks && ranks % w->kv_heads) {
        snprintf(why, size,
                 "the cache's %d heads cannot be shared out evenly over %d ranks: want --shard "
                 "tokens, or ranks that divide them or are a multiple",
                 w->kv_heads, ranks);
        return false;
    }
    int own_kv = w->kv_heads < ranks ? 1 : w->kv_heads / ranks;
    *out = (decode_shape){
        .batch = m->batch,
        .hidden = w->hidden,
        .context = by_heads ? m->context + 1 : m->context / ranks + 1,
        .heads = by_heads ? w->heads / ranks : w->heads,
        .kv_heads = by_heads ? own_kv : w->kv_heads,
        .own_heads = w->heads / ranks,
        .head_dim = w->head_dim,
        .dtype = m->dtype,
        .by_heads = by_heads,
        .eps = (float)w->eps,
    };
    int64_t columns = by_heads ? (int64_t)(out->heads + 2 * own_kv) * w->head_dim
                               : (all_columns(w) + ranks - 1) / ranks;
    out->width = (columns + COLUMNS - 1) / COLUMNS * COLUMNS;
    return true;
}

/* ---- Projections ----------------------------------------------------------------------------- */

typedef struct piece {
    const matrix *weight, *bias;
    int64_t row0, row1; /* of the weight */
} piece;

/* The rank's rows of q, k and v, one after the other. */
static void cut(const decode_model *m, const decode_shape *shape, int rank, int ranks,
                piece pieces[3])
{
    const decode_weights *w = &m->weights;
    const piece whole[3] = {
        { &w->q, &w->q_bias, 0, w->q.rows },
        { &w->k, &w->k_bias, 0, w->k.rows },
        { &w->v, &w->v_bias, 0, w->v.rows },
    };
    int64_t begin = rank * shape->width, end = begin + shape->width, at = 0;
    int64_t dim = w->head_dim, kv = first_kv_head(w, rank, ranks);
    for (int i = 0; i < 3; i++) {
        piece p = whole[i];
        int64_t rows = p.row1;
        if (shape->by_heads) {
            p.row0 = (i == 0 ? (int64_t)rank * shape->heads : kv) * dim;
            p.row1 = p.row0 + (i == 0 ? shape->heads : shape->kv_heads) * dim;
        } else {
            p.row0 = begin <= at ? 0 : begin - at < rows ? begin - at : rows;
            p.row1 = end <= at ? 0 : end - at < rows ? end - at : rows;
        }
        at += rows;
        pieces[i] = p;
    }
}

void shard_projections(const decode_model *m, const decode_shape *shape, int rank, int ranks,
                       void *out)
{
    size_t line = (size_t)(shape->hidden * matrix_dtype_bytes(shape->dtype));
    char *at = out;
    piece pieces[3];
    cut(m, shape, rank, ranks, pieces);
    for (int i = 0; i < 3; i++) {
        const piece *p = &pieces[i];
        matrix_copy(p->weight, p->row0, p->row1, 0, shape->hidden, shape->dtype, at, shape->hidden);
        at += (size_t)(p->row1 - p->row0) * line;
    }
    memset(at, 0, (size_t)shape->width * line - (size_t)(at - (char *)out));
}

bool shard_has_bias(const decode_model *m)
{
    const decode_weights *w = &m->weights;
    return w->q_bias.rows || w->k_bias.rows || w->v_bias.rows;
}

/* A bias lies as a row; of a projection that has none all are zero. */
void shard_projection_bias(const decode_model *m, const decode_shape *shape, int rank, int ranks,
                           void *out)
{
    size_t element = (size_t)matrix_dtype_bytes(shape->dtype);
    char *at = out;
    piece pieces[3];
    memset(out, 0, (size_t)shape->width * element);
    cut(m, shape, rank, ranks, pieces);
    for (int i = 0; i < 3; i++) {
        const piece *p = &pieces[i];
        if (p->bias->rows)
            matrix_copy(p->bias, 0, 1, p->row0, p->row1, shape->dtype, at, p->row1 - p->row0);
        at += (size_t)(p->row1 - p->row0) * element;
    }
}

void shard_output(const decode_model *m, const decode_shape *shape, int rank, void *out)
{
    int64_t columns = (int64_t)shape->own_heads * shape->head_dim;
    matrix_copy(&m->weights.o, 0, shape->hidden, rank * columns, (rank + 1) * columns, shape->dtype,
                out, columns);
}

/* ---- The cache ------------------------------------------------------------------------------- */

void shard_cache(const decode_model *m, const decode_shape *shape, const matrix *cache, int rank,
                 int ranks, void *out)
{
    int64_t all = m->weights.kv_heads, dim = shape->head_dim, step = shape->by_heads ? 1 : ranks;
    int first = shape->by_heads ? first_kv_head(&m->weights, rank, ranks) : 0;
    size_t line = (size_t)(dim * matrix_dtype_bytes(shape->dtype));
    char *at = out;
    memset(out, 0, (size_t)(shape->batch * shape->kv_heads * shape->context) * line);
    for (int64_t head = 0; head < shape->batch * shape->kv_heads; head++) {
        int64_t s = head / shape->kv_heads, h = first + head % shape->kv_heads;
        for (int64_t t = shape->by_heads ? 0 : rank; t < m->lengths[s]; t += step) {
            int64_t row = (s * all + h) * m->context + t;
            matrix_copy(cache, row, row + 1, 0, dim, shape->dtype,
                        at + (size_t)(head * shape->context + t / step) * line, dim);
        }
    }
}

void shard_lengths(const decode_model *m, const decode_shape *shape, int rank, int ranks,
                   int32_t *lengths, int32_t *places)
{
    for (int64_t s = 0; s < shape->batch; s++) {
        int64_t step = shape->by_heads ? 1 : ranks, first = shape->by_heads ? 0 : rank;
        int64_t fresh = m->lengths[s]; /* the new token's position */
        lengths[s] = (int32_t)((fresh + 1 + step - 1 - first) / step);
        places[s] = fresh % step == first ? (int32_t)(fresh / step) : -1;
    }
}

/* ---- Turns ----------------------------------------------------------------------------------- */

static const double pi = 3.14159265358979323846;

/* Waves that are short beside the first context stay, long ones are stretched by the factor, and
 * those between go from one to the other. */
static double stretch(const decode_rope *rope, double frequency)
{
    double waves = rope->original * frequency / (2 * pi); /* in the first context */
    if (waves > rope->high)
        return frequency;
    if (waves < rope->low)
        return frequency / rope->factor;
    double kept = (waves - rope->low) / (rope->high - rope->low);
    return kept * frequency + (1 - kept) * frequency / rope->factor;
}

void decode_rope_turns(const decode_rope *rope, int head_dim, int64_t position, float *turns)
{
    int pairs = head_dim / 2;
    for (int i = 0; i < pairs; i++) {
        double frequency = pow(rope->theta, -2.0 * i / head_dim);
        if (rope->kind == DECODE_ROPE_LINEAR)
            frequency /= rope->factor;
        if (rope->kind == DECODE_ROPE_LLAMA3)
            frequency = stretch(rope, frequency);
        turns[i] = (float)cos((double)position * frequency);
        turns[pairs + i] = (float)sin((double)position * frequency);
    }
}

/* ---- All of it, in memory of the device ------------------------------------------------------ */

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
