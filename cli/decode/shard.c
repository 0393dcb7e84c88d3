/* shard.c - shares a layer out over ranks, and cuts out a rank's part of its weights and its
 * cache. */
#include <stdio.h>
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
