/* test_refusals.c - a wrapper's own checks refuse a call on one rank: the others hear why, as of
 * what the library itself refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "group/group.h"
#include "shift.h"

enum { ROWS = 6, COLS = 4, TIMEOUT_MS = 700 };

#define IS(want, part, call)                                                                    \
    do {                                                                                        \
        imbrex_status status_ = (call);                                                         \
        RANK_CHECK(status_ == (want) && strstr(imbrex_error(), part), "%s: %s, '%s', not '%s'", \
                   #call, imbrex_status_name(status_), imbrex_error(), part);                   \
    } while (0)

static imbrex_status make(imbrex_group *group, imbrex_plan **plan)
{
    imbrex_coll_desc coll = { .m = ROWS, .n = COLS, .dtype = IMBREX_F32 };
    return imbrex_plan_all_gather(group, &coll, plan);
}

/* ---- what enqueues --------------------------------------------------------------------------- */

/* What rank 1 does once its run was refused, and what is then said of it. */
typedef struct afterwards {
    bool runs, meets; /* it makes that call, or another one */
    const char *said;
} afterwards;

static int refused_run(imbrex_group *group, void *ctx)
{
    const afterwards *then = ctx;
    float a[ROWS * COLS] = { 0 }, c[ROWS * COLS];
    imbrex_args args = { .a = a, .c = c };
    imbrex_plan *plan;
    RANK_OK(make(group, &plan));
    bool refuses = imbrex_group_rank(group) == 1;
    if (refuses)
        IS(IMBREX_INVALID, "imbrex_plan_run: x is [4, 6]\?, not [6, 4]",
           imbrex_group_refuse(group, "imbrex_plan_run", "x is [4, 6]\x1b, not [6, 4]"));
    if (then->meets)
        RANK_OK(imbrex_barrier(group, NULL));
    if (!refuses || then->runs)
        RANK_OK(imbrex_plan_run(plan, &args, NULL));
    if (then->runs) {
        RANK_OK(imbrex_stream_sync(group, NULL));
        if (!refuses)
            RANK_OK(imbrex_plan_run(plan, &args, NULL));
    }
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    return ranks_expect(group, then->said);
}

static void who_waits_hears_of_a_refused_run(void **state)
{
    (void)state;
    static const char why[] = " in all_gather (plan 1) (the signal is 0, not yet 1), which waits "
                              "for nobody: a call was refused there, and not made again: "
                              "imbrex_plan_run: x is [4, 6]?, not [6, 4]";
    static const afterwards cases[] = {
        { .said = why },
        { .meets = true, .said = why },
        { .runs = true, .said = "for nobody: is it stopped, busy or in another call?" },
    };
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++) {
        ranks_desc desc = { .size = 2, .processes = processes, .timeout_ms = TIMEOUT_MS };
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            assert_int_equal(ranks_run(&desc, refused_run, (void *)(uintptr_t)&cases[i]), 0);
    }
}

/* A name that begins another one is not that one. */
static int refused_launch(imbrex_group *group, void *ctx)
{
    (void)ctx;
    shift s;
    imbrex_kernel_desc desc = { .entry = shift_entry, .resident = SHIFT_BLOCKS };
    if (shift_open(&s, group, &desc))
        return 1;
    if (imbrex_group_rank(group) == 1)
        IS(IMBREX_INVALID, "imbrex_launch_gemm: b is transposed",
           imbrex_group_refuse(group, "imbrex_launch_gemm", "b is transposed"));
    if (shift_fill(&s, 1, NULL) || shift_launch(&s, NULL) || shift_check(&s, 1, NULL))
        return 1;
    if (imbrex_group_rank(group) == 0)
        RANK_OK(imbrex_barrier(group, NULL));
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    return ranks_expect(group, "not made again: imbrex_launch_gemm: b is transposed");
}

static void another_call_does_not_make_up_for_it(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 2, .timeout_ms = TIMEOUT_MS };
    assert_int_equal(ranks_run(&desc, refused_launch, NULL), 0);
}

