/* moe_scaled_cases.c - ag_moe and moe_rs of 8 bits against what they should give; see
 * moe_scaled_cases.h. */
#include "moe_scaled_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group/group.h"
#include "kernels/dtype.h"
#include "lent.h"
#include "ranks.h"
#include "reference.h"

enum { BLOCK = 128 };
enum { TOKEN, ROW, GATE, DOWN, SCALES }; /* inputs */

/* ---- what everybody can find out ------------------------------------------------------------- */

static uint8_t code_of(const moe_scaled_case *c, imbrex_dtype dtype, int input, int64_t i)
{
    uint8_t code[4]; /* room for any type */
    float x = (float)input_value(IMBREX_F32, 10 * input, i);
    x = c->whole ? rintf(x) : x;
    imx_dtype_narrow((int)dtype, &x, code, 1);
    return code[0];
}

static float scale_of(const moe_scaled_case *c, int input, int64_t i)
{
    static const float odd[] = { 0, 0x1p100f, 0x1p-100f, NAN };
    float x = (float)input_value(IMBREX_F32, 10 * (SCALES + input) + 1, i); /* [-2, 2) */
    if (c->odd && i % 29 == 3)
        return odd[i / 29 % 4];
    return c->whole ? ldexpf(1, (int)floorf(x)) : (x + 3) / 8;
}

static int32_t id_of(const moe_scaled_case *c, int64_t pair)
{
    double x = (input_value(IMBREX_F32, 999, pair) + 2) / 4;
    return (int32_t)(x * (c->experts + 1)); /* or none */
}

static int64_t blocks_of(int64_t count)
{
    return (count + BLOCK - 1) / BLOCK;
}

static int64_t scales_of_row(const moe_scaled_case *c) /* of a */
{
    return c->scaling == IMBREX_PER_BLOCK ? blocks_of(c->k) : c->scaling == IMBREX_PER_ROW;
}

static int64_t scales_of_expert(const moe_scaled_case *c) /* of a rank's part of b */
{
    if (c->scaling == IMBREX_PER_BLOCK)
        return blocks_of(c->n) * blocks_of(c->k);
    return c->scaling == IMBREX_PER_ROW ? c->n : 0;
}

/* One input's numbers, as float32, and what scales them. */
typedef struct numbers {
    float *value, *scale;
} numbers;

static numbers numbers_of(const moe_scaled_case *c, int input, int64_t values, int64_t scales)
{
    imbrex_dtype dtype = input == GATE || input == DOWN ? IMBREX_E4M3 : c->dtype;
    numbers x = { malloc(sizeof(float) * (size_t)(values + 1)),
                  malloc(sizeof(float) * (size_t)(scales + 1)) };
    for (int64_t i = 0; i < values; i++) {
        const uint8_t code[4] = { code_of(c, dtype, input, i) };
        imx_dtype_widen((int)dtype, code, &x.value[i], 1);
    }
    for (int64_t i = 0; i < scales; i++)
        x.scale[i] = scale_of(c, input, i);
    return x;
}

/* Of all ranks' rows of a, or all ranks' parts of all experts. */
static numbers all_rows(const moe_scaled_case *c, int input, int64_t rows)
{
    return numbers_of(c, input, rows * c->k, rows * scales_of_row(c));
}

static numbers all_weights(const moe_scaled_case *c, int input, int ranks)
{
    int64_t experts = (int64_t)ranks * c->experts;
    return numbers_of(c, input, experts * c->n * c->k, experts * scales_of_expert(c));
}

static void drop_numbers(numbers *x)
{
    free(x->value);
    free(x->scale);
}

/* An element of the product of row `row` of a with an expert's part, counted over all ranks, in the
 * fixed order. */
