/* test_share.c - what ranks of a command tell each other arrives, and a call that fails has done
 * with its caller's memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli.h"
#include "share.h"

/* So many that a copy is not over when the call that enqueues it returns. */
enum { BYTES = 64 << 20 };

static void a_failure_leaves_nothing_on_the_stream(void **state)
{
    (void)state;
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &one, .device = "cpu" };
    imbrex_group *group;
    share s;
    char *mine = malloc(BYTES), *all = malloc(BYTES);
    assert_true(mine && all);
    assert_int_equal(imbrex_group_create(&desc, &group), IMBREX_OK);
    assert_int_equal(share_open(group, BYTES, &s), IMBREX_OK);
    memset(mine, 7, BYTES);
    assert_int_equal(share_all(&s, mine, BYTES, all), IMBREX_OK);
    assert_memory_equal(mine, all, BYTES);

    memset(mine, 8, BYTES);
    assert_int_equal(share_all(&s, mine, BYTES, NULL), IMBREX_INVALID); /* mine is on its way */
    assert_int_equal(s.room[BYTES - 1], 8);
    assert_non_null(strstr(failure_text(IMBREX_INVALID), "imbrex_copy: dst is NULL"));
    share_close(&s);
    imbrex_group_destroy(group);
    free(mine);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_leaves_nothing_on_the_stream),
    };
    return cmocka_run_group_tests_name("share", tests, NULL, NULL);
}
