/* test_moe_scaled.c - ag_moe and moe_rs of 8-bit elements and scales on CPU ranks: bit for bit what
 * docs/numerics.md says, by all algorithms, on one node and over nodes; and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "fake_ranks.h"
#include "kernels/dtype.h"
#include "lent.h"
#include "net_threads.h"
#include "ranks.h"
#include "reference.h"

enum { TOKENS = 13, N = 150, K = 272, BLOCK = 128, EXPERTS = 5, TOP_K = 3 };
enum { K_BLOCKS = (K + BLOCK - 1) / BLOCK, N_BLOCKS = (N + BLOCK - 1) / BLOCK };
enum { TOKEN, ROW, GATE, DOWN, SCALES }; /* inputs */

typedef struct scaled {
    imbrex_dtype dtype, out;
    imbrex_scaling scaling;
    imbrex_experts parallel;
    int replicate, odd; /* odd: some scales are 0, huge, tiny or NaN */
    const char *gathers, *scatters;
} scaled;

/* ---- what everybody can find out ------------------------------------------------------------- */

static uint8_t code_of(imbrex_dtype dtype, int input, int64_t i)
{
    uint8_t code[4]; /* room for any type */
    float x = (float)input_value(IMBREX_F32, 10 * input, i);
    imx_dtype_narrow((int)dtype, &x, code, 1);
    return code[0];
}

static float element(imbrex_dtype dtype, int input, int64_t i)
{
    const uint8_t code[4] = { code_of(dtype, input, i) };
    float x;
    imx_dtype_widen((int)dtype, code, &x, 1);
    return x;
}

static float scale_of(const scaled *s, int input, int64_t i)
{
    static const float odd[] = { 0, 1e30f, 1e-30f, NAN };
    if (s->odd && i % 29 == 3)
        return odd[i / 29 % 4];
    return (float)(input_value(IMBREX_F32, 10 * (SCALES + input) + 1, i) + 3) / 8;
}

static int32_t id_of(int64_t pair)
{
    return (int32_t)((input_value(IMBREX_F32, 999, pair) + 2) / 4 * (EXPERTS + 1)); /* or none */
}

/* Numbers of b's elements and scales: of the rank's part of expert e. */
static int64_t b_at(int rank, int64_t e, int64_t col, int64_t k)
{
    return ((rank * EXPERTS + e) * N + col) * K + k;
}

static int64_t b_scale_at(const scaled *s, int rank, int64_t e, int64_t col, int64_t block)
{
    if (s->scaling == IMBREX_PER_ROW)
        return (rank * EXPERTS + e) * N + col;
    return ((rank * EXPERTS + e) * N_BLOCKS + col / BLOCK) * K_BLOCKS + block;
}

static int64_t scales_of(const scaled *s) /* of a row of a */
{
    return s->scaling == IMBREX_PER_BLOCK ? K_BLOCKS : s->scaling == IMBREX_PER_ROW;
}

/* An element of the product of row `row` of input a with expert e of `rank`, in the fixed order. */
static float product(const scaled *s, int a, int64_t row, int b, int rank, int64_t e, int64_t col)
{
    float total = 0;
    for (int64_t block = 0; block < K_BLOCKS; block++) {
        float sum = 0;
        for (int64_t k = block * BLOCK; k < K && k < (block + 1) * BLOCK; k++)
            sum += element(s->dtype, a, row * K + k) *
                   element(IMBREX_E4M3, b, b_at(rank, e, col, k)); /* exact */
        if (s->scaling == IMBREX_PER_BLOCK) {
            volatile float both = scale_of(s, a, row * K_BLOCKS + block) *
                                  scale_of(s, b, b_scale_at(s, rank, e, col, block));
            volatile float term = sum * both;
            sum = term;
        }
        total += sum;
    }
    if (s->scaling != IMBREX_PER_ROW)
        return total;
    volatile float both = scale_of(s, a, row) * scale_of(s, b, b_scale_at(s, rank, e, col, 0));
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
    const scaled *s;
    int rank, ranks, node_ranks, first, here;
    int64_t m, own_first, own, capacity;
    imbrex_routing routing;
    uint8_t *a, *b[2], *rows;
    float *scale_a, *scale_b[2], *row_scales;
    char *c, *sum, *bias;
    int32_t *ids;
} bench;

