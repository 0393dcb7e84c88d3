/* test_launch.c - the launcher: what ranks get, what comes back from them, and that none stays. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "launch.h"
#include "progress.h"

/* One launch, in a process of its own whose standard files are memory. */
typedef struct launched {
    pid_t pid;
    int out_fd, err_fd;
    char *out, *err; /* after wait_for: texts */
    size_t out_bytes;
    int status; /* exit code, or -1 */
    double seconds;
    struct timespec begun;
} launched;

static double seconds_since(struct timespec begun)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begun.tv_sec) + (double)(now.tv_nsec - begun.tv_nsec) / 1e9;
}

static void sleep_ms(int ms)
{
    poll(NULL, 0, ms);
}

/* out_fd, if not -1, takes the place of standard output. */
static launched start(const launch_options *options, char *const argv[],
                      int (*rank_main)(int, void *), const char *input, int out_fd)
{
    launched l = { .out_fd = memfd_create("out", MFD_CLOEXEC),
                   .err_fd = memfd_create("err", MFD_CLOEXEC) };
    int in_fd = memfd_create("in", MFD_CLOEXEC);
    assert_int_equal(write(in_fd, input, strlen(input)), (ssize_t)strlen(input));
    lseek(in_fd, 0, SEEK_SET);
    clock_gettime(CLOCK_MONOTONIC, &l.begun);
    l.pid = fork();
    assert_true(l.pid >= 0);
    if (l.pid == 0) {
        dup2(in_fd, STDIN_FILENO);
        dup2(out_fd >= 0 ? out_fd : l.out_fd, STDOUT_FILENO);
        dup2(l.err_fd, STDERR_FILENO);
        close_range(STDERR_FILENO + 1, ~0U, 0); /* a pipe's other end among them */
        _exit(argv ? launch_command(options, argv) : launch_ranks(options, rank_main, NULL));
    }
    close(in_fd);
    return l;
}

static char *read_text(int fd, size_t *bytes)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(pread(fd, text, (size_t)size, 0), size);
    *bytes = (size_t)size;
    return text;
}

static void wait_for(launched *l)
{
    int status;
    size_t err_bytes;
    assert_int_equal(waitpid(l->pid, &status, 0), l->pid);
    l->seconds = seconds_since(l->begun);
    l->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    l->out = read_text(l->out_fd, &l->out_bytes);
    l->err = read_text(l->err_fd, &err_bytes);
}

static void forget(launched *l)
{
    close(l->out_fd);
    close(l->err_fd);
    free(l->out);
    free(l->err);
}

static launched run_shell(int ranks, double grace_s, const char *script, const char *input)
{
    char *argv[] = { "sh", "-c", (char *)script, NULL };
    launched l =
        start(&(launch_options){ .ranks = ranks, .grace_s = grace_s }, argv, NULL, input, -1);
    wait_for(&l);
    return l;
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' is not in '%s'", part, text);
}

/* Waits until the launch has written so many lines. */
static void await_lines(const launched *l, int lines)
{
    for (int tries = 0; tries < 1000; tries++, sleep_ms(5)) {
        size_t bytes;
        int found = 0;
        char *text = read_text(l->out_fd, &bytes);
        for (size_t i = 0; i < bytes; i++)
            found += text[i] == '\n';
        free(text);
        if (found >= lines)
            return;
    }
    fail_msg("no %d lines within 5 s", lines);
}

/* Every line "[r] pid NUMBER" names a process that is gone. */
static void assert_all_gone(const char *out, int expected)
{
    int seen = 0;
    for (const char *at = out; (at = strstr(at, "pid ")); at += 4) {
        pid_t pid = (pid_t)atoi(at + 4);
        bool gone = false;
        seen++;
        for (int tries = 0; tries < 400 && !gone; tries++) {
            waitpid(-1, NULL, WNOHANG); /* this process adopts what a killed launcher leaves */
            gone = kill(pid, 0) < 0 && errno == ESRCH && kill(-pid, 0) < 0 && errno == ESRCH;
            if (!gone)
                sleep_ms(5);
        }
        if (!gone)
            fail_msg("process %d is still there", (int)pid);
    }
    assert_int_equal(seen, expected);
}

