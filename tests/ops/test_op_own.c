/* test_op_own.c - an operator that is no product and no collective of a matrix, declared as any
 * other: sizes such as tokens, experts and top_k, operands of int32, an output whose capacity the
 * desc gives, a struct in the desc, and runs in which each rank has its own number of rows.
 *
 * It groups this rank's tokens by expert: c = a[token of each pair], pairs ascending within an
 * expert; gathered = the first row of each expert, and behind all rows.  b: the expert of a pair.
 * scale.on multiplies c by scale.by.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/plan.h"
#include "ranks.h"

typedef struct scale {
    int on;
    float by;
    uint32_t reserved[2];
} scale;

typedef struct group_desc {
    int64_t tokens, n, rows;
    int experts, top_k;
    imbrex_dtype dtype;
    scale scale;
    int other; /* what some other operator has */
    const char *algorithm;
    uint32_t reserved[4];
} group_desc;

/* ---- the operator ---------------------------------------------------------------------------- */

typedef struct kernel_args {
    int64_t tokens, width;
    int experts, top_k;
    float by;
    const float *from;
    const int32_t *ids;
    float *to;
    int32_t *begin;
} kernel_args;

static void group_tokens(const void *untyped, const imbrexd_block *block)
{
    const kernel_args *x = untyped;
    int32_t row = 0;
    for (int32_t e = 0; e < x->experts && block->index == 0; e++) {
        x->begin[e] = row;
        for (int64_t pair = 0; pair < x->tokens * x->top_k; pair++) {
            const float *from = x->from + pair / x->top_k * x->width;
            for (int64_t i = 0; i < x->width && x->ids[pair] == e; i++)
                x->to[row * x->width + i] = from[i] * x->by;
            row += x->ids[pair] == e;
        }
    }
    if (block->index == 0)
        x->begin[x->experts] = row;
}

static const imx_kernel kernel = { .name = "group_tokens", .cpu = group_tokens };

static kernel_args args_of(const imx_variant *variant, int64_t m)
{
    const group_desc *desc = (const void *)variant->plan->desc;
    return (kernel_args){ .tokens = m,
                          .width = desc->n,
                          .experts = desc->experts,
                          .by = desc->scale.on ? desc->scale.by : 1,
                          .top_k = desc->top_k };
}

static void layout(const imx_variant *variant, imx_needs *needs)
{
    (void)variant;
    (void)needs;
}

static imbrex_status prepare(imx_variant *variant)
{
    kernel_args largest = args_of(variant, variant->shape.m);
    return imx_variant_prepare(variant, 0, &kernel, &largest);
}

static imbrex_status run_group(const imx_run *run)
{
    kernel_args args = args_of(run->variant, run->m);
    args.from = run->args->a;
    args.ids = run->args->b;
    args.to = run->args->c;
    args.begin = run->args->gathered;
    IMX_TRY(imx_run_begin(run));
    IMX_TRY(imx_run_launch(run, run->stream, 0, &args, sizeof args));
    return imx_run_end(run);
}

enum { TOP_K = IMX_OF_OP, BEGINS, CAPACITY };

static int64_t extent(const imx_asked *asked, int64_t m, int which)
{
    const group_desc *desc = asked->desc;
    (void)m;
    return which == TOP_K ? desc->top_k : which == BEGINS ? desc->experts + 1 : desc->rows;
}

static imbrex_status check(const imbrex_group *group, const imx_request *request)
{
    const group_desc *desc = (const void *)request->desc;
    (void)group;
    if (desc->rows < desc->tokens * desc->top_k)
        return imx_fail(IMBREX_INVALID, "desc.rows is %lld: want room for tokens * top_k, %lld",
                        (long long)desc->rows, (long long)(desc->tokens * desc->top_k));
    return IMBREX_OK;
}

static const imbrex_field desc_rows[] = {
    IMX_FIELD(group_desc, tokens, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED | IMBREX_FIELD_RUN,
              "of this rank"),
    IMX_FIELD(group_desc, n, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED, "the width of a token"),
    IMX_FIELD(group_desc, rows, IMX_SIZE, "int64", IMBREX_FIELD_REQUIRED, "capacity of c"),
    IMX_FIELD(group_desc, experts, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED, "of all ranks"),
    IMX_FIELD(group_desc, top_k, IMX_COUNT, "int", IMBREX_FIELD_REQUIRED, "experts of a token"),
    IMX_FIELD(group_desc, dtype, IMX_DTYPE, "dtype", 0, "of tokens: float32"),
    IMX_FIELD(group_desc, scale.on, IMX_FLAG, "int", 0, "whether c is multiplied"),
    IMX_FIELD(group_desc, scale.by, IMX_REAL, "float", 0, "by so much"),
    IMX_FIELD(group_desc, algorithm, IMX_NAME, "string", 0, "how"),
};

