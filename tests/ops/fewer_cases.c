/* fewer_cases.c - a plan of many rows with variants for fewer: each run's rows are right, and runs
 * of all of them follow each other on whatever streams. */
#include "fewer_cases.h"

#include <string.h>

#include "op_image.h"
#include "plan/plan.h"
#include "ranks.h"

enum { M = 300, ROUNDS = 2, STREAMS = 2, FEWER = IMX_VARIANTS - 1 };

static const op_case cases[] = {
    { .op = "ag_gemm", .m = M, .n = 72, .k = 64, .bias = 1, .gathered = 1 },
    { .op = "ag_gemm", .m = M, .n = 256, .k = 128, .dtype = IMBREX_F16, .layout = IMBREX_KN },
    { .op = "gemm_rs", .m = M, .n = 72, .k = 64, .bias = 1 },
    { .op = "gemm_rs", .m = M, .n = 256, .k = 128, .dtype = IMBREX_F16, .layout = IMBREX_KN },
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* At the borders of 64 and 128 rows, up and down, and two of a kind on one stream and on two. */
static const int64_t rows[] = { M, 1, 64, 65, 128, M, 129, 3, M - 1, 100, 100, 2, 64 };
enum { RUNS = sizeof rows / sizeof rows[0] };

/* ---- which there are ------------------------------------------------------------------------- */

static const struct {
    int64_t m, m_least;
    const char *algorithm;
    int chunk_rows;
    int64_t fewer[FEWER]; /* the rows of its variants for fewer */
} plans[] = {
    { 85, 0, NULL, 0, { 0 } },
    { 86, 0, NULL, 0, { 64 } },
    { 340, 0, NULL, 0, { 64, 128 } },
    { 342, 0, NULL, 0, { 64, 128, 256 } },
    { 2730, 0, NULL, 0, { 64, 128, 256, 384, 512, 640, 768, 1024, 1280, 1536 } },
    { 2731, 0, NULL, 0, { 64, 128, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048 } },
    { 2731, 65, NULL, 0, { 128, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048 } },
    { 2731, 2048, NULL, 0, { 2048 } },
    { 2731, 2731, NULL, 0, { 0 } },
    { 2731, 0, "copy", 0, { 0 } },
    { 2731, 0, NULL, 64, { 0 } },
};

static int has_fewer(imbrex_plan *plan, const int64_t want[FEWER])
{
    imx_plan_facts facts = imx_describe_facts(plan);
    imbrex_plan_destroy(plan);
    for (int i = 0; i < FEWER; i++) {
        int64_t have = i < facts.fewer_count ? facts.fewer[i].rows : 0;
        RANK_CHECK(have == want[i], "variant %d for fewer rows is for %d, not %d", i, (int)have,
                   (int)want[i]);
    }
    return 0;
}

static int there_are(imbrex_group *group, int sms)
{
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        const imbrex_gemm_desc desc = { .m = plans[i].m,
                                        .n = 64,
                                        .k = 64,
                                        .algorithm = plans[i].algorithm,
                                        .chunk_rows = plans[i].chunk_rows,
                                        .sms = sms,
                                        .m_least = plans[i].m_least };
        imbrex_plan *plan;
        RANK_OK(imbrex_plan_gemm_rs(group, &desc, &plan));
        if (has_fewer(plan, plans[i].fewer))
            return 1;
    }
    const imbrex_coll_desc coll = { .m = 2731, .n = 64 }; /* which needs none */
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_all_gather(group, &coll, &plan));
    return has_fewer(plan, (const int64_t[FEWER]){ 0 });
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Each run went by the variant of fewest rows that it fits in. */
static int check_ways(const imbrex_plan *plan)
{
    int64_t from = 0;
    for (int i = 1; i <= plan->variant_count; i++) {
        const imx_variant *way = &plan->variants[i % plan->variant_count];
        uint64_t count = 0;
        for (int r = 0; r < RUNS; r++)
            count += rows[r] > from && rows[r] <= way->shape.m ? ROUNDS : 0;
        RANK_CHECK(count && way->runs == count, "%d runs by the variant of up to %d rows, want %d",
                   (int)way->runs, (int)way->shape.m, (int)count);
        from = way->shape.m;
    }
    return 0;
}

/* Destroys the plan while its runs go on. */
static int enqueue(imbrex_group *group, imbrex_plan *plan, const op_case *c, const op_image *x)
{
    imbrex_stream streams[STREAMS];
    for (int s = 0; s < STREAMS; s++)
        RANK_OK(imbrex_stream_create(group, &streams[s]));
    for (int i = 0; i < ROUNDS * RUNS; i++) {
        imbrex_args args = op_image_args(c, &x[i % RUNS], rows[i % RUNS]);
        RANK_OK(imbrex_plan_run(plan, &args, streams[i / 2 % STREAMS]));
    }
    int failed = check_ways(plan);
    imbrex_plan_destroy(plan);
    for (int s = 0; s < STREAMS; s++) {
        RANK_OK(imbrex_stream_sync(group, streams[s]));
        imbrex_stream_destroy(group, streams[s]);
    }
    return failed;
}

static int check(imbrex_group *group, const op_case *c, const op_image *x, int64_t m)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    reference_error error;
    if (op_image_download(group, x))
        return 1;
    int64_t at = reference_check(c, m, ranks, r, x->host + x->c.at, &error);
    RANK_CHECK(at < 0, "rank %d, %s of %d rows, a run of %d: c[%d, %d] is %g, want %g", r, c->op,
               (int)c->m, (int)m, (int)(at / c->n), (int)(at % c->n), error.have, error.want);
    RANK_CHECK(op_image_intact(x), "%s, a run of %d rows: written beside a matrix", c->op, (int)m);
    return 0;
}

static int run_case(imbrex_group *group, const op_case *c)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    size_t bytes = op_image_bytes(c, ranks);
    op_image x[RUNS];
    imbrex_plan *plan;
    void *device;
    RANK_OK(case_plan(group, c, &plan));
    RANK_OK(imbrex_mem_alloc(group, RUNS * bytes, &device));
    for (int i = 0; i < RUNS; i++) {
        x[i] = op_image_take(c, rows[i], ranks, r, (char *)device + (size_t)i * bytes);
        if (op_image_upload(group, &x[i]))
            return 1;
    }
    int failed = enqueue(group, plan, c, x);
    for (int i = 0; i < RUNS; i++) {
        failed = failed || check(group, c, &x[i], rows[i]);
        op_image_drop(&x[i]);
    }
    if (failed)
        return 1; /* the group is given up with what it has */
    imbrex_mem_free(group, device);
    return 0;
}

int fewer_cases(imbrex_group *group, void *ctx)
{
    (void)ctx;
    for (size_t i = 0; i < CASES; i++) {
        if (run_case(group, &cases[i]))
            return 1;
    }
    return there_are(group, 0);
}

int fewer_cases_plans(imbrex_group *group, int sms)
{
    for (size_t i = 0; i < CASES; i++) {
        imbrex_plan *plan;
        op_case c = cases[i];
        c.sms = sms;
        RANK_OK(case_plan(group, &c, &plan));
        imbrex_plan_destroy(plan);
    }
    return there_are(group, sms);
}
