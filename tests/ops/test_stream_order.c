/* test_stream_order.c - what there is once and streams use in turn: a plan on streams that only
 * look alike, what is left behind when a run is refused, and kernels made while a stream waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "fake_driver.h"
#include "fake_ranks.h"
#include "shift.h"

/* ---- one handle, two streams ----------------------------------------------------------------- */

enum { N = 8 };

typedef struct two_threads {
    imbrex_group *group;
    imbrex_plan *plan;
    uint64_t *go;
    float a[2][N], c[N];
    pthread_barrier_t enqueued, posted;
    pthread_mutex_t turn;
} two_threads;

static imbrex_stream const own = (imbrex_stream)2; /* CU_STREAM_PER_THREAD */

static int enqueue(two_threads *x, int which)
{
    imbrex_args args = { .a = x->a[which], .c = x->c };
    if (which == 0)
        RANK_OK(imbrex_signal_wait(x->group, x->go, 1, own));
    RANK_OK(imbrex_plan_run(x->plan, &args, own));
    return 0;
}

/* A group has one thread at a time. */
static int sync_own(two_threads *x)
{
    pthread_barrier_wait(&x->posted);
    pthread_mutex_lock(&x->turn);
    imbrex_status status = imbrex_stream_sync(x->group, own);
    pthread_mutex_unlock(&x->turn);
    return status != IMBREX_OK;
}

static void *second_thread(void *ctx)
{
    two_threads *x = ctx;
    int failed = enqueue(x, 1);
    pthread_barrier_wait(&x->enqueued);
    return sync_own(x) || failed ? x : NULL;
}

/* Hands the group on when it has enqueued its own. */
static void *first_thread(void *ctx)
{
    two_threads *x = ctx;
    pthread_t second;
    void *its = NULL;
    int failed = enqueue(x, 0);
    if (pthread_create(&second, NULL, second_thread, x))
        abort();
    pthread_barrier_wait(&x->enqueued);
    failed |= sync_own(x);
    pthread_join(second, &its);
    return failed ? x : its;
}

/* The first run is held up; the second, of another thread, is not to overtake it. */
static int each_threads_own(imbrex_group *group, void *ctx)
{
    (void)ctx;
    two_threads x = { .group = group, .turn = PTHREAD_MUTEX_INITIALIZER };
    imbrex_coll_desc desc = { .m = 1, .n = N, .dtype = IMBREX_F32 };
    imbrex_stream other;
    pthread_t first;
    void *failed;
    for (int i = 0; i < 2 * N; i++)
        x.a[i / N][i % N] = (float)i;
    pthread_barrier_init(&x.enqueued, NULL, 3);
    pthread_barrier_init(&x.posted, NULL, 3);
    RANK_OK(imbrex_mem_alloc(group, sizeof *x.go, (void **)&x.go));
    RANK_OK(imbrex_stream_create(group, &other));
    RANK_OK(imbrex_plan_all_gather(group, &desc, &x.plan));
    RANK_CHECK(pthread_create(&first, NULL, first_thread, &x) == 0, "no thread");
    pthread_barrier_wait(&x.enqueued);
    usleep(100000); /* time enough to overtake */
    RANK_OK(imbrex_signal_post(group, x.go, 1, 0, other));
    pthread_barrier_wait(&x.posted);
    pthread_join(first, &failed);
    pthread_barrier_destroy(&x.enqueued);
    pthread_barrier_destroy(&x.posted);
    RANK_CHECK(!failed && memcmp(x.c, x.a[1], sizeof x.c) == 0, "c[0] is %g", (double)x.c[0]);
    return 0;
}

static void per_thread_streams_are_many(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    assert_int_equal(fake_ranks_run(&desc, 1, each_threads_own, NULL), 0);
}

/* ---- streams of others ----------------------------------------------------------------------- */