static float product(const moe_scaled_case *c, const numbers *a, int64_t row, const numbers *b,
                     int64_t expert, int64_t col)
{
    const float *x = a->value + row * c->k, *y = b->value + (expert * c->n + col) * c->k;
    const float *of_a = a->scale + row * scales_of_row(c);
    const float *of_b = b->scale + expert * scales_of_expert(c);
    float total = 0;
    for (int64_t block = 0; block < blocks_of(c->k); block++) {
        float sum = 0;
        for (int64_t k = block * BLOCK; k < c->k && k < (block + 1) * BLOCK; k++)
            sum += x[k] * y[k]; /* exact */
        if (c->scaling == IMBREX_PER_BLOCK) {
            volatile float both = of_a[block] * of_b[col / BLOCK * blocks_of(c->k) + block];
            volatile float term = sum * both;
            sum = term;
        }
        total += sum;
    }
    if (c->scaling != IMBREX_PER_ROW)
        return total;
    volatile float both = of_a[0] * of_b[col];
    return total * both;
}

static double rounded(imbrex_dtype dtype, double x)
{
    char at[8];
    element_set(dtype, at, 0, x);
    return element_get(dtype, at, 0);
}

static bool same(double have, double want)
{
    return have == want || (isnan(have) && isnan(want));
}

/* ---- a layer --------------------------------------------------------------------------------- */

typedef struct bench {
    const moe_scaled_case *c;
    int rank, ranks, node_ranks, first, here;
    int64_t own_first, own, capacity, pairs;
    imbrex_routing routing;
    uint8_t *a, *b[2], *rows;
    float *scale_a, *scale_b[2], *row_scales;
    char *products, *sum, *bias;
    int32_t *ids;
    char *arena; /* memory of the device, where it cannot read the host's; else NULL */
} bench;

static void fill_b(bench *b, int which)
{
    const moe_scaled_case *c = b->c;
    int64_t each = c->n * c->k, scales = scales_of_expert(c);
    int64_t from = (int64_t)b->rank * c->experts + b->first;
    b->b[which] = lent_room(b->here * each, 1);
    b->scale_b[which] = lent_room(b->here * scales, 4);
    for (int64_t i = 0; i < b->here * each; i++)
        b->b[which][i] = code_of(c, IMBREX_E4M3, GATE + which, from * each + i);
    for (int64_t i = 0; i < b->here * scales; i++)
        b->scale_b[which][i] = scale_of(c, GATE + which, from * scales + i);
}

static bench take(const moe_scaled_case *c, imbrex_group *group, int64_t capacity)
{
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    bool whole = c->parallel == IMBREX_EXPERTS_WHOLE;
    int64_t scales = scales_of_row(c), out = (int64_t)element_bytes(c->out);
    bench b = { .c = c, .rank = rank, .ranks = ranks, .capacity = capacity };
    while (b.node_ranks < ranks && imbrex_group_node(group, b.node_ranks) == 0)
        b.node_ranks++;
    b.first = whole ? (int)rank_row(c->experts, ranks, rank) : 0;
    b.here = whole ? (int)rank_row(c->experts, ranks, rank + 1) - b.first : c->experts;
    b.own_first = c->replicate ? 0 : rank_row(c->tokens, ranks, rank);
    b.own = c->replicate ? c->tokens : rank_row(c->tokens, ranks, rank + 1) - b.own_first;
    b.pairs = c->tokens * c->top_k;
    b.routing = lent_routing(&(lent_sizes){ b.here, capacity, b.pairs });
    b.a = lent_room(b.own * c->k, 1);
    b.scale_a = lent_room(b.own * scales, 4);
    b.rows = lent_room(capacity * c->k, 1);
    b.row_scales = lent_room(capacity * scales, 4);
    b.products = lent_room(capacity * c->n, (size_t)out);
    b.sum = lent_room(b.own * c->n, (size_t)out);
    b.bias = lent_room(c->n, (size_t)out);
    b.ids = lent_room(b.own * c->top_k, 4);
    for (int64_t i = 0; i < b.own * c->k; i++)
        b.a[i] = code_of(c, c->dtype, TOKEN, b.own_first * c->k + i);
    for (int64_t i = 0; i < b.own * scales; i++)
        b.scale_a[i] = scale_of(c, TOKEN, b.own_first * scales + i);
    for (int64_t i = 0; i < b.own * c->top_k; i++)
        b.ids[i] = id_of(c, b.own_first * c->top_k + i);
    for (int64_t i = 0; i < c->n; i++)
        element_set(c->out, b.bias, i, (double)(i % 64) / 64);
    fill_b(&b, 0);
    fill_b(&b, 1);
    return b;
}

