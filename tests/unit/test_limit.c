/* test_limit.c - a case that never ends is named and ends with all that it began. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "limit.h"

static void is_quick(void **state)
{
    (void)state;
}

/* With a process of its own, which has its output, too. */
static void never_ends(void **state)
{
    (void)state;
    fork();
    for (;;)
        pause();
}

static int never_begins(void **state)
{
    never_ends(state);
    return 0;
}

typedef struct outcome {
    int status;
    char said[4096];
} outcome;

/* The cases in a process of their own; all that it says until the last of them is gone. */
static outcome of(const struct CMUnitTest *tests, size_t count)
{
    outcome o = { 0 };
    int ends[2];
    size_t have = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        unsetenv("IMBREX_TEST_PATIENCE");
        limit_s = 1;
        _exit(_cmocka_run_group_tests("some", tests, count, NULL, NULL));
    }
    close(ends[1]);
    for (ssize_t got = 1; got > 0; have += got > 0 ? (size_t)got : 0)
        got = read(ends[0], o.said + have, sizeof o.said - 1 - have);
    close(ends[0]);
    assert_int_equal(waitpid(child, &o.status, 0), child);
    return o;
}

static void cases_that_never_end_are_named(void **state)
{
    (void)state;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_quick),
        cmocka_unit_test(never_ends),
        cmocka_unit_test(is_quick),
    };
    outcome o = of(tests, 3);
    assert_true(WIFSIGNALED(o.status) && WTERMSIG(o.status) == SIGKILL);
    if (!strstr(o.said, "some: never_ends did not end in time\n"))
        fail_msg("it says: %s", o.said);
}

static void so_are_those_whose_set_up_does_not(void **state)
{
    (void)state;
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup(is_quick, never_begins) };
    outcome o = of(tests, 1);
    assert_true(WIFSIGNALED(o.status) && WTERMSIG(o.status) == SIGKILL);
    if (!strstr(o.said, "some: is_quick did not end in time\n"))
        fail_msg("it says: %s", o.said);
}

static void others_are_left_alone(void **state)
{
    (void)state;
    const struct CMUnitTest tests[] = { cmocka_unit_test(is_quick), cmocka_unit_test(is_quick) };
    outcome o = of(tests, 2);
    assert_true(WIFEXITED(o.status) && WEXITSTATUS(o.status) == 0);
    assert_null(strstr(o.said, "did not end"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_that_never_end_are_named),
        cmocka_unit_test(so_are_those_whose_set_up_does_not),
        cmocka_unit_test(others_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
