/* test_calls.c - who may call: one thread at a time, and only with what has not been destroyed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <unistd.h>

#include "shift.h"

enum { ROWS = 6, COLS = 4 };

static imbrex_coll_desc shape(void)
{
    return (imbrex_coll_desc){ .m = ROWS, .n = COLS, .dtype = IMBREX_F32 };
}

#define REFUSED(part, call)                                                                   \
    do {                                                                                      \
        imbrex_status status_ = (call);                                                       \
        RANK_CHECK(status_ == IMBREX_INVALID && strstr(imbrex_error(), part), "%s: %s: '%s'", \
                   #call, imbrex_status_name(status_), imbrex_error());                       \
    } while (0)

/* ---- two threads ----------------------------------------------------------------------------- */

/* One thread is held in a sync until the other lets it go. */
typedef struct pair {
    imbrex_group *group;
    imbrex_plan *plan;
    imbrex_stream held;
    uint64_t *word;
    shift shift;
    float a[ROWS * COLS], c[ROWS * COLS];
    imbrex_status synced;
    int done; /* atomic: how many threads have destroyed their thing */
} pair;

static void *hold(void *ctx)
{
    pair *x = ctx;
    do /* the other may be looking whether this one is in a call */
        x->synced = imbrex_stream_sync(x->group, x->held);
    while (x->synced == IMBREX_INVALID);
    return NULL;
}

/* By a call that can be refused at any time: one that destroys would wait for the held one. */
static void await_hold(pair *x)
{
    while (imbrex_stream_sync(x->group, NULL) == IMBREX_OK)
        usleep(1000);
}

static int all_are_refused(pair *x)
{
    const char *who = "another thread is in imbrex_stream_sync of this group";
    imbrex_args args = { .a = x->a, .c = x->c };
    imbrex_coll_desc coll = shape();
    imbrex_gemm_desc gemm = { .m = 4, .n = 4, .k = 4 };
    imbrex_kernel_desc desc = { .name = "shift", .entry = shift_entry };
    imbrex_gemm_operands operands = { 0 };
    imbrex_transfer transfer = { 0 };
    imbrex_activation activation = { 0 };
    imbrex_gate gate = { 0 };
    imbrex_plan *plan;
    imbrex_kernel *kernel;
    imbrex_stream stream;
    void *at;
    imbrex_group *g = x->group;
    REFUSED(who, imbrex_plan_run(x->plan, &args, NULL));
    REFUSED(who, imbrex_stream_sync(g, NULL));
    REFUSED(who, imbrex_stream_create(g, &stream));
    REFUSED(who, imbrex_copy(g, x->c, x->a, 4, NULL));
    REFUSED(who, imbrex_put(g, x->word, x->a, 8, 0, NULL));
    REFUSED(who, imbrex_signal_post(g, x->word, 1, 0, NULL));
    REFUSED(who, imbrex_signal_wait(g, x->word, 1, NULL));
    REFUSED(who, imbrex_barrier(g, NULL));
    REFUSED(who, imbrex_exchange(g, &transfer, 1, NULL));
    REFUSED(who, imbrex_silu_mul(g, IMBREX_F32, 1, 1, x->a, x->c, NULL));
    REFUSED(who, imbrex_activate(g, &activation, 1, 1, x->a, x->c, NULL, NULL, NULL));
    REFUSED(who, imbrex_topk_gate(g, &gate, 0, NULL, NULL, NULL, NULL, NULL));
    REFUSED(who, imbrex_launch(x->shift.kernel, 1, 1, &x->shift.args, 32, NULL));
    REFUSED(who, imbrex_launch_gemm(x->shift.kernel, &operands, &x->shift.args, 32, NULL));
    REFUSED(who, imbrex_trace(g, 0));
    REFUSED(who, imbrex_mem_alloc(g, 64, &at));
    REFUSED(who, imbrex_mem_peer(g, x->word, 0, &at));
    REFUSED(who, imbrex_plan_all_gather(g, &coll, &plan));
    REFUSED(who, imbrex_plan_ag_gemm(g, &gemm, &plan));
    REFUSED(who, imbrex_kernel_create(g, &desc, &kernel));
    REFUSED(who, imbrex_tune(g, "ag_gemm", &gemm, sizeof gemm, NULL, NULL));
    RANK_OK(imbrex_group_status(g)); /* whoever watches over the others may ask */
    RANK_CHECK(imbrex_group_size(g) == 1 && imbrex_group_device(g)[0], "it is not known");
    return 0;
}

