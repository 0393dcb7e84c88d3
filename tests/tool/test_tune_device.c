/* test_tune_device.c - `imbrex tune --device` on fake GPUs: what it measures, where it keeps that,
 * and that later groups count on it. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda.h"
#include "fake_calls.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "group/group.h"
#include "launch.h"
#include "tune.h"

static int rank_main_of_tune(int rank, void *ctx)
{
    (void)rank;
    int code = tune_rank(ctx);
    bool clean = fake_calls.live == 0 && fake_calls.graphs == 0 && fake_driver_live() == 0;
    return code || clean ? code : 99;
}

/* The exit code of two ranks, and what they print: on standard output, or as an error. */
static int tune(const char *output, int gpus, int stream, char *text, size_t size)
{
    char path[] = "/tmp/imbrex-tune-XXXXXX";
    const tune_request request = {
        .output = output, .rounds = 1, .product = 64, .product_f32 = 64, .read = 64, .bytes = 65536
    };
    const launch_options launch = {
        .ranks = 2, .output = LAUNCH_DIRECT, .grace_s = LAUNCH_GRACE_S, .timeout_s = 120
    };
    int file = mkstemp(path), before = dup(stream);
    fake_driver_install(gpus);
    fflush(stdout);
    dup2(file, stream);
    int code = launch_ranks(&launch, rank_main_of_tune, (void *)&request);
    fflush(stdout);
    dup2(before, stream);
    ssize_t length = pread(file, text, size - 1, 0);
    text[length > 0 ? length : 0] = '\0';
    close(before);
    close(file);
    unlink(path);
    return code;
}

/* A call takes 500 us by the fake clock, of a graph of ten 50. */
static const char *const measured[] = {
    "bf16      0.0010486  # TFLOP/s: gemm of 64 x 64 x 64\n",
    "fp8       0.0010486  # TFLOP/s: gemm of 64 x 64 x 64\n",
    "f32       0.0010486  # TFLOP/s: gemm of 64 x 64 x 64\n",
    "memory    0.024576  # GB/s: gemm of 16 x 64 x 64, which reads b\n",
    "store     0.13107  # GB/s: all_gather by store",
    "copy      0.13107  # GB/s: all_gather by copy",
    "copy_us   500  # us: all_gather by copy, 8192 bytes of a rank\n",
    "signal_us 50  # us: all_gather by ll, 8192 bytes of a rank\n",
};

static void has_all(const char *text)
{
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++)
        if (!strstr(text, measured[i]))
            fail_msg("no \"%s\" in\n%s", measured[i], text);
}

static void read_file(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

static int counts_on_them(imbrex_group *group, void *ctx)
{
    (void)ctx;
    RANK_CHECK(group->rates.signal_us == 50 && group->rates.copy_us == 500, "a signal takes %g us",
               group->rates.signal_us);
    return 0;
}

static void what_is_measured_is_kept(void **state)
{
    (void)state;
    char text[8000], path[600], file[4000];
    ranks_desc one = { .size = 1 };
    assert_int_equal(tune(NULL, 2, STDOUT_FILENO, text, sizeof text), 0);
    has_all(text);
    assert_non_null(strstr(text, "rates of gpu 0: "));
    assert_non_null(strstr(text, "rates of gpu 1: from the driver's attributes\n"));
    snprintf(path, sizeof path, "%s/rates-Fake-GPU-0.txt", getenv("IMBREX_CACHE_DIR"));
    read_file(path, file, sizeof file);
    has_all(file);
    assert_non_null(strstr(file, "\ndevice Fake GPU 0\nbf16 "));
    assert_int_equal(fake_ranks_run(&one, 1, counts_on_them, NULL), 0);
    unlink(path);
}

static void a_file_may_be_named(void **state)
{
    (void)state;
    char text[8000], path[600], file[4000];
    ranks_desc one = { .size = 1 };
    snprintf(path, sizeof path, "%s/mine", getenv("IMBREX_CACHE_DIR"));
    assert_int_equal(tune(path, 2, STDOUT_FILENO, text, sizeof text), 0);
    read_file(path, file, sizeof file);
    has_all(file);
    setenv("IMBREX_RATES", path, 1);
    assert_int_equal(fake_ranks_run(&one, 1, counts_on_them, NULL), 0);
    unsetenv("IMBREX_RATES");
}

#define ON_ONE                                                            \
    "imbrex tune: ranks 0 and 1 are on one GPU: start one rank for each " \
    "GPU that is to be measured\n"

static void ranks_on_one_gpu_are_refused(void **state)
{
    (void)state;
    char text[8000];
    assert_int_equal(tune(NULL, 1, STDERR_FILENO, text, sizeof text), 2);
    assert_non_null(strstr(text, ON_ONE));

    fake_calls.one_gpu = true; /* each launcher's rank may call it by another index */
    assert_int_equal(tune(NULL, 2, STDERR_FILENO, text, sizeof text), 2);
    fake_calls.one_gpu = false;
    assert_non_null(strstr(text, ON_ONE));
}

/* ---- what is kept ---------------------------------------------------------------------------- */

static int keep_what_is_wrong(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_status status = imbrex_rates_keep(group, "store 350\ncopy fast\n", NULL);
    RANK_CHECK(status == IMBREX_INVALID &&
                   strstr(imbrex_error(), "rows, line 2: copy is \"fast\": want"),
               "%s", imbrex_error());
    status = imbrex_rates_keep(group, NULL, NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "rows is NULL"), "%s",
               imbrex_error());
    status = imbrex_rates_keep(group, "store 350\n", "/nowhere/rates");
    RANK_CHECK(status == IMBREX_SYSTEM && strstr(imbrex_error(), "cannot write /nowhere/rates"),
               "%s", imbrex_error());
    status = imbrex_rates_keep(group, "# nothing\n", NULL);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "rows has no rate: want lines"),
               "%s", imbrex_error());
    status = imbrex_rates_keep(group, "store 350\ndevice Fake GPU 1\nstore 1\n", NULL);
    RANK_CHECK(status == IMBREX_INVALID &&
                   strstr(imbrex_error(), "rows, line 2: device: want rows alone"),
               "%s", imbrex_error());
    return 0;
}

