/* test_terminal.c - a launcher on a terminal: what is typed reaches rank 0 once the launcher is in
 * the foreground, also where it was begun in the background. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch.h"

enum { SETTLE_MS = 400, ANSWER_MS = 10000 };

/* A shell's part: runs a job in the background of its own terminal, and at a word on `words` brings
 * it to the foreground. */
typedef struct shell {
    pid_t pid;
    int terminal;  /* its other end, where one types */
    int words[2];  /* to the shell */
    int output[2]; /* of the job */
} shell;

static _Noreturn void be_job(const shell *s)
{
    char *argv[] = { "sh", "-c", "echo ready; read line; echo got $line", NULL };
    setpgid(0, 0);
    dup2(s->output[1], STDOUT_FILENO);
    close_range(STDERR_FILENO + 1, ~0U, 0);
    _exit(launch_command(&(launch_options){ .ranks = 1, .grace_s = 1 }, argv));
}

static _Noreturn void be_shell(const shell *s)
{
    char word;
    int status = 1;
    setsid();
    int terminal =
        open(ptsname(s->terminal), O_RDWR); /* the first that a session opens is its own */
    dup2(terminal, STDIN_FILENO);
    pid_t job = fork();
    if (job == 0)
        be_job(s);
    setpgid(job, job);
    close_range(s->terminal, s->terminal, 0); /* its end is how the test ends the job */
    if (read(s->words[0], &word, 1) == 1 && tcsetpgrp(STDIN_FILENO, job) == 0)
        waitpid(job, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static shell begin_shell(void)
{
    shell s = { .terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC) };
    assert_true(s.terminal >= 0);
    assert_int_equal(grantpt(s.terminal), 0);
    assert_int_equal(unlockpt(s.terminal), 0);
    assert_int_equal(pipe2(s.words, O_CLOEXEC), 0);
    assert_int_equal(pipe2(s.output, O_CLOEXEC), 0);
    s.pid = fork();
    assert_true(s.pid >= 0);
    if (s.pid == 0)
        be_shell(&s);
    close(s.output[1]);
    close(s.words[0]);
    return s;
}

/* Whether the job writes this before the time is up. */
static bool says(const shell *s, const char *line)
{
    char heard[256] = "";
    for (size_t length = 0; length + 1 < sizeof heard && !strstr(heard, line);) {
        struct pollfd ready = { .fd = s->output[0], .events = POLLIN };
        if (poll(&ready, 1, ANSWER_MS) <= 0)
            return false;
        ssize_t got = read(s->output[0], heard + length, sizeof heard - 1 - length);
        if (got <= 0)
            return false;
        length += (size_t)got;
    }
    return strstr(heard, line) != NULL;
}

static void what_is_typed_after_fg_arrives(void **state)
{
    (void)state;
    shell s = begin_shell();
    int status = 1;
    bool ready = says(&s, "[0] ready\n");
    poll(NULL, 0, SETTLE_MS); /* by now the launcher waits for whatever comes */
    bool typed = write(s.words[1], "!", 1) == 1 && write(s.terminal, "hello\n", 6) == 6;
    bool arrived = typed && says(&s, "[0] got hello\n");
    if (!arrived)
        kill(s.pid, SIGKILL); /* the terminal then hangs up on the job */
    assert_int_equal(waitpid(s.pid, &status, 0), s.pid);
    close(s.terminal);
    close(s.words[1]);
    close(s.output[0]);
    assert_true(ready);
    assert_true(arrived);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_typed_after_fg_arrives),
    };
    return cmocka_run_group_tests_name("terminal", tests, NULL, NULL);
}
