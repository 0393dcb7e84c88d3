/* test_operators.c - the table of operator cases on CPU ranks, as threads and as processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "op_cases.h"
#include "ranks.h"

static void run(int size, bool processes)
{
    if (processes && !RANKS_PROCESSES)
        skip();
    ranks_desc desc = { .size = size, .processes = processes };
    assert_int_equal(ranks_run(&desc, op_cases_all, NULL), 0);
}

static void threads_1(void **state)
{
    (void)state;
    run(1, false);
}

static void threads_2(void **state)
{
    (void)state;
    run(2, false);
}

static void threads_3(void **state)
{
    (void)state;
    run(3, false);
}

static void threads_4(void **state)
{
    (void)state;
    run(4, false);
}

static void threads_8(void **state)
{
    (void)state;
    run(8, false);
}

static void processes_1(void **state)
{
    (void)state;
    run(1, true);
}

static void processes_2(void **state)
{
    (void)state;
    run(2, true);
}

static void processes_3(void **state)
{
    (void)state;
    run(3, true);
}

static void processes_4(void **state)
{
    (void)state;
    run(4, true);
}

static void processes_8(void **state)
{
    (void)state;
    run(8, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_1),   cmocka_unit_test(threads_2),   cmocka_unit_test(threads_3),
        cmocka_unit_test(threads_4),   cmocka_unit_test(threads_8),   cmocka_unit_test(processes_1),
        cmocka_unit_test(processes_2), cmocka_unit_test(processes_3), cmocka_unit_test(processes_4),
        cmocka_unit_test(processes_8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
