/* dispatch_cases.c - operands, oracle and table. */
#include "dispatch_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "ranks.h"
#include "reference.h"

enum { TOKEN, ROW, WEIGHT, IDS, RESIDUAL }; /* inputs */
enum { RUNS = 4 };

/* ---- what everybody can find out ------------------------------------------------------------- */

/* Tokens of a rank in a run: all; some, on some ranks none; on one rank alone; again some. */
static int64_t own_of(const exchange *x, int rank, int run)
{
    int64_t most = x->desc.rank_tokens;
    const int64_t counts[RUNS] = { most, (3 * rank + 2) % (most + 1), rank == 1 ? most : 0,
                                   (most + rank % 2) / 2 };
    return counts[run];
}

static int32_t id_of(const exchange *x, int run, int64_t pair)
{
    double at = input_value(IMBREX_F32, 100 * IDS + run, pair) + 2; /* from 0 to 4 */
    int experts = x->desc.experts;
    switch (x->ids) {
    case DISPATCH_EVEN:
        return (int32_t)(at / 4 * experts);
    case DISPATCH_SKEWED:
        return (int32_t)(at / 4 * at / 4 * at / 4 * experts);
    case DISPATCH_TO_ONE:
        return experts / 2;
    case DISPATCH_TO_NONE:
        return -1;
    case DISPATCH_ANY_NUMBER:
        return at < 1 ? INT32_MIN : at < 2 ? INT32_MAX : (int32_t)(at / 2 * experts) - experts / 2;
    default:
        return (int32_t)(pair / 2 % experts);
    }
}

static bool is_expert(const exchange *x, int32_t id)
{
    return id >= 0 && id < x->desc.experts;
}

static int rank_of(const exchange *x, int ranks, int32_t expert)
{
    int rank = 0;
    while (rank_row(x->desc.experts, ranks, rank + 1) <= expert)
        rank++;
    return rank;
}

/* The expert of a pair; -1: none, which pairs of tokens that are not there have, too. */
static int32_t find_expert(const exchange_run *b, int64_t pair)
{
    int64_t most = b->x->desc.rank_tokens, token = pair / b->x->desc.top_k;
    int32_t id = id_of(b->x, b->run, pair);
    bool there = token % most < own_of(b->x, (int)(token / most), b->run);
    return there && is_expert(b->x, id) ? id : -1;
}

static float weight_of(const exchange_run *b, int64_t pair)
{
    if (!b->x->weights)
        return 1;
    return (float)input_value(IMBREX_F32, 100 * WEIGHT + b->run, pair);
}

static double row_value(const exchange_run *b, int64_t pair, int64_t col)
{
    return input_value(b->x->desc.dtype, 100 * ROW + b->run, pair * b->x->desc.n + col);
}

/* ---- operands -------------------------------------------------------------------------------- */

/* Row by row, as imbrex_moe.h says.  Returns how many there are, gaps included. */
static int64_t place(exchange_run *b)
{
    const imbrex_dispatch_desc *d = &b->x->desc;
    int64_t row = 0, align = d->align ? d->align : 16;
    for (int64_t i = 0; i < b->capacity; i++)
        b->want_pair[i] = -1;
    for (int64_t i = 0; i < b->pairs; i++)
        b->want_row[i] = -1;
    for (int e = 0; e < b->here; e++) {
        while (d->expert_capacity ? row != e * d->expert_capacity : row % align)
            row++;
        for (int64_t pair = 0; pair < b->pairs; pair++) {
            if (b->want_expert[pair] != b->first + e)
                continue;
            if (row < b->capacity) {
                b->want_pair[row] = (int32_t)pair;
                b->want_row[pair] = (int32_t)row;
            }
            row++;
        }
    }
    return d->expert_capacity ? b->here * d->expert_capacity : row;
}

static size_t wire_bytes(const exchange *x)
{
    return x->desc.wire == IMBREX_E4M3 ? 1 : element_bytes(x->desc.dtype);
}

static int64_t blocks_of(const exchange *x)
{
    return x->desc.wire == IMBREX_E4M3 ? (x->desc.n + 127) / 128 : 0;
}