/* ---- collective calls ------------------------------------------------------------------------ */

static imbrex_status begin(imbrex_group *group, const char *call, void **made)
{
    imbrex_coll_desc coll = { .m = ROWS, .n = COLS, .dtype = IMBREX_F32 };
    imbrex_kernel_desc kernel = { .name = "shift", .entry = shift_entry };
    if (strcmp(call, "imbrex_plan_create") == 0)
        return make(group, (imbrex_plan **)made);
    if (strcmp(call, "imbrex_tune") == 0)
        return imbrex_tune(group, "all_gather", &coll, sizeof coll, NULL, NULL);
    if (strcmp(call, "imbrex_kernel_create") == 0)
        return imbrex_kernel_create(group, &kernel, (imbrex_kernel **)made);
    if (strcmp(call, "imbrex_mem_alloc") == 0)
        return imbrex_mem_alloc(group, 64, made);
    return imbrex_group_split(group, 0, 0, (imbrex_group **)made);
}

/* Nobody waits, and all is as it was before. */
static int refused_meeting(imbrex_group *group, void *ctx)
{
    static const char *const calls[] = { "imbrex_plan_create", "imbrex_tune",
                                         "imbrex_kernel_create", "imbrex_mem_alloc",
                                         "imbrex_group_split" };
    (void)ctx;
    int rank = imbrex_group_rank(group);
    void *made;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (rank == 1)
            IS(IMBREX_INVALID, "dtype is 'f64': want one of 'bf16', 'f16', 'f32'",
               imbrex_group_refuse(group, calls[i],
                                   "dtype is 'f64': want one of 'bf16', 'f16', 'f32'"));
        else
            IS(IMBREX_PEER, "rank 1 failed: dtype is 'f64': want one of", /* the rest is there */
               begin(group, calls[i], &made));
        /* Ranks that all refuse have met, too. */
        IS(IMBREX_INVALID, "a mistake of all",
           imbrex_group_refuse(group, calls[i], "a mistake of all"));
    }
    RANK_CHECK(group->objects[IMX_OF_CALLER].count == 0, "kernels are numbered from %d",
               group->objects[IMX_OF_CALLER].count);
    RANK_OK(imbrex_group_status(group));
    float a[ROWS * COLS] = { 0 }, c[ROWS * COLS];
    imbrex_args args = { .a = a, .c = c };
    imbrex_plan *plan;
    RANK_OK(make(group, &plan));
    RANK_OK(imbrex_plan_run(plan, &args, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    return 0;
}

static void who_meets_hears_at_once(void **state)
{
    (void)state;
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++) {
        ranks_desc desc = { .size = 3, .processes = processes };
        assert_int_equal(ranks_run(&desc, refused_meeting, NULL), 0);
    }
}

/* ---- what enqueues, for which others make a plan --------------------------------------------- */

/* Rank 1 refuses a run for which the others need a plan, once one of them has begun to make it. */
static int refused_first_run(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan = NULL;
    if (imbrex_group_rank(group) == 1) {
        while (!imx_agree_is_awaited(group))
            usleep(1000);
        IS(IMBREX_INVALID, "imbrex_plan_run: a is [1]",
           imbrex_group_refuse(group, "imbrex_plan_run", "a is [1]"));
    } else {
        IS(IMBREX_PEER, "imbrex_plan_all_gather: rank 1 failed: a is [1]", make(group, &plan));
    }
    RANK_OK(make(group, &plan));
    RANK_OK(imbrex_plan_run(plan, &(imbrex_args){ .m = IMBREX_NONE }, NULL));
    return 0;
}

static void who_makes_a_plan_hears_at_once(void **state)
{
    (void)state;
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++) {
        ranks_desc desc = { .size = 3, .processes = processes };
        assert_int_equal(ranks_run(&desc, refused_first_run, NULL), 0);
    }
}