static int foreign(imbrex_group *group, void *ctx)
{
    (void)ctx;
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group *other;
    imbrex_group_desc desc = { .bootstrap = &one };
    imbrex_coll_desc shape = { .m = 1, .n = N, .dtype = IMBREX_F32 };
    imbrex_plan *plan;
    imbrex_stream theirs[] = { NULL, (imbrex_stream)77 };
    uint64_t *signal;
    float a[N] = { 0 }, c[N];
    imbrex_args args = { .a = a, .c = c };
    RANK_OK(imbrex_group_create(&desc, &other));
    RANK_OK(imbrex_stream_create(other, &theirs[0]));
    RANK_OK(imbrex_mem_alloc(group, 64, (void **)&signal));
    RANK_OK(imbrex_plan_all_gather(group, &shape, &plan));
    for (int i = 0; i < 2; i++) {
        const imbrex_status statuses[] = {
            imbrex_plan_run(plan, &args, theirs[i]),
            imbrex_copy(group, c, a, sizeof a, theirs[i]),
            imbrex_put(group, signal, a, 8, 0, theirs[i]),
            imbrex_signal_post(group, signal, 1, 0, theirs[i]),
            imbrex_signal_wait(group, signal, 1, theirs[i]),
            imbrex_barrier(group, theirs[i]),
            imbrex_silu_mul(group, IMBREX_F32, 1, 1, a, c, theirs[i]),
            imbrex_stream_sync(group, theirs[i]),
        };
        for (int k = 0; k < 8; k++)
            RANK_CHECK(statuses[k] == IMBREX_INVALID && strstr(imbrex_error(), "not one of this"),
                       "call %d: %s: %s", k, imbrex_status_name(statuses[k]), imbrex_error());
        imbrex_stream_destroy(group, theirs[i]);
    }
    RANK_OK(imbrex_copy(other, c, a, sizeof a, theirs[0])); /* it lives */
    imbrex_group_destroy(other);
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static void streams_of_others_are_refused(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    assert_int_equal(ranks_run(&desc, foreign, NULL), 0);
}

/* ---- a run that is refused ------------------------------------------------------------------- */

/* The plan goes while the stream of a run that was refused is still busy. */
static int refused(imbrex_group *group, void *ctx)
{
    enum { BYTES = 64 << 20, COPIES = 4 };
    (void)ctx;
    int rank = imbrex_group_rank(group);
    float a[4 * N] = { 0 }, c[4 * N];
    imbrex_coll_desc desc = { .m = 4, .n = N, .dtype = IMBREX_F32 };
    imbrex_args args = { .a = a, .c = c };
    imbrex_plan *plan;
    imbrex_stream busy;
    char *from = calloc(2, BYTES);
    RANK_CHECK(from, "no memory");
    RANK_OK(imbrex_stream_create(group, &busy));
    RANK_OK(imbrex_plan_all_gather(group, &desc, &plan));
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    for (int i = 0; i < COPIES; i++)
        RANK_OK(imbrex_copy(group, from + BYTES, from, BYTES, busy));
    args.m = 4 - rank;
    imbrex_status status = imbrex_plan_run(plan, &args, busy);
    imbrex_plan_destroy(plan);
    if (status == IMBREX_OK) /* this rank came first */
        status = imbrex_stream_sync(group, busy);
    while (status == IMBREX_OK)
        status = imbrex_group_status(group);
    imbrex_status idle = imbrex_stream_sync(group, busy);
    (void)idle;
    free(from);
    RANK_CHECK(status == IMBREX_INVALID, "%s", imbrex_status_name(status));
    return 0;
}

static void nothing_is_left_of_a_refused_run(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    for (int i = 0; i < 5; i++)
        assert_int_equal(ranks_run(&desc, refused, NULL), 0);
}

/* ---- kernels while a stream waits ------------------------------------------------------------ */

/* What the default stream waits for comes after the calls, from the same thread. */
static int made_and_ended(imbrex_group *group, void *ctx)
{
    (void)ctx;
    int rank = imbrex_group_rank(group);
    imbrex_kernel_desc desc = { .name = "shift", .entry = shift_entry, .source = shift_text };
    imbrex_kernel *kernel;
    imbrex_stream other;
    uint64_t *go;
    RANK_OK(imbrex_mem_alloc(group, sizeof *go, (void **)&go));
    RANK_OK(imbrex_stream_create(group, &other));
    RANK_OK(imbrex_signal_wait(group, go, 1, NULL));
    RANK_OK(imbrex_kernel_create(group, &desc, &kernel));
    imbrex_kernel_destroy(kernel);
    RANK_OK(imbrex_signal_post(group, go, 1, rank, other));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static void kernels_wait_for_no_stream_of_the_callers(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .timeout_ms = 3000 };
    assert_int_equal(ranks_run(&desc, made_and_ended, NULL), 0);
    assert_int_equal(fake_ranks_run(&desc, 2, made_and_ended, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(per_thread_streams_are_many),
        cmocka_unit_test(streams_of_others_are_refused),
        cmocka_unit_test(nothing_is_left_of_a_refused_run),
        cmocka_unit_test(kernels_wait_for_no_stream_of_the_callers),
    };
    fake_ranks_begin();
    fake_driver_add_kernel("shift", shift_entry);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
