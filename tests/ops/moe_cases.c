/* moe_cases.c - ag_moe and moe_rs against what they should give; see moe_cases.h. */
#include "moe_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "imbrex_device.h"
#include "kernels/grouped/args.h"
#include "plan/plan.h"
#include "reference.h"

enum { A, B, ROW, WEIGHT, IDS, BIAS, RESIDUAL }; /* inputs */

static double value(const moe_case *c, int input, int64_t i)
{
    double x = input_value(c->desc.dtype, 100 * input, i);
    return input == WEIGHT || c->real ? x : rint(x);
}

/* For a table, since each number of an input is in many products. */
static double *room_of(int64_t count)
{
    double *room = malloc(((size_t)count + 1) * sizeof *room);
    if (!room)
        abort();
    return room;
}

static void fill(const moe_case *c, int input, int64_t first, double *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = value(c, input, first + i);
}

static int32_t id_of(const moe_case *c, int64_t pair)
{
    double x = input_value(IMBREX_F32, 100 * IDS, pair) + 2; /* from 0 to 4 */
    int experts = c->desc.experts;
    switch (c->ids) {
    case EVEN:
        return (int32_t)(x / 4 * experts);
    case SKEWED:
        return (int32_t)(x / 4 * x / 4 * x / 4 * x / 4 * experts);
    case TO_ONE:
        return experts / 2;
    case TO_NONE:
        return -1;
    case ANY_NUMBER:
        return x < 1 ? INT32_MIN : x < 2 ? INT32_MAX : (int32_t)(x / 2 * experts) - experts / 2;
    default:
        return (int32_t)(pair / 2 % experts);
    }
}

static bool is_whole(const moe_bench *b)
{
    return b->c->desc.parallel == IMBREX_EXPERTS_WHOLE;
}

/* Where in B the weights of expert e and a column are, as all ranks count them. */
static int64_t weights_at(int64_t e, int64_t col, int64_t all_k)
{
    return (e * 512 + col) * all_k;
}

static void fill_b(const moe_bench *b, void *to, bool scatters)
{
    const imbrex_moe_desc *d = &b->c->desc;
    int64_t parts = is_whole(b) ? 0 : b->rank, all_k = d->k * (is_whole(b) ? 1 : b->ranks);
    for (int64_t i = 0; i < b->here * d->n * d->k; i++) {
        int64_t e = i / (d->n * d->k), at = i % (d->n * d->k);
        int64_t col = d->layout == IMBREX_NK ? at / d->k : at % d->n;
        int64_t k = d->layout == IMBREX_NK ? at % d->k : at / d->n;
        int64_t from = scatters ? weights_at(b->first + e, col, all_k) + parts * d->k
                                : weights_at(b->first + e, parts * d->n + col, d->k);
        element_set(d->dtype, to, i, value(b->c, B, from + k));
    }
}

static lent_sizes moe_sizes(const moe_bench *b)
{
    return (lent_sizes){ b->here, b->capacity, b->pairs };
}

moe_bench moe_take(const moe_case *c, int rank, int ranks, int64_t m, int64_t capacity)
{
    const imbrex_moe_desc *d = &c->desc;
    size_t e = element_bytes(d->dtype);
    bool whole = d->parallel == IMBREX_EXPERTS_WHOLE;
    moe_bench b = { .c = c, .rank = rank, .ranks = ranks, .m = m, .capacity = capacity };
    b.node_ranks = ranks;
    b.first = whole ? (int)rank_row(d->experts, ranks, rank) : 0;
    b.here = whole ? (int)rank_row(d->experts, ranks, rank + 1) - b.first : d->experts;
    b.own_first = d->replicate ? 0 : rank_row(m, ranks, rank);
    b.own = d->replicate ? m : rank_row(m, ranks, rank + 1) - b.own_first;
    b.pairs = m * d->top_k;
    const lent_sizes sizes = moe_sizes(&b);
    b.routing = lent_routing(&sizes);
    b.a = lent_room(b.own * d->k, e);
    b.b = lent_room(b.here * d->n * d->k, e);
    b.out = lent_room(capacity * d->n, e);
    b.gathered = lent_room(m * d->k, e);
    b.row_a = lent_room(capacity * d->k, e);
    b.row_b = lent_room(b.here * d->n * d->k, e);
    b.bias = lent_room(d->n, e);
    b.residual = lent_room(b.own * d->n, e);
    b.sum = lent_room(b.own * d->n, e);
    b.ids = lent_room(b.own * d->top_k, 4);
    b.weights = lent_room(b.own * d->top_k, 4);
    for (int64_t i = 0; i < b.own * d->k; i++)
        element_set(d->dtype, b.a, i, value(c, A, b.own_first * d->k + i));
    for (int64_t i = 0; i < b.own * d->top_k; i++) {
        b.ids[i] = id_of(c, b.own_first * d->top_k + i);
        b.weights[i] = (float)value(c, WEIGHT, b.own_first * d->top_k + i);
    }
    for (int64_t i = 0; i < d->n; i++)
        element_set(d->dtype, b.bias, i, value(c, BIAS, i) / 8);
    for (int64_t i = 0; i < b.own * d->n; i++)
        element_set(d->dtype, b.residual, i, value(c, RESIDUAL, b.own_first * d->n + i) / 4);
    fill_b(&b, b.b, false);
    fill_b(&b, b.row_b, true);
    return b;
}

