/* experts.c - where a room has what, and what is in it. */
#include "experts.h"

#include <string.h>

#include "plan/plan.h"
#include "ranks.h"
#include "reference.h"

enum { TOKENS = 10 /* a rank */, K = 24, N = 16, EXPERTS = 7, TOP_K = 3, ELEMENT = 2, ALIGN = 256 };

/* Bytes from the start of a room; the routing's in its own order. */
typedef struct places {
    size_t a, ids, weights, b[2], routing[6], c[2];
} places;

static size_t put(size_t *end, int64_t elements, size_t element)
{
    size_t at = *end;
    *end += ((size_t)elements * element + ALIGN) / ALIGN * ALIGN;
    return at;
}

static places lay_out(experts *e)
{
    places p;
    size_t end = 0;
    p.a = put(&end, e->own * e->k, ELEMENT);
    p.ids = put(&end, e->own * TOP_K, 4);
    p.weights = put(&end, e->own * TOP_K, 4);
    for (int i = 0; i < 2; i++)
        p.b[i] = put(&end, e->here * e->k * N, ELEMENT);
    e->in_bytes = end;
    const int64_t routing[] = { e->here + 1, e->here, e->capacity, e->pairs, e->pairs, e->pairs };
    for (int i = 0; i < 6; i++)
        p.routing[i] = put(&end, routing[i], 4);
    p.c[0] = put(&end, e->capacity * (e->dispatches ? e->k : N), ELEMENT);
    e->out_at = p.c[1] = put(&end, e->own * e->k, ELEMENT);
    e->out_bytes = (size_t)(e->own * e->k) * ELEMENT;
    e->room_bytes = end;
    return p;
}

static bool is_named(const char *algorithm, const char *name)
{
    return algorithm && strcmp(algorithm, name) == 0;
}

/* Ranks on one GPU have no "ll" that takes lines. */
static int make_plans(experts *e, const char *const algorithms[2])
{
    int ranks = imbrex_group_size(e->group);
    for (int i = 0; i < 2; i++) {
        bool lines = is_named(algorithms[i], "ll") && (i || e->dispatches);
        const char *algorithm = lines && !e->group->whole_lines ? NULL : algorithms[i];
        const imbrex_dispatch_desc tokens = { .rank_tokens = TOKENS,
                                              .n = e->k,
                                              .experts = EXPERTS,
                                              .top_k = TOP_K,
                                              .algorithm = algorithm };
        const imbrex_moe_desc moe = { .tokens = TOKENS * ranks,
                                      .n = i ? e->k : N,
                                      .k = i ? N : e->k,
                                      .experts = EXPERTS,
                                      .top_k = TOP_K,
                                      .parallel = IMBREX_EXPERTS_WHOLE,
                                      .chunk_rows = 4,
                                      .algorithm = algorithm };
        const char *op = e->dispatches ? (i ? "combine" : "dispatch") : i ? "moe_rs" : "ag_moe";
        RANK_OK(imbrex_plan_create(e->group, op, e->dispatches ? (const void *)&tokens : &moe,
                                   e->dispatches ? sizeof tokens : sizeof moe, &e->plans[i]));
    }
    return 0;
}

int experts_begin(imbrex_group *group, bool dispatches, const char *const algorithms[2], experts *e)
{
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    *e = (experts){ .group = group, .dispatches = dispatches, .own = TOKENS };
    e->k = K;
    e->here = rank_row(EXPERTS, ranks, rank + 1) - rank_row(EXPERTS, ranks, rank);
    e->pairs = ranks * TOKENS * TOP_K;
    if (make_plans(e, algorithms))
        return 1;
    e->capacity = imbrex_plan_rows(e->plans[0]);
    lay_out(e);
    RANK_CHECK(e->room_bytes <= EXPERTS_ROOM, "a room has %zu bytes", e->room_bytes);
    return 0;
}

void experts_end(experts *e)
{
    for (int i = 0; i < 2; i++)
        imbrex_plan_destroy(e->plans[i]);
}

static int32_t id_of(int set, int64_t pair)
{
    double x = (input_value(IMBREX_F32, 1000 + set, pair) + 2) / 4; /* from 0 to 1 */
    switch (set % EXPERTS_SETS) {
    case 0:
        return (int32_t)(x * EXPERTS);
    case 1:
        return (int32_t)(x * x * x * EXPERTS);
    case 2:
        return EXPERTS / 2;
    case 3:
        return -1;
    case 4:
        return (int32_t)((x - 0.5) * 3e9);
    default:
        return (int32_t)(pair / 2 % EXPERTS);
    }
}

void experts_fill(const experts *e, int set, char *in)
{
    experts same = *e;
    const places p = lay_out(&same);
    int rank = imbrex_group_rank(e->group), ranks = imbrex_group_size(e->group);
    memset(in, 0, e->in_bytes);
    input_fill(IMBREX_BF16, 10 * set + rank, 0, in + p.a, e->own * e->k);
    for (int64_t i = 0; i < e->own * TOP_K; i++) {
        int32_t id = id_of(set, rank * e->own * TOP_K + i);
        float weight = (float)input_value(IMBREX_F32, 2000 + 10 * set + rank, i);
        memcpy(in + p.ids + 4 * i, &id, 4);
        memcpy(in + p.weights + 4 * i, &weight, 4);
    }
    int64_t first = rank_row(EXPERTS, ranks, rank);
    for (int i = 0; i < 2; i++)
        input_fill_from(IMBREX_BF16, 3000 + i, 0, in + p.b[i], first * e->k * N,
                        e->here * e->k * N);
}

imbrex_status experts_run(const experts *e, int i, char *room, int fewer, imbrex_stream stream)
{
    experts same = *e;
    const places p = lay_out(&same);
    int32_t *of[6];
    for (int j = 0; j < 6; j++)
        of[j] = (int32_t *)(void *)(room + p.routing[j]);
    const imbrex_routing routing = { of[0], of[1], of[2], of[3], of[4], (float *)of[5], { 0 } };
    imbrex_args args = { .a = room + (i ? p.c[0] : p.a), .c = room + p.c[i], .routing = &routing };
    if (i == 0) {
        args.ids = (const int32_t *)(const void *)(room + p.ids);
        args.weights = (const float *)(const void *)(room + p.weights);
    }
    if (e->dispatches)
        args.own = e->own - fewer;
    else
        args.m = imbrex_group_size(e->group) * (e->own - fewer);
    if (!e->dispatches)
        args.b = room + p.b[i];
    return imbrex_plan_run(e->plans[i], &args, stream);
}
