/* test_cuda_moe.c - ag_moe and moe_rs through the CUDA backend on a fake driver: ranks on a GPU
 * each and on one together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fake_ranks.h"
#include "moe_cases.h"
#include "sanitized.h"

static void run(int size, int gpus, int step)
{
    ranks_desc desc = { .size = size };
    moe_walk walk = { .step = step * (SANITIZED ? 5 : 1) };
    assert_int_equal(fake_ranks_run(&desc, gpus, moe_cases_all, &walk), 0);
}

static void alone(void **state)
{
    (void)state;
    run(1, 1, 7);
}

static void on_a_gpu_each(void **state)
{
    (void)state;
    run(3, 3, 2);
}

static void on_one_gpu(void **state)
{
    (void)state;
    run(4, 1, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(on_a_gpu_each),
        cmocka_unit_test(on_one_gpu),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests_name("cuda moe", tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
