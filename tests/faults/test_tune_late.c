/* test_tune_late.c - a candidate that hangs while imbrex_tune times it costs its time, and neither
 * the others nor the caller's group. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "net_threads.h"
#include "ranks.h"
#include "scratch.h"

enum { RANKS = 3, TIMEOUT_MS = 1200 };

static const imbrex_gemm_desc shape = { .m = 96, .n = 16, .k = 8, .dtype = IMBREX_F32 };

/* One rank, `slow`, comes to the timing that follows a step when the others have given it up: they
 * wait half of the timeout for it.  To them that timing's candidate hangs. */
typedef struct hang {
    bool slow;
    int steps, times; /* so many steps go well before; it happens so often at most */
    int late;
    char algorithm[32], why[256]; /* of the latest that was late */
    double done;
} hang;

static void note(void *ctx, const imbrex_tune_step *step)
{
    hang *h = ctx;
    h->done = step->done >= h->done ? step->done : 9;            /* it only rises */
    if (step->dropped && strcmp(step->algorithm, "ring") != 0) { /* that is refused, as always */
        h->late++;
        snprintf(h->algorithm, sizeof h->algorithm, "%s", step->algorithm);
        snprintf(h->why, sizeof h->why, "%s", step->dropped);
    }
    if (step->dropped || h->steps-- > 0 || h->times-- <= 0 || !h->slow)
        return;
    usleep((useconds_t)patient(TIMEOUT_MS) * 700);
}

/* What imbrex_plan_facts says of a plan. */
enum { TEXT = 1200 };
static imbrex_status plan_facts(imbrex_group *group, char text[TEXT])
{
    imbrex_plan *plan;
    imbrex_status status = imbrex_plan_ag_gemm(group, &shape, &plan);
    if (status == IMBREX_OK)
        imbrex_plan_facts(plan, text, TEXT);
    if (status == IMBREX_OK)
        imbrex_plan_destroy(plan);
    return status;
}

static int works(imbrex_group *group)
{
    RANK_OK(imbrex_barrier(group, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_OK(imbrex_group_status(group));
    return 0;
}

static int one_hangs(imbrex_group *group, void *ctx)
{
    const int *slow = ctx;
    hang h = { .slow = imbrex_group_rank(group) == *slow, .steps = 2, .times = 1 };
    char text[TEXT], late[60];
    RANK_OK(imbrex_tune(group, "ag_gemm", &shape, sizeof shape, note, &h));
    RANK_CHECK(h.late == 1 && h.done == 1, "%d were late, done is %g", h.late, h.done);
    RANK_CHECK(strstr(h.why, "waited ") && strstr(h.why, " imbrex_barrier"), "%s", h.why);
    RANK_OK(plan_facts(group, text));
    snprintf(late, sizeof late, "\"algorithm\": \"%s\"", h.algorithm);
    RANK_CHECK(strstr(text, "\"measured\": true"), "%s", text);
    const char *taken = strstr(text, "\"algorithm\"");
    RANK_CHECK(taken && strncmp(taken, late, strlen(late)) != 0, "%s", text);
    return works(group);
}

static int all_hang(imbrex_group *group, void *ctx)
{
    (void)ctx;
    hang h = { .slow = imbrex_group_rank(group) == 1, .times = 1000 };
    char text[TEXT];
    imbrex_status status = imbrex_tune(group, "ag_gemm", &shape, sizeof shape, note, &h);
    RANK_CHECK(status == IMBREX_TIMEOUT, "%s", imbrex_status_name(status));
    RANK_CHECK(strstr(imbrex_error(), "no algorithm of ag_gemm could be timed here: "), "%s",
               imbrex_error());
    RANK_CHECK(h.late == 5, "%d were late", h.late);
    RANK_OK(plan_facts(group, text));
    RANK_CHECK(!strstr(text, "\"measured\": true"), "%s", text);
    return works(group);
}

static int begin(void **state)
{
    int failed = scratch_make(state);
    setenv("IMBREX_CACHE_DIR", scratch_path(""), 1);
    return failed;
}

static void run(rank_main work, bool processes, void *ctx)
{
    const ranks_desc desc = { .size = RANKS,
                              .processes = processes && RANKS_PROCESSES,
                              .timeout_ms = TIMEOUT_MS };
    assert_int_equal(ranks_run(&desc, work, ctx), 0);
}

static void one_that_hangs_costs_its_time_alone(void **state)
{
    (void)state;
    for (int slow = 0; slow < RANKS; slow++)
        run(one_hangs, slow != 1, &slow);
}

static void so_over_nodes(void **state)
{
    (void)state;
    const ranks_desc desc = { .size = 4, .node_ranks = 2, .timeout_ms = TIMEOUT_MS };
    int slow = 2;
    imx_net_of_test = &net_threads;
    assert_int_equal(ranks_run(&desc, one_hangs, &slow), 0);
    imx_net_of_test = NULL;
}

static void where_all_hang_the_group_goes_on(void **state)
{
    (void)state;
    run(all_hang, true, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_that_hangs_costs_its_time_alone, begin, scratch_remove),
        cmocka_unit_test_setup_teardown(so_over_nodes, begin, scratch_remove),
        cmocka_unit_test_setup_teardown(where_all_hang_the_group_goes_on, begin, scratch_remove),
    };
    return cmocka_run_group_tests_name("tune_late", tests, NULL, NULL);
}