void moe_drop(moe_bench *b)
{
    void *all[] = { b->a,    b->b,        b->out, b->gathered, b->row_a,  b->row_b,
                    b->bias, b->residual, b->sum, b->ids,      b->weights };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    lent_routing_free(&b->routing);
}

/* ---- what is right --------------------------------------------------------------------------- */

int moe_check_routing(const moe_bench *b)
{
    const imbrex_routing *r = &b->routing;
    int64_t row = 0, align = b->c->desc.align ? b->c->desc.align : 16, rows = 0;
    for (int e = 0; e < b->here; e++) {
        row = (row + align - 1) / align * align;
        RANK_CHECK(r->expert_begin[e] == row, "expert %d begins at %d, not %d", e,
                   r->expert_begin[e], (int)row);
        for (int64_t pair = 0; pair < b->pairs; pair++) {
            if (id_of(b->c, pair) != b->first + e)
                continue;
            RANK_CHECK(r->row_pair[row] == pair && r->pair_row[pair] == row,
                       "row %d has pair %d, pair %d row %d", (int)row, r->row_pair[row], (int)pair,
                       r->pair_row[pair]);
            row++;
            rows++;
        }
        RANK_CHECK(r->expert_rows[e] == row - r->expert_begin[e], "expert %d has %d rows", e,
                   r->expert_rows[e]);
    }
    RANK_CHECK(r->expert_begin[b->here] == row, "the end is %d", r->expert_begin[b->here]);
    for (int64_t i = 0; i < b->capacity; i++)
        rows -= r->row_pair[i] >= 0;
    RANK_CHECK(rows == 0, "%d rows too few are in row_pair", (int)rows);
    for (int64_t pair = 0; pair < b->pairs; pair++) {
        int32_t id = id_of(b->c, pair);
        bool is = id >= 0 && id < b->c->desc.experts,
             here = id >= b->first && id < b->first + b->here;
        RANK_CHECK(r->pair_expert[pair] == (is ? id : -1), "pair_expert[%d]", (int)pair);
        RANK_CHECK(here || r->pair_row[pair] == -1, "pair_row[%d]", (int)pair);
        float want = b->c->weights ? (float)value(b->c, WEIGHT, pair) : 1;
        RANK_CHECK(r->weights[pair] == want, "weights[%d] is %g", (int)pair,
                   (double)r->weights[pair]);
    }
    const lent_sizes sizes = moe_sizes(b);
    RANK_CHECK(lent_routing_is_intact(r, &sizes), "something was written behind the routing");
    return 0;
}

/* As an element of the plan's type. */
static double rounded(const moe_case *c, double x)
{
    char element[4];
    element_set(c->desc.dtype, element, 0, x);
    return element_get(c->desc.dtype, element, 0);
}

/* Row `row` of c, of a token's a and the weights of its expert. */
static int check_row(const moe_bench *b, int64_t row, const double *a, const double *weights)
{
    const imbrex_moe_desc *d = &b->c->desc;
    for (int64_t col = 0; col < d->n; col++) {
        const double *of_col = weights + col * d->k;
        double have = element_get(d->dtype, b->out, row * d->n + col), want = 0, size = 0;
        for (int64_t k = 0; k < d->k; k++) {
            double term = a[k] * of_col[k];
            want += term;
            size += fabs(term);
        }
        if (b->c->real)
            RANK_CHECK(fabs(have - want) <= 1e-6 * size + fabs(want) / 128,
                       "c[%d, %d] is %g, not %g", (int)row, (int)col, have, want);
        else
            RANK_CHECK(have == rounded(b->c, want), "c[%d, %d] of pair %d is %g, not %g", (int)row,
                       (int)col, (int)b->routing.row_pair[row], have, rounded(b->c, want));
    }
    return 0;
}

