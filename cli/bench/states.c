/* states.c - lays out sets of queries, cache and results; pages, in no order, and lengths are alike
 * in all of them. */
#include "states.h"

#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "matrix.h"

enum { BYTES_WANTED = 64 << 20, BYTES_WANTED_CUDA = 256 << 20, SETS_MOST = 256, ALIGNMENT = 256 };

/* Offsets in a set: q or o_partial, k, v, lse_partial; and of what all sets share. */
struct bench_states {
    imbrex_group *group;
    char *shared;
    size_t k, v, o, lse_partial, lse;
    size_t lengths;
    int64_t pages; /* of a sequence; 0: there are none */
};

static size_t place(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end = (at + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static size_t bytes_of(const bench_shape *s, int64_t elements)
{
    return (size_t)elements * (size_t)matrix_dtype_bytes(s->dtype);
}

/* Elements of k. */
static int64_t cache_of(const bench_states *x, const bench_shape *s)
{
    int64_t tokens = x->pages ? x->pages * s->page : s->n;
    return s->op->cache ? s->m * tokens * s->kv_heads * s->head_dim : 0;
}

static size_t lay_out(bench_states *x, const bench_shape *s)
{
    int64_t states = s->m * s->heads, values = bench_op_value_dim(s);
    size_t end = 0, cache = bytes_of(s, cache_of(x, s));
    place(&end, bytes_of(s, states * s->head_dim));
    x->k = place(&end, cache);
    x->v = place(&end, values == s->head_dim ? cache : 0);
    x->lse_partial = place(&end, (size_t)states * sizeof(float));
    x->o = place(&end, bytes_of(s, states * values));
    x->lse = place(&end, (size_t)states * sizeof(float));
    return end;
}

/* ---- values ---------------------------------------------------------------------------------- */

static imbrex_status fill(const bench_data *data, uint64_t seed, imbrex_dtype dtype, char *to,
                          size_t bytes)
{
    return matrix_fill(data->group, to, dtype, (int64_t)bytes / matrix_dtype_bytes(dtype), seed);
}

static imbrex_status fill_set(const bench_data *data, const bench_shape *s, char *set)
{
    const bench_states *x = data->states;
    uint64_t seed = 4 * (uint64_t)imbrex_group_rank(data->group);
    TRY(fill(data, s->op->cache ? 1 : seed, s->dtype, set, x->k));
    if (x->v > x->k)
        TRY(fill(data, seed + 1, s->dtype, set + x->k, x->v - x->k));
    if (x->lse_partial > x->v)
        TRY(fill(data, seed + 2, s->dtype, set + x->v, x->lse_partial - x->v));
    return fill(data, seed + 3, IMBREX_F32, set + x->lse_partial, x->o - x->lse_partial);
}

/* | pages [m, pages] | lengths [m] |: page i lies where i times a prime leads to. */
static imbrex_status share_out(bench_data *data, const bench_shape *s)
{
    enum { PRIME = 1000003 };
    bench_states *x = data->states;
    int64_t pages = s->m * x->pages;
    size_t bytes = (size_t)(pages + s->m) * sizeof(int32_t);
    int32_t *host = malloc(bytes);
    void *shared;
    if (!host)
        return IMBREX_NO_MEMORY;
    for (int64_t i = 0; i < pages; i++)
        host[i] = (int32_t)(pages % PRIME ? i * PRIME % pages : i);
    for (int64_t i = 0; i < s->m; i++)
        host[pages + i] = (int32_t)s->n;
    x->lengths = (size_t)pages * sizeof(int32_t);
    imbrex_status status = imbrex_mem_alloc(data->group, bytes, &shared);
    if (status == IMBREX_OK) {
        x->shared = shared;
        status = imbrex_copy(data->group, x->shared, host, bytes, NULL);
        status = failure_drain(status, data->group, NULL);
    }
    free(host);
    return status;
}

/* ---- sets ------------------------------------------------------------------------------------ */

imbrex_status bench_states_open(imbrex_group *group, const bench_shape *s, bench_data *out)
{
    bench_data data = { .group = group };
    bench_states *x = calloc(1, sizeof *x);
    if (!x)
        return IMBREX_NO_MEMORY;
    x->group = group;
    x->pages = s->op->cache && s->page ? (s->n + s->page - 1) / s->page : 0;
    bool gpu = strncmp(imbrex_group_device(group), "cuda", 4) == 0;
    size_t wanted = gpu ? BYTES_WANTED_CUDA : BYTES_WANTED;
    data.set_bytes = lay_out(x, s);
    size_t count = (wanted + data.set_bytes - 1) / data.set_bytes;
    data.count = count > SETS_MOST ? SETS_MOST : (int)count;
    void *sets;
    imbrex_status status = imbrex_mem_alloc(group, (size_t)data.count * data.set_bytes, &sets);
    if (status != IMBREX_OK) {
        free(x);
        return status;
    }
    data.sets = sets;
    data.states = x;
    *out = data;
    TRY(share_out(out, s));
    TRY(fill_set(out, s, out->sets));
    for (int i = 1; i < out->count; i++)
        TRY(imbrex_copy(group, out->sets + (size_t)i * out->set_bytes, out->sets, x->o, NULL));
    return imbrex_stream_sync(group, NULL);
}

void bench_states_close(bench_states *x)
{
    if (x && x->shared)
        imbrex_mem_free(x->group, x->shared);
    free(x);
}

imbrex_decode_args bench_states_args(const bench_data *data, const bench_shape *s, int64_t i)
{
    const bench_states *x = data->states;
    char *set = data->sets + (size_t)(i % data->count) * data->set_bytes;
    imbrex_decode_args args = { .batch = s->m,
                                .o = set + x->o,
                                .lse = (float *)(void *)(set + x->lse) };
    if (!s->op->cache) {
        args.o_partial = set;
        args.lse_partial = (const float *)(const void *)(set + x->lse_partial);
        return args;
    }
    args.q = set;
    args.k = set + x->k;
    args.v = x->lse_partial > x->v ? set + x->v : NULL;
    args.lengths = (const int32_t *)(const void *)(x->shared + x->lengths);
    if (x->pages) {
        args.pages = (const int32_t *)(const void *)x->shared;
        args.page_stride = x->pages;
        args.page_count = s->m * x->pages;
    }
    return args;
}