exchange_run exchange_take(const exchange *x, int run, imbrex_group *group, int64_t capacity)
{
    const imbrex_dispatch_desc *d = &x->desc;
    size_t e = element_bytes(d->dtype);
    exchange_run b = { .x = x, .run = run, .capacity = capacity };
    b.rank = imbrex_group_rank(group), b.ranks = imbrex_group_size(group);
    while (b.node_ranks < b.ranks && imbrex_group_node(group, b.node_ranks) == 0)
        b.node_ranks++;
    b.first = (int)rank_row(d->experts, b.ranks, b.rank);
    b.here = (int)rank_row(d->experts, b.ranks, b.rank + 1) - b.first;
    b.own = own_of(x, b.rank, run);
    b.pairs = b.ranks * d->rank_tokens * d->top_k;
    b.sizes = (lent_sizes){ b.here, capacity, b.pairs };
    b.routing = lent_routing(&b.sizes);
    b.ids = lent_room(b.own * d->top_k, 4);
    b.weights = lent_room(b.own * d->top_k, 4);
    b.want_row = lent_room(b.pairs, 4);
    b.want_pair = lent_room(capacity, 4);
    b.want_expert = lent_room(b.pairs, 4);
    b.want_rank = lent_room(b.pairs, 4);
    for (int64_t pair = 0; pair < b.pairs; pair++) {
        int32_t expert = b.want_expert[pair] = find_expert(&b, pair);
        b.want_rank[pair] = expert < 0 ? -1 : rank_of(x, b.ranks, expert);
    }
    b.scales = lent_room(capacity * blocks_of(x), 4);
    b.a = lent_room(b.own * d->n, e);
    b.c = lent_room(capacity * d->n, wire_bytes(x));
    b.rows = lent_room(capacity * d->n, e);
    b.residual = lent_room(b.own * d->n, e);
    b.sum = lent_room(b.own * d->n, e);
    input_fill(d->dtype, 100 * TOKEN + 10 * run + b.rank, 0, b.a, b.own * d->n);
    input_fill(d->dtype, 100 * RESIDUAL + 10 * run + b.rank, 0, b.residual, b.own * d->n);
    for (int64_t i = 0; i < b.own * d->top_k; i++) {
        int64_t pair = b.rank * d->rank_tokens * d->top_k + i;
        b.ids[i] = id_of(x, run, pair);
        b.weights[i] = weight_of(&b, pair);
    }
    place(&b);
    for (int64_t i = 0; i < capacity * d->n; i++) {
        int32_t pair = b.want_pair[i / d->n];
        if (pair >= 0)
            element_set(d->dtype, b.rows, i, row_value(&b, pair, i % d->n));
    }
    return b;
}

void exchange_drop(exchange_run *b)
{
    void *all[] = { b->ids,    b->weights, b->want_row, b->want_pair, b->want_expert, b->want_rank,
                    b->scales, b->a,       b->c,        b->rows,      b->residual,    b->sum };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    lent_routing_free(&b->routing);
}

static int64_t asked(int64_t own)
{
    return own ? own : (int64_t)IMBREX_NONE;
}

imbrex_args exchange_dispatch_args(exchange_run *b, lent *l)
{
    const imbrex_dispatch_desc *d = &b->x->desc;
    int64_t scales = b->capacity * blocks_of(b->x), places = b->own * d->top_k;
    b->given = lent_routing_out(l, &b->routing, &b->sizes);
    return (imbrex_args){
        .a = lent_in(l, b->a, b->own * d->n, element_bytes(d->dtype)),
        .ids = lent_in(l, b->ids, places, 4),
        .weights = b->x->weights ? lent_in(l, b->weights, places, 4) : NULL,
        .c = lent_out(l, b->c, b->capacity * d->n, wire_bytes(b->x)),
        .scale_c = blocks_of(b->x) ? lent_out(l, b->scales, scales, 4) : NULL,
        .routing = &b->given,
        .own = asked(b->own),
    };
}

imbrex_args exchange_combine_args(exchange_run *b, lent *l)
{
    const imbrex_dispatch_desc *d = &b->x->desc;
    size_t e = element_bytes(d->dtype);
    return (imbrex_args){
        .a = lent_in(l, b->rows, b->capacity * d->n, e),
        .residual = b->x->residual ? lent_in(l, b->residual, b->own * d->n, e) : NULL,
        .c = lent_out(l, b->sum, b->own * d->n, e),
        .routing = &b->given,
        .own = asked(b->own),
    };
}

/* ---- what is right --------------------------------------------------------------------------- */

