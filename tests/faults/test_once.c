/* test_once.c - an allgather of the caller's that is called as a group is made and never again: the
 * ranks have connections of their own from then on, with the group's limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "imbrex.h"
#include "ranks.h"

enum { ROWS = 5, COLS = 3, TIMEOUT_MS = 700 };

/* ---- what goes through it -------------------------------------------------------------------- */

/* Over another bootstrap; once the group is made it fails. */
typedef struct closing {
    const imbrex_bootstrap *inner;
    bool closed;
    int failed;
} closing;

static int gather(void *ctx, const void *send, void *recv, size_t bytes)
{
    closing *c = ctx;
    c->failed += c->closed;
    return c->closed || c->inner->allgather(c->inner->ctx, send, recv, bytes);
}

static int all_reduce(imbrex_group *group, void *ctx)
{
    (void)ctx;
    float a[ROWS * COLS], c[ROWS * COLS];
    int size = imbrex_group_size(group), rank = imbrex_group_rank(group);
    for (int i = 0; i < ROWS * COLS; i++)
        a[i] = (float)(rank + i);
    imbrex_plan *plan;
    imbrex_coll_desc desc = { .m = ROWS, .n = COLS, .dtype = IMBREX_F32 };
    RANK_OK(imbrex_plan_all_reduce(group, &desc, &plan));
    RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .a = a, .c = c }, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    for (int i = 0; i < ROWS * COLS; i++)
        RANK_CHECK(c[i] == (float)(size * i + size * (size - 1) / 2), "element %d is %g", i,
                   (double)c[i]);
    imbrex_plan_destroy(plan);
    return 0;
}

static int makes_all(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    closing c = { .inner = bootstrap };
    const imbrex_bootstrap own = {
        .rank = rank, .size = bootstrap->size, .allgather = gather, .ctx = &c, .once = 1
    };
    const imbrex_group_desc desc = { .bootstrap = &own, .device = "cpu" };
    imbrex_group *group, *child;
    RANK_OK(imbrex_group_create(&desc, &group));
    c.closed = true;
    void *memory;
    RANK_OK(imbrex_mem_alloc(group, 64, &memory));
    int failed = all_reduce(group, NULL);
    RANK_OK(imbrex_group_split(group, rank % 2, 0, &child));
    failed = failed || all_reduce(child, NULL);
    imbrex_group_destroy(child);
    imbrex_group_destroy(group);
    RANK_CHECK(!failed && c.failed == 0, "it was called %d times more", c.failed);
    return 0;
}

static void nothing_more_goes_through_it(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++)
        assert_int_equal(ranks_run_bare(&(ranks_desc){ .size = size }, makes_all, NULL), 0);
}

/* ---- what ends its waits --------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The caller's own allgather would wait for half a minute. */
static int comes_alone(imbrex_group *group, void *ctx)
{
    const int late = *(const int *)ctx;
    void *memory;
    if (imbrex_group_rank(group) == late) {
        usleep((useconds_t)patient(TIMEOUT_MS) * 3000);
        return 0;
    }
    double begin = seconds();
    imbrex_status status = imbrex_mem_alloc(group, 64, &memory);
    RANK_CHECK(status == IMBREX_TIMEOUT, "%s: %s", imbrex_status_name(status), imbrex_error());
    RANK_CHECK(strstr(imbrex_error(), late ? "imbrex_mem_alloc: rank 2 of 3 did not come to "
                                           : "imbrex_mem_alloc: rank 0 did not answer in "),
               "%s", imbrex_error());
    RANK_CHECK(seconds() - begin < 1e-3 * patient(8000), "after %g s", seconds() - begin);
    return 0;
}

static void the_limit_is_the_groups(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 3, .timeout_ms = TIMEOUT_MS, .once = true };
    for (int late = 0; late <= 2; late += 2)
        assert_int_equal(ranks_run(&desc, comes_alone, &late), 0);
}

static int is_ended(imbrex_group *group, void *ctx)
{
    (void)ctx;
    void *memory;
    if (imbrex_group_rank(group) == 1) {
        usleep(50000);
        imbrex_group_abort_because(group, "no more work");
        return 0;
    }
    imbrex_status status = imbrex_mem_alloc(group, 64, &memory);
    RANK_CHECK(status == IMBREX_PEER && strstr(imbrex_error(), "rank 1 called imbrex_group_abort: "
                                                               "no more work"),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    return 0;
}

static void an_abort_ends_them(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(&(ranks_desc){ .size = 3, .once = true }, is_ended, NULL), 0);
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

static int differs(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    (void)ctx;
    imbrex_bootstrap own = *bootstrap;
    own.once = rank == 1;
    const imbrex_group_desc desc = { .bootstrap = &own, .device = "cpu" };
    imbrex_group *group;
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status == IMBREX_PEER && strstr(imbrex_error(), "desc.bootstrap.once differs"),
               "%s: %s", imbrex_status_name(status), imbrex_error());
    return 0;
}

static void ranks_want_the_same(void **state)
{
    (void)state;
    assert_int_equal(ranks_run_bare(&(ranks_desc){ .size = 2 }, differs, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_more_goes_through_it),
        cmocka_unit_test(the_limit_is_the_groups),
        cmocka_unit_test(an_abort_ends_them),
        cmocka_unit_test(ranks_want_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