static void fill_b(bench *b, int which)
{
    const scaled *s = b->s;
    int64_t per = s->scaling == IMBREX_PER_BLOCK ? N_BLOCKS * K_BLOCKS : N, at = 0;
    b->b[which] = lent_room((int64_t)b->here * N * K, 1);
    b->scale_b[which] = lent_room(b->here * per, 4);
    for (int e = 0; e < b->here; e++) {
        for (int64_t i = 0; i < N * K; i++)
            b->b[which][at++] =
                code_of(IMBREX_E4M3, GATE + which, b_at(b->rank, b->first + e, 0, i));
        for (int64_t i = 0; i < per && s->scaling; i++)
            b->scale_b[which][e * per + i] =
                scale_of(s, GATE + which, (b->rank * EXPERTS + b->first + e) * per + i);
    }
}

static bench take(const scaled *s, imbrex_group *group, int64_t capacity)
{
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    bool whole = s->parallel == IMBREX_EXPERTS_WHOLE;
    bench b = { .s = s, .rank = rank, .ranks = ranks, .m = TOKENS, .capacity = capacity };
    while (b.node_ranks < ranks && imbrex_group_node(group, b.node_ranks) == 0)
        b.node_ranks++;
    b.first = whole ? (int)rank_row(EXPERTS, ranks, rank) : 0;
    b.here = whole ? (int)rank_row(EXPERTS, ranks, rank + 1) - b.first : EXPERTS;
    b.own_first = s->replicate ? 0 : rank_row(TOKENS, ranks, rank);
    b.own = s->replicate ? TOKENS : rank_row(TOKENS, ranks, rank + 1) - b.own_first;
    b.routing = lent_routing(&(lent_sizes){ b.here, capacity, TOKENS * TOP_K });
    b.a = lent_room(b.own * K, 1);
    b.scale_a = lent_room(b.own * scales_of(s), 4);
    b.rows = lent_room(capacity * K, 1);
    b.row_scales = lent_room(capacity * scales_of(s), 4);
    b.c = lent_room(capacity * N, element_bytes(s->out));
    b.sum = lent_room(b.own * N, element_bytes(s->out));
    b.bias = lent_room(N, element_bytes(s->out));
    b.ids = lent_room(b.own * TOP_K, 4);
    for (int64_t i = 0; i < b.own * K; i++)
        b.a[i] = code_of(s->dtype, TOKEN, b.own_first * K + i);
    for (int64_t i = 0; i < b.own * scales_of(s); i++)
        b.scale_a[i] = scale_of(s, TOKEN, b.own_first * scales_of(s) + i);
    for (int64_t i = 0; i < b.own * TOP_K; i++)
        b.ids[i] = id_of(b.own_first * TOP_K + i);
    for (int64_t i = 0; i < N; i++)
        element_set(s->out, b.bias, i, (double)i / 64);
    fill_b(&b, 0);
    fill_b(&b, 1);
    return b;
}

static void drop(bench *b)
{
    void *all[] = { b->a,          b->b[0],       b->b[1], b->rows, b->scale_a, b->scale_b[0],
                    b->scale_b[1], b->row_scales, b->c,    b->sum,  b->bias,    b->ids };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    lent_routing_free(&b->routing);
}

static int check_products(const bench *b)
{
    const scaled *s = b->s;
    for (int64_t i = 0; i < b->capacity * N; i++) {
        int64_t pair = b->routing.row_pair[i / N], col = i % N;
        if (pair < 0)
            continue;
        float x = product(s, TOKEN, pair / TOP_K, GATE, b->rank, id_of(pair), col);
        double have = element_get(s->out, b->c, i), want = rounded(s->out, (double)x);
        RANK_CHECK(same(have, want), "c[%d] of pair %d is %g, not %g", (int)i, (int)pair, have,
                   want);
    }
    RANK_CHECK(lent_is_intact(b->c, b->capacity * N, element_bytes(s->out)), "beyond c");
    return 0;
}