static const imbrex_field args_rows[] = {
    IMX_MATRIX_OF(a, IMBREX_FIELD_INPUT, false, "[m, n]", "tokens", IMX_ROWS, IMX_N),
    IMX_OPERAND(b, IMX_I32, "int32", IMBREX_FIELD_INPUT, false, IMX_APART, "[m, top_k]",
                "the expert of each pair", IMX_ROWS, TOP_K),
    IMX_MATRIX_OF(c, IMBREX_FIELD_OUTPUT, false, "[rows, n]", "pairs, by expert", CAPACITY, IMX_N),
    IMX_OPERAND(gathered, IMX_I32, "int32", IMBREX_FIELD_OUTPUT, false, IMX_APART, "[experts + 1]",
                "first row of each expert", BEGINS),
    IMX_FIELD(imbrex_args, m, IMX_SIZE, "int64", IMBREX_FIELD_RUN, "tokens of this run"),
};

static const imx_op op = {
    IMX_OP(group_tokens, "c = tokens by expert", group_desc, desc_rows, args_rows),
    .blanks[1] = IMX_BLANK(group_desc, scale.reserved),
    .blanks[2] = IMX_BLANK_OF_OTHERS(group_desc, other),
    .own_rows = true,
    .check = check,
    .extent = extent,
    .algorithms = { { .name = "sequential",
                      .layout = layout,
                      .prepare = prepare,
                      .run = run_group } },
};

/* ---- what is promised ------------------------------------------------------------------------ */

enum { TOKENS = 9, WIDTH = 3, EXPERTS = 4, TOP = 2, ROWS = 20 };

static const group_desc shape = { .tokens = TOKENS,
                                  .n = WIDTH,
                                  .rows = ROWS,
                                  .experts = EXPERTS,
                                  .top_k = TOP,
                                  .dtype = IMBREX_F32,
                                  .scale = { .on = 1, .by = -0.5f } };

