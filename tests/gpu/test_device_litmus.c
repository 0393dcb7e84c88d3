/* test_device_litmus.c - the orders that protocols stand on, tried a million times between CPU
 * ranks: device_litmus.h.  Each can fail: without its fence store buffering does on most
 * processors, and thread sanitizer finds whatever else loses its order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device_ranks.h"

#include "device_litmus.h"

#define LITMUS(title, kernel)                                                            \
    static void title(void **state)                                                      \
    {                                                                                    \
        (void)state;                                                                     \
        for (int size = 2; size <= 4; size += 2)                                         \
            assert_int_equal(device_run_on(size, #kernel, kernel, device_rounds(8)), 0); \
    }

LITMUS(a_message_is_whole, messages)
LITMUS(a_fence_orders_two_stores, fenced_messages)
LITMUS(not_both_miss, store_buffers)
LITMUS(nothing_is_overwritten_before_its_credit, credits)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_whole),
        cmocka_unit_test(a_fence_orders_two_stores),
        cmocka_unit_test(not_both_miss),
        cmocka_unit_test(nothing_is_overwritten_before_its_credit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
