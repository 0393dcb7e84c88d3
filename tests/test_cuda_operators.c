/* test_cuda_operators.c - the table of operator cases through the CUDA backend on a fake driver:
 * ranks as threads and as processes, on a GPU each and on one together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "kernels/kernels.h"
#include "op_cases.h"

static void run(int size, bool processes, int gpus)
{
    ranks_desc desc = { .size = size, .processes = processes };
    if (processes && !RANKS_PROCESSES)
        skip();
    rank_main cases = imx_kernel_gemm.cuda_config ? op_cases_all : op_cases_collectives;
    assert_int_equal(fake_ranks_run(&desc, gpus, cases, NULL), 0);
}

static void alone(void **state)
{
    (void)state;
    run(1, false, 1);
}

static void threads_with_a_gpu_each(void **state)
{
    (void)state;
    run(2, false, 2);
}

static void threads_on_one_gpu(void **state)
{
    (void)state;
    run(4, false, 1);
}

static void processes_with_a_gpu_each(void **state)
{
    (void)state;
    run(4, true, 4);
}

static void processes_on_one_gpu(void **state)
{
    (void)state;
    run(2, true, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(threads_with_a_gpu_each),
        cmocka_unit_test(threads_on_one_gpu),
        cmocka_unit_test(processes_with_a_gpu_each),
        cmocka_unit_test(processes_on_one_gpu),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
