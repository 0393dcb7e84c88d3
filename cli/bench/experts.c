/* experts.c - chooses ids, and asks the operator that gathers where their pairs lie. */
#include "experts.h"

#include <math.h>
#include <stdlib.h>

#include "cli.h"

struct bench_experts {
    imbrex_group *group;
    void *memory;
    const int32_t *ids[2]; /* of all tokens: in the group, and alone */
    int64_t own_first;     /* token */
    imbrex_routing routing[2];
};

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

imbrex_status bench_experts_open(const bench_data *data, imbrex_group *alone, const bench_shape *s,
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

void bench_experts_close(bench_experts *x)
{
    if (x && x->memory)
        imbrex_mem_free(x->group, x->memory);
    free(x);
}

void bench_experts_args(const bench_experts *x, const bench_shape *s, bool alone, imbrex_args *args)
{
    args->routing = &x->routing[alone];
    if (s->op->a_is_shard)
        args->ids = x->ids[alone] + (alone ? 0 : x->own_first * s->top_k);
}
