/* test_compile_pairs.c - which of many forms of a kernel test_cuda_compile compiles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "compile_pairs.h"

static void expect(const char *const *forms, const bool *expected, int count)
{
    bool chosen[16];
    assert_in_range(count, 1, 16);
    compile_pairs_choose(forms, count, chosen);
    for (int i = 0; i < count; i++) {
        if (chosen[i] != expected[i])
            fail_msg("'%s' is %schosen", forms[i], chosen[i] ? "" : "not ");
    }
}

/* Those that add no pair are left out, and nothing else is: a flag that lacks counts as one that is
 * there, a number that lacks does not. */
static void every_two_options_meet(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "-DN=1 -DA", "-DN=1 -DB",     "-DN=2",
        "-DN=1", /* each two of its options in one */
        "-DN=3 -DA", "-DN=3 -DA -DB", "-DN=3 -DK=1 -DB",
    };
    static const bool expected[] = { true, true, true, false, true, true, true };
    expect(forms, expected, sizeof forms / sizeof forms[0]);
}

/* The one with most new pairs comes first, wherever it stands. */
static void few_are_enough(void **state)
{
    (void)state;
    static const char *const forms[] = { "-DN=1 -DK=1", "-DK=1 -DM=1", "-DN=1 -DK=1 -DM=1" };
    expect(forms, (const bool[]){ false, false, true }, 3);
}

/* The first is chosen first, and each of its pairs is in another one. */
static void what_others_show_is_spare(void **state)
{
    (void)state;
    static const char *const forms[] = { "-DK=2 -DM=2 -DN=1", "-DK=1 -DM=2 -DN=1",
                                         "-DK=2 -DM=1 -DN=1", "-DK=2 -DM=2 -DN=2" };
    expect(forms, (const bool[]){ false, true, true, true }, 4);
}

static void one_without_options_is_chosen(void **state)
{
    (void)state;
    static const char *const alone[] = { "" }, *const flag[] = { "-DA", "" };
    expect(alone, (const bool[]){ true }, 1);
    expect(flag, (const bool[]){ true, true }, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_two_options_meet),
        cmocka_unit_test(few_are_enough),
        cmocka_unit_test(what_others_show_is_spare),
        cmocka_unit_test(one_without_options_is_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
