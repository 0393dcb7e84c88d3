/* test_output.c - where the tool's files go: what a link of the user's leads to, and nowhere that
 * somebody else's does. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "output.h"
#include "scratch.h"

static bool put(const char *name)
{
    output o;
    if (!output_begin(&o, scratch_path(name)))
        return false;
    assert_int_equal(write(o.fd, "new", 3), 3);
    assert_true(output_end(&o, true));
    return true;
}

static void holds(const char *name, const char *text)
{
    size_t bytes;
    unsigned char *found = scratch_read(name, &bytes);
    assert_int_equal(bytes, strlen(text));
    assert_memory_equal(found, text, bytes);
    free(found);
}

static void links(void **state)
{
    (void)state;
    struct stat info;
    scratch_write("file", "old", 3);
    scratch_directory("open");
    assert_int_equal(chmod(scratch_path("open"), 01777), 0);
    assert_int_equal(symlink("../file", scratch_path("open/ours")), 0);
    assert_true(put("open/ours"));
    holds("file", "new");
    assert_int_equal(lstat(scratch_path("open/ours"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
}

static void links_of_others(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    scratch_write("precious", "old", 3);
    scratch_directory("sticky");
    assert_int_equal(chmod(scratch_path("sticky"), 01777), 0);
    assert_int_equal(symlink("../precious", scratch_path("sticky/theirs")), 0);
    assert_int_equal(lchown(scratch_path("sticky/theirs"), 65534, 65534), 0);
    assert_false(put("sticky/theirs"));
    assert_int_equal(errno, EACCES);
    holds("precious", "old");
    assert_int_equal(chmod(scratch_path("sticky"), 0755), 0); /* where only the user puts links */
    assert_true(put("sticky/theirs"));
    holds("precious", "new");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(links),
                                        cmocka_unit_test(links_of_others) };
    return cmocka_run_group_tests_name("output", tests, scratch_make, scratch_remove);
}
