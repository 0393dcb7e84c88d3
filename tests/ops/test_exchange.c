/* test_exchange.c - imbrex_exchange between logical nodes: CPU ranks over an engine of threads, GPU
 * ranks over a fake NCCL on a fake driver, what is refused, and a rank that never comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exchange_cases.h"
#include "fake_driver.h"
#include "fake_nccl.h"
#include "fake_ranks.h"
#include "imbrex_device.h"
#include "net_threads.h"

static int on_cpu(int ranks, int per_node, int64_t timeout_ms, rank_main run)
{
    ranks_desc desc = { .size = ranks, .node_ranks = per_node, .timeout_ms = timeout_ms };
    imx_net_of_test = &net_threads;
    net_threads_reset();
    int failed = ranks_run(&desc, run, NULL);
    imx_net_of_test = NULL;
    return failed;
}

static int on_gpus(int ranks, int per_node, int64_t timeout_ms, rank_main run)
{
    ranks_desc desc = { .size = ranks, .node_ranks = per_node, .timeout_ms = timeout_ms };
    const fake_nccl_state *nccl = fake_nccl_install();
    int failed = fake_ranks_run(&desc, 2, run, NULL);
    assert_int_equal(nccl->live, 0);
    return failed;
}

static void bytes_arrive(void **state)
{
    (void)state;
    static const int shapes[][2] = { { 4, 2 }, { 6, 2 }, { 5, 3 }, { 5, 1 }, { 2, 2 } };
    for (int i = 0; i < 5; i++) {
        assert_int_equal(on_cpu(shapes[i][0], shapes[i][1], 0, exchange_cases), 0);
        assert_int_equal(on_gpus(shapes[i][0], shapes[i][1], 0, exchange_cases), 0);
    }
}

static void what_cannot_go_is_refused(void **state)
{
    (void)state;
    assert_int_equal(on_cpu(4, 2, 0, exchange_refusals), 0);
    assert_int_equal(on_gpus(4, 2, 0, exchange_refusals), 0);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static int captures(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_stream stream;
    fake_graph *graph;
    void *memory;
    RANK_OK(imbrex_mem_alloc(group, 8, &memory));
    RANK_OK(imbrex_stream_create(group, &stream));
    imbrex_transfer receive = { .rank = 1 - imbrex_group_rank(group), .recv = memory, .bytes = 8 };
    RANK_CHECK(fake_graph_begin(stream) == 0, "no capture");
    imbrex_status status = imbrex_exchange(group, &receive, 1, stream);
    RANK_CHECK(status == IMBREX_UNSUPPORTED && strstr(imbrex_error(), "cannot be captured"),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(fake_graph_end(stream, &graph) == 0, "the capture fails");
    fake_graph_destroy(graph);
    return 0;
}

static void a_capture_is_refused(void **state)
{
    (void)state;
    assert_int_equal(on_gpus(2, 1, 0, captures), 0);
}

/* ---- failure --------------------------------------------------------------------------------- */

enum { LIMIT_MS = 700, MOST_MS = 10 * LIMIT_MS };

/* Rank 0 receives what rank 1 never sends; both learn where it hung. */
static int waits_in_vain(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    void *memory;
    RANK_OK(imbrex_mem_alloc(group, 64, &memory));
    imbrex_transfer receive = { .rank = 1, .recv = memory, .bytes = 64 };
    int64_t begin_ns = imbrexd_now_ns();
    if (rank == 0)
        RANK_OK(imbrex_exchange(group, &receive, 1, NULL));
    imbrex_status status = IMBREX_OK;
    while (status == IMBREX_OK && imbrexd_now_ns() - begin_ns < patient(MOST_MS) * 1000000LL)
        status = imbrex_stream_sync(group, NULL);
    RANK_CHECK(status == (rank ? IMBREX_PEER : IMBREX_TIMEOUT), "rank %d: %s", rank,
               imbrex_status_name(status));
    RANK_CHECK(strstr(imbrex_error(), "the network to or from rank 1 in imbrex_exchange"), "%s",
               imbrex_error());
    status = imbrex_exchange(group, &receive, 1, NULL); /* from now on nothing is enqueued */
    RANK_CHECK(status != IMBREX_OK, "rank %d: %s", rank, imbrex_status_name(status));
    return 0;
}

static void a_rank_that_never_comes_is_told(void **state)
{
    (void)state;
    assert_int_equal(on_cpu(2, 1, LIMIT_MS, waits_in_vain), 0);
    assert_int_equal(on_gpus(2, 1, LIMIT_MS, waits_in_vain), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive),
        cmocka_unit_test(what_cannot_go_is_refused),
        cmocka_unit_test(a_capture_is_refused),
        cmocka_unit_test(a_rank_that_never_comes_is_told),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