/* ---- Status ---------------------------------------------------------------------------------- */

static void all_fine_gives_0(void **state)
{
    (void)state;
    launched l = run_shell(3, 5, "exit 0", "");
    assert_int_equal(l.status, 0);
    assert_string_equal(l.out, "");
    assert_string_equal(l.err, "");
    forget(&l);
}

static void exit_code_is_passed_on(void **state)
{
    (void)state;
    launched l = run_shell(3, 5, "test $RANK != 1 || exit 7", "");
    assert_int_equal(l.status, 7);
    assert_contains(l.err, "imbrex: rank 1 ended with exit code 7");
    forget(&l);
}

static void signal_gives_128_and_its_number(void **state)
{
    (void)state;
    launched l = run_shell(4, 0.5, "test $RANK != 2 || kill -9 $$; sleep 100", "");
    assert_int_equal(l.status, 128 + SIGKILL);
    assert_contains(l.err, "imbrex: rank 2 was killed by signal 9 (Killed); ending the others");
    assert_true(l.seconds < 3);
    forget(&l);
}

static void missing_command_gives_127(void **state)
{
    (void)state;
    char *argv[] = { "no-such-command-anywhere", NULL };
    launched l = start(&(launch_options){ .ranks = 2, .grace_s = 1 }, argv, NULL, "", -1);
    wait_for(&l);
    assert_int_equal(l.status, 127);
    assert_string_equal(
        l.err, "imbrex: cannot run 'no-such-command-anywhere': No such file or directory\n");
    forget(&l);
}

static void timeout_gives_124(void **state)
{
    (void)state;
    char *argv[] = { "sleep", "100", NULL };
    launched l =
        start(&(launch_options){ .ranks = 2, .timeout_s = 0.3, .grace_s = 1 }, argv, NULL, "", -1);
    wait_for(&l);
    assert_int_equal(l.status, LAUNCH_TIMED_OUT);
    assert_contains(l.err, "imbrex: not done after 0.3 s");
    assert_true(l.seconds >= 0.3 && l.seconds < 3);
    forget(&l);
}

static int return_rank(int rank, void *ctx)
{
    (void)ctx;
    return rank == 2 ? 42 : 0;
}

static void function_result_is_the_exit_code(void **state)
{
    (void)state;
    launched l = start(&(launch_options){ .ranks = 3, .output = LAUNCH_DIRECT, .grace_s = 1 }, NULL,
                       return_rank, "", -1);
    wait_for(&l);
    assert_int_equal(l.status, 42);
    forget(&l);
}

/* ---- What goes in and what comes out --------------------------------------------------------- */

static void ranks_see_their_environment(void **state)
{
    (void)state;
    launched l = run_shell(2, 5,
                           "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR; "
                           "echo $MASTER_PORT:$IMBREX_TOKEN >&2; test -n \"$OMP_NUM_THREADS\"",
                           "");
    assert_int_equal(l.status, 0);
    assert_contains(l.out, "[0] 0 2 0 2 127.0.0.1\n");
    assert_contains(l.out, "[1] 1 2 1 2 127.0.0.1\n");
    int port[2];
    char token[2][64];
    assert_int_equal(sscanf(strstr(l.err, "[0] "), "[0] %d:%63s", &port[0], token[0]), 2);
    assert_int_equal(sscanf(strstr(l.err, "[1] "), "[1] %d:%63s", &port[1], token[1]), 2);
    assert_int_equal(port[0], port[1]);
    assert_in_range(port[0], 1024, 65535);
    assert_int_equal(strlen(token[0]), 32);
    assert_string_equal(token[0], token[1]);

    launched other = run_shell(1, 5, "echo x:$IMBREX_TOKEN", "");
    assert_null(strstr(other.out, token[0]));
    forget(&other);
    forget(&l);
}

