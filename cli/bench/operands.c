/* operands.c - lays out sets of operands, fills the first and copies it to the others: matrices;
 * where tokens go, of operators with experts; queries, cache and states of attention. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "candidates.h"
#include "cli.h"
#include "matrix.h"

/* All sets together are larger than the caches of most machines, and several times those of a GPU;
 * very small ones need not be. */
enum { BYTES_WANTED = 64 << 20, BYTES_WANTED_CUDA = 256 << 20, SETS_MOST = 1024, ALIGNMENT = 256 };

static size_t matrix_bytes(imbrex_dtype dtype, int64_t rows, int64_t cols)
{
    return (size_t)(rows * cols * matrix_dtype_bytes(dtype));
}

/* The place of the next matrix. */
static size_t place(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end = (at + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

/* How many sets there are. */
static int count_sets(imbrex_group *group, size_t set_bytes, int most)
{
    bool gpu = strncmp(imbrex_group_device(group), "cuda", 4) == 0;
    size_t wanted = gpu ? BYTES_WANTED_CUDA : BYTES_WANTED;
    size_t count = (wanted + set_bytes - 1) / set_bytes;
    return count > (size_t)most ? most : (int)count;
}

/* ==== Tokens and their experts ================================================================ */

/* Ids that are alike on all ranks; the operator that gathers is asked where their pairs lie, in the
 * group and for one rank alone. */
typedef struct bench_experts {
    imbrex_group *group;
    void *memory;
    const int32_t *ids[2]; /* of all tokens: in the group, and alone */
    int64_t own_first;     /* token */
    imbrex_routing routing[2];
} bench_experts;

/* ---- ids ------------------------------------------------------------------------------------- */

/* From 0 to 1, the same numbers on all ranks. */
static double next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 24);
}

/* upto[e]: of all choices those up to expert e. */
static void weigh(const bench_shape *s, double *upto)
{
    double sum = 0;
    for (int e = 0; e < s->experts; e++)
        upto[e] = sum += pow(e + 1, -s->skew);
    for (int e = 0; e < s->experts; e++)
        upto[e] /= sum;
}

/* One that the token does not have yet: the next free one from where chance points to. */
static int32_t choose(const bench_shape *s, const double *upto, uint64_t *state, const int32_t *had,
                      int count)
{
    double x = next(state);
    int32_t e = 0;
    while (e + 1 < s->experts && upto[e] <= x)
        e++;
    for (int i = 0; i < count; i++) {
        if (had[i] == e) {
            e = (e + 1) % s->experts;
            i = -1;
        }
    }
    return e;
}

static void choose_all(const bench_shape *s, const double *upto, int32_t *ids)
{
    uint64_t state = 1;
    for (int64_t i = 0; i < s->m * s->top_k; i++) {
        int place = (int)(i % s->top_k);
        ids[i] = choose(s, upto, &state, &ids[i - place], place);
    }
}

/* What a rank has of them when it is alone: ids of its own experts, counted from the first. */
static void keep_own(const bench_shape *s, int rank, int ranks, const int32_t *ids, int32_t *own)
{
    int64_t first = s->whole ? (int64_t)rank * s->experts / ranks : 0;
    int64_t end = s->whole ? (int64_t)(rank + 1) * s->experts / ranks : s->experts;
    for (int64_t i = 0; i < s->m * s->top_k; i++)
        own[i] = ids[i] >= first && ids[i] < end ? (int32_t)(ids[i] - first) : -1;
}

/* ---- memory: | ids | ids alone | routing | routing alone |, in words of 4 bytes -------------- */

static int64_t routing_words(const bench_shape *s)
{
    return 2 * (s->experts + 1) + bench_op_rows(s) + 3 * s->m * s->top_k;
}