static int check_rows(const moe_bench *b, double *a, double *weights)
{
    const imbrex_moe_desc *d = &b->c->desc;
    int64_t part = is_whole(b) ? 0 : b->rank, of = -1; /* whose weights these are */
    for (int64_t row = 0; row < b->capacity; row++) {
        int64_t pair = b->routing.row_pair[row];
        for (int64_t col = 0; col < d->n && pair < 0; col++)
            RANK_CHECK(isnan(element_get(d->dtype, b->out, row * d->n + col)),
                       "a row between experts was written");
        if (pair < 0)
            continue;
        if (of != id_of(b->c, pair)) {
            of = id_of(b->c, pair);
            fill(b->c, B, weights_at(of, part * d->n, d->k), weights, d->n * d->k);
        }
        fill(b->c, A, pair / d->top_k * d->k, a, d->k);
        if (check_row(b, row, a, weights))
            return 1;
    }
    return 0;
}

int moe_check_products(const moe_bench *b)
{
    const imbrex_moe_desc *d = &b->c->desc;
    double *a = room_of(d->k), *weights = room_of(d->n * d->k);
    int failed = check_rows(b, a, weights);
    free(a);
    free(weights);
    if (failed)
        return failed;
    for (int64_t i = 0; i < b->m * d->k && b->c->gathered; i++)
        RANK_CHECK(element_get(d->dtype, b->gathered, i) == value(b->c, A, i), "gathered[%d]",
                   (int)i);
    RANK_CHECK(lent_is_intact(b->out, b->capacity * d->n, element_bytes(d->dtype)) &&
                   lent_is_intact(b->gathered, b->m * d->k, element_bytes(d->dtype)),
               "something was written behind c");
    return 0;
}

/* The rank that has expert e alone. */
static int holder(const moe_bench *b, int e)
{
    int r = 0;
    while (e >= rank_row(b->c->desc.experts, b->ranks, r + 1))
        r++;
    return r;
}

/* Of all ranks: the rows of own pairs, and each expert's weights [n, all_k]. */
typedef struct operands {
    double *rows, *weights;
    int64_t all_k;
} operands;

static operands take_operands(const moe_bench *b)
{
    const imbrex_moe_desc *d = &b->c->desc;
    int64_t all_k = d->k * (is_whole(b) ? 1 : b->ranks), pairs = b->own * d->top_k;
    operands x = { room_of(pairs * all_k), room_of(d->experts * d->n * all_k), all_k };
    fill(b->c, ROW, b->own_first * d->top_k * all_k, x.rows, pairs * all_k);
    for (int64_t e = 0; e < d->experts; e++)
        fill(b->c, B, weights_at(e, 0, all_k), x.weights + e * d->n * all_k, d->n * all_k);
    return x;
}

/* What rank r sends of an element of a token; false: it has nothing of it. */
static bool part_of(const moe_bench *b, const operands *x, int r, int64_t token, int64_t col,
                    float *part)
{
    const imbrex_moe_desc *d = &b->c->desc;
    int64_t from = is_whole(b) ? 0 : r * d->k;
    bool any = false;
    for (int64_t pair = token * d->top_k; pair < (token + 1) * d->top_k; pair++) {
        int32_t id = id_of(b->c, pair);
        if (id < 0 || id >= d->experts || (is_whole(b) && holder(b, id) != r))
            continue;
        const double *row = x->rows + (pair - b->own_first * d->top_k) * x->all_k;
        const double *weights = x->weights + (id * d->n + col) * x->all_k;
        double product = 0;
        for (int64_t k = from; k < from + d->k; k++)
            product += row[k] * weights[k];
        volatile float term = (b->c->weights ? (float)value(b->c, WEIGHT, pair) : 1.0f) *
                              (float)rounded(b->c, product);
        *part = any ? *part + term : term;
        any = true;
    }
    *part = any ? (float)rounded(b->c, (double)*part) : 0;
    return any;
}

/* What the ranks of a node send of it together; where there is one node it is not rounded. */
static bool node_part_of(const moe_bench *b, const operands *x, int first, int64_t token,
                         int64_t col, float *sum)
{
    float part;
    bool any = false;
    for (int r = first; r < first + b->node_ranks; r++) {
        if (!part_of(b, x, r, token, col, &part))
            continue;
        *sum = any ? *sum + part : part;
        any = true;
    }
    if (any && b->node_ranks < b->ranks)
        *sum = (float)rounded(b->c, (double)*sum);
    return any;
}