static int check_routing(const exchange_run *b)
{
    const imbrex_routing *r = &b->routing;
    RANK_CHECK(memcmp(r->row_pair, b->want_pair, (size_t)b->capacity * 4) == 0, "row_pair");
    RANK_CHECK(memcmp(r->pair_row, b->want_row, (size_t)b->pairs * 4) == 0, "pair_row");
    for (int64_t pair = 0; pair < b->pairs; pair++) {
        int32_t want = b->want_expert[pair];
        RANK_CHECK(r->pair_expert[pair] == want, "pair_expert[%d] is %d, not %d", (int)pair,
                   r->pair_expert[pair], want);
        RANK_CHECK(want < 0 || r->weights[pair] == weight_of(b, pair), "weights[%d] is %g",
                   (int)pair, (double)r->weights[pair]);
    }
    for (int e = 0; e < b->here; e++) {
        int32_t rows = 0, begin = r->expert_begin[e];
        for (int64_t i = 0; i < b->pairs; i++)
            rows += b->want_expert[i] == b->first + e;
        RANK_CHECK(r->expert_rows[e] == rows, "expert %d has %d rows, not %d", e, r->expert_rows[e],
                   rows);
        RANK_CHECK(rows == 0 || (b->want_pair[begin] >= 0 &&
                                 b->want_expert[b->want_pair[begin]] == b->first + e),
                   "expert %d begins at %d", e, begin);
    }
    RANK_CHECK(lent_routing_is_intact(r, &b->sizes), "something beyond the routing");
    return 0;
}

/* Tokens of all ranks, as they travel; and their scales. */
static imbrex_status all_tokens(imbrex_group *group, const exchange_run *b, char **tokens,
                                float **scales)
{
    const imbrex_dispatch_desc *d = &b->x->desc;
    imbrex_status status = IMBREX_OK;
    int64_t each = d->rank_tokens * d->n, blocks = blocks_of(b->x);
    size_t e = element_bytes(d->dtype), wire = wire_bytes(b->x);
    *tokens = lent_room(b->ranks * each, wire);
    *scales = lent_room(b->ranks * d->rank_tokens * blocks, 4);
    for (int r = 0; r < b->ranks && status == IMBREX_OK; r++) {
        lent l = { .group = group, .base = b->x->arena };
        int64_t own = own_of(b->x, r, b->run), at = r * d->rank_tokens * blocks;
        char *from = lent_room(each, e), *to = *tokens + (size_t)(r * each) * wire;
        input_fill(d->dtype, 100 * TOKEN + 10 * b->run + r, 0, from, own * d->n);
        if (!blocks) {
            memcpy(to, from, (size_t)(own * d->n) * e);
        } else {
            char *quantized = lent_room(own * d->n, wire);
            float *of_them = lent_room(own * blocks, 4);
            const void *given = lent_in(&l, from, own * d->n, e);
            void *out = lent_out(&l, quantized, own * d->n, wire);
            status = imbrex_quantize(group, d->dtype, IMBREX_PER_BLOCK, own, d->n, given, out,
                                     lent_out(&l, of_them, own * blocks, 4), NULL);
            if (status == IMBREX_OK)
                status = lent_settle(&l);
            memcpy(to, quantized, (size_t)(own * d->n));
            memcpy(*scales + at, of_them, (size_t)(own * blocks) * 4);
            free(quantized);
            free(of_them);
        }
        free(from);
    }
    return status;
}

static int check_rows(imbrex_group *group, const exchange_run *b)
{
    int64_t top_k = b->x->desc.top_k, blocks = blocks_of(b->x);
    size_t bytes = (size_t)b->x->desc.n * wire_bytes(b->x), scale_bytes = (size_t)blocks * 4;
    char *tokens;
    float *scales;
    char *nothing = lent_room((int64_t)bytes, 1);
    RANK_OK(all_tokens(group, b, &tokens, &scales));
    for (int64_t row = 0; row < b->capacity; row++) {
        int64_t token = b->want_pair[row] < 0 ? -1 : b->want_pair[row] / top_k;
        const char *want = token < 0 ? nothing : tokens + (size_t)token * bytes;
        RANK_CHECK(memcmp(b->c + (size_t)row * bytes, want, bytes) == 0, "row %d is not token %d's",
                   (int)row, (int)token);
        RANK_CHECK(token < 0 ||
                       memcmp(b->scales + row * blocks, scales + token * blocks, scale_bytes) == 0,
                   "scales of row %d are not token %d's", (int)row, (int)token);
    }
    RANK_CHECK(lent_is_intact(b->c, b->capacity * b->x->desc.n, wire_bytes(b->x)) &&
                   lent_is_intact(b->scales, b->capacity * blocks, 4),
               "something beyond c");
    free(tokens);
    free(scales);
    free(nothing);
    return 0;
}

