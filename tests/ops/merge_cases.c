/* merge_cases.c - as the header says: each case fills memory of the device, runs, and reads the
 * results and what lies around them. */
#include "merge_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "reference.h"

enum { GUARD = 64, GUARD_BYTE = 0xa5, RUNS = 4, RANKS_MOST = 16, ALGORITHMS = 3 };

typedef struct merge_case {
    int64_t batch;
    int heads, value_dim, queries, replicate, natural, sinks, sms;
    int64_t shift; /* elements that o_partial and o lie off the alignment of 16 bytes */
} merge_case;

static const merge_case cases[] = {
    { 3, 8, 64, 1, 0, 0, 0, 0, 0 },   { 2, 8, 128, 1, 0, 1, 0, 0, 0 },
    { 1, 5, 64, 1, 0, 0, 1, 3, 0 },   { 4, 3, 33, 2, 0, 1, 1, 2, 1 }, /* ranks without heads */
    { 2, 6, 512, 1, 1, 0, 0, 0, 0 },  { 3, 7, 7, 3, 1, 1, 1, 3, 0 },
    { 300, 4, 8, 1, 0, 0, 0, 2, 0 }, /* units of several rows */
    { 2, 1, 1024, 8, 0, 0, 0, 0, 1 }, { 0, 4, 64, 1, 0, 0, 0, 0, 0 },
    { 1, 1, 1, 1, 0, 1, 0, 0, 0 },
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Of rank r: some ranks have no tokens of a state, and some states nobody has. */
static float lse_value(int r, int64_t state, int run)
{
    static const float odd[] = { -INFINITY, NAN, INFINITY, -INFINITY };
    int64_t kind = (state * 7 + run) % 11;
    if (kind == 3)
        return odd[(state + r) % 4]; /* on no rank */
    if ((state + 2 * r) % 5 == 4)
        return odd[(state / 5 + r) % 4];
    return (float)(8 * input_value(IMBREX_F32, 500 + r + 16 * run, state));
}

static float sink_value(int head)
{
    return head % 3 == 2 ? -INFINITY : (float)(3 * input_value(IMBREX_F32, 900, head));
}

static double o_value(imbrex_dtype dtype, int r, int64_t i, int run)
{
    return input_value(dtype, 100 + r + 16 * run, i);
}

/* ---- what it is to be ------------------------------------------------------------------------ */

typedef struct want {
    double o[1024], lse, size; /* size: what errors of o are counted from */
} want;

static want reference(imbrex_dtype dtype, const merge_case *c, int ranks, int64_t row, int head,
                      int run)
{
    want w = { .lse = -INFINITY };
    const double base = c->natural ? exp(1) : 2;
    int64_t state = row * c->heads + head;
    double most = -INFINITY, sum = 0;
    double sink = c->sinks ? sink_value(head) / log(base) : -INFINITY;
    for (int r = 0; r < ranks; r++)
        if (isfinite(lse_value(r, state, run)))
            most = fmax(most, lse_value(r, state, run));
    most = fmax(most, sink);
    if (!isfinite(most))
        return w;
    for (int r = 0; r < ranks; r++) {
        double lse = lse_value(r, state, run);
        double weight = isfinite(lse) ? pow(base, lse - most) : 0;
        sum += weight;
        for (int i = 0; i < c->value_dim && weight > 0; i++) {
            double o = o_value(dtype, r, state * c->value_dim + i, run);
            w.o[i] += weight * o;
            w.size += weight * fabs(o);
        }
    }
    if (isfinite(sink))
        sum += pow(base, sink - most);
    for (int i = 0; i < c->value_dim; i++)
        w.o[i] /= sum;
    w.size /= sum * c->value_dim;
    w.lse = most + log(sum) / log(base);
    return w;
}

static int check_results(imbrex_group *group, imbrex_dtype dtype, const merge_case *c, int64_t rows,
                         int run, const char *o, const float *lse, const char *algorithm)
{
    static const double half_steps[] = { 0, 0x1p-8, 0x1p-11, 0x1p-24 };
    int ranks = imbrex_group_size(group), rank = imbrex_group_rank(group);
    int first = c->replicate ? 0 : (int)rank_row(c->heads, ranks, rank);
    int end = c->replicate ? c->heads : (int)rank_row(c->heads, ranks, rank + 1), own = end - first;
    for (int64_t at = 0; at < rows * own; at++) {
        want w = reference(dtype, c, ranks, at / own, first + (int)(at % own), run);
        for (int i = 0; i < c->value_dim; i++) {
            double have = element_get(dtype, o, at * c->value_dim + i);
            double within = half_steps[dtype] * 1.02 * fabs(w.o[i]) + 3e-6 * (w.size + 1e-30) +
                            (dtype == IMBREX_F16 ? 0x1p-24 : 0);
            RANK_CHECK(fabs(have - w.o[i]) <= within,
                       "%s, dtype %d, case %d, rank %d of %d: o[%d, %d] is %.9g, not %.9g",
                       algorithm, (int)dtype, (int)(c - cases), rank, ranks, (int)at, i, have,
                       w.o[i]);
        }
        double have = lse[at];
        RANK_CHECK(have == w.lse || fabs(have - w.lse) <= 4e-6 * (1 + fabs(w.lse)),
                   "%s, case %d, rank %d of %d: lse[%d] is %.9g, not %.9g", algorithm,
                   (int)(c - cases), rank, ranks, (int)at, have, w.lse);
    }
    return 0;
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* Of the device, and the same on the host. */
typedef struct memory {
    char *o_partial, *o, *lse_partial, *lse, *sinks;
    char *host[5];
    size_t bytes[5];
} memory;

static int take_memory(imbrex_group *group, const merge_case *c, size_t element, memory *x)
{
    size_t states = (size_t)(c->batch * c->queries * c->heads);
    size_t o = (states * (size_t)c->value_dim + (size_t)c->shift) * element + 2 * GUARD;
    size_t lse = states * sizeof(float) + 2 * GUARD;
    const size_t bytes[] = { o, o, lse, lse, (size_t)c->heads * sizeof(float) };
    char **at[] = { &x->o_partial, &x->o, &x->lse_partial, &x->lse, &x->sinks };
    for (int i = 0; i < 5; i++) {
        void *piece;
        RANK_OK(imbrex_mem_alloc(group, bytes[i], &piece));
        *at[i] = piece;
        x->host[i] = malloc(bytes[i]);
        x->bytes[i] = bytes[i];
    }
    return 0;
}

static void drop_memory(imbrex_group *group, memory *x)
{
    char *const at[] = { x->o_partial, x->o, x->lse_partial, x->lse, x->sinks };
    for (int i = 0; i < 5; i++) {
        imbrex_mem_free(group, at[i]);
        free(x->host[i]);
    }
}

static int upload(imbrex_group *group, imbrex_dtype dtype, const merge_case *c, int run, memory *x)
{
    int rank = imbrex_group_rank(group);
    int64_t states = c->batch * c->queries * c->heads;
    char *o = x->host[0] + GUARD + (size_t)c->shift * element_bytes(dtype);
    float *lse = (float *)(void *)(x->host[2] + GUARD), *sinks = (float *)(void *)x->host[4];
    for (int64_t s = 0; s < states; s++) {
        lse[s] = lse_value(rank, s, run);
        for (int64_t i = s * c->value_dim; i < (s + 1) * c->value_dim; i++)
            element_set(dtype, o, i, isfinite(lse[s]) ? o_value(dtype, rank, i, run) : NAN);
    }
    for (int h = 0; h < c->heads; h++)
        sinks[h] = sink_value(h);
    memset(x->host[1], GUARD_BYTE, x->bytes[1]);
    memset(x->host[3], GUARD_BYTE, x->bytes[3]);
    char *const at[] = { x->o_partial, x->o, x->lse_partial, x->lse, x->sinks };
    for (int i = 0; i < 5; i++)
        RANK_OK(imbrex_copy(group, at[i], x->host[i], x->bytes[i], NULL));
    return 0;
}

static int intact(const char *at, size_t before, size_t bytes, size_t all)
{
    for (size_t i = 0; i < all; i++)
        RANK_CHECK((i >= before && i < before + bytes) || (unsigned char)at[i] == GUARD_BYTE,
                   "byte %zu of %zu was written", i, all);
    return 0;
}

/* Run number `run`: fewer sequences in some.  first: the bits of the first algorithm. */
static int check_run(imbrex_group *group, imbrex_plan *plan, imbrex_dtype dtype,
                     const merge_case *c, int run, memory *x, char **first, const char *algorithm)
{
    size_t element = element_bytes(dtype), before = GUARD + (size_t)c->shift * element;
    int64_t batch = run == 1 ? c->batch / 2 : c->batch, rows = batch * c->queries;
    int ranks = imbrex_group_size(group), rank = imbrex_group_rank(group);
    int64_t own = c->replicate
                      ? c->heads
                      : rank_row(c->heads, ranks, rank + 1) - rank_row(c->heads, ranks, rank);
    size_t o_bytes = (size_t)(rows * own * c->value_dim) * element;
    size_t lse_bytes = (size_t)(rows * own) * sizeof(float);
    if (upload(group, dtype, c, run, x))
        return 1;
    const imbrex_decode_args args = {
        .batch = batch ? batch : (int64_t)IMBREX_NONE,
        .o_partial = x->o_partial + before,
        .lse_partial = (const float *)(void *)(x->lse_partial + GUARD),
        .natural = c->natural,
        .sinks = c->sinks ? (const float *)(void *)x->sinks : NULL,
        .o = x->o + before,
        .lse = run == 2 ? NULL : (float *)(void *)(x->lse + GUARD),
    };
    RANK_OK(imbrex_plan_run_decode(plan, &args, NULL));
    RANK_OK(imbrex_copy(group, x->host[1], x->o, x->bytes[1], NULL));
    RANK_OK(imbrex_copy(group, x->host[3], x->lse, x->bytes[3], NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    const char *o = x->host[1] + before;
    if (intact(x->host[1], before, o_bytes, x->bytes[1]) ||
        intact(x->host[3], GUARD, args.lse ? lse_bytes : 0, x->bytes[3]))
        return 1;
    if (*first) {
        RANK_CHECK(memcmp(*first, o, o_bytes) == 0, "%s, case %d: other bits", algorithm,
                   (int)(c - cases));
        return 0;
    }
    *first = malloc(o_bytes + 1);
    memcpy(*first, o, o_bytes);
    if (!args.lse) /* to be checked all the same */
        return 0;
    return check_results(group, dtype, c, rows, run, o, (float *)(void *)(x->host[3] + GUARD),
                         algorithm);
}

static int check_case(imbrex_group *group, imbrex_dtype dtype, const merge_case *c)
{
    static const char *const one[] = { "sequential", "store", "ll" };
    static const char *const several[] = { "sequential", "hierarchical", NULL };
    int over_nodes = imbrex_group_node(group, imbrex_group_size(group) - 1) > 0, failed = 0;
    char *first[RUNS] = { 0 };
    memory x;
    if (take_memory(group, c, element_bytes(dtype), &x))
        return 1;
    for (int a = 0; a < ALGORITHMS && (over_nodes ? several : one)[a] && !failed; a++) {
        imbrex_decode_desc desc = { .batch = c->batch,
                                    .heads = c->heads,
                                    .value_dim = c->value_dim,
                                    .queries = c->queries,
                                    .dtype = dtype,
                                    .replicate = c->replicate,
                                    .algorithm = (over_nodes ? several : one)[a],
                                    .sms = c->sms };
        imbrex_plan *plan;
        RANK_OK(imbrex_plan_merge_states(group, &desc, &plan));
        for (int run = 0; run < RUNS && !failed; run++)
            failed = check_run(group, plan, dtype, c, run, &x, &first[run], desc.algorithm);
        imbrex_plan_destroy(plan);
    }
    for (int run = 0; run < RUNS; run++)
        free(first[run]);
    if (!failed)
        drop_memory(group, &x);
    return failed;
}

int merge_cases(imbrex_group *group, void *ctx)
{
    (void)ctx;
    for (int i = 0; i < CASES; i++)
        for (int dtype = IMBREX_BF16; dtype <= IMBREX_F32; dtype++)
            if ((i + dtype) % 2 == 0 || i < 4)
                if (check_case(group, (imbrex_dtype)dtype, &cases[i]))
                    return 1;
    return 0;
}