/* What rank r has of an element of a token, or a node from r on has together. */
static bool part_of(const bench *b, int r, int64_t token, int64_t col, float *part)
{
    bool any = false;
    for (int64_t pair = token * TOP_K; pair < (token + 1) * TOP_K; pair++) {
        int32_t e = id_of(pair);
        bool here =
            e < EXPERTS &&
            (b->s->parallel == IMBREX_EXPERTS_TENSOR ||
             (e >= rank_row(EXPERTS, b->ranks, r) && e < rank_row(EXPERTS, b->ranks, r + 1)));
        if (!here)
            continue;
        float x = product(b->s, ROW, r * TOKENS * TOP_K + pair, DOWN, r, e, col);
        float term = (float)rounded(b->s->out, (double)x);
        *part = any ? *part + term : term;
        any = true;
    }
    *part = any ? (float)rounded(b->s->out, (double)*part) : 0;
    return any;
}

static int check_sums(const bench *b)
{
    for (int64_t i = 0; i < b->own * N; i++) {
        float sum = 0, node = 0, part;
        bool any = false, on_node = false;
        for (int r = 0; r < b->ranks; r++) {
            if (part_of(b, r, b->own_first + i / N, i % N, &part)) {
                node = on_node ? node + part : part;
                on_node = true;
            }
            if ((r + 1) % b->node_ranks || !on_node)
                continue;
            if (b->node_ranks < b->ranks)
                node = (float)rounded(b->s->out, (double)node);
            sum = any ? sum + node : node;
            any = true;
            on_node = false;
        }
        sum += (float)element_get(b->s->out, b->bias, i % N);
        double have = element_get(b->s->out, b->sum, i), want = rounded(b->s->out, (double)sum);
        RANK_CHECK(same(have, want), "sum[%d] is %g, not %g", (int)i, have, want);
    }
    RANK_CHECK(lent_is_intact(b->sum, b->own * N, element_bytes(b->s->out)), "beyond the sum");
    return 0;
}