static void *destroy_plan(void *ctx)
{
    pair *x = ctx;
    imbrex_plan_destroy(x->plan);
    __atomic_add_fetch(&x->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static int second_thread(imbrex_group *group, void *ctx)
{
    (void)ctx;
    pair *x = calloc(1, sizeof *x);
    pthread_t holder, destroyer;
    imbrex_coll_desc coll = shape();
    imbrex_kernel_desc kernel = { .entry = shift_entry };
    x->group = group;
    RANK_OK(imbrex_plan_all_gather(group, &coll, &x->plan));
    RANK_OK(imbrex_stream_create(group, &x->held));
    RANK_OK(imbrex_mem_alloc(group, 64, (void **)&x->word));
    if (shift_open(&x->shift, group, &kernel))
        return 1;
    RANK_OK(imbrex_signal_wait(group, x->word, 1, x->held));
    RANK_CHECK(pthread_create(&holder, NULL, hold, x) == 0, "no thread");
    await_hold(x);
    int failed = all_are_refused(x);
    /* A destroy waits for the other thread, which has not ended. */
    RANK_CHECK(pthread_create(&destroyer, NULL, destroy_plan, x) == 0, "no thread");
    usleep(50000);
    RANK_CHECK(__atomic_load_n(&x->done, __ATOMIC_ACQUIRE) == 0, "it did not wait");
    __atomic_store_n(x->word, 1, __ATOMIC_RELEASE); /* as no call can */
    pthread_join(holder, NULL);
    pthread_join(destroyer, NULL);
    RANK_CHECK(x->synced == IMBREX_OK && x->done == 1, "it ended with %s",
               imbrex_status_name(x->synced));
    REFUSED("has it or its group been destroyed", imbrex_plan_run(x->plan, NULL, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    free(x);
    return failed;
}

static void a_second_thread_is_refused(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    assert_int_equal(ranks_run(&desc, second_thread, NULL), 0);
}

/* Threads that take turns: whoever comes later need not be the one that came before. */
enum { TURNS = 200 };

typedef struct turns {
    pthread_mutex_t lock;
    imbrex_group *group;
    imbrex_plan *plan;
    float a[ROWS * COLS], c[ROWS * COLS];
} turns;

static void *take_turns(void *ctx)
{
    turns *t = ctx;
    imbrex_status status = IMBREX_OK;
    imbrex_args args = { .a = t->a, .c = t->c };
    for (int i = 0; i < TURNS && status == IMBREX_OK; i++) {
        pthread_mutex_lock(&t->lock);
        status = imbrex_plan_run(t->plan, &args, NULL);
        if (status == IMBREX_OK)
            status = imbrex_stream_sync(t->group, NULL);
        pthread_mutex_unlock(&t->lock);
    }
    return status == IMBREX_OK ? NULL : t;
}

static int in_turns(imbrex_group *group, void *ctx)
{
    (void)ctx;
    turns t = { .lock = PTHREAD_MUTEX_INITIALIZER, .group = group };
    imbrex_coll_desc coll = shape();
    pthread_t threads[2];
    RANK_OK(imbrex_plan_all_gather(group, &coll, &t.plan));
    for (int i = 0; i < 2; i++)
        RANK_CHECK(pthread_create(&threads[i], NULL, take_turns, &t) == 0, "no thread");
    int failed = 0;
    for (int i = 0; i < 2; i++) {
        void *its;
        pthread_join(threads[i], &its);
        failed += its != NULL;
    }
    return failed;
}

static void threads_take_turns(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, in_turns, NULL), 0);
}

/* A call that is made by what a call calls: imbrex_tune's progress function. */
static void ask(void *ctx, const imbrex_tune_step *step)
{
    (void)step;
    imbrex_stream stream;
    imbrex_group *group = ctx;
    if (imbrex_stream_create(group, &stream) != IMBREX_OK)
        imbrex_group_abort_because(group, imbrex_error());
    else
        imbrex_stream_destroy(group, stream);
}

static int within(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_gemm_desc desc = { .m = 8, .n = 8, .k = 8, .dtype = IMBREX_F32 };
    RANK_OK(imbrex_tune(group, "ag_gemm", &desc, sizeof desc, ask, group));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static void calls_may_be_within_calls(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, within, NULL), 0);
}

/* ---- what has been destroyed ----------------------------------------------------------------- */

static int gone(imbrex_group *unused, void *ctx)
{
    (void)unused;
    (void)ctx;
    static const imbrex_bootstrap alone = { .rank = 0, .size = 1 };
    static shift s;
    imbrex_group_desc desc = { .bootstrap = &alone, .device = "cpu" };
    imbrex_kernel_desc kernel = { .entry = shift_entry };
    imbrex_coll_desc coll = shape();
    imbrex_group *group;
    imbrex_plan *plan, *other, *none = NULL;
    float a[ROWS * COLS] = { 0 }, c[ROWS * COLS];
    imbrex_args args = { .a = a, .c = c };
    char text[64];
    imbrex_span span;
    RANK_OK(imbrex_group_create(&desc, &group));
    RANK_OK(imbrex_plan_all_gather(group, &coll, &plan));
    RANK_OK(imbrex_plan_all_gather(group, &coll, &other));
    if (shift_open(&s, group, &kernel))
        return 1;
    imbrex_plan_destroy(plan);
    imbrex_plan_destroy(plan);
    REFUSED("has it or its group been destroyed", imbrex_plan_run(plan, &args, NULL));
    RANK_CHECK(imbrex_plan_describe(plan, text, sizeof text) > 0 && !strcmp(text, "no plan"), "%s",
               text);
    imbrex_kernel_destroy(s.kernel);
    imbrex_kernel_destroy(s.kernel);
    REFUSED("has it or its group been destroyed", imbrex_launch(s.kernel, 1, 1, &s, 1, NULL));
    REFUSED("has it or its group been destroyed",
            imbrex_launch_gemm(s.kernel, NULL, NULL, 0, NULL));
    RANK_OK(imbrex_plan_run(other, &args, NULL));
    imbrex_group_destroy(group);
    imbrex_group_destroy(group);
    imbrex_plan_destroy(other);
    REFUSED("plan", imbrex_plan_run(other, &args, NULL));
    REFUSED("has it been destroyed", imbrex_stream_sync(group, NULL));
    REFUSED("has it been destroyed", imbrex_group_status(group));
    REFUSED("has it been destroyed", imbrex_plan_all_gather(group, &coll, &none));
    imbrex_group_abort(group);
    imbrex_mem_free(group, a);
    imbrex_stream_destroy(group, NULL);
    RANK_CHECK(imbrex_group_rank(group) == -1 && imbrex_group_size(group) == 0 &&
                   imbrex_group_node(group, 0) == -1 && !imbrex_group_device(group)[0],
               "it says who it was");
    RANK_CHECK(imbrex_group_describe(group, text, sizeof text) > 0 && !strcmp(text, "no group"),
               "%s", text);
    RANK_CHECK(imbrex_trace_spans(group, &span, 1) == 0, "it has spans");
    /* Nor is anything else at that address followed. */
    REFUSED("plan", imbrex_plan_run((imbrex_plan *)(void *)&args, &args, NULL));
    REFUSED("group", imbrex_stream_sync((imbrex_group *)16, NULL));
    return 0;
}

static void what_is_gone_is_refused(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    for (int i = 0; i < 3; i++)
        assert_int_equal(ranks_run(&desc, gone, NULL), 0);
}

/* Many at once, made and destroyed in another order, in several threads. */
static int many(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { PLANS = 300 };
    static _Thread_local imbrex_plan *plans[PLANS];
    float a[ROWS * COLS] = { 0 }, c[ROWS * COLS];
    imbrex_args args = { .a = a, .c = c };
    imbrex_coll_desc coll = shape();
    for (int i = 0; i < PLANS; i++)
        RANK_OK(imbrex_plan_all_gather(group, &coll, &plans[i]));
    for (int i = 0; i < PLANS; i += 3)
        imbrex_plan_destroy(plans[i]);
    for (int i = 0; i < PLANS; i++) {
        if (i % 3)
            RANK_OK(imbrex_plan_run(plans[i], &args, NULL));
        else
            REFUSED("destroyed", imbrex_plan_run(plans[i], &args, NULL));
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static void of_many_each_is_known(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2 };
    assert_int_equal(ranks_run(&desc, many, NULL), 0);
}

/* ---- what one rank is refused ---------------------------------------------------------------- */

enum { REFUSED_MS = 700 };

/* Rank 1's run is wrong; if it is repeated rightly, both go on, and the next time it does not come
 * that is no reason any more. */
static int refused_run(imbrex_group *group, void *ctx)
{
    const bool *repeats = ctx;
    float a[ROWS * COLS] = { 0 }, c[ROWS * COLS];
    imbrex_args args = { .a = a, .c = c }, wrong = { .a = c, .c = c };
    imbrex_coll_desc coll = shape();
    imbrex_plan *plan;
    int rank = imbrex_group_rank(group);
    RANK_OK(imbrex_plan_all_gather(group, &coll, &plan));
    if (rank == 1)
        REFUSED("args.c overlaps args.a", imbrex_plan_run(plan, &wrong, NULL));
    if (rank == 0 || *repeats)
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
    if (*repeats) {
        RANK_OK(imbrex_stream_sync(group, NULL));
        if (rank == 0)
            RANK_OK(imbrex_plan_run(plan, &args, NULL));
    }
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    const char *why = *repeats ? ", which waits for nobody: is it stopped, busy or in another call?"
                               : "of rank 1 in all_gather (plan 1) (the signal is 0, not yet 1), "
                                 "which waits for nobody: a call was refused there, and not made "
                                 "again: imbrex_plan_run: args.c overlaps args.a";
    return ranks_expect(group, why);
}

/* The same of what is no run. */
static int refused_barrier(imbrex_group *group, void *ctx)
{
    (void)ctx;
    static int none;
    if (imbrex_group_rank(group) == 0)
        RANK_OK(imbrex_barrier(group, NULL));
    else
        REFUSED("is not one of this group's", imbrex_barrier(group, (imbrex_stream)&none));
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    return ranks_expect(group, "a call was refused there, and not made again: imbrex_barrier: "
                               "stream");
}

static void the_others_hear_of_a_refused_call(void **state)
{
    (void)state;
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++) {
        ranks_desc desc = { .size = 2, .processes = processes, .timeout_ms = REFUSED_MS };
        for (int repeats = 0; repeats < 2; repeats++)
            assert_int_equal(ranks_run(&desc, refused_run, &(bool){ repeats }), 0);
        assert_int_equal(ranks_run(&desc, refused_barrier, NULL), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_thread_is_refused),
        cmocka_unit_test(threads_take_turns),
        cmocka_unit_test(calls_may_be_within_calls),
        cmocka_unit_test(what_is_gone_is_refused),
        cmocka_unit_test(of_many_each_is_known),
        cmocka_unit_test(the_others_hear_of_a_refused_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