/* Correct float32 arithmetic: a product of two is exact in double, and their sum rounds alike. */
static double f32(double x)
{
    return (double)(float)x;
}

static double rounded(imbrex_dtype dtype, double x)
{
    char at[8];
    element_set(dtype, at, 0, x);
    return element_get(dtype, at, 0);
}

/* An element of own token t; *exact: in float64, *size: of what is added. */
static double sum_of(const exchange_run *b, int64_t t, int64_t col, double *exact, double *size)
{
    const imbrex_dispatch_desc *d = &b->x->desc;
    int64_t first = (b->rank * d->rank_tokens + t) * d->top_k;
    double total = 0, node = 0;
    bool any = false, on_node = false;
    *exact = *size = 0;
    for (int r = 0; r < b->ranks; r++) {
        double part = 0;
        bool here = false;
        for (int64_t pair = first; pair < first + d->top_k; pair++) {
            if (b->want_rank[pair] != r)
                continue;
            double term = (double)weight_of(b, pair) * row_value(b, pair, col);
            part = here ? f32(part + f32(term)) : f32(term);
            *exact += term;
            *size += fabs(term);
            here = true;
        }
        part = rounded(d->dtype, part);
        if (here)
            node = on_node ? f32(node + part) : part;
        on_node = on_node || here;
        if ((r + 1) % b->node_ranks) /* not its node's last */
            continue;
        if (b->node_ranks < b->ranks)
            node = rounded(d->dtype, node);
        if (on_node)
            total = any ? f32(total + node) : node;
        any = any || on_node;
        on_node = false;
    }
    if (b->x->residual) {
        double more = element_get(d->dtype, b->residual, t * d->n + col);
        total = f32(total + more);
        *exact += more;
        *size += fabs(more);
    }
    return rounded(d->dtype, total);
}