static int check_elements(const moe_bench *b, const operands *x)
{
    const imbrex_moe_desc *d = &b->c->desc;
    for (int64_t i = 0; i < b->own * d->n; i++) {
        int64_t token = b->own_first + i / d->n, col = i % d->n;
        float sum = 0, part;
        bool any = false;
        for (int first = 0; first < b->ranks; first += b->node_ranks) {
            if (!node_part_of(b, x, first, token, col, &part))
                continue;
            sum = any ? sum + part : part;
            any = true;
        }
        if (b->c->bias)
            sum += (float)element_get(d->dtype, b->bias, col);
        if (b->c->residual)
            sum += (float)element_get(d->dtype, b->residual, i);
        double have = element_get(d->dtype, b->sum, i), want = rounded(b->c, (double)sum);
        RANK_CHECK(have == want, "c[%d] of token %d is %.9g, not %.9g", (int)i, (int)token, have,
                   want);
    }
    return 0;
}

static int check_sums(const moe_bench *b)
{
    const imbrex_moe_desc *d = &b->c->desc;
    operands x = take_operands(b);
    int failed = check_elements(b, &x);
    free(x.rows);
    free(x.weights);
    RANK_CHECK(failed || lent_is_intact(b->sum, b->own * d->n, element_bytes(d->dtype)),
               "something was written behind c");
    return failed;
}

/* ---- runs ------------------------------------------------------------------------------------ */

int moe_run_ag(imbrex_group *group, imbrex_plan *plan, const moe_bench *b)
{
    const imbrex_moe_desc *d = &b->c->desc;
    size_t e = element_bytes(d->dtype);
    const lent_sizes sizes = moe_sizes(b);
    lent l = { .group = group, .base = b->arena };
    const imbrex_routing routing = lent_routing_out(&l, &b->routing, &sizes);
    imbrex_args args = { .a = lent_in(&l, b->a, b->own * d->k, e),
                         .b = lent_in(&l, b->b, b->here * d->n * d->k, e),
                         .c = lent_out(&l, b->out, b->capacity * d->n, e),
                         .ids = lent_in(&l, b->ids, b->own * d->top_k, 4),
                         .routing = &routing,
                         .m = b->m };
    if (b->c->gathered)
        args.gathered = lent_out(&l, b->gathered, b->m * d->k, e);
    if (b->c->weights)
        args.weights = lent_in(&l, b->weights, b->own * d->top_k, 4);
    RANK_OK(l.failed);
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(lent_settle(&l));
    return 0;
}

int moe_run_rs(imbrex_group *group, imbrex_plan *plan, const moe_bench *b)
{
    const imbrex_moe_desc *d = &b->c->desc;
    size_t e = element_bytes(d->dtype);
    int64_t parts = is_whole(b) ? 1 : b->ranks, from = is_whole(b) ? 0 : b->rank * d->k;
    for (int64_t i = 0; i < b->capacity * d->k; i++) {
        int64_t pair = b->routing.row_pair[i / d->k];
        if (pair >= 0)
            element_set(d->dtype, b->row_a, i,
                        value(b->c, ROW, pair * d->k * parts + from + i % d->k));
    }
    const lent_sizes sizes = moe_sizes(b);
    lent l = { .group = group, .base = b->arena };
    const imbrex_routing routing = lent_routing_in(&l, &b->routing, &sizes);
    imbrex_args args = { .a = lent_in(&l, b->row_a, b->capacity * d->k, e),
                         .b = lent_in(&l, b->row_b, b->here * d->n * d->k, e),
                         .c = lent_out(&l, b->sum, b->own * d->n, e),
                         .routing = &routing,
                         .m = b->m };
    if (b->c->bias)
        args.bias = lent_in(&l, b->bias, d->n, e);
    if (b->c->residual)
        args.residual = lent_in(&l, b->residual, b->own * d->n, e);
    RANK_OK(l.failed);
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(lent_settle(&l));
    return 0;
}

/* How many ranks are on the first node; every node has as many. */
static int node_ranks_of(imbrex_group *group)
{
    int count = 0;
    while (count < imbrex_group_size(group) && imbrex_group_node(group, count) == 0)
        count++;
    return count;
}

