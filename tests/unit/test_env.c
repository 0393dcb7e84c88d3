/* test_env.c - the environment's numbers: which are taken, and that no locale changes them; and
 * whose variables a program with its own user's rights does not take. */
#define _GNU_SOURCE
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/cpu/compiler.h"
#include "base/imx.h"
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
    char words[64], described[1024];
    imx_text text = { .at = words, .size = sizeof words };
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group_desc alone = { .bootstrap = &one, .device = "cpu" };
    imbrex_group *group;
    set_comma_locale();
    link_is("0.1", 0.1);
    imx_text_add(&text, "%g of %.2f", 0.5, 2.25);
    assert_string_equal(words, "0.5 of 2.25");
    imbrex_status status = imx_fail(IMBREX_INVALID, "%.1f is too much", 1.5);
    assert_int_equal(status, IMBREX_INVALID);
    assert_string_equal(imx_status_detail(), "1.5 is too much");
    snprintf(words, sizeof words, "%.1f", 0.5);
    assert_string_equal(words, "0,5"); /* the program's own numbers stay as they were */
    setenv("IMBREX_CPU_LINK", "0.5", 1);
    assert_int_equal(imbrex_group_create(&alone, &group), IMBREX_OK);
    imbrex_group_describe(group, described, sizeof described);
    imbrex_group_destroy(group);
    unsetenv("IMBREX_CPU_LINK");
    if (strstr(described, "0,5"))
        fail_msg("a comma in '%s'", described);
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
        { "IMBREX_VLLM", NULL },
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

/* A token that is refused is none, so that others look elsewhere: the rank says what it knows. */
static void a_refused_token_is_said_though_nobody_comes(void **state)
{
    (void)state;
    char token[500] = "";
    memset(token, 'x', sizeof token - 1);
    setenv("IMBREX_TOKEN", token, 1);
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    imbrex_group *group;
    const imbrex_group_desc desc = { .device = "cpu", .timeout_ms = 50 };
    assert_int_equal(imbrex_group_create(&desc, &group), IMBREX_INVALID);
    assert_non_null(strstr(imbrex_error(), "IMBREX_TOKEN has 499 characters: at most"));
    unsetenv("IMBREX_TOKEN");
    assert_int_equal(imbrex_group_create(&desc, &group), IMBREX_TIMEOUT);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

/* ---- set-user-ID ----------------------------------------------------------------------------- */

/* This program, when it runs so: 0, or which of them it took; 50: it has no other rights. */
static int run_with_more_rights(void)
{
    static const char *const names[] = { "TMPDIR", "HOME", "XDG_CACHE_HOME", "CUDA_HOME", "PATH" };
    const imx_user_desc desc = {
        .name = "x", .text = "", .file = "", .folder = ".", .options = ""
    };
    imx_folder folder;
    imx_env env;
    void *image;
    size_t bytes;
    if (geteuid() == getuid())
        return 50;
    for (int i = 0; i < 5; i++)
        if (imx_env_get(names[i]))
            return 1 + i;
    if (imx_env_read(&env) || *env.net || *env.nccl || *env.nvrtc || *env.cc || *env.cache_dir)
        return 10;
    imx_folder_name(env.cache_dir, &folder);
    if (*folder.path)
        return 11;
    return imx_compiler_run("", &folder, &desc, &image, &bytes) == IMBREX_UNSUPPORTED ? 0 : 12;
}

static void more_rights_than_the_caller(void **state)
{
    (void)state;
    static char *const environment[] = { "IMBREX_NET=/tmp/x.so",
                                         "IMBREX_NCCL=/tmp/x.so",
                                         "IMBREX_NVRTC=/tmp/x.so",
                                         "IMBREX_CC=x",
                                         "IMBREX_CACHE_DIR=/tmp",
                                         "TMPDIR=/tmp",
                                         "HOME=/tmp",
                                         "XDG_CACHE_HOME=/tmp",
                                         "CUDA_HOME=/tmp",
                                         "PATH=/usr/bin:/bin",
                                         NULL };
    char command[9000], *program = (char *)(uintptr_t)scratch_path("program");
    if (geteuid() != 0)
        skip();
    snprintf(command, sizeof command, "cp /proc/%ld/exe %s && chmod 4755 %s && chmod 755 %s",
             (long)getpid(), program, program, scratch_path("."));
    assert_int_equal(system(command), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0)
            execve(program, (char *[]){ program, "--more-rights", NULL }, environment);
        _exit(51);
    }
    int ended;
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_true(WIFEXITED(ended));
    if (WEXITSTATUS(ended) == 50) /* TMPDIR is mounted nosuid */
        skip();
    assert_int_equal(WEXITSTATUS(ended), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--more-rights") == 0)
        return run_with_more_rights();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_taken_whole_or_not_at_all),
        cmocka_unit_test(info_says_what_is_refused),
        cmocka_unit_test(info_says_what_is_misspelt),
        cmocka_unit_test(info_says_where_kernels_are_kept),
        cmocka_unit_test(a_refused_token_is_said_though_nobody_comes),
        cmocka_unit_test(more_rights_than_the_caller),
        cmocka_unit_test(a_comma_locale_changes_nothing),
    };
    return cmocka_run_group_tests_name("env", tests, scratch_make, scratch_remove);
}
