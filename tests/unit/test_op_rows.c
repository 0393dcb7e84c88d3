/* test_op_rows.c - operators as rows of data: what imbrex_op says of them, plans made by name, and
 * the shapes of their operands. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "plan/plan.h"
#include "ranks.h"

static const imbrex_op_info *op_of(const char *name)
{
    const imbrex_op_info *info;
    for (int i = 0; (info = imbrex_op(i)); i++)
        if (strcmp(info->name, name) == 0)
            return info;
    return NULL;
}

static int row_of(const imbrex_op_info *info, const char *name)
{
    int i = 0;
    while (i < info->args_fields && strcmp(info->args[i].name, name) != 0)
        i++;
    return i;
}

/* Of the struct that has the field: the desc or args, or what args point to. */
static size_t bytes_of(const imbrex_field *f, size_t bytes)
{
    return strncmp(f->name, "routing.", 8) == 0 ? sizeof(imbrex_routing) : bytes;
}

/* Fields lie within their struct and beside each other, and every operator has one size of a run,
 * which desc and args both have. */
static void rows_are_whole(void **state)
{
    (void)state;
    int count = 0;
    for (const imbrex_op_info *info; (info = imbrex_op(count)); count++) {
        const imbrex_field *rows[] = { info->desc, info->args };
        const int fields[] = { info->desc_fields, info->args_fields };
        const size_t bytes[] = { info->desc_bytes, info->args_bytes };
        for (int which = 0; which < 2; which++) {
            int of_run = 0;
            for (int i = 0; i < fields[which]; i++) {
                const imbrex_field *f = &rows[which][i];
                assert_true(f->name && f->type && f->text);
                assert_true(f->offset % f->bytes == 0 &&
                            f->offset + f->bytes <= bytes_of(f, bytes[which]));
                of_run += (f->flags & IMBREX_FIELD_RUN) != 0;
                for (int j = 0; j < i; j++) {
                    const imbrex_field *g = &rows[which][j];
                    assert_string_not_equal(f->name, g->name);
                    assert_true(bytes_of(f, 0) != bytes_of(g, 0) ||
                                f->offset + f->bytes <= g->offset ||
                                g->offset + g->bytes <= f->offset);
                }
            }
            assert_int_equal(of_run, 1);
        }
        assert_ptr_equal(op_of(info->name), info);
        assert_true(info->desc_fields <= IMX_REQUEST_FIELDS && info->desc_bytes <= IMX_DESC_BYTES);
        assert_true(info->args_fields <= IMX_OPERANDS);
        assert_true(*info->text);
    }
    assert_int_equal(count, 14);
    assert_null(imbrex_op(-1));
    assert_null(imbrex_op(count));
    assert_int_equal(op_of("ag_gemm")->desc_bytes, sizeof(imbrex_gemm_desc));
    assert_int_equal(op_of("all_gather")->desc_bytes, sizeof(imbrex_coll_desc));
}

typedef struct want {
    const char *op, *operand;
    int64_t m, shape[2]; /* of rank 1 of 3 */
} want;

