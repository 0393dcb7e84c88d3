/* test_terminal.c - a launcher on a terminal: what is typed reaches rank 0 once the launcher is in
 * the foreground, also where it was begun in the background; ranks themselves have no terminal, so
 * that nothing that they do there stops them. */
#define _GNU_SOURCE
#include <errno.h>
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
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch.h"
#include "patience.h"

enum { SETTLE_MS = 400, ANSWER_MS = 10000 };

/* A shell's part: runs a job in the background of its own terminal, and at a word on `words` brings
 * it to the foreground. */
typedef struct shell {
    int (*job)(void);
    pid_t pid;
    int terminal;  /* its other end, where one types */
    int words[2];  /* to the shell */
    int output[2]; /* of the job */
} shell;

static _Noreturn void be_job(const shell *s)
{
    setpgid(0, 0);
    dup2(s->output[1], STDOUT_FILENO);
    close_range(STDERR_FILENO + 1, ~0U, 0);
    _exit(s->job());
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

static shell begin_shell(int (*job)(void))
{
    shell s = { .job = job, .terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC) };
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

static bool bring_to_foreground(const shell *s)
{
    return write(s->words[1], "!", 1) == 1;
}

/* Returns the job's exit code. */
static int end_shell(const shell *s, bool well)
{
    int status = 1;
    if (!well)
        kill(s->pid, SIGKILL); /* the terminal then hangs up on the job */
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    close(s->terminal);
    close(s->words[1]);
    close(s->output[0]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
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

/* ---- What is typed --------------------------------------------------------------------------- */

static int read_a_line(void)
{
    char *argv[] = { "sh", "-c", "echo ready; read line; echo got $line", NULL };
    return launch_command(&(launch_options){ .ranks = 1, .grace_s = 1 }, argv);
}

static void what_is_typed_after_fg_arrives(void **state)
{
    (void)state;
    shell s = begin_shell(read_a_line);
    bool ready = says(&s, "[0] ready\n");
    poll(NULL, 0, SETTLE_MS); /* by now the launcher waits for whatever comes */
    bool typed = bring_to_foreground(&s) && write(s.terminal, "hello\n", 6) == 6;
    bool arrived = typed && says(&s, "[0] got hello\n");
    int status = end_shell(&s, arrived);
    assert_true(ready);
    assert_true(arrived);
    assert_int_equal(status, 0);
}

/* ---- Ranks have no terminal ------------------------------------------------------------------ */

/* What getpass, ssh and sudo do first.  0: refused as where there is no terminal. */
static int ask(void)
{
    char byte;
    int fd = open("/dev/tty", O_RDWR);
    if (fd < 0)
        return errno == ENXIO ? 0 : 1;
    return read(fd, &byte, 1) < 0 ? 2 : 3; /* stopped there, if it is the launcher's */
}

static int ask_in_every_way(int rank, void *ctx)
{
    (void)rank, (void)ctx;
    int status = 1, fd = posix_openpt(O_RDWR | O_NOCTTY);
    pid_t child = fork();
    if (child == 0) { /* as a shell with job control starts what it is told */
        setpgid(0, 0);
        _exit(ask());
    }
    if (waitpid(child, &status, WUNTRACED) != child || status != 0)
        return 10;
    /* a free terminal that a rank opens does not become its own, whose signals it would get */
    if (grantpt(fd) < 0 || unlockpt(fd) < 0 || open(ptsname(fd), O_RDWR) < 0)
        return 20;
    return ask();
}

static int run_asking(int ranks)
{
    const launch_options options = {
        .ranks = ranks, .output = LAUNCH_LINES, .timeout_s = (double)patient(5), .grace_s = 1
    };
    return launch_ranks(&options, ask_in_every_way, NULL);
}

static int one_asks(void)
{
    return run_asking(1);
}

static int three_ask(void)
{
    return run_asking(3);
}

static void asking_at_the_terminal_fails_at_once(void **state)
{
    (void)state;
    int (*const jobs[])(void) = { one_asks, three_ask };
    for (size_t i = 0; i < 2; i++) {
        shell s = begin_shell(jobs[i]);
        assert_int_equal(end_shell(&s, bring_to_foreground(&s)), 0);
    }
}

/* As `imbrex mlp` and `imbrex bench` do, and a progress bar that asks for the terminal's mode. */
static int write_there(int rank, void *ctx)
{
    (void)rank, (void)ctx;
    struct termios mode;
    if (write(STDERR_FILENO, "here\n", 5) != 5 || tcgetattr(STDERR_FILENO, &mode) < 0)
        return 10;
    return tcsetattr(STDERR_FILENO, TCSADRAIN, &mode) < 0 ? 20 : 0;
}

static int write_to_the_terminal(void)
{
    const launch_options options = {
        .ranks = 2, .output = LAUNCH_DIRECT, .timeout_s = (double)patient(5), .grace_s = 1
    };
    struct termios mode;
    while (tcgetpgrp(STDIN_FILENO) != getpgrp())
        poll(NULL, 0, 5);
    tcgetattr(STDIN_FILENO, &mode);
    mode.c_lflag |= TOSTOP;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &mode) < 0)
        return 30;
    dup2(STDIN_FILENO, STDERR_FILENO);
    return launch_ranks(&options, write_there, NULL);
}

static void writing_to_a_terminal_with_tostop_stops_no_rank(void **state)
{
    (void)state;
    shell s = begin_shell(write_to_the_terminal);
    assert_int_equal(end_shell(&s, bring_to_foreground(&s)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_typed_after_fg_arrives),
        cmocka_unit_test(asking_at_the_terminal_fails_at_once),
        cmocka_unit_test(writing_to_a_terminal_with_tostop_stops_no_rank),
    };
    return cmocka_run_group_tests_name("terminal", tests, NULL, NULL);
}
