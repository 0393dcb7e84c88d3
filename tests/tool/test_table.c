/* test_table.c - lines end at the terminal's width, or at 100 columns, and lose nothing. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmocka.h>

#include "text.h"

/* What is said to a file that is no terminal. */
static void expect(int indent, const char *said, const char *want)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    text_wrap(file, indent, "%s", said);
    fclose(file);
    assert_string_equal(text, want);
    free(text);
}

static void test_short_lines_stay(void **state)
{
    (void)state;
    expect(4, "", "");
    expect(4, "\n", "\n");
    expect(4, "  a   b  \n\n  c", "  a   b  \n\n  c");
}

static void test_long_lines_are_broken(void **state)
{
    (void)state;
    char nine[] = "123456789 ", line[400] = "", want[400] = "";
    for (int i = 0; i < 12; i++)
        strcat(line, nine); /* the tenth ends in column 99, the eleventh in column 109 */
    for (int i = 0; i < 9; i++)
        strcat(want, nine);
    strcat(want, "123456789\n  123456789 123456789 ");
    expect(2, line, want);
}

static void test_a_long_word_stays_whole(void **state)
{
    (void)state;
    char word[131] = "", line[200], want[200];
    memset(word, 'w', 130);
    snprintf(line, sizeof line, "a bcd %s b", word);
    snprintf(want, sizeof want, "a bcd\n   %s\n   b", word);
    expect(3, line, want);
    snprintf(line, sizeof line, "%s b", word);
    snprintf(want, sizeof want, "%s\n   b", word);
    expect(3, line, want);
}

static void test_letters_are_counted_and_not_bytes(void **state)
{
    (void)state;
    char line[300] = "";
    for (int i = 0; i < 49; i++)
        strcat(line, "é ");
    strcat(line, "é");
    expect(2, line, line);
}

static void test_what_a_terminal_obeys_is_not_said(void **state)
{
    (void)state;
    expect(2, "a\033[2Jb", "a?[2Jb");
}

static FILE *terminal(int columns, int *other)
{
    struct winsize size = { .ws_row = 25, .ws_col = (unsigned short)columns };
    *other = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(*other >= 0 && grantpt(*other) == 0 && unlockpt(*other) == 0);
    int fd = open(ptsname(*other), O_RDWR | O_NOCTTY);
    assert_true(fd >= 0);
    assert_int_equal(ioctl(fd, TIOCSWINSZ, &size), 0);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    return file;
}

static void test_a_terminal_has_its_width(void **state)
{
    (void)state;
    static const int widths[][2] = {
        { 80, 80 }, { 60, 60 }, { 10, TEXT_WIDTH_LEAST }, { 300, TEXT_WIDTH }, { 0, TEXT_WIDTH }
    };
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        int other;
        FILE *file = terminal(widths[i][0], &other);
        assert_int_equal(text_width(file), widths[i][1]);
        fclose(file);
        close(other);
    }
}

/* Its length is its share, and the colon stands at the mark. */
static void test_bars(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    text_bar(file, "base", 25, 25, 50, "1.00x");
    text_bar(file, "twice", 50, 25, 50, "2.00x");
    text_bar(file, "none", 0, 0, 0, "-");
    fclose(file);
    char *lines[3], *rest = NULL;
    for (int i = 0; i < 3; i++)
        lines[i] = strtok_r(i ? NULL : text, "\n", &rest);
    size_t base = strspn(strchr(lines[0], '#'), "#");
    assert_null(strchr(lines[0], ':'));
    assert_ptr_equal(strchr(lines[1], ':'), strchr(lines[1], '#') + base - 1);
    assert_int_equal(strspn(strchr(lines[1], '#'), "#:"), 75);
    assert_int_equal(base, 38);
    assert_null(strchr(lines[2], '#'));
    for (int i = 0; i < 3; i++)
        assert_true(strlen(lines[i]) <= TEXT_WIDTH);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_lines_stay),
        cmocka_unit_test(test_long_lines_are_broken),
        cmocka_unit_test(test_a_long_word_stays_whole),
        cmocka_unit_test(test_letters_are_counted_and_not_bytes),
        cmocka_unit_test(test_what_a_terminal_obeys_is_not_said),
        cmocka_unit_test(test_a_terminal_has_its_width),
        cmocka_unit_test(test_bars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