/* What leaves a node leaves it once: own tokens and ids to each other node, and of sums those for
 * the rank of this number there. */
static int check_volume(imbrex_plan *plan, const moe_bench *b, bool scatters)
{
    const imbrex_moe_desc *d = &b->c->desc;
    int64_t e = (int64_t)element_bytes(d->dtype), want = 0;
    int64_t own = rank_row(b->m, b->ranks, b->rank + 1) - rank_row(b->m, b->ranks, b->rank);
    for (int r = b->rank % b->node_ranks; r < b->ranks; r += b->node_ranks) {
        int64_t theirs = rank_row(b->m, b->ranks, r + 1) - rank_row(b->m, b->ranks, r);
        if (r == b->rank)
            continue;
        if (scatters)
            want += theirs * d->n * e + (d->replicate ? own * d->n * e : 0);
        else if (!d->replicate)
            want += own * (d->k * e + 8 * d->top_k);
    }
    uint64_t sent = imx_describe_facts(plan).sent_between;
    RANK_CHECK(sent == (uint64_t)want, "%s sent %d bytes between nodes, not %d",
               scatters ? "moe_rs" : "ag_moe", (int)sent, (int)want);
    return 0;
}

/* Both operators, with all tokens, with fewer, with all again. */
static int check_case(imbrex_group *group, const moe_case *c, char *arena)
{
    imbrex_plan *ag = NULL, *rs = NULL;
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group), failed = 0;
    int64_t tokens = c->desc.tokens, ms[] = { tokens, tokens / 2, tokens };
    imbrex_moe_desc gathers = c->desc, scatters = c->desc;
    gathers.algorithm = c->gathers;
    RANK_OK(imbrex_plan_ag_moe(group, &gathers, &ag));
    bool lines = c->scatters && strcmp(c->scatters, "ll") == 0;
    scatters.algorithm = lines && !group->whole_lines ? NULL : c->scatters; /* ranks on one GPU */
    RANK_OK(imbrex_plan_moe_rs(group, &scatters, &rs));
    RANK_CHECK(imbrex_plan_rows(ag) == imbrex_plan_rows(rs), "capacities differ");
    for (int i = 0; i < 3 && !failed; i++) {
        if (ms[i] < 1 || ms[i] > tokens)
            continue;
        moe_bench b = moe_take(c, rank, ranks, ms[i], imbrex_plan_rows(ag));
        b.arena = arena;
        b.node_ranks = node_ranks_of(group);
        failed = moe_run_ag(group, ag, &b) || moe_check_routing(&b) || moe_check_products(&b) ||
                 check_volume(ag, &b, false);
        if (!failed && !c->real)
            failed = moe_run_rs(group, rs, &b) || check_sums(&b) || check_volume(rs, &b, true);
        moe_drop(&b);
    }
    if (failed)
        fprintf(stderr,
                "  tokens %d, n %d, k %d, experts %d, top_k %d, parallel %d, dtype %d, ids %d\n",
                (int)tokens, (int)c->desc.n, (int)c->desc.k, c->desc.experts, c->desc.top_k,
                (int)c->desc.parallel, (int)c->desc.dtype, c->ids);
    imbrex_plan_destroy(ag);
    imbrex_plan_destroy(rs);
    return failed;
}

