/* test_compile_pairs.c - which of many forms of a kernel test_cuda_compile compiles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "compile_pairs.h"

/* Those that add no pair are left out, and nothing else is: a flag that lacks counts as one that is
 * there, a number that lacks does not. */
static void every_two_options_meet(void **state)
{
    (void)state;
    static const struct {
        const char *form;
        bool is_chosen;
    } forms[] = {
        { "-DN=1", true },          { "-DN=1 -DA", true },
        { "-DN=1 -DA -DB", true },  { "-DN=2 -DB", true },
        { "-DN=2", true },          { "-DN=1 -DB", true },
        { "-DN=3 -DA -DB", false }, { "-DN=3 -DK=1 -DA -DB", true },
        { "-DN=3 -DA", true },
    };
    enum { FORMS = sizeof forms / sizeof forms[0] };
    const char *options[FORMS];
    bool chosen[FORMS];
    for (int i = 0; i < FORMS; i++)
        options[i] = forms[i].form;
    compile_pairs_choose(options, FORMS, chosen);
    for (int i = 0; i < FORMS; i++) {
        if (chosen[i] != forms[i].is_chosen)
            fail_msg("%s", forms[i].form);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_two_options_meet) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