static int check_sums(const exchange_run *b)
{
    const imbrex_dispatch_desc *d = &b->x->desc;
    const double ulp = d->dtype == IMBREX_BF16  ? 0x1p-7
                       : d->dtype == IMBREX_F16 ? 0x1p-10
                                                : 0x1p-18;
    for (int64_t i = 0; i < b->own * d->n; i++) {
        double exact, size, want = sum_of(b, i / d->n, i % d->n, &exact, &size);
        double have = element_get(d->dtype, b->sum, i);
        RANK_CHECK(have == want, "sum of token %d, column %d is %g, not %g", (int)(i / d->n),
                   (int)(i % d->n), have, want);
        RANK_CHECK(fabs(have - exact) <= size * ulp * 2, "token %d: %g is far from %g",
                   (int)(i / d->n), have, exact);
    }
    RANK_CHECK(lent_is_intact(b->sum, b->own * d->n, element_bytes(d->dtype)),
               "something beyond c");
    return 0;
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* To each other node once, whatever own tokens there are: all slots, or sums of as many. */
static int check_volume(imbrex_plan *plan, const exchange_run *b, bool sums)
{
    const imbrex_dispatch_desc *d = &b->x->desc;
    int64_t nodes = b->ranks / b->node_ranks, row = d->n * (int64_t)wire_bytes(b->x);
    int64_t bytes = (row + 15) / 16 * 16 + 4 * blocks_of(b->x) + 8 * d->top_k;
    if (sums)
        bytes = d->n * (int64_t)element_bytes(d->dtype);
    uint64_t sent = imx_describe_facts(plan).sent_between;
    uint64_t want = (uint64_t)((nodes - 1) * d->rank_tokens * bytes);
    RANK_CHECK(sent == want, "%s sent %d bytes between nodes, not %d",
               sums ? "combine" : "dispatch", (int)sent, (int)want);
    return 0;
}

/* Runs of both operators back to back, so that they overlap. */
int exchange_run_all(imbrex_group *group, const exchange *x)
{
    imbrex_plan *dispatch = NULL, *combine = NULL;
    exchange_run b[RUNS];
    lent l = { .group = group, .base = x->arena };
    int failed = 0;
    RANK_OK(imbrex_plan_dispatch(group, &x->desc, &dispatch));
    RANK_OK(imbrex_plan_combine(group, &x->desc, &combine));
    for (int run = 0; run < RUNS; run++) {
        b[run] = exchange_take(x, run, group, imbrex_plan_rows(dispatch));
        const imbrex_args out = exchange_dispatch_args(&b[run], &l),
                          back = exchange_combine_args(&b[run], &l);
        RANK_OK(l.failed);
        RANK_OK(imbrex_plan_run(dispatch, &out, NULL));
        RANK_OK(imbrex_plan_run(combine, &back, NULL));
        failed = failed || check_volume(dispatch, &b[run], false) ||
                 check_volume(combine, &b[run], true);
    }
    RANK_OK(lent_settle(&l));
    for (int run = 0; run < RUNS; run++) {
        failed =
            failed || check_routing(&b[run]) || check_rows(group, &b[run]) || check_sums(&b[run]);
        exchange_drop(&b[run]);
    }
    imbrex_plan_destroy(dispatch);
    imbrex_plan_destroy(combine);
    return failed;
}

static const imbrex_dispatch_desc shapes[] = {
    { .rank_tokens = 13, .n = 32, .experts = 8, .top_k = 2 },
    { .rank_tokens = 20, .n = 17, .experts = 13, .top_k = 4, .align = 1 },
    { .rank_tokens = 1, .n = 1, .experts = 1, .top_k = 1, .align = 512 },
    { .rank_tokens = 5, .n = 130, .experts = 3, .top_k = 64, .align = 4, .sms = 1 },
    { .rank_tokens = 0, .n = 8, .experts = 4, .top_k = 2 },
    { .rank_tokens = 6, .n = 0, .experts = 5, .top_k = 3 },
    { .rank_tokens = 9, .n = 264, .experts = 7, .top_k = 3, .expert_capacity = 162 },
    { .rank_tokens = 4, .n = 5, .experts = 40, .top_k = 8, .rows = 800 },
    { .rank_tokens = 5, .n = 4368, .experts = 6, .top_k = 3, .sms = 1 }, /* rows in pieces */
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static exchange case_of(int i, bool over_nodes)
{
    static const char *const one[] = { "store", "sequential", "ll", NULL };
    static const char *const several[] = { "hierarchical", "sequential", "hierarchical", NULL };
    const char *const *algorithms = over_nodes ? several : one;
    int shape = i / DISPATCH_KINDS % SHAPES, kind = i % DISPATCH_KINDS;
    exchange x = { .desc = shapes[shape],
                   .ids = kind,
                   .weights = (shape + kind) % 4 != 0,
                   .residual = (shape + kind) % 2 };
    x.desc.dtype = (imbrex_dtype)(IMBREX_BF16 + (shape + kind) % 3);
    x.desc.wire = (shape + 2 * kind) % 5 < 2 ? IMBREX_E4M3 : IMBREX_DTYPE_DEFAULT;
    x.desc.algorithm = algorithms[(shape + kind / 2 + i / DISPATCH_KINDS / SHAPES) % 4];
    return x;
}

static int walk(imbrex_group *group, int step, char *arena)
{
    bool over_nodes = imbrex_group_node(group, imbrex_group_size(group) - 1) > 0;
    for (int i = 0; i < 2 * SHAPES * DISPATCH_KINDS; i += step) {
        exchange x = case_of(i, over_nodes);
        x.arena = arena;
        if (x.desc.algorithm && strcmp(x.desc.algorithm, "ll") == 0 && !group->whole_lines)
            x.desc.algorithm = NULL; /* ranks on one GPU */
        if (exchange_run_all(group, &x)) {
            fprintf(stderr,
                    "  case %d: %d tokens of %d, %d experts, top_k %d, dtype %d, ids %d, %s\n", i,
                    (int)x.desc.rank_tokens, (int)x.desc.n, x.desc.experts, x.desc.top_k,
                    (int)x.desc.dtype, x.ids, x.desc.algorithm ? x.desc.algorithm : "chosen");
            return 1;
        }
    }
    return 0;
}

int exchange_every_case(imbrex_group *group, void *ctx)
{
    return walk(group, *(int *)ctx, NULL);
}

int exchange_on_device(imbrex_group *group, void *ctx)
{
    void *arena;
    RANK_OK(imbrex_mem_alloc(group, LENT_ARENA, &arena));
    int failed = walk(group, *(int *)ctx, arena);
    imbrex_mem_free(group, arena);
    return failed;
}