static void input_goes_to_rank_0_only(void **state)
{
    (void)state;
    launched l =
        run_shell(3, 5, "while read line; do echo \"got $line\"; done; echo end", "one\ntwo\n");
    assert_int_equal(l.status, 0);
    assert_contains(strstr(l.out, "[0] got one\n"), "[0] got two\n");
    assert_contains(strstr(l.out, "[0] got two\n"), "[0] end\n");
    assert_contains(l.out, "[1] end\n");
    assert_contains(l.out, "[2] end\n");
    assert_null(strstr(l.out, "[1] got"));
    assert_null(strstr(l.out, "[2] got"));
    forget(&l);
}

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
    launched l =
        start(&(launch_options){ .ranks = RANKS, .grace_s = 5 }, NULL, write_lines, "", -1);
    wait_for(&l);
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
    forget(&l);
}

static void long_and_last_lines_arrive(void **state)
{
    (void)state;
    launched l =
        run_shell(2, 5, "head -c 300000 /dev/zero | tr '\\0' $RANK; echo; printf last", "");
    assert_int_equal(l.status, 0);
    assert_int_equal(l.out_bytes, 2 * (4 + 300000 + 1 + 4 + 4 + 1));
    assert_contains(l.out, "[0] last\n");
    assert_contains(l.out, "[1] last\n");
    forget(&l);
}

static void no_reader_means_sigpipe(void **state)
{
    (void)state;
    int ends[2];
    char *argv[] = { "yes", NULL };
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    launched l = start(&(launch_options){ .ranks = 2, .grace_s = 1 }, argv, NULL, "", ends[1]);
    close(ends[1]);
    char some[100];
    assert_true(read(ends[0], some, sizeof some) > 0);
    close(ends[0]);
    wait_for(&l);
    assert_int_equal(l.status, 128 + SIGPIPE);
    assert_true(l.seconds < 5);
    forget(&l);
}

/* ---- No orphan ------------------------------------------------------------------------------- */

static void failure_ends_those_who_do_not_listen(void **state)
{
    (void)state;
    launched l = run_shell(3, 1,
                           "trap '' TERM; echo pid $$; test $RANK != 0 || { sleep 0.3; exit 3; }; "
                           "while :; do sleep 0.1; done",
                           "");
    assert_int_equal(l.status, 3);
    assert_true(l.seconds >= 1 && l.seconds < 4);
    assert_contains(l.err, "killing what has not ended: rank 1, 2");
    assert_all_gone(l.out, 3);
    forget(&l);
}

static void others_may_report_before_they_end(void **state)
{
    (void)state;
    launched l =
        run_shell(2, 2, "test $RANK = 1 && exit 3; sleep 0.4; echo my peer left; exit 1", "");
    assert_int_equal(l.status, 3);
    assert_contains(l.out, "[0] my peer left\n");
    forget(&l);
}

static void descendants_end_with_the_run(void **state)
{
    (void)state;
    launched l = run_shell(2, 1,
                           "sleep 1000 & echo pid $!; "
                           "setsid sh -c 'echo pid $$; exec sleep 1000' & sleep 0.2",
                           "");
    assert_int_equal(l.status, 0);
    assert_true(l.seconds < 4);
    assert_all_gone(l.out, 4);
    forget(&l);
}

static void a_late_writer_is_heard(void **state)
{
    (void)state;
    launched l = run_shell(1, 1, "(sleep 0.2; echo late) & exit 0", "");
    assert_int_equal(l.status, 0);
    assert_string_equal(l.out, "[0] late\n");
    forget(&l);
}

static void sigterm_reaches_every_rank(void **state)
{
    (void)state;
    char *argv[] = { "sh", "-c",
                     "trap 'echo got it; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
                     NULL };
    launched l = start(&(launch_options){ .ranks = 2, .grace_s = 5 }, argv, NULL, "", -1);
    await_lines(&l, 2);
    kill(l.pid, SIGTERM);
    wait_for(&l);
    assert_int_equal(l.status, 0);
    assert_contains(l.out, "[0] got it\n");
    assert_contains(l.out, "[1] got it\n");
    forget(&l);
}

