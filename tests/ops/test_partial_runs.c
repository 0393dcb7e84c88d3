/* test_partial_runs.c - runs over nodes of which a part is enqueued and the rest cannot be: when
 * the call returns nothing of it is under way, on no stream, so that operands may go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "group/group.h"
#include "net_threads.h"
#include "ranks.h"
#include "reference.h"

enum { RANKS = 2, STARTS_MS = 20000, LINGERS_US = 300000, M = 64 };

static imx_net_kind breaking;

/* Of rank 0. */
static const imbrex_group *first;
static int steps, breaks_at, started, ended; /* the latter two: atomic */

/* As a send that is on its way when the group fails. */
static void linger(const void *args)
{
    (void)args;
    __atomic_add_fetch(&started, 1, __ATOMIC_RELEASE);
    usleep(LINGERS_US);
    __atomic_add_fetch(&ended, 1, __ATOMIC_RELEASE);
}

/* The step before the one that fails lingers, and has begun by then. */
static imbrex_status break_step(imx_net *net, int channel, int lane, const imx_net_op *ops,
                                int count, imbrex_stream stream)
{
    const imx_net_kind *whole = &net_threads;
    imbrex_span span = { .kind = IMBREX_SPAN_COPY, .name = "net", .peer = ops[0].rank };
    int own = ops[0].rank == 0 ? 0 : ++steps; /* rank 1's go to rank 0 */
    if (own && own == breaks_at - 1)
        return first->backend->call(first->device, linger, &span, sizeof span, &span, stream);
    if (own < breaks_at || ops[0].rank == 0)
        return whole->step(net, channel, lane, ops, count, stream);
    for (int i = 0; i < STARTS_MS && !__atomic_load_n(&started, __ATOMIC_ACQUIRE); i++)
        usleep(1000);
    return imx_fail(IMBREX_DEVICE, "the wire to rank %d is cut", ops[0].rank);
}

static int half_a_run(imbrex_group *group, void *ctx)
{
    const op_case *c = ctx;
    int rank = imbrex_group_rank(group);
    static float a[RANKS][M * M], b[RANKS][M * M], out[RANKS][M * M];
    imbrex_args args = { .a = a[rank], .b = c->k ? b[rank] : NULL, .c = out[rank] };
    imbrex_plan *plan;
    if (rank == 0)
        first = group;
    RANK_OK(case_plan(group, c, &plan));
    imbrex_status status = imbrex_plan_run(plan, &args, NULL);
    if (rank == 0) {
        RANK_CHECK(status == IMBREX_DEVICE && strstr(imbrex_error(), "the wire to rank 1 is cut"),
                   "%s: %s, %d steps", imbrex_status_name(status), imbrex_error(), steps);
        RANK_CHECK(started == 1, "no step was under way");
        RANK_CHECK(__atomic_load_n(&ended, __ATOMIC_ACQUIRE) == 1, "a step goes on, behind it");
    }
    status = imbrex_stream_sync(group, NULL);
    RANK_CHECK(status == (rank ? IMBREX_PEER : IMBREX_DEVICE) &&
                   strstr(imbrex_error(), "could enqueue only a part of its run"),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    return 0;
}

static void nothing_goes_on(void **state)
{
    (void)state;
    static const char *const ops[] = { "all_gather", "reduce_scatter", "all_reduce",
                                       "ag_gemm",    "gemm_rs",        "gemm_ar" };
    for (int i = 0; i < 6; i++) {
        op_case c = { .op = ops[i],
                      .m = M,
                      .n = M,
                      .k = i > 2 ? M : 0,
                      .dtype = IMBREX_F32,
                      .algorithm = "hierarchical",
                      .chunk_rows = 8 };
        ranks_desc desc = { .size = RANKS, .node_ranks = 1 };
        steps = started = ended = 0;
        breaks_at = 2;
        net_threads_reset();
        assert_int_equal(ranks_run(&desc, half_a_run, &c), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_goes_on),
    };
    breaking = net_threads;
    breaking.step = break_step;
    imx_net_of_test = &breaking;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