static int check_run(imbrex_group *group, imbrex_plan *plan, int64_t m)
{
    float a[TOKENS * WIDTH], c[ROWS * WIDTH];
    int32_t ids[TOKENS * TOP], begin[EXPERTS + 1];
    for (int i = 0; i < TOKENS * WIDTH; i++)
        a[i] = (float)(100 * imbrex_group_rank(group) + i);
    for (int i = 0; i < TOKENS * TOP; i++)
        ids[i] = (i * 7 + imbrex_group_rank(group)) % EXPERTS;
    RANK_OK(imbrex_plan_run(
        plan,
        &(imbrex_args){
            .a = a, .b = ids, .c = c, .gathered = begin, .m = m ? m : (int64_t)IMBREX_NONE },
        NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_CHECK(begin[0] == 0 && begin[EXPERTS] == m * TOP, "%d rows of %d tokens", begin[EXPERTS],
               (int)m);
    int64_t pair = -1;
    for (int row = 0, e = 0; row < m * TOP; row++) {
        for (; row >= begin[e + 1]; e++)
            pair = -1;
        do
            pair++;
        while (ids[pair] != e);
        for (int i = 0; i < WIDTH; i++)
            RANK_CHECK(c[row * WIDTH + i] == a[pair / TOP * WIDTH + i] * shape.scale.by,
                       "row %d is not pair %d", row, (int)pair);
    }
    return 0;
}

static int runs(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan = NULL;
    int64_t dims[4];
    imbrex_dtype dtype;
    RANK_OK(imx_plan_create(group, &op, &shape, &plan));
    for (int i = 0; i < 4; i++) /* each rank its own number of tokens, one of them none */
        if (check_run(group, plan, i + 2 * imbrex_group_rank(group)))
            return 1;
    RANK_OK(imbrex_plan_operand(plan, 2, 5, dims, &dtype));
    RANK_CHECK(dims[0] == ROWS && dims[1] == WIDTH && dims[2] == -1, "c is %d x %d", (int)dims[0],
               (int)dims[1]);
    RANK_OK(imbrex_plan_operand(plan, 1, 5, dims, &dtype));
    RANK_CHECK(dims[0] == 5 && dims[1] == TOP, "ids are %d x %d", (int)dims[0], (int)dims[1]);
    RANK_OK(imbrex_plan_operand(plan, 3, 5, dims, &dtype));
    RANK_CHECK(dims[0] == EXPERTS + 1 && dims[1] == -1, "begins are %d x %d", (int)dims[0],
               (int)dims[1]);
    char line[400];
    imbrex_plan_describe(plan, line, sizeof line);
    RANK_CHECK(strstr(line, "group_tokens m=9 n=3 rows=20 experts=4 top_k=2 scale.on=1 "
                            "scale.by=-0.5 f32, 3 ranks"),
               "%s", line);
    imbrex_plan_destroy(plan);
    group_desc plain = shape; /* what is 0 and need not be given goes without saying */
    plain.scale = (scale){ 0 };
    RANK_OK(imx_plan_create(group, &op, &plain, &plan));
    imbrex_plan_describe(plan, line, sizeof line);
    RANK_CHECK(strstr(line, "top_k=2 f32, 3 ranks"), "%s", line);
    imbrex_plan_destroy(plan);
    return 0;
}

static int mistakes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan = NULL;
    group_desc bad = shape;
    bool odd = imbrex_group_rank(group) == 1;
    bad.rows = 17;
    RANK_CHECK(imx_plan_create(group, &op, &bad, &plan) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "desc.rows is 17: want room for tokens * top_k, 18"),
               "%s", imbrex_error());
    bad = shape;
    bad.experts = -4;
    RANK_CHECK(imx_plan_create(group, &op, &bad, &plan) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "desc.experts is -4: want from 0 to "),
               "%s", imbrex_error());
    bad = shape;
    bad.top_k = odd ? 1 : 2;
    RANK_CHECK(imx_plan_create(group, &op, &bad, &plan) == IMBREX_PEER &&
                   strstr(imbrex_error(), "desc.top_k differs between ranks: 2 on rank 0, 1 on"),
               "%s", imbrex_error());
    bad = shape;
    bad.tokens = odd ? 8 : 9;
    RANK_CHECK(imx_plan_create(group, &op, &bad, &plan) == IMBREX_PEER &&
                   strstr(imbrex_error(), "desc.tokens differs between ranks: 9 on rank 0, 8 on"),
               "%s", imbrex_error());
    bad = shape;
    bad.scale.on = 2;
    RANK_CHECK(imx_plan_create(group, &op, &bad, &plan) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "desc.scale.on is 2: want from 0 to 1"),
               "%s", imbrex_error());
    bad = shape;
    bad.scale.by = INFINITY;
    RANK_CHECK(imx_plan_create(group, &op, &bad, &plan) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "desc.scale.by is inf: want a finite number"),
               "%s", imbrex_error());
    bad = shape;
    bad.scale.by = odd ? -0.25f : -0.5f;
    RANK_CHECK(
        imx_plan_create(group, &op, &bad, &plan) == IMBREX_PEER &&
            strstr(imbrex_error(), "desc.scale.by differs between ranks: -0.5 on rank 0, -0.25 on"),
        "%s", imbrex_error());
    bad = shape;
    bad.scale.reserved[1] = 1;
    RANK_CHECK(imx_plan_create(group, &op, &bad, &plan) == IMBREX_UNSUPPORTED &&
                   strstr(imbrex_error(), "desc.scale.reserved is not 0"),
               "%s", imbrex_error());
    bad = shape;
    bad.other = 1;
    RANK_CHECK(imx_plan_create(group, &op, &bad, &plan) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "desc.other must be 0 for group_tokens"),
               "%s", imbrex_error());
    bad = shape;
    bad.reserved[1] = 1;
    RANK_CHECK(imx_plan_create(group, &op, &bad, &plan) == IMBREX_UNSUPPORTED &&
                   strstr(imbrex_error(), "desc.reserved is not 0"),
               "%s", imbrex_error());
    RANK_OK(imx_plan_create(group, &op, &shape, &plan));
    static _Alignas(8) char memory[4096];
    imbrex_args good = {
        .a = memory, .b = memory + 512, .c = memory + 1024, .gathered = memory + 2048
    };
    imbrex_args wrong = good;
    wrong.b = memory + 513;
    RANK_CHECK(imbrex_plan_run(plan, &wrong, NULL) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "is not 4-byte aligned"),
               "%s", imbrex_error());
    wrong = good;
    wrong.gathered = memory + 1024 + ROWS * WIDTH * 4 - 4; /* the capacity's last element */
    RANK_CHECK(imbrex_plan_run(plan, &wrong, NULL) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "args.gathered overlaps args.c"),
               "%s", imbrex_error());
    wrong = good;
    wrong.bias = memory;
    RANK_CHECK(imbrex_plan_run(plan, &wrong, NULL) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "args.bias must be NULL for group_tokens"),
               "%s", imbrex_error());
    wrong = good;
    wrong.m = TOKENS + 1;
    RANK_CHECK(imbrex_plan_run(plan, &wrong, NULL) == IMBREX_INVALID &&
                   strstr(imbrex_error(), "args.m is 10: want at most desc.tokens, 9"),
               "%s", imbrex_error());
    imbrex_plan_destroy(plan);
    return 0;
}

static void on_three(rank_main main)
{
    ranks_desc desc = { .size = 3 };
    assert_int_equal(ranks_run(&desc, main, NULL), 0);
}

static void groups_tokens(void **state)
{
    (void)state;
    on_three(runs);
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    on_three(mistakes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_tokens),
        cmocka_unit_test(says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
