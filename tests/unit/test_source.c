/* test_source.c - the text of a kernel: what it includes, its own args.h, and each header once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/source.h"

static void each_kernel_has_its_own_args(void **state)
{
    (void)state;
    const imx_source *source, *again;
    assert_int_equal(imx_source_expand("kernels/reduce/sm80.cu", &source), IMBREX_OK);
    const char *text = source->text;
    assert_int_equal(source->bytes, strlen(text));
    assert_non_null(strstr(text, "#line 1 \"kernels/reduce/args.h\"\n"));
    assert_non_null(strstr(text, "#line 1 \"kernels/wait_points.h\"\n")); /* "../wait_points.h" */
    assert_non_null(strstr(text, "#line 1 \"imbrex_device_cuda.h\"\n"));
    assert_null(strstr(text, "imx_gemm_args"));
    assert_int_equal(imx_source_expand("kernels/reduce/sm80.cu", &again), IMBREX_OK);
    assert_ptr_equal(again, source);
    assert_int_equal(imx_source_expand("kernels/none.cu", &again), IMBREX_INTERNAL);
}

static int count_of(const char *text, const char *words)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, words)); at++)
        count++;
    return count;
}

/* A header that stands there already is not put in again, unless a condition may hide it there. */
static void headers_are_there_once(void **state)
{
    (void)state;
    const imx_source *source;
    assert_int_equal(imx_source_expand("kernels/gemm/sm90.cu", &source), IMBREX_OK);
    for (size_t i = 0; i < imx_source_file_count; i++) {
        char words[200];
        snprintf(words, sizeof words, "\n#line 1 \"%s\"\n", imx_source_files[i].name);
        if (count_of(source->text, words) > 1)
            fail_msg("%s is there %d times", imx_source_files[i].name,
                     count_of(source->text, words));
    }
    assert_int_equal(count_of(source->text, "\n#line 1 \"imbrex.h\"\n"), 1);
    assert_int_equal(imx_source_expand("kernels/attend/sm80.cu", &source), IMBREX_OK);
    assert_int_equal(count_of(source->text, "\n#line 1 \"kernels/attend/sm80_units.cuh\"\n"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kernel_has_its_own_args),
        cmocka_unit_test(headers_are_there_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
