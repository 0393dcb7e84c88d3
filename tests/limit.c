/* limit.c - no case of a test lasts for ever: one that is not over in time is named and ends, with
 * all processes that it began.  The linker puts this before cmocka's own runner
 * (tests/CMakeLists.txt), so that no program can forget it. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmocka.h>

#include "limit.h"
#include "patience.h"
#include "sanitized.h"

enum { CASES_MOST = 64 };

int limit_s = SANITIZED ? 600 : 300; /* a busy machine is no fault */

static const struct CMUnitTest *cases;
static size_t at; /* of the case that begins next */
static char said[256];

static void give_up(int number)
{
    (void)number;
    ssize_t written = write(STDERR_FILENO, said, strlen(said));
    (void)written;
    kill(0, SIGKILL);
}

static void begin(const char *group, const char *name)
{
    snprintf(said, sizeof said, "[  LIMIT   ] %s: %s did not end in time\n", group, name);
    alarm((unsigned)patient(limit_s));
}

static const char *group_name;

/* Stands for each case's own set-up. */
static int begin_case(void **state)
{
    const struct CMUnitTest *test = &cases[at++];
    begin(group_name, test->name);
    return test->setup_func ? test->setup_func(state) : 0;
}

/* What cmocka_run_group_tests calls, and what that was. */
int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);
int __real__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);

int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction setup, CMFixtureFunction teardown)
{
    struct CMUnitTest limited[CASES_MOST];
    if (count > CASES_MOST) {
        fprintf(stderr, "%s has %zu cases: make CASES_MOST of them\n", name, count);
        return -1;
    }
    /* A group of its own, that is killed as one; and gone with the program that runs the tests. */
    if (getpgrp() != getpid() && setpgid(0, 0) == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; i < count; i++) {
        limited[i] = tests[i];
        limited[i].setup_func = begin_case;
    }
    group_name = name;
    cases = tests;
    at = 0;
    signal(SIGALRM, give_up);
    begin(name, "what comes before the first case");
    int failed = __real__cmocka_run_group_tests(name, limited, count, setup, teardown);
    alarm(0);
    return failed;
}
