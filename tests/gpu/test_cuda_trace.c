/* test_cuda_trace.c - spans of GPUs, on fake ones whose blocks note a tile, a push and themselves:
 * they are told by the host's clock, each launch is one kernel, and what found no room is said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_ranks.h"
#include "group/group.h"
#include "imbrex_device.h"

enum { SPANS = 20000, SIZE = 2, M = 64, N = 32, K = 16, EACH = 1024 };

typedef struct tally {
    int kernels, tiles, pushes, lost, strange;
} tally;

static imbrex_span found[SIZE][SPANS];

static tally count_up(const imbrex_span *spans, size_t count, int64_t begin_ns, int64_t end_ns)
{
    tally t = { 0 };
    for (size_t i = 0; i < count; i++) {
        const imbrex_span *s = &spans[i];
        bool lost = strstr(s->name, "lost") != NULL;
        bool kernel = s->kind == IMBREX_SPAN_KERNEL && strcmp(s->name, "gemm") == 0 && s->lane == 0;
        bool tile = s->kind == IMBREX_SPAN_TILE && s->lane == s->index + 1 && s->peer == 0;
        bool push = s->kind == IMBREX_SPAN_COPY && s->lane == -3 && s->peer == 1;
        bool in_time = s->begin_ns >= begin_ns && s->end_ns <= end_ns && s->begin_ns <= s->end_ns;
        t.lost += lost ? atoi(s->name) : 0;
        t.kernels += kernel;
        t.tiles += tile;
        t.pushes += push;
        t.strange += !in_time || lost + kernel + tile + push != 1 || s->stream != 0;
    }
    return t;
}

static int run(imbrex_group *group, imbrex_plan *plan, const imbrex_args *args, int times)
{
    for (int i = 0; i < times; i++)
        RANK_OK(imbrex_plan_run(plan, args, NULL));
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static int spans(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    enum {
        SLACK_NS = 300000000 /* of the clocks' comparison, on a busy machine */,
        RUNS = 3,
        MANY = EACH / 3 + 1 /* 3 records a block each */
    };
    imbrex_gemm_desc desc = { .m = M, .n = N, .k = K, .dtype = IMBREX_F32, .algorithm = "copy" };
    imbrex_plan *before, *plan;
    void *room;
    RANK_OK(imbrex_mem_alloc(group, (M * K + N * K + M * N) * sizeof(float), &room));
    float *a = room;
    imbrex_args args = { .a = a, .b = a + M * K, .c = a + M * K + N * K };
    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &before));
    RANK_OK(imbrex_trace(group, SPANS));
    RANK_CHECK(run(group, before, &args, 1) == 0, "no run");
    size_t count = imbrex_trace_spans(group, found[rank], SPANS);
    RANK_CHECK(count == 0, "%zu spans of a plan from before the trace", count);

    RANK_OK(imbrex_plan_ag_gemm(group, &desc, &plan));
    int64_t begin_ns = imbrexd_now_ns() - SLACK_NS;
    RANK_CHECK(run(group, plan, &args, RUNS) == 0, "no runs");
    count = imbrex_trace_spans(group, found[rank], SPANS);
    tally t = count_up(found[rank], count, begin_ns, imbrexd_now_ns() + SLACK_NS);
    RANK_CHECK(t.kernels == RUNS, "%d kernels, not %d, of %zu spans: %s", t.kernels, RUNS, count,
               imbrex_error());
    RANK_CHECK(t.tiles > 0 && t.tiles % RUNS == 0 && t.pushes == t.tiles && !t.strange,
               "%d tiles and %d pushes in %d runs, %d strange spans", t.tiles, t.pushes, RUNS,
               t.strange);
    RANK_CHECK(imbrex_trace_spans(group, NULL, 0) == count, "spans are taken twice");

    RANK_OK(imbrex_trace(group, SPANS));
    RANK_CHECK(run(group, plan, &args, MANY) == 0, "no runs");
    count = imbrex_trace_spans(group, found[rank], SPANS);
    t = count_up(found[rank], count, begin_ns, imbrexd_now_ns() + SLACK_NS);
    int lost = MANY * 3 - EACH, blocks = t.tiles / MANY;
    RANK_CHECK(t.lost == lost * blocks && !t.strange, "%d lost of %d blocks, not %d each; %d odd",
               t.lost, blocks, lost, t.strange);

    RANK_OK(imbrex_trace(group, 0));
    RANK_CHECK(run(group, plan, &args, 1) == 0, "no run");
    RANK_CHECK(imbrex_trace_spans(group, NULL, 0) == 0, "spans after the trace");
    imbrex_plan_destroy(plan);
    imbrex_plan_destroy(before);
    imbrex_mem_free(group, room);
    return 0;
}

static void blocks_tell(void **state)
{
    (void)state;
    ranks_desc desc = { .size = SIZE };
    assert_int_equal(fake_ranks_run(&desc, SIZE, spans, NULL), 0);
}

/* What fails as it is enqueued has a begin alone. */
static int steps(imbrex_group *group, void *ctx)
{
    (void)ctx;
    const imx_backend *b = group->backend;
    const imbrex_span span = { .kind = IMBREX_SPAN_COPY, .peer = 1, .name = "step" };
    imbrex_stream stream;
    RANK_OK(imbrex_stream_create(group, &stream));
    RANK_OK(imbrex_trace(group, SPANS));
    for (int told = 0; told <= 2; told++) {
        uint64_t *times = b->trace_times(group->device, &span, stream);
        const imx_signal_op ops[] = { { .kind = IMX_TIME, .signal = times },
                                      { .kind = IMX_TIME, .signal = times + 1 } };
        RANK_OK(b->signals(group->device, ops, told, stream));
    }
    RANK_OK(imbrex_stream_sync(group, stream));
    size_t count = imbrex_trace_spans(group, found[0], SPANS);
    RANK_CHECK(count == 1 && found[0][0].begin_ns > 0 && found[0][0].end_ns >= found[0][0].begin_ns,
               "%zu spans of one step that ended", count);
    imbrex_stream_destroy(group, stream);
    return 0;
}

static void steps_without_an_end_are_no_spans(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    assert_int_equal(fake_ranks_run(&desc, 1, steps, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(blocks_tell),
                                        cmocka_unit_test(steps_without_an_end_are_no_spans) };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
