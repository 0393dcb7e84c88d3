/* test_relay.c - what ranks print comes out in whole lines, however long, slow or many they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "launched.h"

/* ---- Lines ----------------------------------------------------------------------------------- */

enum { RANKS = 8, LINES = 1000 };

/* Lines of 20 to 319 bytes, written in pieces, so that they cross the pipe's and the buffers'
 * borders. */
static int write_lines(int rank, void *ctx)
{
    (void)ctx;
    setvbuf(stdout, NULL, _IOFBF, 777);
    for (int i = 0; i < LINES; i++) {
        printf("line %d %d ", rank, i);
        for (int x = 0; x < i * 7 % 300; x++)
            putchar('x');
        printf(" end\n");
    }
    return 0;
}

static void lines_stay_whole(void **state)
{
    (void)state;
    launched l = launched_start(&(launch_options){ .ranks = RANKS, .grace_s = 5 }, NULL,
                                write_lines, "", NULL);
    launched_wait(&l);
    assert_int_equal(l.status, 0);
    int next[RANKS] = { 0 };
    char *rest = NULL;
    for (char *line = strtok_r(l.out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        int prefix, rank, i, text, end;
        if (sscanf(line, "[%d] line %d %d%n", &prefix, &rank, &i, &text) != 3 || prefix != rank ||
            rank < 0 || rank >= RANKS || i != next[rank])
            fail_msg("unexpected line '%s'", line);
        text++; /* the space */
        end = text + i * 7 % 300;
        assert_int_equal(strspn(line + text, "x"), i * 7 % 300);
        assert_string_equal(line + end, " end");
        next[rank]++;
    }
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(next[rank], LINES);
    launched_forget(&l);
}

static void long_and_last_lines_arrive(void **state)
{
    (void)state;
    launched l =
        launched_shell(2, 5, "head -c 300000 /dev/zero | tr '\\0' $RANK; echo; printf last", "");
    assert_int_equal(l.status, 0);
    assert_int_equal(l.out_bytes, 2 * (4 + 300000 + 1 + 4 + 4 + 1));
    launched_says(l.out, "[0] last\n");
    launched_says(l.out, "[1] last\n");
    launched_forget(&l);
}

static void no_reader_means_sigpipe(void **state)
{
    (void)state;
    int ends[2];
    char *argv[] = { "yes", NULL };
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    launched l = launched_start(&(launch_options){ .ranks = 2, .grace_s = 1 }, argv, NULL, "",
                                (int[]){ ends[1], -1 });
    close(ends[1]);
    char some[100];
    assert_true(read(ends[0], some, sizeof some) > 0);
    close(ends[0]);
    launched_wait(&l);
    assert_int_equal(l.status, 128 + SIGPIPE);
    assert_true(l.seconds < 5);
    launched_forget(&l);
}

/* A line without an end is brought out in parts: it would fill the launcher's memory. */
static void an_endless_line_is_cut(void **state)
{
    (void)state;
    enum { MIB = 1 << 20, READ = 1 << 16, PREFIX = 4 };
    char *argv[] = { "sh", "-c", "head -c 3145728 /dev/zero | tr '\\0' x; echo all >&2; sleep 1000",
                     NULL };
    launched l =
        launched_start(&(launch_options){ .ranks = 1, .grace_s = 1 }, argv, NULL, "", NULL);
    launched_hears(l.err_fd, "all");
    launched_await(&l, 2); /* the rank has not ended, nor has its line */
    kill(l.pid, SIGTERM);
    launched_wait(&l);
    size_t x = 0;
    char *rest = NULL;
    for (char *line = strtok_r(l.out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        assert_true(strlen(line) < PREFIX + MIB + READ);
        x += strspn(line + PREFIX, "x");
    }
    assert_int_equal(x, 3 * MIB);
    launched_forget(&l);
}

/* ---- One file for both streams --------------------------------------------------------------- */

enum { LONG = 10000, MANY = 40 }; /* a line takes several writes */

static int write_both(int rank, void *ctx)
{
    (void)rank, (void)ctx;
    char lines[2][LONG + 1];
    for (int i = 0; i < 2; i++) {
        memset(lines[i], 'a' + i, LONG);
        lines[i][LONG] = '\n';
    }
    for (int i = 0; i < 2 * MANY; i++)
        if (write(1 + i % 2, lines[i % 2], LONG + 1) != LONG + 1)
            return 1;
    return 0;
}

/* Its reader is slow, so that lines of both wait half-written. */
static void streams_of_one_file_do_not_cut_each_other(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    launched l =
        launched_start(&(launch_options){ .ranks = 2, .output = LAUNCH_LINES, .grace_s = 1 }, NULL,
                       write_both, "", (int[]){ ends[1], ends[1] });
    close(ends[1]);
    char some[1000];
    int seen[2] = { 0 }, at = 0, kind = 0;
    sleep_ms(300);
    for (ssize_t got; (got = read(ends[0], some, sizeof some)) > 0; sleep_ms(1)) {
        for (ssize_t i = 0; i < got; i++) {
            bool last = at == LONG;
            kind = at ? kind : some[i] - 'a';
            assert_in_range(kind, 0, 1);
            if (some[i] != (last ? '\n' : 'a' + kind))
                fail_msg("byte %d of a line of '%c' is '%c'", at, 'a' + kind, some[i]);
            seen[kind] += last;
            at = last ? 0 : at + 1;
        }
    }
    close(ends[0]);
    launched_wait(&l);
    assert_int_equal(l.status, 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(seen[i], 2 * MANY);
    launched_forget(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_stay_whole),
        cmocka_unit_test(long_and_last_lines_arrive),
        cmocka_unit_test(no_reader_means_sigpipe),
        cmocka_unit_test(an_endless_line_is_cut),
        cmocka_unit_test(streams_of_one_file_do_not_cut_each_other),
    };
    return cmocka_run_group_tests_name("relay", tests, NULL, NULL);
}
