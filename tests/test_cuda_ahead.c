/* test_cuda_ahead.c - device "compile:90" and `imbrex compile`, with a fake compiler: plans fill
 * the kernel cache without a GPU, say what came of each kernel, and do not run. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "reference.h"

static imbrex_status make_group(const char *device, imbrex_group **group)
{
    imbrex_bootstrap alone = { .size = 1 };
    return imbrex_group_create(&(imbrex_group_desc){ .bootstrap = &alone, .device = device },
                               group);
}

static void plans_fill_the_cache(void **state)
{
    (void)state;
    op_case c = { .op = "gemm_rs", .m = 512, .n = 256, .k = 320, .algorithm = "copy" };
    imbrex_group *group;
    imbrex_plan *plan;
    char line[600];
    fake_driver_install(0);
    for (int round = 0; round < 2; round++) {
        const char *gemm = round ? "gemm: was in the cache" : "gemm: compiled";
        assert_int_equal(make_group("compile:90", &group), IMBREX_OK);
        assert_string_equal(imbrex_group_device(group), "compile:90");
        assert_int_equal(case_plan(group, &c, &plan), IMBREX_OK);
        imbrex_plan_describe(plan, line, sizeof line);
        if (!strstr(line, gemm))
            fail_msg("'%s' does not say '%s'", line, gemm);
        assert_int_equal(fake_driver_compiled(), 3); /* silu_mul, gemm, reduce: in round 0 only */
        imbrex_group_destroy(group);
    }
    assert_int_equal(fake_driver_live(), 0);
}

static void nothing_runs(void **state)
{
    (void)state;
    op_case c = { .op = "all_gather", .m = 8, .n = 8 };
    imbrex_group *group;
    imbrex_plan *plan;
    char a[256] = "", b[256];
    fake_driver_install(0);
    assert_int_equal(make_group("compile:90", &group), IMBREX_OK);
    assert_int_equal(case_plan(group, &c, &plan), IMBREX_OK);
    assert_int_equal(imbrex_copy(group, b, a, sizeof a, NULL), IMBREX_UNSUPPORTED);
    assert_non_null(strstr(imbrex_error(), "only compiles"));
    imbrex_args args = { .a = a, .c = b };
    for (int i = 0; i < 2; i++) { /* which fails the call, and not the group */
        assert_int_equal(imbrex_plan_run(plan, &args, NULL), IMBREX_UNSUPPORTED);
        assert_non_null(strstr(imbrex_error(), "device compile:90 only compiles"));
        assert_int_equal(imbrex_group_status(group), IMBREX_OK);
    }
    assert_int_equal(case_plan(group, &c, &plan), IMBREX_OK);
    imbrex_group_destroy(group);
}

static void other_devices_are_refused(void **state)
{
    (void)state;
    static const char *const devices[] = { "compile", "compile:70", "compile:91" };
    imbrex_group *group;
    fake_driver_install(0);
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        assert_int_equal(make_group(devices[i], &group), IMBREX_UNSUPPORTED);
        assert_non_null(strstr(imbrex_error(), "want \"compile:90\""));
    }
}

#define COMMAND(...) \
    cli_compile(sizeof((char *[]){ __VA_ARGS__ }) / sizeof(char *), (char *[]){ __VA_ARGS__, NULL })

static void the_command_compiles(void **state)
{
    (void)state;
    char name[] = "compile", ops[] = "ag_gemm", alone[] = "gemm", arch[] = "--arch=sm_90a";
    char shapes[] = "--shapes=640,384,448;640,384,512", old[] = "--arch=sm_70", what[] = "--arch=h";
    fake_driver_install(0);
    assert_int_equal(COMMAND(name, ops, arch, shapes), CLI_OK);
    int first = fake_driver_compiled();
    assert_in_range(first, 1, 3);
    assert_int_equal(COMMAND(name, ops, arch, shapes), CLI_OK);
    assert_int_equal(fake_driver_compiled(), first);
    assert_int_equal(COMMAND(name, ops, old), CLI_USAGE);
    assert_int_equal(COMMAND(name, ops, what), CLI_USAGE);
    assert_int_equal(COMMAND(name, alone), CLI_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_fill_the_cache),
        cmocka_unit_test(nothing_runs),
        cmocka_unit_test(other_devices_are_refused),
        cmocka_unit_test(the_command_compiles),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