static int one_case(imbrex_group *group, const scaled *s)
{
    imbrex_moe_desc desc = { .tokens = TOKENS,
                             .n = N,
                             .k = K,
                             .experts = EXPERTS,
                             .top_k = TOP_K,
                             .parallel = s->parallel,
                             .replicate = s->replicate,
                             .dtype = s->dtype,
                             .out = s->out,
                             .scaling = s->scaling,
                             .chunk_rows = 3,
                             .algorithm = s->gathers };
    imbrex_plan *ag = NULL, *rs = NULL;
    RANK_OK(imbrex_plan_ag_moe(group, &desc, &ag));
    desc.algorithm = s->scatters;
    RANK_OK(imbrex_plan_moe_rs(group, &desc, &rs));
    bench b = take(s, group, imbrex_plan_rows(ag));
    imbrex_args args = { .a = b.a, .b = b.b[0], .c = b.c, .ids = b.ids, .routing = &b.routing };
    if (s->scaling)
        args.scale_a = b.scale_a, args.scale_b = b.scale_b[0];
    RANK_OK(imbrex_plan_run(ag, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    int failed = check_products(&b);
    for (int64_t row = 0; row < b.capacity; row++) {
        int64_t pair = b.routing.row_pair[row], number = b.rank * TOKENS * TOP_K + pair;
        for (int64_t k = 0; k < K && pair >= 0; k++)
            b.rows[row * K + k] = code_of(s->dtype, ROW, number * K + k);
        for (int64_t i = 0; i < scales_of(s) && pair >= 0; i++)
            b.row_scales[row * scales_of(s) + i] = scale_of(s, ROW, number * scales_of(s) + i);
    }
    args = (imbrex_args){
        .a = b.rows, .b = b.b[1], .c = b.sum, .bias = b.bias, .routing = &b.routing
    };
    if (s->scaling)
        args.scale_a = b.row_scales, args.scale_b = b.scale_b[1];
    RANK_OK(imbrex_plan_run(rs, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    failed = failed || check_sums(&b);
    drop(&b);
    imbrex_plan_destroy(ag);
    imbrex_plan_destroy(rs);
    return failed;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static int cases(imbrex_group *group, void *ctx)
{
    static const char *const ag[2][3] = { { "copy", "ll", "sequential" },
                                          { "hierarchical", "sequential", NULL } };
    static const char *const rs[2][2] = { { "store", "sequential" }, { "hierarchical", NULL } };
    bool over_nodes = imbrex_group_node(group, imbrex_group_size(group) - 1) > 0;
    int step = *(int *)ctx;
    for (int i = 0; i < 12; i += step) {
        const scaled s = { .dtype = i % 4 == 3 ? IMBREX_E5M2 : IMBREX_E4M3,
                           .out = i % 5 == 1   ? IMBREX_F32
                                  : i % 5 == 4 ? IMBREX_F16
                                               : IMBREX_BF16,
                           .scaling = i % 3 == 0   ? IMBREX_PER_BLOCK
                                      : i % 3 == 1 ? IMBREX_PER_ROW
                                                   : IMBREX_UNSCALED,
                           .parallel = (imbrex_experts)(i / 3 % 2),
                           .replicate = i == 6 || i == 7,
                           .odd = i / 6,
                           .gathers = ag[over_nodes][(i / 2 + i) % 3],
                           .scatters = rs[over_nodes][i % 2] };
        if (one_case(group, &s)) {
            fprintf(stderr, "  case %d\n", i);
            return 1;
        }
    }
    return 0;
}

static void bit_for_bit(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3 };
    assert_int_equal(ranks_run(&desc, cases, &(int){ SANITIZED ? 3 + 2 * SANITIZED : 1 }), 0);
    imx_net_of_test = &net_threads;
    net_threads_reset();
    desc = (ranks_desc){ .size = 4, .node_ranks = 2 };
    int failed = ranks_run(&desc, cases, &(int){ SANITIZED ? 7 : 5 });
    imx_net_of_test = NULL;
    assert_int_equal(failed, 0);
}

/* ---- what is refused ------------------------------------------------------------------------- */

#define REFUSED(change, status, says)                                                       \
    do {                                                                                    \
        imbrex_moe_desc desc = good;                                                        \
        change;                                                                             \
        imbrex_status was_ = imbrex_plan_ag_moe(group, &desc, &plan);                       \
        RANK_CHECK(was_ == (status) && strstr(imbrex_error(), says), "%s", imbrex_error()); \
    } while (0)

static int mistakes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    const imbrex_moe_desc good = { .tokens = 8,
                                   .n = 8,
                                   .k = 32,
                                   .experts = 3,
                                   .top_k = 2,
                                   .dtype = IMBREX_E4M3,
                                   .scaling = IMBREX_PER_ROW };
    imbrex_plan *plan = NULL;
    REFUSED(desc.scaling = IMBREX_PER_TENSOR, IMBREX_UNSUPPORTED, "want PER_ROW or PER_BLOCK");
    REFUSED(desc.layout = IMBREX_KN, IMBREX_UNSUPPORTED, "desc.layout is IMBREX_KN");
    REFUSED(desc.k = 24, IMBREX_UNSUPPORTED, "desc.k is 24");
    REFUSED(desc.dtype = IMBREX_BF16, IMBREX_INVALID, "desc.scaling is 2");
    REFUSED((desc.dtype = IMBREX_BF16, desc.scaling = IMBREX_UNSCALED, desc.out = IMBREX_F32),
            IMBREX_UNSUPPORTED, "desc.out is f32");
    RANK_OK(imbrex_plan_ag_moe(group, &good, &plan));
    scaled s = { .dtype = IMBREX_E4M3, .out = IMBREX_BF16, .scaling = IMBREX_PER_ROW };
    bench b = take(&s, group, imbrex_plan_rows(plan));
    imbrex_args args = {
        .a = b.a, .b = b.b[0], .c = b.c, .ids = b.ids, .routing = &b.routing, .scale_a = b.scale_a
    };
    RANK_CHECK(imbrex_plan_run(plan, &args, NULL) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "args.scale_b is NULL: want 24 elements"),
               "%s", imbrex_error());
    drop(&b);
    imbrex_plan_destroy(plan);
    return 0;
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, mistakes, NULL), 0);
}

static int on_gpu(imbrex_group *group, void *ctx)
{
    const imbrex_moe_desc desc = {
        .tokens = 8, .n = 8, .k = 32, .experts = 3, .top_k = 2, .dtype = IMBREX_E4M3
    };
    imbrex_plan *plan = NULL;
    (void)ctx;
    RANK_CHECK(imbrex_plan_moe_rs(group, &desc, &plan) == IMBREX_UNSUPPORTED &&
                   strstr(imbrex_error(), "on GPUs experts have 16 bits or more so far"),
               "%s", imbrex_error());
    return 0;
}

static void not_on_gpus(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(fake_ranks_run(&desc, 2, on_gpu, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bit_for_bit),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(not_on_gpus),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests_name("moe scaled", tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
