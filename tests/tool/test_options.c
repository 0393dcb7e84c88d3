/* test_options.c - command lines, as the parser and as the tool understand them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "options.h"

/* ---- The tool -------------------------------------------------------------------------------- */

static void shell_gives(const char *command, int status, const char *text)
{
    char all[4200], said[16384];
    snprintf(all, sizeof all, "{ %s; } 2>&1", command);
    FILE *pipe = popen(all, "r");
    assert_non_null(pipe);
    said[fread(said, 1, sizeof said - 1, pipe)] = 0;
    int ended = pclose(pipe);
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != status)
        fail_msg("'%s' gave %d, not exit code %d:\n%s", command, ended, status, said);
    if (!strstr(said, text))
        fail_msg("'%s' is not in '%s'", text, said);
}

static void tool_gives(const char *arguments, int status, const char *text)
{
    const char *tool = getenv("IMBREX_TOOL");
    char command[4096];
    if (!tool)
        skip();
    snprintf(command, sizeof command, "'%s' %s", tool, arguments);
    shell_gives(command, status, text);
}

static void too_few_files_are_named(void **state)
{
    (void)state;
    const char *tool = getenv("IMBREX_TOOL");
    if (!tool)
        skip();
    char command[4096];
    snprintf(command, sizeof command, "ulimit -n 20; exec '%s' run -n 1 true", tool);
    shell_gives(command, 1, "imbrex: 1 rank needs 34 open files, and 20 are allowed");
    snprintf(command, sizeof command, "ulimit -n 64; exec '%s' run -n 40 true", tool);
    shell_gives(command, 1,
                "imbrex: 40 ranks need 112 open files, and 64 are allowed: raise ulimit -Hn");
}

static void usage_gives_2(void **state)
{
    (void)state;
    tool_gives("run -n 0 -- true", 2, "imbrex run: --ranks is '0': want a whole number from 1 to");
    tool_gives("run -n abc -- true", 2, "--ranks is 'abc'");
    tool_gives("run -- true", 2, "how many ranks");
    tool_gives("run -n 2", 2, "which command");
    tool_gives("compile --algorithm ,", 2, "imbrex compile: --algorithm names none");
    tool_gives("compile --algorithm ''", 2, "imbrex compile: --algorithm names none");
    tool_gives("compile ag_gemm,foo", 2,
               "no operator 'foo': want one of ag_gemm, gemm_rs, all_gather, reduce_scatter, "
               "all_reduce, all_to_all, gemm_ar, ag_moe, moe_rs, dispatch, combine, "
               "merge_states, flash_decode, gemm\n");
    tool_gives("compile --shapes 'foo:64,64,64'", 2,
               "no operator 'foo': want one of ag_gemm, gemm_rs, all_gather, reduce_scatter, "
               "all_reduce, all_to_all, gemm_ar, ag_moe, moe_rs, dispatch, combine, "
               "merge_states, flash_decode, gemm\n");
    tool_gives("compile barrier", 2, "barrier is no plan: there is nothing to compile");
    tool_gives("compile ag_gemm --shapes 'gemm_rs:64,64,64'", 2,
               "imbrex compile: --shapes has none for ag_gemm: add one, or leave ag_gemm out");
    tool_gives("compile --device sm_80a", 2, "--device is 'sm_80a': want sm_90 or the like");
    tool_gives("compile --device sm_90b", 2, "--device is 'sm_90b': want sm_90 or the like");
    tool_gives("rnu", 2, "did you mean 'run'");
    tool_gives("compile --arch sm_90", 2, "no option --arch any more: say --device sm_90");
    tool_gives("mlp --shape 8,8 --tokens 8 --experts whole", 2,
               "no option --experts whole any more: say --expert-parallel whole");
    tool_gives("mlp -t t.svg", 2, "no option -t any more: say --timeline");
    tool_gives("decode -ct t.svg", 2, "no option -t any more: say --timeline");
    tool_gives("", 2, "which command");
}

static void tool_runs(void **state)
{
    (void)state;
    tool_gives("run --help", 0, "usage: imbrex run");
    tool_gives("run --help", 0, "CUDA_DEVICE_MAX_CONNECTIONS is 32");
    tool_gives("help run", 0, "usage: imbrex run");
    tool_gives("--version", 0, "imbrex 0.");
    tool_gives("run -n 2 --no-prefix sh -c 'echo x$RANK'", 0, "x1\n");
    tool_gives("run -n2 -- sh -c 'exit 9'", 9, "exit code 9");
    tool_gives("bench --help", 0, "  -n, --ranks R");
    tool_gives(
        "bench --help", 0,
        "      --dtype TYPE          bf16, f16, f32 or, of products, e4m3 (f32; on a GPU bf16)\n");
    tool_gives("compile --help", 0, "  -n, --ranks R");
    tool_gives("compile --help", 0, "(1024; on a GPU 4096)\n");
    tool_gives("info --json | python3 -m json.tool", 0, "{");
}