/* What all ranks refuse one does later, when another makes the plan of what follows. */
static int refused_by_all(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan = NULL;
    for (int i = 0; i < 3; i++) {
        if (imbrex_group_rank(group) == i)
            usleep(50000);
        for (int refusal = 0; refusal <= i; refusal++) {
            if (plan && imbrex_group_rank(group) != i) /* the library's own checks are the same */
                IS(IMBREX_INVALID,
                   "imbrex_plan_run: ", imbrex_plan_run(plan, &(imbrex_args){ .m = -7 }, NULL));
            else
                IS(IMBREX_INVALID, "imbrex_plan_run: a is [1]",
                   imbrex_group_refuse(group, "imbrex_plan_run", "a is [1]"));
        }
        RANK_OK(make(group, &plan));
    }
    return 0;
}

static void what_all_refuse_ends_nothing(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(&(ranks_desc){ .size = 3 }, refused_by_all, NULL), 0);
}

/* Rank 1 has refused before the others come, and does not come itself. */
static int refused_before(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_plan *plan = NULL;
    if (imbrex_group_rank(group) == 1) {
        IS(IMBREX_INVALID, "imbrex_plan_run: a is [1]",
           imbrex_group_refuse(group, "imbrex_plan_run", "a is [1]"));
        while (!imx_agree_is_awaited(group))
            usleep(1000);
        usleep((useconds_t)patient(TIMEOUT_MS) * 3000); /* ThreadSanitizer is slow */
        return 0;
    }
    while (!imx_fault_add_refusal(group, 1, &(imx_text){ 0 }))
        usleep(1000);
    IS(IMBREX_TIMEOUT, "did not come", make(group, &plan));
    RANK_CHECK(strstr(imbrex_error(), "imbrex_plan_all_gather: rank 1") &&
                   strstr(imbrex_error(), "; rank 1: a call was refused there, and not made again: "
                                          "imbrex_plan_run: a is [1]"),
               "%s", imbrex_error());
    return 0;
}

static void who_makes_a_plan_in_vain_hears_why(void **state)
{
    (void)state;
    for (int processes = 0; processes <= RANKS_PROCESSES; processes++) {
        ranks_desc desc = {
            .size = 2, .processes = processes, .once = true, .timeout_ms = TIMEOUT_MS
        };
        assert_int_equal(ranks_run(&desc, refused_before, NULL), 0);
    }
}

/* ---- its own arguments ----------------------------------------------------------------------- */

static int of_nothing(imbrex_group *group, void *ctx)
{
    (void)ctx;
    IS(IMBREX_INVALID, "imbrex_group_refuse: group is NULL",
       imbrex_group_refuse(NULL, "imbrex_plan_run", "why"));
    IS(IMBREX_INVALID, "imbrex_group_refuse: call is NULL", imbrex_group_refuse(group, NULL, "y"));
    IS(IMBREX_INVALID, "imbrex_group_refuse: why is NULL",
       imbrex_group_refuse(group, "imbrex_plan_run", NULL));
    IS(IMBREX_INVALID, "imbrex_group_refuse: call is \"imbrex_plan\": want",
       imbrex_group_refuse(group, "imbrex_plan", "why"));
    imbrex_group_abort_because(group, "a fire");
    IS(IMBREX_PEER, "imbrex_group_refuse: rank 0 (this rank) called imbrex_group_abort: a fire",
       imbrex_group_refuse(group, "imbrex_plan_run", "why"));
    return 0;
}

static void what_it_takes(void **state)
{
    (void)state;
    assert_int_equal(ranks_run(&(ranks_desc){ .size = 1 }, of_nothing, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_hears_of_a_refused_run),
        cmocka_unit_test(another_call_does_not_make_up_for_it),
        cmocka_unit_test(who_meets_hears_at_once),
        cmocka_unit_test(who_makes_a_plan_hears_at_once),
        cmocka_unit_test(what_all_refuse_ends_nothing),
        cmocka_unit_test(who_makes_a_plan_in_vain_hears_why),
        cmocka_unit_test(what_it_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