static void drop(bench *b)
{
    void *all[] = { b->a,          b->b[0],       b->b[1],     b->rows, b->scale_a, b->scale_b[0],
                    b->scale_b[1], b->row_scales, b->products, b->sum,  b->bias,    b->ids };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    lent_routing_free(&b->routing);
}

/* Rows of moe_rs's a: of this rank, of the pairs that lie there. */
static void fill_rows(const bench *b)
{
    const moe_scaled_case *c = b->c;
    int64_t scales = scales_of_row(c);
    for (int64_t row = 0; row < b->capacity; row++) {
        int64_t pair = b->routing.row_pair[row], number = b->rank * b->pairs + pair;
        for (int64_t k = 0; k < c->k && pair >= 0; k++)
            b->rows[row * c->k + k] = code_of(c, c->dtype, ROW, number * c->k + k);
        for (int64_t i = 0; i < scales && pair >= 0; i++)
            b->row_scales[row * scales + i] = scale_of(c, ROW, number * scales + i);
    }
}

/* ---- what is right --------------------------------------------------------------------------- */

static int check_products(const bench *b, const numbers *tokens, const numbers *weights)
{
    const moe_scaled_case *c = b->c;
    for (int64_t i = 0; i < b->capacity * c->n; i++) {
        int64_t pair = b->routing.row_pair[i / c->n], col = i % c->n;
        if (pair < 0)
            continue;
        float x = product(c, tokens, pair / c->top_k, weights,
                          (int64_t)b->rank * c->experts + id_of(c, pair), col);
        double have = element_get(c->out, b->products, i), want = rounded(c->out, (double)x);
        RANK_CHECK(same(have, want), "c[%d, %d] of pair %d is %g, not %g", (int)(i / c->n),
                   (int)col, (int)pair, have, want);
    }
    RANK_CHECK(lent_is_intact(b->products, b->capacity * c->n, element_bytes(c->out)), "beyond c");
    return 0;
}

/* What rank r has of an element of a token, or a node from r on has together. */
static bool part_of(const bench *b, const numbers *rows, const numbers *weights, int r,
                    int64_t token, int64_t col, float *part)
{
    const moe_scaled_case *c = b->c;
    bool any = false;
    for (int64_t pair = token * c->top_k; pair < (token + 1) * c->top_k; pair++) {
        int32_t e = id_of(c, pair);
        bool here =
            e < c->experts &&
            (c->parallel == IMBREX_EXPERTS_TENSOR ||
             (e >= rank_row(c->experts, b->ranks, r) && e < rank_row(c->experts, b->ranks, r + 1)));
        if (!here)
            continue;
        float x = product(c, rows, r * b->pairs + pair, weights, (int64_t)r * c->experts + e, col);
        float term = (float)rounded(c->out, (double)x);
        *part = any ? *part + term : term;
        any = true;
    }
    *part = any ? (float)rounded(c->out, (double)*part) : 0;
    return any;
}