/* A full disk, whoever prints: the tool, a rank, or the launcher for its ranks. */
static void lost_output_is_a_failure(void **state)
{
    (void)state;
    static const char *const commands[] = {
        "info >/dev/full",
        "info --help >/dev/full",
        "compile --help >/dev/full",
        "mlp --shape 8,8 --tokens 8 --rounds 1 --ranks 1 >/dev/full",
        "mlp --shape 8,8 --tokens 8 --rounds 1 --ranks 3 --json >/dev/full",
        "bench all_gather --m 8 --n 8 --rounds 1 --ranks 1 >/dev/full",
        "bench all_gather --m 8 --n 8 --rounds 1 --ranks 3 --json >/dev/full",
    };
    const char *says = "imbrex: cannot write to standard output: No space left on device";
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        tool_gives(commands[i], 1, says);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    tool_gives("mlp --shape 8,8 --tokens 8 --rounds 1 >/dev/full", 1, says);
    tool_gives("bench all_gather --m 8 --n 8 --rounds 1 >/dev/full", 1, says);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    tool_gives("run -n 1 -- echo x >/dev/full", 1,
               "imbrex: cannot write the output: No space left on device");
}

/* Where there is a compiler for GPUs. */
static void lost_output_of_compile_is_a_failure(void **state)
{
    (void)state;
    const char *tool = getenv("IMBREX_TOOL");
    char command[4096];
    const char *little = getenv("LITTLE_NVRTC"), *real = getenv("IMBREX_NVRTC");
    setenv("REAL_NVRTC", real ? real : "", 1);
    if (little)
        setenv("IMBREX_NVRTC", little, 1);
    snprintf(command, sizeof command, "'%s' compile all_gather >/dev/null 2>&1",
             tool ? tool : "false");
    bool compiles = system(command) == 0;
    if (compiles)
        tool_gives("compile all_gather >/dev/full", 1,
                   "imbrex: cannot write to standard output: No space left on device");
    if (real)
        setenv("IMBREX_NVRTC", real, 1);
    else
        unsetenv("IMBREX_NVRTC");
    if (!compiles)
        skip();
}

/* ---- The parser ------------------------------------------------------------------------------ */

static void options_are_understood(void **state)
{
    (void)state;
    int64_t ranks = 0;
    double real = 0;
    const char *dtype = "f32";
    bool json = false, quiet = false;
    const option rest[] = {
        { "quiet", 'q', .flag = &quiet, .help = "" },
        { 0 },
    };
    const option options[] = {
        { "ranks", 'n', .integer = &ranks, .metavar = "R", .min = 1, .max = 64, .help = "" },
        { "scale", 's', .real = &real, .metavar = "X", .min = 0, .max = INFINITY, .help = "" },
        { "dtype", 0, .text = &dtype, .choices = "bf16|f16|f32", .help = "" },
        { "json", 'j', .flag = &json, .help = "" },
        { .more = rest },
    };
    const options_page page = { .command = "test", .options = options, .most = 2 };

    char *good[] = { "test",    "one", "--ranks=4", "-s", "-0.0",
                     "--dtype", "f16", "-jq",       "--", "--two" };
    assert_int_equal(options_parse(&page, 10, good), 2);
    assert_string_equal(good[1], "one");
    assert_string_equal(good[2], "--two");
    assert_int_equal(ranks, 4);
    assert_string_equal(dtype, "f16");
    assert_true(json && quiet);

    static const char *const bad[] = {
        "--ranks=65", "--ranks=4x",  "--ranks=",  "--ranks=99999999999999999999",
        "--scale=-1", "--scale=nan", "--dtype=f", "--dtype=",
        "--json=1",   "--rank=4",    "-x",        "--ranks"
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char word[64];
        snprintf(word, sizeof word, "%s", bad[i]);
        int outcome = options_parse(&page, 2, (char *[]){ "test", word });
        if (outcome != OPTIONS_WRONG)
            fail_msg("'%s' was taken", bad[i]);
    }
    assert_int_equal(options_parse(&page, 4, (char *[]){ "test", "a", "b", "c" }), OPTIONS_WRONG);
    assert_int_equal(ranks, 4);
}

static void words_have_distances(void **state)
{
    (void)state;
    assert_int_equal(options_distance("run", "run"), 0);
    assert_int_equal(options_distance("rnu", "run"), 2);
    assert_int_equal(options_distance("", "run"), 3);
    assert_int_equal(options_distance("infos", "info"), 1);
    assert_int_equal(options_distance("bnech", "bench"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_gives_2),
        cmocka_unit_test(tool_runs),
        cmocka_unit_test(too_few_files_are_named),
        cmocka_unit_test(lost_output_is_a_failure),
        cmocka_unit_test(lost_output_of_compile_is_a_failure),
        cmocka_unit_test(options_are_understood),
        cmocka_unit_test(words_have_distances),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