static const struct {
    int64_t tokens, n, k;
    int experts, top_k, align, chunk_rows;
} shapes[] = {
    { 24, 16, 32, 8, 2, 0, 0 }, { 61, 17, 13, 12, 4, 1, 5 }, { 3, 70, 7, 2, 1, 512, 0 },
    { 1, 1, 1, 1, 1, 0, 0 },    { 20, 5, 30, 3, 64, 4, 0 },  { 9, 4, 0, 5, 2, 0, 0 },
    { 0, 8, 8, 4, 2, 0, 0 },    { 7, 0, 8, 3, 2, 0, 0 },     { 50, 65, 20, 40, 8, 16, 7 },
    { 9, 1608, 5, 3, 2, 0, 4 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const char *const algorithms[] = { "copy", "ll", "sequential" }; /* of ag_moe */
static const char *const sums[] = { "sequential", "store", "ll" };      /* of moe_rs */
static const char *const over_nodes[] = { "hierarchical", "sequential", NULL };

static moe_case case_of(int i)
{
    int s = i / (KINDS * 2), kind = i / 2 % KINDS;
    return (moe_case){ .desc = { .tokens = shapes[s].tokens,
                                 .n = shapes[s].n,
                                 .k = shapes[s].k,
                                 .experts = shapes[s].experts,
                                 .top_k = shapes[s].top_k,
                                 .align = shapes[s].align,
                                 .chunk_rows = shapes[s].chunk_rows,
                                 .parallel = (imbrex_experts)(i % 2),
                                 .dtype = (imbrex_dtype)(IMBREX_BF16 + (s + kind) % 3),
                                 .layout = kind % 2 ? IMBREX_KN : IMBREX_NK,
                                 .replicate = (s + 2 * kind) % 3 == 1 },
                       .ids = kind,
                       .gathers = algorithms[(s + kind + i) % 3],
                       .scatters = sums[(s + kind) % 3],
                       .weights = (s + kind) % 4 != 0,
                       .bias = (s + kind) % 2,
                       .residual = (s + kind + i) / 2 % 2,
                       .gathered = (s + kind) % 3 == 0 && (s + 2 * kind) % 3 != 1 };
}

/* With so few SMs that tiles of all sizes are chosen, and a block has several: edges of rows, of
 * columns and of k; and so many pairs that one look does not find them all, and so many experts
 * that a block has several.  tries: how many kinds of ids. */
static const struct {
    int64_t tokens, n, k;
    int experts, top_k, align, sms, tries;
} wide[] = {
    { 96, 136, 200, 2, 2, 0, 1, 3 },  { 140, 232, 136, 3, 2, 4, 1, 3 },
    { 40, 456, 64, 4, 2, 1, 1, 3 },   { 60, 72, 328, 2, 3, 16, 1, 3 },
    { 300, 64, 72, 2, 2, 0, 2, 3 },   { 1200, 8, 16, 160, 8, 0, 0, 1 },
    { 16500, 8, 8, 3, 8, 1, 0, 1 },   { 130, 1736, 72, 3, 2, 0, 0, 3 },
    { 90, 1536, 264, 4, 2, 1, 2, 2 },
};
enum { WIDE = sizeof wide / sizeof *wide };

static moe_case wide_case_of(int s, int i)
{
    static const int ids[] = { SKEWED, EVEN, TWICE };
    int kind = i / 2;
    return (moe_case){ .desc = { .tokens = wide[s].tokens,
                                 .n = wide[s].n,
                                 .k = wide[s].k,
                                 .experts = wide[s].experts,
                                 .top_k = wide[s].top_k,
                                 .align = wide[s].align,
                                 .sms = wide[s].sms,
                                 .chunk_rows = i % 2 ? 16 : 0, /* "copy" begins early then */
                                 .parallel = (imbrex_experts)(i % 2),
                                 .dtype = (s + kind) % 2 ? IMBREX_F16 : IMBREX_BF16,
                                 .layout = kind % 2 ? IMBREX_KN : IMBREX_NK },
                       .ids = ids[kind],
                       .gathers = algorithms[i % 3],
                       .scatters = sums[(i + i / 3) % 3],
                       .weights = 1 };
}

static int walk_table(imbrex_group *group, const moe_walk *walk, char *arena)
{
    bool several = imbrex_group_node(group, imbrex_group_size(group) - 1) > 0;
    for (int i = 0; i < SHAPES * KINDS * 2; i += walk->step) {
        moe_case c = case_of(i);
        if (several)
            c.gathers = over_nodes[i / 2 % 3], c.scatters = over_nodes[i % 3];
        if (check_case(group, &c, arena))
            return 1;
    }
    return 0;
}

static int walk_wide(imbrex_group *group, const moe_walk *walk, char *arena)
{
    for (int i = 0; i < WIDE * 6; i += walk->step) {
        moe_case c = wide_case_of(i / 6, i % 6);
        if (i % 6 < 2 * wide[i / 6].tries && check_case(group, &c, arena))
            return 1;
    }
    return 0;
}

int moe_cases_all(imbrex_group *group, void *walk)
{
    return walk_table(group, walk, NULL);
}

static int on_device(imbrex_group *group, const moe_walk *walk,
                     int (*all)(imbrex_group *, const moe_walk *, char *))
{
    void *arena;
    RANK_OK(imbrex_mem_alloc(group, LENT_ARENA, &arena));
    int failed = all(group, walk, arena);
    imbrex_mem_free(group, arena);
    return failed;
}

int moe_cases_device(imbrex_group *group, void *walk)
{
    return on_device(group, walk, walk_table);
}

int moe_cases_wide(imbrex_group *group, void *walk)
{
    return on_device(group, walk, walk_wide);
}