static void sigint_gives_130_and_a_second_kills(void **state)
{
    (void)state;
    char *argv[] = { "sh", "-c",
                     "test $RANK = 1 || trap '' INT; echo pid $$; while :; do sleep 0.05; done",
                     NULL };
    launched l = start(&(launch_options){ .ranks = 2, .grace_s = 60 }, argv, NULL, "", -1);
    await_lines(&l, 2);
    kill(l.pid, SIGINT);
    sleep_ms(300);
    assert_int_equal(waitpid(l.pid, NULL, WNOHANG), 0);
    kill(l.pid, SIGINT);
    wait_for(&l);
    assert_int_equal(l.status, 128 + SIGINT);
    assert_true(l.seconds < 10);
    assert_all_gone(l.out, 2);
    forget(&l);
}

/* Stopped by Ctrl-Z and sent on after more than the timeout. */
static launched run_with_a_pause(const char *script)
{
    int status;
    char *argv[] = { "sh", "-c", (char *)script, NULL };
    launched l =
        start(&(launch_options){ .ranks = 2, .timeout_s = 1, .grace_s = 1 }, argv, NULL, "", -1);
    await_lines(&l, 2);
    kill(l.pid, SIGTSTP);
    assert_int_equal(waitpid(l.pid, &status, WUNTRACED), l.pid);
    assert_true(WIFSTOPPED(status));
    sleep_ms(1500);
    kill(l.pid, SIGCONT);
    wait_for(&l);
    return l;
}

static void time_spent_stopped_does_not_count(void **state)
{
    (void)state;
    launched l = run_with_a_pause("echo ready; sleep 0.1; echo done");
    assert_int_equal(l.status, 0);
    assert_string_equal(l.err, "");
    forget(&l);
    l = run_with_a_pause("echo ready; sleep 100");
    assert_int_equal(l.status, LAUNCH_TIMED_OUT);
    assert_true(l.seconds >= 2.4 && l.seconds < 5);
    forget(&l);
}

/* As under nohup: neither this process nor its ranks hear of it. */
static void what_is_ignored_at_the_start_stays_so(void **state)
{
    (void)state;
    static const int signals[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM };
    char *argv[] = { "sh", "-c", "echo ready; sleep 0.5; echo done", NULL };
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        signal(signals[i], SIG_IGN);
        launched l = start(&(launch_options){ .ranks = 2, .grace_s = 0.1 }, argv, NULL, "", -1);
        signal(signals[i], SIG_DFL);
        await_lines(&l, 2);
        kill(l.pid, signals[i]);
        wait_for(&l);
        if (l.status != 0)
            fail_msg("signal %d: status %d, not 0: %s", signals[i], l.status, l.err);
        assert_string_equal(l.err, "");
        assert_contains(l.out, "[0] done\n");
        assert_contains(l.out, "[1] done\n");
        forget(&l);
    }
}

/* More pipes than files may be open, unless the launcher raises its own limit. */
static void ranks_may_need_many_files(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 64, before.rlim_max }), 0);
    launched l = run_shell(40, 5, "ulimit -n", "");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_string_equal(l.err, "");
    assert_int_equal(l.status, 0);
    assert_contains(l.out, "[39] 64\n"); /* a rank has the limit that we had */
    forget(&l);
}

static void ranks_die_with_a_killed_launcher(void **state)
{
    (void)state;
    char *argv[] = { "sh", "-c", "sleep 1000 & echo pid $!; echo pid $$; exec sleep 1000", NULL };
    launched l = start(&(launch_options){ .ranks = 3, .grace_s = 5 }, argv, NULL, "", -1);
    await_lines(&l, 6);
    kill(l.pid, SIGKILL);
    wait_for(&l);
    assert_int_equal(l.status, -1);
    assert_all_gone(l.out, 6);
    forget(&l);
}

