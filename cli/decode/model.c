/* model.c - opens what `imbrex decode` computes on, and checks that it fits together. */
#include "decode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

enum { CONTEXT_MOST = 1 << 24, BATCH_MOST = 1 << 16, HEADS_MOST = 1 << 16, GROUP_MOST = 16 };

/* ---- Random ones ----------------------------------------------------------------------------- */

enum { SEED_Q = 1, SEED_K, SEED_V, SEED_O, SEED_X, SEED_CACHED_K, SEED_CACHED_V };

static matrix random_weight(uint64_t seed, int64_t rows, int64_t cols)
{
    return matrix_random(seed, rows, cols, 1 / sqrt((double)cols));
}

static bool parse(const char *text, int count, const int64_t *most, int64_t *sizes)
{
    for (int i = 0; i < count; i++) {
        char *end;
        sizes[i] = strtoll(text, &end, 10);
        if (end == text || *end != (i + 1 < count ? ',' : 0) || sizes[i] < 1 || sizes[i] > most[i])
            return false;
        text = end + 1;
    }
    return true;
}

bool decode_model_parse_shape(const char *text, int64_t sizes[4])
{
    return parse(text, 4, (const int64_t[]){ 1 << 20, HEADS_MOST, HEADS_MOST, 256 }, sizes);
}

bool decode_model_parse_sequences(const char *text, int64_t sizes[2])
{
    return parse(text, 2, (const int64_t[]){ BATCH_MOST, CONTEXT_MOST }, sizes);
}

static void make_weights(const int64_t sizes[4], decode_weights *w)
{
    int64_t q = sizes[1] * sizes[3], kv = sizes[2] * sizes[3];
    *w = (decode_weights){
        .hidden = sizes[0],
        .heads = (int)sizes[1],
        .kv_heads = (int)sizes[2],
        .head_dim = (int)sizes[3],
        .q = random_weight(SEED_Q, q, sizes[0]),
        .k = random_weight(SEED_K, kv, sizes[0]),
        .v = random_weight(SEED_V, kv, sizes[0]),
        .o = random_weight(SEED_O, sizes[0], q),
        .rope = { .theta = 10000 },
    };
}

/* ---- The input ------------------------------------------------------------------------------- */

static const st_tensor *find(const decode_model *m, const char *name, int rank, st_error *error)
{
    const char *path = st_path_tail(st_path(m->input_file));
    const st_tensor *found = st_find(m->input_file, name);
    if (!found) {
        st_fail(error, "%s: has no tensor %s: want x, k and v", path, name);
        return NULL;
    }
    if (found->dtype > ST_F32) {
        st_fail(error, "%s: %s is %s: convert it to BF16, F16 or F32", path, name,
                st_dtype_name(found->dtype));
        return NULL;
    }
    if (found->rank != rank) {
        st_fail(error, "%s: %s has %d dimension%s: want %d", path, name, found->rank,
                found->rank == 1 ? "" : "s", rank);
        return NULL;
    }
    return found;
}

/* k or v, [batch, kv_heads, context, head_dim] as caches of Hugging Face's code lie. */
static bool read_cached(decode_model *m, const char *name, matrix *out, st_error *error)
{
    const st_tensor *t = find(m, name, 4, error);
    if (!t)
        return false;
    const int64_t *shape = t->shape;
    const char *path = st_path_tail(st_path(m->input_file));
    if (shape[1] > HEADS_MOST || shape[2] > CONTEXT_MOST)
        return st_fail(error,
                       "%s: %s has %" PRId64 " heads and %" PRId64
                       " tokens of a sequence: want at most %d and %d",
                       path, name, shape[1], shape[2], HEADS_MOST, CONTEXT_MOST);
    if (m->context < 0) {
        m->cached_heads = shape[1];
        m->context = shape[2];
    }
    if (shape[0] != m->batch || shape[1] != m->cached_heads || shape[2] != m->context)
        return st_fail(error,
                       "%s: %s is [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                       "]: want %" PRId64 " sequences, as x has, of %" PRId64 " heads and %" PRId64
                       " tokens, as k has",
                       path, name, shape[0], shape[1], shape[2], shape[3], m->batch,
                       m->cached_heads, m->context);
    *out = (matrix){ .rows = shape[0] * shape[1] * shape[2],
                     .cols = shape[3],
                     .dtype = st_dtype_imbrex(t->dtype),
                     .data = t->data };
    return true;
}

/* How many of a sequence's tokens are there: lengths[batch], or all. */
static bool read_lengths(decode_model *m, st_error *error)
{
    const st_tensor *t = st_find(m->input_file, "lengths");
    const char *path = st_path_tail(st_path(m->input_file));
    for (int64_t s = 0; s < m->batch; s++)
        m->lengths[s] = m->context;
    if (!t)
        return true;
    if ((t->dtype != ST_I32 && t->dtype != ST_I64) || t->rank != 1 || t->shape[0] != m->batch)
        return st_fail(error,
                       "%s: lengths must be [%" PRId64 "] of I32 or I64, one of each row "
                       "of x",
                       path, m->batch);
    for (int64_t s = 0; s < m->batch; s++) {
        int32_t narrow;
        if (t->dtype == ST_I64) {
            memcpy(&m->lengths[s], (const int64_t *)t->data + s, sizeof m->lengths[s]);
        } else {
            memcpy(&narrow, (const int32_t *)t->data + s, sizeof narrow);
            m->lengths[s] = narrow;
        }
        if (m->lengths[s] < 0 || m->lengths[s] > m->context)
            return st_fail(error,
                           "%s: lengths[%" PRId64 "] is %" PRId64 ": want from 0 to the %" PRId64
                           " tokens of k",
                           path, s, m->lengths[s], m->context);
    }
    return true;
}