static int shapes(imbrex_group *group, void *ctx)
{
    (void)ctx;
    static const want all[] = {
        { "ag_gemm", "a", 0, { 4, 5 } },        { "ag_gemm", "b", 0, { 5, 7 } },
        { "ag_gemm", "bias", 0, { 7, -1 } },    { "ag_gemm", "c", 8, { 8, 7 } },
        { "ag_gemm", "gathered", 2, { 2, 5 } }, { "gemm_rs", "a", 0, { 11, 5 } },
        { "gemm_rs", "c", 2, { 1, 7 } },        { "gemm_rs", "b", 2, { 5, 7 } },
        { "gemm_ar", "a", 2, { 2, 5 } },        { "gemm_ar", "c", 2, { 2, 7 } },
        { "gemm", "a", 2, { 2, 5 } },           { "gemm", "c", 2, { 2, 7 } },
    };
    imbrex_gemm_desc desc = { .m = 11, .n = 7, .k = 5, .dtype = IMBREX_F16, .layout = IMBREX_KN };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const imbrex_op_info *info = op_of(all[i].op);
        imbrex_plan *plan = NULL;
        int64_t shape[4];
        imbrex_dtype dtype = IMBREX_F32;
        RANK_OK(imbrex_plan_create(group, all[i].op, &desc, sizeof desc, &plan));
        RANK_OK(imbrex_plan_operand(plan, row_of(info, all[i].operand), all[i].m, shape, &dtype));
        RANK_CHECK(imbrex_group_rank(group) != 1 ||
                       memcmp(shape, all[i].shape, sizeof all[i].shape) == 0,
                   "%s of %s is %d x %d", all[i].operand, all[i].op, (int)shape[0], (int)shape[1]);
        RANK_CHECK(shape[2] == -1 && shape[3] == -1 && dtype == IMBREX_F16, "more than a matrix");
        RANK_CHECK(imbrex_plan_operand(plan, row_of(info, "m"), 0, shape, &dtype) == IMBREX_INVALID,
                   "m is an operand");
        RANK_CHECK(imbrex_plan_operand(plan, 0, 12, shape, &dtype) == IMBREX_INVALID,
                   "a run of too many rows");
        /* All that a plan holds is two buffers of what it keeps for peers and for itself. */
        RANK_CHECK(imbrex_plan_memory(plan) >= 2 * 11 * 5 * 2, "%zu bytes",
                   imbrex_plan_memory(plan));
        imbrex_plan_destroy(plan);
        RANK_CHECK(imbrex_plan_memory(plan) == 0, "a destroyed plan has memory");
    }
    return 0;
}

static void operands_have_shapes(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3 };
    assert_int_equal(ranks_run(&desc, shapes, NULL), 0);
}

/* To leave it 0 is to say bf16, also where another rank says so. */
static int defaults(imbrex_group *group, void *ctx)
{
    (void)ctx;
    bool odd = imbrex_group_rank(group) == 1;
    imbrex_coll_desc desc = { .m = 3, .n = 4, .dtype = odd ? IMBREX_BF16 : IMBREX_DTYPE_DEFAULT };
    imbrex_activation silu = { .kind = IMBREX_SILU, .gated = 1 };
    const uint16_t in[2] = { 0x4040, 0x3fc0 }; /* 3, 1.5 */
    uint16_t out[3] = { 0 };
    imbrex_plan *plan = NULL;
    imbrex_dtype dtype;
    int64_t shape[4];
    RANK_OK(imbrex_plan_all_gather(group, &desc, &plan));
    RANK_OK(imbrex_plan_operand(plan, 0, 0, shape, &dtype));
    RANK_CHECK(dtype == IMBREX_BF16, "dtype %d", (int)dtype);
    imbrex_plan_destroy(plan);
    RANK_OK(imbrex_activate(group, &silu, 1, 1, in, &out[0], NULL, NULL, NULL));
    RANK_OK(imbrex_silu_mul(group, IMBREX_DTYPE_DEFAULT, 1, 1, in, &out[1], NULL));
    RANK_OK(imbrex_silu_mul(group, IMBREX_BF16, 1, 1, in, &out[2], NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_CHECK(out[0] == 0x4089 && out[1] == out[0] && out[2] == out[0], "%x, %x, %x", out[0],
               out[1], out[2]);
    desc.dtype = odd ? IMBREX_F16 : IMBREX_DTYPE_DEFAULT;
    RANK_CHECK(imbrex_plan_all_gather(group, &desc, &plan) == IMBREX_PEER &&
                   strstr(imbrex_error(), "desc.dtype differs between ranks: bf16 on rank 0"),
               "%s", imbrex_error());
    return 0;
}

static void a_dtype_has_a_default(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, defaults, NULL), 0);
}