/* A launcher that is killed as it reaps its ranks: from then on a rank's number is free, and
 * another group may have it, such as that of a bystander, who is not to die. */
static bool dies_as_it_reaps;

static void add_bystander(pid_t group)
{
    pid_t pid = fork();
    if (pid == 0) {
        sleep_ms(500); /* for the guardian to kill what it means to */
        _exit(42);
    }
    setpgid(pid, group); /* the rank is a zombie: the group is there */
    dprintf(STDOUT_FILENO, "bystander %d\n", (int)pid);
}

pid_t waitpid(pid_t pid, int *status, int options)
{
    bool last = dies_as_it_reaps && options == 0;
    if (last)
        add_bystander(pid);
    pid_t found = wait4(pid, status, options, NULL);
    if (last)
        raise(SIGKILL);
    return found;
}

static void a_group_that_is_not_ours_any_more_is_left_alone(void **state)
{
    (void)state;
    char *argv[] = { "true", NULL };
    int status = 0;
    dies_as_it_reaps = true;
    launched l = start(&(launch_options){ .ranks = 2, .grace_s = 5 }, argv, NULL, "", -1);
    dies_as_it_reaps = false;
    wait_for(&l);
    assert_int_equal(l.status, -1);
    const char *said = strstr(l.out, "bystander ");
    assert_non_null(said);
    pid_t bystander = (pid_t)atoi(said + strlen("bystander "));
    assert_int_equal(waitpid(bystander, &status, 0), bystander);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    forget(&l);
}

/* ---- Progress -------------------------------------------------------------------------------- */

static int make_progress(int rank, void *ctx)
{
    (void)rank, (void)ctx;
    progress bar;
    progress_begin(&bar, "work", 3);
    for (int i = 0; i < 5; i++)
        progress_step(&bar);
    progress_end(&bar);
    return bar.done == 3 ? 0 : 1;
}

static void progress_is_silent_in_a_pipe(void **state)
{
    (void)state;
    launched l = start(&(launch_options){ .ranks = 1, .grace_s = 1 }, NULL, make_progress, "", -1);
    wait_for(&l);
    assert_int_equal(l.status, 0);
    assert_string_equal(l.out, "");
    assert_string_equal(l.err, "");
    forget(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_fine_gives_0),
        cmocka_unit_test(exit_code_is_passed_on),
        cmocka_unit_test(signal_gives_128_and_its_number),
        cmocka_unit_test(missing_command_gives_127),
        cmocka_unit_test(timeout_gives_124),
        cmocka_unit_test(function_result_is_the_exit_code),
        cmocka_unit_test(ranks_see_their_environment),
        cmocka_unit_test(input_goes_to_rank_0_only),
        cmocka_unit_test(lines_stay_whole),
        cmocka_unit_test(long_and_last_lines_arrive),
        cmocka_unit_test(no_reader_means_sigpipe),
        cmocka_unit_test(failure_ends_those_who_do_not_listen),
        cmocka_unit_test(others_may_report_before_they_end),
        cmocka_unit_test(descendants_end_with_the_run),
        cmocka_unit_test(a_late_writer_is_heard),
        cmocka_unit_test(sigterm_reaches_every_rank),
        cmocka_unit_test(sigint_gives_130_and_a_second_kills),
        cmocka_unit_test(time_spent_stopped_does_not_count),
        cmocka_unit_test(what_is_ignored_at_the_start_stays_so),
        cmocka_unit_test(ranks_may_need_many_files),
        cmocka_unit_test(ranks_die_with_a_killed_launcher),
        cmocka_unit_test(a_group_that_is_not_ours_any_more_is_left_alone),
        cmocka_unit_test(progress_is_silent_in_a_pipe),
    };
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGINT, SIG_DFL); /* the shell that started us may ignore it */
    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