static int check_sums(const bench *b, const numbers *rows, const numbers *weights)
{
    const moe_scaled_case *c = b->c;
    for (int64_t i = 0; i < b->own * c->n; i++) {
        float sum = 0, node = 0, part;
        bool any = false, on_node = false;
        for (int r = 0; r < b->ranks; r++) {
            if (part_of(b, rows, weights, r, b->own_first + i / c->n, i % c->n, &part)) {
                node = on_node ? node + part : part;
                on_node = true;
            }
            if ((r + 1) % b->node_ranks || !on_node)
                continue;
            if (b->node_ranks < b->ranks)
                node = (float)rounded(c->out, (double)node);
            sum = any ? sum + node : node;
            any = true;
            on_node = false;
        }
        sum += (float)element_get(c->out, b->bias, i % c->n);
        double have = element_get(c->out, b->sum, i), want = rounded(c->out, (double)sum);
        RANK_CHECK(same(have, want), "sum[%d] is %g, not %g", (int)i, have, want);
    }
    RANK_CHECK(lent_is_intact(b->sum, b->own * c->n, element_bytes(c->out)), "beyond the sum");
    return 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* which: 0 gathers, 1 scatters. */
static int run(imbrex_group *group, imbrex_plan *plan, const bench *b, int which)
{
    const moe_scaled_case *c = b->c;
    const lent_sizes sizes = { b->here, b->capacity, b->pairs };
    size_t out = element_bytes(c->out);
    int64_t rows = which ? b->capacity : b->own;
    lent l = { .group = group, .base = b->arena };
    const imbrex_routing routing = which ? lent_routing_in(&l, &b->routing, &sizes)
                                         : lent_routing_out(&l, &b->routing, &sizes);
    imbrex_args args = { .a = lent_in(&l, which ? b->rows : b->a, rows * c->k, 1),
                         .b = lent_in(&l, b->b[which], b->here * c->n * c->k, 1),
                         .routing = &routing };
    if (which) {
        args.c = lent_out(&l, b->sum, b->own * c->n, out);
        args.bias = lent_in(&l, b->bias, c->n, out);
    } else {
        args.c = lent_out(&l, b->products, b->capacity * c->n, out);
        args.ids = lent_in(&l, b->ids, b->own * c->top_k, 4);
    }
    if (c->scaling) {
        args.scale_a = lent_in(&l, which ? b->row_scales : b->scale_a, rows * scales_of_row(c), 4);
        args.scale_b = lent_in(&l, b->scale_b[which], b->here * scales_of_expert(c), 4);
    }
    RANK_OK(l.failed);
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(lent_settle(&l));
    return 0;
}

int moe_scaled_check(imbrex_group *group, const moe_scaled_case *c, char *arena)
{
    imbrex_moe_desc desc = { .tokens = c->tokens,
                             .n = c->n,
                             .k = c->k,
                             .experts = c->experts,
                             .top_k = c->top_k,
                             .parallel = c->parallel,
                             .replicate = c->replicate,
                             .dtype = c->dtype,
                             .out = c->out,
                             .scaling = c->scaling,
                             .chunk_rows = 3,
                             .sms = c->sms,
                             .algorithm = c->gathers };
    imbrex_plan *ag = NULL, *rs = NULL;
    RANK_OK(imbrex_plan_ag_moe(group, &desc, &ag));
    desc.algorithm = c->scatters;
    RANK_OK(imbrex_plan_moe_rs(group, &desc, &rs));
    bench b = take(c, group, imbrex_plan_rows(ag));
    b.arena = arena;
    numbers tokens = all_rows(c, TOKEN, c->tokens), rows = all_rows(c, ROW, b.ranks * b.pairs);
    numbers gate = all_weights(c, GATE, b.ranks), down = all_weights(c, DOWN, b.ranks);
    int failed = run(group, ag, &b, 0) || check_products(&b, &tokens, &gate);
    if (!failed) {
        fill_rows(&b);
        failed = run(group, rs, &b, 1) || check_sums(&b, &rows, &down);
    }
    drop_numbers(&tokens), drop_numbers(&rows), drop_numbers(&gate), drop_numbers(&down);
    drop(&b);
    imbrex_plan_destroy(ag);
    imbrex_plan_destroy(rs);
    return failed;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static const imbrex_scaling scalings[] = { IMBREX_PER_BLOCK, IMBREX_PER_ROW, IMBREX_UNSCALED };
static const char *const gathers[2][3] = { { "copy", "ll", "sequential" },
                                           { "hierarchical", "sequential", NULL } };
static const char *const scatters[2][3] = { { "store", "sequential", "ll" },
                                            { "hierarchical", "sequential", NULL } };

/* Number i of them; "ll" is for groups whose lines arrive whole. */
static const char *scatter_of(const imbrex_group *group, bool over_nodes, int i)
{
    const char *name = scatters[over_nodes][i % 3];
    return name && strcmp(name, "ll") == 0 && !group->whole_lines ? NULL : name;
}

static int walk_table(imbrex_group *group, int step, bool whole, char *arena)
{
    bool over_nodes = imbrex_group_node(group, imbrex_group_size(group) - 1) > 0;
    for (int i = 0; i < 12; i += step) {
        const moe_scaled_case c = { .dtype = i % 4 == 3 ? IMBREX_E5M2 : IMBREX_E4M3,
                                    .out = i % 5 == 1   ? IMBREX_F32
                                           : i % 5 == 4 ? IMBREX_F16
                                                        : IMBREX_BF16,
                                    .scaling = scalings[i % 3],
                                    .parallel = (imbrex_experts)(i / 3 % 2),
                                    .tokens = 13,
                                    .n = 150,
                                    .k = 272,
                                    .experts = 5,
                                    .top_k = 3,
                                    .replicate = i == 6 || i == 7,
                                    .odd = i / 6,
                                    .whole = whole,
                                    .gathers = gathers[over_nodes][(i / 2 + i) % 3],
                                    .scatters = scatter_of(group, over_nodes, i / 2 + i / 6) };
        if (moe_scaled_check(group, &c, arena)) {
            fprintf(stderr, "  case %d\n", i);
            return 1;
        }
    }
    return 0;
}

int moe_scaled_cases(imbrex_group *group, void *walk)
{
    return walk_table(group, ((const moe_scaled_walk *)walk)->step, false, NULL);
}

static int walk_device(imbrex_group *group, int step, char *arena)
{
    return walk_table(group, step, true, arena);
}

/* Few rows an expert and many, one stage of k, fewer than a tile has pieces, and more than there
 * are; columns that end within a piece, within a block, and in blocks that a tile has two of. */
static int walk_wide(imbrex_group *group, int step, char *arena)
{
    static const struct {
        int64_t tokens, n, k;
        int experts, top_k, sms;
    } wide[] = {
        { 40, 136, 144, 4, 2, 1 },  { 150, 328, 656, 2, 2, 1 }, { 90, 200, 1168, 3, 2, 2 },
        { 200, 456, 400, 2, 2, 2 }, { 64, 72, 96, 2, 3, 1 },    { 300, 384, 256, 2, 1, 0 }
    };
    for (int i = 0; i < 12; i += step) {
        const moe_scaled_case c = { .dtype = i % 5 == 4 ? IMBREX_E5M2 : IMBREX_E4M3,
                                    .out = i % 4 == 3 ? IMBREX_F16 : IMBREX_BF16,
                                    .scaling = i % 7 == 6 ? IMBREX_UNSCALED : scalings[i % 2],
                                    .parallel = (imbrex_experts)(i % 2),
                                    .tokens = wide[i / 2].tokens,
                                    .n = wide[i / 2].n,
                                    .k = wide[i / 2].k,
                                    .experts = wide[i / 2].experts,
                                    .top_k = wide[i / 2].top_k,
                                    .sms = wide[i / 2].sms,
                                    .odd = i % 3 == 0,
                                    .whole = true,
                                    .gathers = gathers[0][i % 3],
                                    .scatters = scatter_of(group, false, i / 2) };
        if (moe_scaled_check(group, &c, arena)) {
            fprintf(stderr, "  wide case %d\n", i);
            return 1;
        }
    }
    return 0;
}

static int on_device(imbrex_group *group, const moe_scaled_walk *walk,
                     int (*all)(imbrex_group *, int, char *))
{
    void *arena;
    RANK_OK(imbrex_mem_alloc(group, LENT_ARENA, &arena));
    int failed = all(group, walk->step, arena);
    imbrex_mem_free(group, arena);
    return failed;
}

int moe_scaled_cases_device(imbrex_group *group, void *walk)
{
    return on_device(group, walk, walk_device);
}

int moe_scaled_cases_wide(imbrex_group *group, void *walk)
{
    return on_device(group, walk, walk_wide);
}
