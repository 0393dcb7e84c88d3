/* test_log.c - the lines that IMBREX_LOG asks for: of which ranks, how many, and about what. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ranks.h"
#include "scratch.h"

enum { RANKS = 2 };

static int made; /* atomic: plans of ranks that will fail */

static int make_a_plan(imbrex_group *group, void *ctx)
{
    const bool *fails = ctx;
    imbrex_coll_desc desc = { .m = 6, .n = 4, .dtype = IMBREX_F32, .algorithm = "store" };
    imbrex_plan *plan;
    RANK_OK(imbrex_plan_all_gather(group, &desc, &plan));
    if (!*fails)
        return 0;
    /* None ends the group while another still makes its plan. */
    __atomic_add_fetch(&made, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&made, __ATOMIC_ACQUIRE) % RANKS)
        usleep(1000);
    if (imbrex_group_rank(group) == 1)
        imbrex_group_abort_because(group, "the test says so");
    while (imbrex_group_status(group) == IMBREX_OK)
        usleep(1000);
    RANK_CHECK(imbrex_group_status(group) == IMBREX_PEER, "%s", imbrex_error());
    return 0; /* asked again, and logged once */
}

/* What the ranks print. */
static const char *said(const char *level, bool fails)
{
    static char text[8192];
    ranks_desc desc = { .size = RANKS };
    int file = scratch_log(), before = dup(2);
    assert_true(file >= 0 && before >= 0);
    if (level)
        setenv("IMBREX_LOG", level, 1);
    dup2(file, 2);
    int failed = ranks_run(&desc, make_a_plan, &fails);
    dup2(before, 2);
    unsetenv("IMBREX_LOG");
    ssize_t bytes = pread(file, text, sizeof text - 1, 0);
    text[bytes > 0 ? bytes : 0] = '\0';
    close(before);
    close(file);
    if (failed)
        fail_msg("%d ranks failed:\n%s", failed, text);
    return text;
}

static int count(const char *text, const char *part)
{
    int found = 0;
    while ((text = strstr(text, part))) {
        found++;
        text += strlen(part);
    }
    return found;
}

#define TIMES(text, part, times)                                                               \
    do {                                                                                       \
        if (count(text, part) != (times))                                                      \
            fail_msg("\"%s\" %d times, not %d, in\n%s", part, count(text, part), times, text); \
    } while (0)

static void test_levels(void **state)
{
    (void)state;
    assert_string_equal(said(NULL, false), "");
    assert_string_equal(said("", false), "");

    const char *info = said("info", false);
    TIMES(info, "\n", 2);
    TIMES(info, "imbrex [0/2] group: 2 ranks on cpu, 1 node", 1);
    TIMES(info, "; device cpu:0; waits end after ", 1);
    TIMES(info, "imbrex [0/2] plan: all_gather m=6 n=4 f32, 2 ranks on cpu: store", 1);

    const char *debug = said("debug", false);
    TIMES(debug, "\n", 4);
    for (int r = 0; r < RANKS; r++) {
        char group[40], plan[40];
        snprintf(group, sizeof group, "imbrex [%d/2] group: ", r);
        snprintf(plan, sizeof plan, "imbrex [%d/2] plan: ", r);
        TIMES(debug, group, 1);
        TIMES(debug, plan, 1);
    }
}

static void test_failures(void **state)
{
    (void)state;
    assert_string_equal(said(NULL, true), "");
    const char *info = said("info", true);
    TIMES(info, "\n", 4);
    TIMES(info, "imbrex [0/2] failed: rank 1 called imbrex_group_abort: the test says so", 1);
    TIMES(info,
          "imbrex [1/2] failed: rank 1 (this rank) called imbrex_group_abort: the test says so", 1);
}

static void test_wrong_level(void **state)
{
    (void)state;
    imbrex_group *group;
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    setenv("IMBREX_LOG", "loud", 1);
    assert_int_equal(imbrex_group_create(&(imbrex_group_desc){ .bootstrap = &one }, &group),
                     IMBREX_INVALID);
    unsetenv("IMBREX_LOG");
    assert_non_null(strstr(imbrex_error(), "IMBREX_LOG is \"loud\": want info or debug"));
}

/* Once a process, and only of names that are nearly ours. */
static void test_misspelt(void **state)
{
    (void)state;
    setenv("IMBREX_CPU_THREDS", "2", 1);
    setenv("IMBREX_SOMETHING_ELSE", "2", 1);
    const char *text = said(NULL, false);
    TIMES(text, "\n", 1);
    TIMES(text,
          "imbrex: environment variable IMBREX_CPU_THREDS: read by nobody here; did you mean "
          "IMBREX_CPU_THREADS?\n",
          1);
    assert_string_equal(said(NULL, false), "");
    unsetenv("IMBREX_CPU_THREDS");
    unsetenv("IMBREX_SOMETHING_ELSE");
}

int main(void)
{
    alarm((unsigned)patient(60));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_misspelt), /* the first group of this process warns */
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_wrong_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
