/* test_gpu_budgets.c - two plans at once on real GPUs, each at half of the SMs: both end,
 * with the bits that they have alone, although ranks begin them in different orders.
 *
 *     rank 0, stream 0 | copy ..... | plan A ...        rank 1 | plan A ... waits for rank 0's |
 *             stream 1 | plan B ... waits for rank 1's |       | copy ..... | plan B ...
 *
 * Each plan's blocks wait for the other rank's.  Where a plan took all SMs, the other would never
 * begin on either rank. */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "op_cases.h"
#include "op_image.h"
#include "plan/plan.h"

enum { PLANS = 2, RUNS = 24, TIMEOUT_MS = 5000, LIMIT_S = 90 };

/* Half of the SMs of the fake driver's GPUs, less than half of an A100's. */
enum { SMS = 50, SMS_FAKE = 6 };

/* What a copy within the device moves, so that it takes longer than either plan. */
static const size_t DELAY_BYTES = (size_t)256 << 20, DELAY_BYTES_FAKE = (size_t)16 << 20;

typedef struct pair {
    const char *name;
    op_case cases[PLANS];
} pair;

/* Those that need all their blocks at once, as chosen on compute capability 9.0, and others. */
static const pair pairs[] = {
    { "gemm_rs of few rows, twice",
      { { .op = "gemm_rs", .m = 256, .n = 2048, .k = 1024 },
        { .op = "gemm_rs", .m = 200, .n = 1536, .k = 512, .dtype = IMBREX_F16 } } },
    { "ag_gemm in a ring, gemm_rs",
      { { .op = "ag_gemm", .m = 1024, .n = 1536, .k = 1024, .algorithm = "ring" },
        { .op = "gemm_rs", .m = 1024, .n = 2048, .k = 512 } } },
    { "ag_gemm, reduce_scatter",
      { { .op = "ag_gemm", .m = 512, .n = 2048, .k = 1024 },
        { .op = "reduce_scatter", .m = 512, .n = 4096, .algorithm = "store" } } },
    { "gemm_ar, all_reduce",
      { { .op = "gemm_ar", .m = 96, .n = 2048, .k = 1024 },
        { .op = "all_reduce", .m = 512, .n = 2048, .algorithm = "store" } } },
};

typedef struct work {
    imbrex_group *group;
    const pair *of;
    imbrex_plan *plans[PLANS];
    imbrex_stream streams[PLANS];
    op_image images[PLANS];
    char *bits[PLANS]; /* of c, by a run alone */
    char *from, *to;   /* the copy that delays */
    size_t delay;
} work;

static int make(work *w, imbrex_group *group, const pair *of)
{
    int ranks = imbrex_group_size(group), r = imbrex_group_rank(group);
    *w =
        (work){ .group = group, .of = of, .delay = gpu_is_fake() ? DELAY_BYTES_FAKE : DELAY_BYTES };
    RANK_OK(imbrex_mem_alloc(group, 2 * w->delay, (void **)&w->from));
    w->to = w->from + w->delay;
    for (int i = 0; i < PLANS; i++) {
        op_case c = of->cases[i];
        char *device;
        c.input = 10 + i;
        c.sms = gpu_is_fake() ? SMS_FAKE : SMS;
        RANK_OK(case_plan(group, &c, &w->plans[i]));
        imx_plan_facts facts = imx_describe_facts(w->plans[i]);
        RANK_CHECK(facts.at_once <= c.sms, "%s needs %d SMs at once, of a budget of %d", c.op,
                   facts.at_once, c.sms);
        RANK_OK(imbrex_stream_create(group, &w->streams[i]));
        RANK_OK(imbrex_mem_alloc(group, op_image_bytes(&c, ranks), (void **)&device));
        w->images[i] = op_image_take(&c, c.m, ranks, r, device);
        w->bits[i] = malloc(w->images[i].c.bytes + 1);
        if (op_image_upload(group, &w->images[i]))
            return 1;
    }
    return 0;
}

static int run(work *w, int i)
{
    const op_case *c = &w->of->cases[i];
    imbrex_args args = op_image_args(c, &w->images[i], c->m);
    RANK_OK(imbrex_plan_run(w->plans[i], &args, w->streams[i]));
    return 0;
}

static int alone(work *w, int i)
{
    op_image *x = &w->images[i];
    if (run(w, i))
        return 1;
    RANK_OK(imbrex_stream_sync(w->group, w->streams[i]));
    if (op_image_download(w->group, x))
        return 1;
    memcpy(w->bits[i], x->host + x->c.at, x->c.bytes);
    return 0;
}

static int together(work *w, int round)
{
    int late = (imbrex_group_rank(w->group) + round) % PLANS;
    RANK_OK(imbrex_copy(w->group, w->to, w->from, w->delay, w->streams[late]));
    for (int i = 0; i < PLANS; i++) {
        if (run(w, i))
            return 1;
    }
    for (int i = 0; i < PLANS; i++)
        RANK_OK(imbrex_stream_sync(w->group, w->streams[i]));
    for (int i = 0; i < PLANS; i++) {
        op_image *x = &w->images[i];
        if (op_image_download(w->group, x))
            return 1;
        RANK_CHECK(memcmp(w->bits[i], x->host + x->c.at, x->c.bytes) == 0,
                   "round %d: %s has other bits than alone", round, w->of->cases[i].op);
        RANK_CHECK(op_image_intact(x), "round %d: %s wrote beside a matrix", round,
                   w->of->cases[i].op);
        memset(x->host + x->c.at, 0xFF, x->c.bytes);
        if (op_image_upload(w->group, x))
            return 1;
    }
    return 0;
}

static int runs(imbrex_group *group, const pair *of)
{
    work w;
    int failed = make(&w, group, of);
    for (int i = 0; i < PLANS && !failed; i++)
        failed = alone(&w, i);
    for (int round = 0; round < (gpu_is_fake() ? PLANS : RUNS) && !failed; round++)
        failed = together(&w, round);
    for (int i = 0; i < PLANS; i++) {
        op_image_drop(&w.images[i]);
        free(w.bits[i]);
    }
    return failed;
}

static int on_gpu(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group *group;
    imbrex_group_desc desc = { .bootstrap = bootstrap,
                               .device = gpu_of(rank, true),
                               .timeout_ms = TIMEOUT_MS };
    RANK_OK(imbrex_group_create(&desc, &group));
    int failed = runs(group, ctx);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static int two_ranks(void *ctx)
{
    ranks_desc desc = { .size = 2 };
    return ranks_run_bare(&desc, on_gpu, ctx);
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && gpu_count() > 1; i++) {
        if (gpu_wanted("two plans at once: %s", pairs[i].name))
            gpu_report(gpu_isolated(two_ranks, (void *)(uintptr_t)&pairs[i], LIMIT_S));
    }
    return gpu_end();
}