static imbrex_routing routing_at(const bench_shape *s, int32_t *at)
{
    imbrex_routing r = { .expert_begin = at };
    r.expert_rows = r.expert_begin + s->experts + 1;
    r.row_pair = r.expert_rows + s->experts + 1;
    r.pair_row = r.row_pair + bench_op_rows(s);
    r.pair_expert = r.pair_row + s->m * s->top_k;
    r.weights = (float *)(void *)(r.pair_expert + s->m * s->top_k);
    return r;
}

static imbrex_status send_ids(bench_experts *x, const bench_shape *s)
{
    int64_t pairs = s->m * s->top_k;
    int rank = imbrex_group_rank(x->group), ranks = imbrex_group_size(x->group);
    int32_t *ids = malloc((size_t)(2 * pairs) * sizeof *ids);
    double *upto = malloc((size_t)s->experts * sizeof *upto);
    imbrex_status status = IMBREX_NO_MEMORY;
    if (ids && upto) {
        weigh(s, upto);
        choose_all(s, upto, ids);
        keep_own(s, rank, ranks, ids, ids + pairs);
        status = imbrex_copy(x->group, x->memory, ids, (size_t)(2 * pairs) * sizeof *ids, NULL);
        status = failure_drain(status, x->group, NULL);
    }
    free(ids);
    free(upto);
    return status;
}

/* On operands that are in data's first set for the time being: tokens of one column, and rows by
 * expert where the set has room for as many. */
static imbrex_status route(bench_experts *x, const bench_data *data, imbrex_group *group,
                           const bench_shape *s, bool alone)
{
    imbrex_plan *plan = NULL;
    char *a = data->sets, *c = data->sets + data->c;
    imbrex_args args = { .b = data->sets + data->b, .m = s->m };
    args.a = s->op->a_is_shard ? a : c;
    args.c = s->op->a_is_shard ? c : a;
    TRY(bench_op_router(group, s, alone ? imbrex_group_size(x->group) : 0, &plan));
    args.ids = x->ids[alone] + (alone ? 0 : x->own_first * s->top_k);
    args.routing = &x->routing[alone];
    imbrex_status status = imbrex_plan_run(plan, &args, NULL);
    status = failure_drain(status, group, NULL);
    imbrex_plan_destroy(plan);
    return status;
}

static imbrex_status experts_open(const bench_data *data, imbrex_group *alone, const bench_shape *s,
                                  bench_experts **out)
{
    int64_t pairs = s->m * s->top_k, words = 2 * pairs + 2 * routing_words(s);
    bench_experts *x = calloc(1, sizeof *x);
    if (!x)
        return IMBREX_NO_MEMORY;
    *out = x;
    x->group = data->group;
    x->own_first = imbrex_group_rank(x->group) * s->m / imbrex_group_size(x->group);
    TRY(imbrex_mem_alloc(x->group, (size_t)words * sizeof(int32_t), &x->memory));
    int32_t *at = x->memory;
    for (int i = 0; i < 2; i++) {
        x->ids[i] = at + i * pairs;
        x->routing[i] = routing_at(s, at + 2 * pairs + i * routing_words(s));
    }
    TRY(send_ids(x, s));
    TRY(route(x, data, x->group, s, false));
    return route(x, data, alone, s, true);
}

static void experts_close(bench_experts *x)
{
    if (x && x->memory)
        imbrex_mem_free(x->group, x->memory);
    free(x);
}

static void experts_args(const bench_experts *x, const bench_shape *s, bool alone,
                         imbrex_args *args)
{
    args->routing = &x->routing[alone];
    if (s->op->a_is_shard)
        args->ids = x->ids[alone] + (alone ? 0 : x->own_first * s->top_k);
}

/* ==== Attention =============================================================================== */

/* Pages, in no order, and lengths are alike in all sets. */
enum { STATES_MOST = 256 };

/* Offsets in a set: q or o_partial, k, v, lse_partial; and of what all sets share. */
typedef struct bench_states {
    imbrex_group *group;
    char *shared;
    size_t k, v, o, lse_partial, lse;
    size_t lengths;
    int64_t pages; /* of a sequence; 0: there are none */
} bench_states;

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

