/* test_activate.c - imbrex_activate on CPU ranks, and what its name for one kind does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "activate_cases.h"
#include "ranks.h"
#include "reference.h"

static void activations(void **state)
{
    (void)state;
    static const char *const threads[] = { "1", "3" };
    for (int i = 0; i < 2; i++) {
        ranks_desc desc = { .size = 1 + i };
        setenv("IMBREX_CPU_THREADS", threads[i], 1);
        assert_int_equal(ranks_run(&desc, activate_cases, NULL), 0);
    }
    unsetenv("IMBREX_CPU_THREADS");
}

static int same_bits(imbrex_group *group, void *ctx)
{
    (void)ctx;
    enum { ROWS = 3, COLS = 50 };
    const imbrex_activation desc = { .kind = IMBREX_SILU, .gated = 1, .dtype = IMBREX_BF16 };
    uint16_t in[ROWS * COLS * 2], one[ROWS * COLS], other[ROWS * COLS];
    input_fill(IMBREX_BF16, 1, 0, in, ROWS * COLS * 2);
    RANK_OK(imbrex_silu_mul(group, IMBREX_BF16, ROWS, COLS, in, one, NULL));
    RANK_OK(imbrex_activate(group, &desc, ROWS, COLS, in, other, NULL, NULL, NULL));
    RANK_OK(imbrex_stream_sync(group, NULL));
    RANK_CHECK(memcmp(one, other, sizeof one) == 0, "other bits");
    return 0;
}

static void silu_mul_is_one_of_them(void **state)
{
    (void)state;
    ranks_desc desc = { .size = 1 };
    assert_int_equal(ranks_run(&desc, same_bits, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations),
        cmocka_unit_test(silu_mul_is_one_of_them),
    };
    return cmocka_run_group_tests_name("activate", tests, NULL, NULL);
}
