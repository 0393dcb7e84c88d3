/* test_env.c - the environment's numbers: which are taken, and that no locale changes them. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "imx.h"
#include "scratch.h"

static void link_is(const char *text, double want)
{
    imx_env env;
    setenv("IMBREX_CPU_LINK", text, 1);
    imbrex_status status = imx_env_read(&env);
    unsetenv("IMBREX_CPU_LINK");
    if (want < 0 ? status != IMBREX_INVALID : status != IMBREX_OK || env.cpu_link != want)
        fail_msg("'%s' gave %s and %g, not %g", text, imbrex_status_name(status), env.cpu_link,
                 want);
    if (want < 0 && !strstr(imx_status_detail(), "IMBREX_CPU_LINK"))
        fail_msg("'%s': the variable is not in '%s'", text, imx_status_detail());
}

static void numbers_are_taken_whole_or_not_at_all(void **state)
{
    (void)state;
    link_is("0.1", 0.1);
    link_is("25", 25);
    link_is("1e-3", 1e-3);
    link_is("", 0); /* unset */
    link_is("0,1", -1);
    link_is("0.1x", -1);
    link_is("-1", -1);
    link_is("nan", -1);
    link_is("inf", -1);
}

/* Made here, because few machines have one whose numbers have commas. */
static void set_comma_locale(void)
{
    static const char source[] = "LC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep \"\"\n"
                                 "grouping -1\nEND LC_NUMERIC\n";
    char command[1024], folder[512];
    scratch_write("comma.src", source, sizeof source - 1);
    snprintf(folder, sizeof folder, "%s", scratch_path("locales"));
    scratch_directory("locales");
    /* Categories that are left out make it fail, and -c carry on. */
    snprintf(command, sizeof command, "localedef -c -i '%s' '%s/comma' >'%s' 2>&1",
             scratch_path("comma.src"), folder, scratch_path("said"));
    int ended = system(command);
    (void)ended;
    setenv("LOCPATH", folder, 1);
    if (!setlocale(LC_NUMERIC, "comma"))
        skip();
    char shown[8];
    snprintf(shown, sizeof shown, "%.1f", 0.5);
    assert_string_equal(shown, "0,5");
}

static void a_comma_locale_changes_nothing(void **state)
{
    (void)state;
    set_comma_locale();
    link_is("0.1", 0.1);
    link_is("0,1", -1);
    setlocale(LC_ALL, "C");
}

static void info_says(const char *variable, const char *text, const char *want)
{
    char info[8192], line[512];
    setenv(variable, text, 1);
    imbrex_info(info, sizeof info);
    unsetenv(variable);
    snprintf(line, sizeof line, "env %s: %s (", variable, want);
    if (!strstr(info, line))
        fail_msg("no \"%s\" in\n%s", line, info);
}

static void info_says_what_is_refused(void **state)
{
    (void)state;
    char long_one[500];
    memset(long_one, 'x', sizeof long_one - 1);
    long_one[sizeof long_one - 1] = 0;
    info_says("IMBREX_CPU_THREADS", "3", "3");
    info_says("IMBREX_CPU_THREADS", "", "1");
    info_says("IMBREX_CPU_THREADS", "3x", "3x, which does not parse: groups refuse it");
    info_says("IMBREX_CPU_LINK", "0,1", "0,1, which does not parse: groups refuse it");
    info_says("IMBREX_TOKEN", "secret", "set");
    info_says("IMBREX_TOKEN", long_one, "set, which does not parse: groups refuse it");
    info_says("IMBREX_ALGORITHM", "", "unset");
    info_says("IMBREX_CHECK", "1", "1");
    info_says("IMBREX_CHECK", "2", "2, which does not parse: groups refuse it");
    info_says("IMBREX_CUDA_MEMORY", "ipc", "ipc");
    info_says("IMBREX_CUDA_MEMORY", "foo", "foo, which does not parse: groups refuse it");
}

static void info_says_what_is_misspelt(void **state)
{
    (void)state;
    static const struct {
        const char *set, *says; /* NULL: nothing */
    } cases[] = {
        { "IMBREX_CPU_THREDS", "read by nobody here; did you mean IMBREX_CPU_THREADS?" },
        { "IMBREX_CPULINK", "read by nobody here; did you mean IMBREX_CPU_LINK?" },
        { "IMBREX_WHATEVER_ELSE", "read by nobody here\n" },
        { "imbrex_token", "read by nobody here; did you mean IMBREX_TOKEN?" },
        { "IMBRX_CHECK", "read by nobody here; did you mean IMBREX_CHECK?" },
        { "IMBREX_LIBRARY", NULL },
        { "IMBREX_CUBLASLT", NULL },
        { "IMBREX_LAUNCHED", NULL },
        { "IMBREX_TOKEN", NULL },
        { "NOT_OURS", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char info[16384], line[200];
        setenv(cases[i].set, "7", 1);
        imbrex_info(info, sizeof info);
        unsetenv(cases[i].set);
        snprintf(line, sizeof line, "\nenv %s: %s", cases[i].set,
                 cases[i].says ? cases[i].says : "read by nobody");
        if (!strstr(info, line) == !!cases[i].says)
            fail_msg("%s \"%s\" in\n%s", cases[i].says ? "no" : "there is", line, info);
    }
}

/* As it is made, and where it cannot be. */
static void info_says_where_kernels_are_kept(void **state)
{
    (void)state;
    char info[8192], line[600];
    setenv("IMBREX_CACHE_DIR", scratch_path("kept"), 1);
    imbrex_info(info, sizeof info);
    snprintf(line, sizeof line, "kernel cache: %s\n", scratch_path("kept"));
    assert_non_null(strstr(info, line));
    setenv("IMBREX_CACHE_DIR", "/proc/nope", 1);
    imbrex_info(info, sizeof info);
    unsetenv("IMBREX_CACHE_DIR");
    assert_non_null(strstr(info, "kernel cache: none, every start compiles: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_taken_whole_or_not_at_all),
        cmocka_unit_test(info_says_what_is_refused),
        cmocka_unit_test(info_says_what_is_misspelt),
        cmocka_unit_test(info_says_where_kernels_are_kept),
        cmocka_unit_test(a_comma_locale_changes_nothing),
    };
    return cmocka_run_group_tests_name("env", tests, scratch_make, scratch_remove);
}
