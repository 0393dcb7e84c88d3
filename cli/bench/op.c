/* op.c - one table of operators, and what follows from a shape. */
#include "op.h"

#include <string.h>

#include "matrix.h"

static const bench_op ops[] = {
    { .name = "ag_gemm", .product = true, .a_is_share = true, .moves = 1 },
    { .name = "gemm_rs", .product = true, .moves = 1 },
    { .name = "gemm_ar", .product = true, .moves = 2 },
    { .name = "gemm", .product = true, .alone = true },
    { .name = "all_gather", .a_is_share = true, .moves = 1 },
    { .name = "reduce_scatter", .moves = 1 },
    { .name = "all_reduce", .moves = 2 },
    { .name = "all_to_all", .moves = 1 },
    { .name = "barrier", .meets = true },
};

enum { OPS = sizeof ops / sizeof *ops };

const char *const bench_layout_names[2] = { "nk", "kn" };

const bench_op *bench_op_find(const char *name)
{
    for (int i = 0; i < OPS; i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    return NULL;
}

void bench_op_names(bool plans, char *text, size_t size)
{
    size_t length = 0;
    for (int i = 0; i < OPS && length < size; i++)
        if (!plans || ops[i].moves)
            length += (size_t)snprintf(text + length, size - length, "%s%s", length ? ", " : "",
                                       ops[i].name);
}

imbrex_gemm_desc bench_op_desc(const bench_shape *s, const char *algorithm)
{
    return (imbrex_gemm_desc){
        .m = s->m,
        .n = s->n,
        .k = s->k,
        .dtype = s->dtype,
        .layout = s->layout,
        .algorithm = algorithm,
        .chunk_rows = s->chunk_rows,
        .sms = s->sms,
        .m_least = s->m_least,
    };
}

static imbrex_coll_desc coll_desc(const bench_shape *s, const char *algorithm)
{
    return (imbrex_coll_desc){
        .m = s->m,
        .n = s->n,
        .dtype = s->dtype,
        .algorithm = algorithm,
        .chunk_rows = s->chunk_rows,
        .sms = s->sms,
    };
}

imbrex_status bench_op_plan(imbrex_group *group, const bench_shape *s, const char *algorithm,
                            imbrex_plan **plan)
{
    const bool for_more = s->plan_m && !algorithm;
    if (s->op->product) {
        imbrex_gemm_desc desc = bench_op_desc(s, algorithm);
        if (for_more) {
            desc.m = s->plan_m;
            desc.m_least = 0;
        }
        return imbrex_plan_create(group, s->op->name, &desc, sizeof desc, plan);
    }
    imbrex_coll_desc desc = coll_desc(s, algorithm);
    if (for_more)
        desc.m = s->plan_m;
    return imbrex_plan_create(group, s->op->name, &desc, sizeof desc, plan);
}

imbrex_status bench_op_tune(imbrex_group *group, const bench_shape *s,
                            imbrex_tune_progress progress, void *ctx)
{
    const imbrex_gemm_desc gemm = bench_op_desc(s, NULL);
    const imbrex_coll_desc coll = coll_desc(s, NULL);
    const void *desc = s->op->product ? (const void *)&gemm : &coll;
    return imbrex_tune(group, s->op->name, desc, s->op->product ? sizeof gemm : sizeof coll,
                       progress, ctx);
}

imbrex_status bench_op_product(imbrex_group *alone, const bench_shape *s, imbrex_plan **plan)
{
    imbrex_gemm_desc desc = bench_op_desc(s, "sequential");
    desc.chunk_rows = 0;
    return imbrex_plan_ag_gemm(alone, &desc, plan);
}

double bench_op_flop(const bench_shape *s)
{
    return 2.0 * (double)s->m * (double)s->n * (double)s->k;
}

/* On average: a rank's own share of what travels stays where it is. */
double bench_op_bytes(const bench_shape *s, int ranks)
{
    int64_t width = s->op->product && s->op->a_is_share ? s->k : s->n;
    return s->op->moves * (double)s->m * (double)width * (double)matrix_dtype_bytes(s->dtype) *
           (ranks - 1) / ranks;
}