static size_t lay_out_states(bench_states *x, const bench_shape *s)
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

static imbrex_status fill_part(const bench_data *data, uint64_t seed, imbrex_dtype dtype, char *to,
                               size_t bytes)
{
    return matrix_fill(data->group, to, dtype, (int64_t)bytes / matrix_dtype_bytes(dtype), seed);
}

static imbrex_status fill_set(const bench_data *data, const bench_shape *s, char *set)
{
    const bench_states *x = data->states;
    uint64_t seed = 4 * (uint64_t)imbrex_group_rank(data->group);
    TRY(fill_part(data, s->op->cache ? 1 : seed, s->dtype, set, x->k));
    if (x->v > x->k)
        TRY(fill_part(data, seed + 1, s->dtype, set + x->k, x->v - x->k));
    if (x->lse_partial > x->v)
        TRY(fill_part(data, seed + 2, s->dtype, set + x->v, x->lse_partial - x->v));
    return fill_part(data, seed + 3, IMBREX_F32, set + x->lse_partial, x->o - x->lse_partial);
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

static imbrex_status states_open(imbrex_group *group, const bench_shape *s, bench_data *out)
{
    bench_data data = { .group = group };
    bench_states *x = calloc(1, sizeof *x);
    if (!x)
        return IMBREX_NO_MEMORY;
    x->group = group;
    x->pages = s->op->cache && s->page ? (s->n + s->page - 1) / s->page : 0;
    data.set_bytes = lay_out_states(x, s);
    data.count = count_sets(group, data.set_bytes, STATES_MOST);
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

static void states_close(bench_states *x)
{
    if (x && x->shared)
        imbrex_mem_free(x->group, x->shared);
    free(x);
}

imbrex_decode_args bench_data_states(const bench_data *data, const bench_shape *s, int64_t i)
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

/* ==== Matrices ================================================================================ */

/* Rows by expert come in or go out where tokens do not. */
static int64_t a_rows(const bench_shape *s)
{
    return s->op->experts && !s->op->a_is_shard ? bench_op_rows(s) : s->m;
}

static int64_t b_rows(const bench_shape *s, int ranks)
{
    return s->op->experts ? (s->k ? s->k : 1) * bench_op_experts(s, ranks) : s->k;
}

static int64_t c_rows(const bench_shape *s)
{
    return s->op->experts && s->op->a_is_shard ? bench_op_rows(s) : s->m;
}

static imbrex_status fill(const bench_data *data, uint64_t seed, imbrex_dtype dtype, int64_t rows,
                          int64_t cols, size_t at)
{
    return matrix_fill(data->group, data->sets + at, dtype, rows * cols, seed);
}

static imbrex_status fill_all(const bench_data *data, const bench_shape *s)
{
    uint64_t seed = 3 * (uint64_t)imbrex_group_rank(data->group);
    int ranks = imbrex_group_size(data->group);
    TRY(fill(data, seed, s->dtype, a_rows(s), s->op->product ? s->k : s->n, 0));
    if (s->op->product) {
        TRY(fill(data, seed + 1, s->dtype, b_rows(s, ranks), s->n, data->b));
        TRY(fill(data, seed + 2, bench_op_out(s), 1, s->n, data->bias));
    }
    if (s->norm) {
        TRY(fill(data, 1, bench_op_out(s), 1, s->n, data->gamma));
        TRY(fill(data, 2, bench_op_out(s), s->m, s->n, data->residual));
    }
    if (s->scaling) { /* a tensor's is alike on all ranks */
        TRY(fill(data, 1, IMBREX_F32, 1, bench_op_scales_of_a(s, a_rows(s)), data->scales_a));
        TRY(fill(data, 2, IMBREX_F32, 1, bench_op_scales_of_b(s, ranks), data->scales_b));
    }
    for (int i = 1; i < data->count; i++)
        TRY(imbrex_copy(data->group, data->sets + (size_t)i * data->set_bytes, data->sets, data->c,
                        NULL));
    return imbrex_stream_sync(data->group, NULL);
}

imbrex_status bench_data_open(imbrex_group *group, imbrex_group *alone, const bench_shape *s,
                              bench_data *out)
{
    bench_data data = { .group = group };
    if (s->op->states)
        return states_open(group, s, out);
    int64_t width = s->op->product ? s->k : s->n;
    int64_t row = imbrex_group_rank(group) * s->m / imbrex_group_size(group);
    size_t end = 0;
    const imbrex_dtype of_c = bench_op_out(s), f32 = IMBREX_F32;
    bool per_row = s->op->a_is_shard && s->scaling != IMBREX_PER_TENSOR;
    int64_t of_b = s->op->product || s->op->experts ? b_rows(s, imbrex_group_size(group)) : 0;
    place(&end, matrix_bytes(s->dtype, a_rows(s), width));
    data.own = s->op->a_is_shard ? matrix_bytes(s->dtype, row, width) : 0;
    data.b = place(&end, matrix_bytes(s->dtype, of_b, s->n));
    data.bias = place(&end, s->op->product ? matrix_bytes(of_c, 1, s->n) : 0);
    data.scales_a = place(&end, matrix_bytes(f32, 1, bench_op_scales_of_a(s, a_rows(s))));
    data.own_scales = per_row ? matrix_bytes(f32, 1, bench_op_scales_of_a(s, row)) : 0;
    data.scales_b =
        place(&end, matrix_bytes(f32, 1, bench_op_scales_of_b(s, imbrex_group_size(group))));
    data.gamma = place(&end, s->norm ? matrix_bytes(of_c, 1, s->n) : 0);
    data.residual = place(&end, s->norm ? matrix_bytes(of_c, s->m, s->n) : 0);
    data.h = place(&end, s->norm ? matrix_bytes(of_c, s->m, s->n) : 0);
    /* Of blocks of all ranks it may have a row more of each. */
    data.c = place(&end, matrix_bytes(of_c, c_rows(s) + imbrex_group_size(group), s->n));
    data.set_bytes = end;
    data.count = count_sets(group, end, SETS_MOST);

    void *sets;
    TRY(imbrex_mem_alloc(group, (size_t)data.count * end, &sets));
    data.sets = sets;
    *out = data;
    if (s->op->experts)
        TRY(experts_open(out, alone, s, &out->experts));
    return fill_all(out, s);
}

void bench_data_close(bench_data *data)
{
    experts_close(data->experts);
    states_close(data->states);
    data->experts = NULL;
    data->states = NULL;
    if (data->group)
        imbrex_mem_free(data->group, data->sets);
    data->group = NULL;
}

static const float *of_scales(const void *at)
{
    return at;
}

imbrex_args bench_data_args(const bench_data *data, const bench_shape *s, int64_t i, bool whole)
{
    char *set = data->sets + (size_t)(i % data->count) * data->set_bytes;
    imbrex_args args = {
        .a = set + (whole ? 0 : data->own),
        .b = s->op->product ? set + data->b : NULL,
        .bias = s->bias && !whole ? set + data->bias : NULL,
        .gamma = s->norm && !whole ? set + data->gamma : NULL,
        .residual = s->norm && !whole ? set + data->residual : NULL,
        .h = s->norm && !whole ? set + data->h : NULL,
        .scale_a =
            s->scaling ? of_scales(set + data->scales_a + (whole ? 0 : data->own_scales)) : NULL,
        .scale_b = s->scaling ? of_scales(set + data->scales_b) : NULL,
        .c = set + data->c,
        .m = bench_op_exchanges(s->op) ? 0 : s->m,
        .own = bench_op_exchanges(s->op) ? s->m / imbrex_group_size(data->group) : 0,
    };
    if (data->experts)
        experts_args(data->experts, s, whole, &args);
    return args;
}