static int keep_in(imbrex_group *group, void *ctx)
{
    char link[600];
    imbrex_status status = imbrex_rates_keep(group, "store 350\n", ctx);
    RANK_CHECK(status == IMBREX_INVALID && strstr(imbrex_error(), "which is no regular file: name"),
               "%s", imbrex_error());
    RANK_CHECK(unlink(ctx) == 0, "%s is gone", (char *)ctx);

    /* Who has opened the file that was there still reads it. */
    snprintf(link, sizeof link, "%s-link", (char *)ctx);
    FILE *before = fopen(ctx, "w+");
    fputs("before", before);
    fflush(before);
    RANK_CHECK(symlink(ctx, link) == 0, "no link %s", link);
    RANK_CHECK(imbrex_rates_keep(group, "store 350\n", link) == IMBREX_OK, "%s", imbrex_error());
    char text[400] = "", line[16] = "";
    rewind(before);
    RANK_CHECK(fgets(line, sizeof line, before) && strcmp(line, "before") == 0, "has %s", line);
    fclose(before);
    read_file(ctx, text, sizeof text);
    RANK_CHECK(strstr(text, "\ndevice Fake GPU 0\nstore 350\n"), "wrote %s", text);
    RANK_CHECK(readlink(link, text, sizeof text) > 0, "%s is no link", link);
    return 0;
}

/* Nobody reads from the FIFO: to open it would wait. */
static void files_are_replaced_whole(void **state)
{
    (void)state;
    char path[500];
    ranks_desc one = { .size = 1 };
    snprintf(path, sizeof path, "%s/other", getenv("IMBREX_CACHE_DIR"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(fake_ranks_run(&one, 1, keep_in, path), 0);
}

static int keep_of_a_cpu(imbrex_group *group, void *ctx)
{
    (void)ctx;
    imbrex_status status = imbrex_rates_keep(group, "store 350\n", NULL);
    RANK_CHECK(status == IMBREX_UNSUPPORTED &&
                   strstr(imbrex_error(), "cpu:0 has no rates: they are of GPUs"),
               "%s", imbrex_error());
    return 0;
}

static void what_is_wrong_is_not_kept(void **state)
{
    (void)state;
    char path[600];
    ranks_desc one = { .size = 1 };
    assert_int_equal(fake_ranks_run(&one, 1, keep_what_is_wrong, NULL), 0);
    snprintf(path, sizeof path, "%s/rates-Fake-GPU-0.txt", getenv("IMBREX_CACHE_DIR"));
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(ranks_run(&one, keep_of_a_cpu, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_measured_is_kept),     cmocka_unit_test(a_file_may_be_named),
        cmocka_unit_test(ranks_on_one_gpu_are_refused), cmocka_unit_test(what_is_wrong_is_not_kept),
        cmocka_unit_test(files_are_replaced_whole),
    };
    cuda = &fake_calls_table;
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