static bool take_lengths(decode_model *m, st_error *error)
{
    m->lengths = calloc((size_t)(m->batch ? m->batch : 1), sizeof *m->lengths);
    return m->lengths || st_fail(error, "no memory is left for the lengths of the sequences");
}

static bool read_input(const decode_source *q, decode_model *m, st_error *error)
{
    if (!st_open(q->input, &m->input_file, error))
        return false;
    const st_tensor *x = find(m, "x", 2, error);
    if (!x || !st_matrix(m->input_file, x, &m->x, error))
        return false;
    m->batch = m->x.rows;
    m->context = -1;
    if (m->batch < 1 || m->batch > BATCH_MOST)
        return st_fail(error, "%s: x has %" PRId64 " rows: want from 1 to %d, one of a sequence",
                       st_path_tail(q->input), m->batch, BATCH_MOST);
    return take_lengths(m, error) && read_cached(m, "k", &m->k, error) &&
           read_cached(m, "v", &m->v, error) && read_lengths(m, error);
}

static bool check_input(const decode_source *q, const decode_model *m, st_error *error)
{
    const decode_weights *w = &m->weights;
    const matrix *caches[] = { &m->k, &m->v };
    if (m->x.cols != w->hidden)
        return st_fail(error,
                       "%s: x has %" PRId64 " columns, but the layer's hidden size is %" PRId64
                       ": give an --input made for this model",
                       st_path_tail(q->input), m->x.cols, w->hidden);
    for (int i = 0; i < 2; i++)
        if (caches[i]->cols != w->head_dim || m->cached_heads != w->kv_heads)
            return st_fail(error,
                           "%s: %c has %" PRId64 " heads of %" PRId64 " numbers: want [%" PRId64
                           ", %d, %" PRId64 ", %d] for this layer",
                           st_path_tail(q->input), "kv"[i], m -> cached_heads, caches[i] -> cols,
                           m -> batch, w -> kv_heads, m -> context, w -> head_dim);
    return true;
}

static bool make_input(const decode_source *q, decode_model *m, st_error *error)
{
    int64_t sizes[2];
    if (!decode_model_parse_sequences(q->sequences, sizes))
        return st_fail(error, "--sequences is '%s': want BATCH,CONTEXT", q->sequences);
    m->batch = sizes[0];
    m->context = sizes[1];
    if (!take_lengths(m, error))
        return false;
    for (int64_t s = 0; s < m->batch; s++)
        m->lengths[s] = m->context;
    return true;
}

static void make_tokens(decode_model *m)
{
    int64_t rows = m->batch * m->weights.kv_heads * m->context;
    m->x = matrix_random(SEED_X, m->batch, m->weights.hidden, 1);
    m->k = matrix_random(SEED_CACHED_K, rows, m->weights.head_dim, 1);
    m->v = matrix_random(SEED_CACHED_V, rows, m->weights.head_dim, 1);
}

/* ---- The layer ------------------------------------------------------------------------------- */

/* What flash_decode takes. */
static bool check_heads(const decode_weights *w, st_error *error)
{
    if (w->heads % w->kv_heads)
        return st_fail(error,
                       "the layer has %d heads and %d of the cache: want a multiple of these",
                       w->heads, w->kv_heads);
    if (w->heads / w->kv_heads > GROUP_MOST)
        return st_fail(error, "the layer has %d heads for each of the cache: want at most %d",
                       w->heads / w->kv_heads, GROUP_MOST);
    return w->head_dim == 64 || w->head_dim == 128 || w->head_dim == 256 ||
           st_fail(error, "the layer's heads are of %d numbers: want 64, 128 or 256", w->head_dim);
}

static bool open_layer(const decode_source *q, decode_model *m, st_error *error)
{
    const char *file = strrchr(q->weights, '/');
    int layer = (int)q->layer;
    snprintf(m->name, sizeof m->name, "%s, layer %d", file && file[1] ? file + 1 : q->weights,
             layer);
    return checkpoint_open(q->weights, &m->weights_file, error) &&
           decode_layer_find(m->weights_file, q->prefix, layer, &m->weights, m->prefix, error) &&
           decode_config_apply(m->weights_file, layer, m->context + 1, &m->weights, error) &&
           decode_layer_check(m->weights_file, layer, &m->weights, error);
}

bool decode_model_open(const decode_source *q, decode_model *m, st_error *error)
{
    int64_t sizes[4];
    *m = (decode_model){ .dtype = IMBREX_F32, .name = "random weights" };
    if (!(q->sequences ? make_input : read_input)(q, m, error))
        return false;
    if (q->shape && !decode_model_parse_shape(q->shape, sizes))
        return st_fail(error, "--shape is '%s': want HIDDEN,HEADS,KV_HEADS,HEAD_DIM", q->shape);
    if (q->shape)
        make_weights(sizes, &m->weights);
    else if (!open_layer(q, m, error))
        return false;
    if (!check_heads(&m->weights, error))
        return false;
    if (q->sequences)
        make_tokens(m);
    else if (!check_input(q, m, error))
        return false;
    m->dtype = q->shape ? IMBREX_F32 : m->weights.q.dtype;
    if (q->dtype)
        m->dtype = (imbrex_dtype)options_index(matrix_dtype_names, MATRIX_DTYPES, q->dtype);
    return true;
}

void decode_model_close(decode_model *m)
{
    checkpoint_close(m->weights_file);
    st_close(m->input_file);
    free(m->lengths);
}
