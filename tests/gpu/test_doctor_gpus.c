/* test_doctor_gpus.c - `imbrex doctor` on fake GPUs: whole ones, some that do not reach each other,
 * and some that cannot be used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/cuda/driver.h"
#include "cli.h"
#include "fake_calls.h"
#include "fake_cublas.h"
#include "fake_driver.h"
#include "fake_ranks.h"

/* What it prints; free it. */
static char *doctor(int code)
{
    char path[] = "/tmp/imbrex-doctor-XXXXXX", name[] = "doctor";
    char *argv[] = { name, NULL };
    int file = mkstemp(path), out = dup(STDOUT_FILENO);
    fflush(stdout);
    dup2(file, STDOUT_FILENO);
    int given = cli_doctor(1, argv);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    off_t length = lseek(file, 0, SEEK_END);
    char *text = calloc(1, (size_t)length + 1);
    assert_int_equal(pread(file, text, (size_t)length, 0), length);
    close(out);
    close(file);
    unlink(path);
    if (given != code)
        fail_msg("exit code %d, not %d:\n%s", given, code,
                 strstr(text, "2 CPU ranks") ? strstr(text, "2 CPU ranks") : text);
    return text;
}

static void says(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("no '%s' in\n%s", part, text);
}

static void all_is_well(void **state)
{
    (void)state;
    fake_driver_install(2);
    char *text = doctor(CLI_OK);
    says(text, "  ok         GPUs            2 of 2 GPUs can be used");
    says(text, "  ok         peer access     all GPUs reach each other over NVLink");
    says(text, "  ok         GPU memory ");
    says(text, "  ok         NVRTC           a kernel of one line compiles");
    says(text, "  ok         cuBLASLt        opens on GPU 0");
    says(text, "  ok         2 GPU ranks     an all_gather of 512 KiB from each is right");
    free(text);
}

static void one_gpu_is_shared(void **state)
{
    (void)state;
    fake_driver_install(1);
    char *text = doctor(CLI_OK);
    assert_null(strstr(text, "peer access"));
    says(text, "  ok         2 GPU ranks ");
    free(text);
}

static void gpus_that_do_not_reach_each_other_are_broken(void **state)
{
    (void)state;
    fake_driver_install(2);
    fake_driver_set_links(0);
    char *text = doctor(CLI_FAILED);
    says(text, "  broken     peer access     GPU 0 to: 1 NOT REACHED");
    says(text, "  broken     2 GPU ranks ");
    says(text, "do: ranks of one node must reach each other's memory");
    free(text);
}

static void old_gpus_are_not_there(void **state)
{
    (void)state;
    fake_driver_install(2);
    fake_driver_set(CU_COMPUTE_CAPABILITY_MAJOR, 7);
    char *text = doctor(CLI_OK);
    says(text, "  not there  GPUs            0 of 2 GPUs can be used");
    assert_null(strstr(text, "2 GPU ranks"));
    free(text);
}

static void a_blas_that_does_not_open_is_not_there(void **state)
{
    (void)state;
    fake_driver_install(1);
    fake_calls.failing = "cuEventCreate";
    char *text = doctor(CLI_OK);
    fake_calls.failing = NULL;
    says(text, "  not there  cuBLASLt ");
    says(text, "--> imbrex bench compares products with imbrex's own");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_is_well),
        cmocka_unit_test(one_gpu_is_shared),
        cmocka_unit_test(gpus_that_do_not_reach_each_other_are_broken),
        cmocka_unit_test(old_gpus_are_not_there),
        cmocka_unit_test(a_blas_that_does_not_open_is_not_there),
    };
    cuda = &fake_calls_table;
    cublas = &fake_cublas_calls;
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
