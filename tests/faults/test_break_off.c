/* test_break_off.c - a run over nodes that is refused when a part of it is under way: nothing of it
 * goes on once the call has returned, since the caller may do away with its matrices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "net_threads.h"
#include "ranks.h"
#include "reference.h"

enum { NTH = 2, FLOATS = 4096 };

static int break_off(imbrex_group *group, void *ctx)
{
    const op_case *c = ctx;
    int rank = imbrex_group_rank(group);
    imbrex_plan *plan;
    float *memory = calloc(3, FLOATS * sizeof *memory);
    imbrex_args args = { .a = memory, .c = memory + 2 * FLOATS };
    if (c->k)
        args.b = memory + FLOATS;
    RANK_OK(case_plan(group, c, &plan));
    imbrex_status status = imbrex_plan_run(plan, &args, NULL);
    if (rank == 0) {
        int under_way = net_threads_under_way(rank);
        RANK_CHECK(under_way == 0, "%s: %d steps are under way after the call", c->op, under_way);
        RANK_CHECK(status == IMBREX_SYSTEM && strstr(imbrex_error(), "as was asked for"), "%s: %s",
                   imbrex_status_name(status), imbrex_error());
    }
    status = imbrex_stream_sync(group, NULL);
    RANK_CHECK(status != IMBREX_OK, "%s: rank %d has not heard of it", c->op, rank);
    free(memory);
    return 0;
}

static void nothing_goes_on_after_the_call(void **state)
{
    (void)state;
    static op_case cases[] = {
        { .op = "all_gather", .m = 64, .n = 16, .dtype = IMBREX_F32, .chunk_rows = 4 },
        { .op = "reduce_scatter", .m = 64, .n = 16, .dtype = IMBREX_F32, .chunk_rows = 4 },
        { .op = "ag_gemm", .m = 64, .n = 16, .k = 8, .dtype = IMBREX_F32, .chunk_rows = 4 },
        { .op = "gemm_rs", .m = 64, .n = 16, .k = 8, .dtype = IMBREX_F32, .chunk_rows = 4 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ranks_desc desc = { .size = 4, .node_ranks = 2 };
        net_threads_reset();
        net_threads_hold(100); /* so none ends by itself */
        net_threads_fail(0, NTH);
        assert_int_equal(ranks_run(&desc, break_off, &cases[i]), 0);
    }
    net_threads_reset();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(nothing_goes_on_after_the_call) };
    imx_net_of_test = &net_threads;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
