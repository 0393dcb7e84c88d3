/* test_cuda_rates.c - which rates a group of GPUs counts on: of files, of what ranks read
 * differently, and none that is malformed; on a fake driver. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_ranks.h"
#include "group/group.h"

enum { RANKS = 2, SMS = 12 };

/* In the folder of the tuning cache. */
static void write_bytes(const char *name, const char *text, size_t bytes)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", getenv("IMBREX_CACHE_DIR"), name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void write_kept(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

static void remove_kept(const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", getenv("IMBREX_CACHE_DIR"), name);
    unlink(path);
}

static void info_says(const char *line)
{
    static char info[32000];
    imbrex_info(info, sizeof info);
    if (!strstr(info, line))
        fail_msg("no \"%s\" in\n%s", line, info);
}

static int look(imbrex_group *group, void *ctx)
{
    const imx_rates *want = ctx, *got = &group->rates;
    RANK_CHECK(want->store == 0 || got->store == want->store, "stores %g", got->store);
    RANK_CHECK(want->slices == 0 ||
                   (got->slices > 0.99 * want->slices && got->slices < 1.01 * want->slices),
               "slices %g, want %g", got->slices, want->slices);
    RANK_CHECK(want->copy_us == 0 || got->copy_us == want->copy_us, "copies begin %g",
               got->copy_us);
    RANK_CHECK(want->bf16 == 0 || (got->bf16 > 0.99 * want->bf16 && got->bf16 < 1.01 * want->bf16),
               "products %g, want %g", got->bf16, want->bf16);
    return 0;
}

static void all_count_on(imx_rates want)
{
    ranks_desc desc = { .size = RANKS };
    assert_int_equal(fake_ranks_run(&desc, RANKS, look, &want), 0);
}

static void a_gpu_without_a_table_has_its_attributes(void **state)
{
    (void)state;
    all_count_on((imx_rates){ .bf16 = 0.65 * 4096 * SMS * 1500 });
    info_says("rates of gpu 1: from the driver's attributes\n");
}

/* Each rank reads the file of its own GPU's name: all count on the slower rates. */
static void ranks_count_on_the_slower_rates(void **state)
{
    (void)state;
    write_kept("rates-Fake-GPU-0.txt", "device Fake GPU 0\nstore 100\ncopy_us 20\n");
    write_kept("rates-Fake-GPU-1.txt", "device Fake GPU 1\nstore 90\ncopy_us 10\n");
    all_count_on((imx_rates){ .store = 90e3, .copy_us = 20 });
    info_says("/rates-Fake-GPU-0.txt, and what it leaves out from the driver's attributes\n");
    write_kept("rates-Fake-GPU-1.txt", "device Fake GPU 0\nstore 90\n"); /* of another device */
    info_says("rates of gpu 1: from the driver's attributes\n");
    remove_kept("rates-Fake-GPU-0.txt");
    remove_kept("rates-Fake-GPU-1.txt");
}

static void the_variable_names_a_file(void **state)
{
    (void)state;
    char path[600], line[700];
    snprintf(path, sizeof path, "%s/mine", getenv("IMBREX_CACHE_DIR"));
    write_kept("rates-Fake-GPU-0.txt", "device Fake GPU 0\nstore 100\n"); /* does not count */
    write_kept("mine", "device Fake GPU 0\ndevice Fake GPU 1\nstore 77\n");
    setenv("IMBREX_RATES", path, 1);
    all_count_on((imx_rates){ .store = 77e3, .slices = 77e3 * 56 / 78 }); /* they go with it */
    snprintf(line, sizeof line, "rates of gpu 1: %s, and what it leaves out from", path);
    info_says(line);
    unsetenv("IMBREX_RATES");
    remove_kept("rates-Fake-GPU-0.txt");
}

typedef struct refusal {
    const char *device;
    imbrex_status status[RANKS];
    const char *sentence;
} refusal;

static int is_refused(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    const refusal *want = ctx;
    imbrex_group_desc desc = { .bootstrap = bootstrap,
                               .device = want->device,
                               .timeout_ms = patient(20000) };
    imbrex_group *group = NULL;
    imbrex_status status = imbrex_group_create(&desc, &group);
    RANK_CHECK(status == want->status[rank] &&
                   (status == IMBREX_OK || strstr(imbrex_error(), want->sentence)),
               "rank %d: %s: %s", rank, imbrex_status_name(status), imbrex_error());
    imbrex_group_destroy(group);
    return 0;
}

static void try(refusal want)
{
    ranks_desc desc = { .size = RANKS };
    fake_driver_install(RANKS);
    assert_int_equal(ranks_run_bare(&desc, is_refused, &want), 0);
    assert_int_equal(fake_driver_live(), 0);
}

/* On all ranks, if one alone has read it. */
static void a_malformed_file_is_refused(void **state)
{
    (void)state;
    write_kept("rates-Fake-GPU-1.txt", "device Fake GPU 1\nstore much\n");
    try((refusal){ "cuda",
                   { IMBREX_PEER, IMBREX_INVALID },
                   "rates-Fake-GPU-1.txt, line 2: store is \"much\": want a number from 0.001 "
                   "to 1e+06, in GB/s" });
    info_says("rates of gpu 1: none, so that groups are refused: ");
    remove_kept("rates-Fake-GPU-1.txt");
}

/* What stands behind it would be dropped. */
static void a_nul_is_refused(void **state)
{
    (void)state;
    static const char text[] = "device Fake GPU 0\nstore 90\n\0copy 90\n";
    write_bytes("rates-Fake-GPU-0.txt", text, sizeof text - 1);
    try((refusal){ "cuda",
                   { IMBREX_INVALID, IMBREX_PEER },
                   "rates-Fake-GPU-0.txt has a NUL at byte 27: want lines of text" });
    remove_kept("rates-Fake-GPU-0.txt");
}

static void a_file_that_is_not_there_is_refused(void **state)
{
    (void)state;
    setenv("IMBREX_RATES", "/nowhere/rates", 1);
    try((refusal){ "cuda",
                   { IMBREX_SYSTEM, IMBREX_SYSTEM },
                   "IMBREX_RATES is \"/nowhere/rates\", which cannot be read: No such file" });
    try((refusal){ "cpu", { IMBREX_OK, IMBREX_OK }, "" }); /* nothing there is chosen by rates */
    unsetenv("IMBREX_RATES");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_without_a_table_has_its_attributes),
        cmocka_unit_test(ranks_count_on_the_slower_rates),
        cmocka_unit_test(the_variable_names_a_file),
        cmocka_unit_test(a_malformed_file_is_refused),
        cmocka_unit_test(a_nul_is_refused),
        cmocka_unit_test(a_file_that_is_not_there_is_refused),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