/* A run of no rows: checked and counted, and nothing is written. */
static int none(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_coll_desc desc = { .m = 3, .n = 1, .dtype = IMBREX_F32 };
    float own[3] = { 1, 1, 1 }, sum[3] = { 7, 7, 7 };
    imbrex_args args = { .a = own, .c = sum, .m = IMBREX_NONE };
    imbrex_plan *plan = NULL;
    imbrex_dtype dtype;
    int64_t shape[4];
    RANK_OK(imbrex_plan_all_reduce(group, &desc, &plan));
    RANK_OK(imbrex_plan_operand(plan, 0, IMBREX_NONE, shape, &dtype));
    RANK_CHECK(shape[0] == 0 && shape[1] == 1, "a is %d x %d", (int)shape[0], (int)shape[1]);
    for (int i = 0; i < 3; i++)
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_CHECK(sum[0] == 7 && sum[2] == 7, "a run of no rows wrote %g", sum[0]);
    args.m = 0; /* all of them, again */
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_CHECK(sum[0] == 2 && sum[2] == 2, "the sum is %g", sum[0]);
    args.m = IMBREX_NONE - 1;
    RANK_CHECK(imbrex_plan_run(plan, &args, NULL) == IMBREX_INVALID, "m of -2");
    RANK_CHECK(imbrex_plan_operand(plan, 0, IMBREX_NONE - 1, shape, &dtype) == IMBREX_INVALID,
               "an operand in a run of -2 rows");
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    args.m = imbrex_group_rank(group) ? IMBREX_NONE : 0;
    imbrex_status status = imbrex_plan_run(plan, &args, NULL);
    if (status == IMBREX_OK) /* here before the other, which sees it */
        status = imbrex_barrier(group, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(group, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "differ"), "%s: %s",
               imbrex_status_name(status), imbrex_error());
    return 0;
}

static void a_run_may_have_no_rows(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, none, NULL), 0);
}

static int by_name(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_coll_desc desc = { .m = 3, .n = 4, .dtype = IMBREX_F32 };
    imbrex_plan *plan = NULL;
    bool odd = imbrex_group_rank(group) == 1;
    float own[4], all[12];
    for (int i = 0; i < 4; i++)
        own[i] = (float)(10 * imbrex_group_rank(group) + i);
    RANK_OK(imbrex_plan_create(group, "all_gather", &desc, sizeof desc, &plan));
    RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = own, .c = all }, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int i = 0; i < 12; i++)
        RANK_CHECK(all[i] == (float)(10 * (i / 4) + i % 4), "c[%d] is %g", i, all[i]);
    imbrex_plan_destroy(plan);
    plan = NULL;
    imbrex_status status = imbrex_plan_create(group, "gather_all", &desc, sizeof desc, &plan);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "there are ag_gemm, "), "%s",
               imbrex_error());
    status = imbrex_plan_create(group, "all_gather", &desc, sizeof desc - 4, &plan);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "desc_bytes is "), "%s",
               imbrex_error());
    status = imbrex_plan_create(group, "all_gather", NULL, sizeof desc, &plan);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "desc is NULL"), "%s",
               imbrex_error());
    /* A name that only one rank has wrong, and operators that differ, are told to all. */
    status = imbrex_plan_create(group, odd ? "no" : "all_gather", &desc, sizeof desc, &plan);
    RANK_CHECK(status == (odd ? IMBREX_INVALID : IMBREX_PEER) && !plan, "%s", imbrex_error());
    status =
        imbrex_plan_create(group, odd ? "reduce_scatter" : "all_gather", &desc, sizeof desc, &plan);
    RANK_CHECK(status == IMBREX_PEER && strstr(imbrex_error(), "imbrex_plan_reduce_scatter"), "%s",
               imbrex_error());
    return 0;
}

static void plans_by_name(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3 };
    assert_int_equal(ranks_run(&desc, by_name, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_whole),        cmocka_unit_test(operands_have_shapes),
        cmocka_unit_test(a_dtype_has_a_default), cmocka_unit_test(a_run_may_have_no_rows),
        cmocka_unit_test(plans_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
