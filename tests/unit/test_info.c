/* test_info.c - what imbrex_info says of a machine, and what it leaves as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_ranks.h"

static const imbrex_bootstrap alone = { .rank = 0, .size = 1 };

static void expect(const char *words)
{
    char info[16000];
    imbrex_info(info, sizeof info);
    if (!strstr(info, words))
        fail_msg("no \"%s\" in\n%s", words, info);
}

static void it_says_why_not(void **state)
{
    (void)state;
    fake_driver_install(1);
    expect("\ndevice cuda: 1 of 1 GPUs can be used");
    fake_driver_set(0, 11080); /* the driver's version */
    expect("\ndevice cuda: none: the NVIDIA driver is for CUDA 11.8");
    fake_driver_install(0);
    expect("\ndevice cuda: none: the NVIDIA driver sees no GPU");
}

static void it_leaves_what_was_said(void **state)
{
    (void)state;
    imbrex_group *group = NULL;
    imbrex_group_desc desc = { .bootstrap = &alone, .device = "nonsense" };
    char said[600];
    fake_driver_install(0);
    assert_int_equal(imbrex_group_create(&desc, &group), IMBREX_INVALID);
    snprintf(said, sizeof said, "%s", imbrex_error());
    expect("\ndevice cuda: none: the NVIDIA driver sees no GPU");
    assert_string_equal(imbrex_error(), said);
}

/* That one device cannot be used is no failure where another is. */
static void success_says_nothing(void **state)
{
    (void)state;
    imbrex_group *group = NULL;
    imbrex_group_desc desc = { .bootstrap = &alone };
    fake_driver_install(0);
    assert_int_equal(imbrex_group_create(&desc, &group), IMBREX_OK);
    assert_string_equal(imbrex_error(), "");
    assert_string_equal(imbrex_group_device(group), "cpu:0");
    imbrex_group_destroy(group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_why_not),
        cmocka_unit_test(it_leaves_what_was_said),
        cmocka_unit_test(success_says_nothing),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
