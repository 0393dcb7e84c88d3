/* test_launch.c - the launcher: what ranks get, what comes back from them, and that none stays. */
#define _GNU_SOURCE
#include <dlfcn.h>
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

#include "cli.h"
#include "launched.h"

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
    launched l = launched_shell(3, 5, "exit 0", "");
    assert_int_equal(l.status, 0);
    assert_string_equal(l.out, "");
    assert_string_equal(l.err, "");
    launched_forget(&l);
}

static void exit_code_is_passed_on(void **state)
{
    (void)state;
    launched l = launched_shell(3, 5, "test $RANK != 1 || exit 7", "");
    assert_int_equal(l.status, 7);
    launched_says(l.err, "imbrex: rank 1 ended with exit code 7");
    launched_forget(&l);
}

static void signal_gives_128_and_its_number(void **state)
{
    (void)state;
    launched l = launched_shell(4, 0.5, "test $RANK != 2 || kill -9 $$; sleep 100", "");
    assert_int_equal(l.status, 128 + SIGKILL);
    launched_says(l.err, "imbrex: rank 2 was killed by signal 9 (Killed); ending the others");
    assert_true(l.seconds < 3);
    launched_forget(&l);
}

static void missing_command_gives_127(void **state)
{
    (void)state;
    char *argv[] = { "no-such-command-anywhere", NULL };
    launched l =
        launched_start(&(launch_options){ .ranks = 2, .grace_s = 1 }, argv, NULL, "", NULL);
    launched_wait(&l);
    assert_int_equal(l.status, 127);
    assert_string_equal(
        l.err, "imbrex: cannot run 'no-such-command-anywhere': No such file or directory\n");
    launched_forget(&l);
}

static void timeout_gives_124(void **state)
{
    (void)state;
    char *argv[] = { "sleep", "100", NULL };
    launched l = launched_start(&(launch_options){ .ranks = 2, .timeout_s = 0.3, .grace_s = 1 },
                                argv, NULL, "", NULL);
    launched_wait(&l);
    assert_int_equal(l.status, LAUNCH_TIMED_OUT);
    launched_says(l.err, "imbrex: not done after 0.3 s");
    assert_true(l.seconds >= 0.3 && l.seconds < 3);
    launched_forget(&l);
}

static int return_rank(int rank, void *ctx)
{
    (void)ctx;
    return rank == 2 ? 42 : 0;
}

static void function_result_is_the_exit_code(void **state)
{
    (void)state;
    launched l =
        launched_start(&(launch_options){ .ranks = 3, .output = LAUNCH_DIRECT, .grace_s = 1 }, NULL,
                       return_rank, "", NULL);
    launched_wait(&l);
    assert_int_equal(l.status, 42);
    launched_forget(&l);
}

static volatile pid_t *slow_one;

/* Rank 0 has so much memory that a signal ends it late; rank 1 sends that, and ends at once. */
static int end_late(int rank, void *ctx)
{
    enum { BYTES = 512 << 20 };
    char path[40], line[512];
    unsigned flags = 0;
    (void)ctx;
    if (rank == 0) {
        char *memory = malloc(BYTES);
        for (size_t i = 0; memory && i < BYTES; i += 4096)
            ((volatile char *)memory)[i] = 1;
        *slow_one = getpid();
        pause();
        free(memory);
    }
    while (*slow_one == 0)
        sleep_ms(1);
    snprintf(path, sizeof path, "/proc/%d/stat", (int)*slow_one);
    kill(*slow_one, SIGKILL);
    for (int i = 0; i < 1000 && !(flags & 0x400); i++) { /* until it knows */
        FILE *file = fopen(path, "r");
        size_t length = file ? fread(line, 1, sizeof line - 1, file) : 0;
        line[length] = '\0';
        const char *rest = strrchr(line, ')');
        if (rest)
            sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %u", &flags);
        if (file)
            fclose(file);
    }
    _exit(1);
}

static void a_signal_that_ends_late_is_named(void **state)
{
    (void)state;
    slow_one =
        mmap(NULL, sizeof *slow_one, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    launched l =
        launched_start(&(launch_options){ .ranks = 2, .grace_s = 1 }, NULL, end_late, "", NULL);
    launched_wait(&l);
    assert_int_equal(l.status, 128 + SIGKILL);
    launched_says(l.err, "imbrex: rank 0 was killed by signal 9");
    launched_forget(&l);
    munmap((void *)slow_one, sizeof *slow_one);
}

/* ---- What goes in and what comes out --------------------------------------------------------- */

static void ranks_see_their_environment(void **state)
{
    (void)state;
    setenv("OMPI_COMM_WORLD_RANK", "5", 1); /* as in a rank of mpirun's */
    setenv("OMPI_COMM_WORLD_SIZE", "6", 1);
    launched l = launched_shell(2, 5,
                                "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR "
                                "$IMBREX_LAUNCHED; "
                                "echo $MASTER_PORT:$IMBREX_TOKEN >&2; test -n \"$OMP_NUM_THREADS\"",
                                "");
    assert_int_equal(l.status, 0);
    launched_says(l.out, "[0] 0 2 0 2 127.0.0.1 0/2,mpirun=5/6,\n");
    launched_says(l.out, "[1] 1 2 1 2 127.0.0.1 1/2,mpirun=5/6,\n");
    int port[2];
    char token[2][64];
    assert_int_equal(sscanf(strstr(l.err, "[0] "), "[0] %d:%63s", &port[0], token[0]), 2);
    assert_int_equal(sscanf(strstr(l.err, "[1] "), "[1] %d:%63s", &port[1], token[1]), 2);
    assert_int_equal(port[0], port[1]);
    assert_in_range(port[0], 1024, 65535);
    assert_int_equal(strlen(token[0]), 32);
    assert_string_equal(token[0], token[1]);

    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    launched other = launched_shell(1, 5, "echo x:$IMBREX_TOKEN $IMBREX_LAUNCHED", "");
    launched_says(other.out, " 0/1,\n");
    assert_null(strstr(other.out, token[0]));
    launched_forget(&other);
    launched_forget(&l);
}

static void input_goes_to_rank_0_only(void **state)
{
    (void)state;
    launched l = launched_shell(3, 5, "while read line; do echo \"got $line\"; done; echo end",
                                "one\ntwo\n");
    assert_int_equal(l.status, 0);
    launched_says(strstr(l.out, "[0] got one\n"), "[0] got two\n");
    launched_says(strstr(l.out, "[0] got two\n"), "[0] end\n");
    launched_says(l.out, "[1] end\n");
    launched_says(l.out, "[2] end\n");
    assert_null(strstr(l.out, "[1] got"));
    assert_null(strstr(l.out, "[2] got"));
    launched_forget(&l);
}

/* ---- No orphan ------------------------------------------------------------------------------- */

static void failure_ends_those_who_do_not_listen(void **state)
{
    (void)state;
    launched l =
        launched_shell(3, 1,
                       "trap '' TERM; echo pid $$; test $RANK != 0 || { sleep 0.3; exit 3; }; "
                       "while :; do sleep 0.1; done",
                       "");
    assert_int_equal(l.status, 3);
    assert_true(l.seconds >= 1 && l.seconds < 4);
    launched_says(l.err, "killing what has not ended: rank 1, 2");
    assert_all_gone(l.out, 3);
    launched_forget(&l);
}

static void others_may_report_before_they_end(void **state)
{
    (void)state;
    launched l =
        launched_shell(2, 2, "test $RANK = 1 && exit 3; sleep 0.4; echo my peer left; exit 1", "");
    assert_int_equal(l.status, 3);
    launched_says(l.out, "[0] my peer left\n");
    launched_forget(&l);
}

static void descendants_end_with_the_run(void **state)
{
    (void)state;
    launched l = launched_shell(2, 1,
                                "sleep 1000 & echo pid $!; "
                                "setsid sh -c 'echo pid $$; exec sleep 1000' & sleep 0.2",
                                "");
    assert_int_equal(l.status, 0);
    assert_true(l.seconds < 4);
    assert_all_gone(l.out, 4);
    launched_forget(&l);
}

/* The kernel's list of children is in /proc. */
static bool hides_proc;

FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    if (!hides_proc || strncmp(path, "/proc/", 6) != 0)
        return real(path, mode);
    errno = ENOENT;
    return NULL;
}

static void descendants_end_without_proc(void **state)
{
    (void)state;
    hides_proc = true;
    launched l = launched_shell(2, 1,
                                "setsid sh -c 'setsid sleep 1000 & echo pid $!; echo pid $$; "
                                "exec sleep 1000' >&2 & sleep 0.3",
                                "");
    hides_proc = false;
    assert_int_equal(l.status, 0);
    assert_all_gone(l.err, 4);
    launched_forget(&l);
}

static void a_late_writer_is_heard(void **state)
{
    (void)state;
    launched l = launched_shell(1, 1, "(sleep 0.2; echo late) & exit 0", "");
    assert_int_equal(l.status, 0);
    assert_string_equal(l.out, "[0] late\n");
    launched_forget(&l);
}

static void sigterm_reaches_every_rank(void **state)
{
    (void)state;
    char *argv[] = { "sh", "-c",
                     "trap 'echo got it; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
                     NULL };
    launched l =
        launched_start(&(launch_options){ .ranks = 2, .grace_s = 5 }, argv, NULL, "", NULL);
    launched_await(&l, 2);
    kill(l.pid, SIGTERM);
    launched_wait(&l);
    assert_int_equal(l.status, 0);
    launched_says(l.out, "[0] got it\n");
    launched_says(l.out, "[1] got it\n");
    launched_forget(&l);
}

static void sigint_gives_130_and_a_second_kills(void **state)
{
    (void)state;
    char *argv[] = { "sh", "-c",
                     "test $RANK = 1 || trap '' INT; echo pid $$; while :; do sleep 0.05; done",
                     NULL };
    launched l =
        launched_start(&(launch_options){ .ranks = 2, .grace_s = 60 }, argv, NULL, "", NULL);
    launched_await(&l, 2);
    kill(l.pid, SIGINT);
    sleep_ms(300);
    assert_int_equal(waitpid(l.pid, NULL, WNOHANG), 0);
    kill(l.pid, SIGINT);
    launched_wait(&l);
    assert_int_equal(l.status, 128 + SIGINT);
    assert_true(l.seconds < 10);
    assert_all_gone(l.out, 2);
    launched_forget(&l);
}

/* Stopped by Ctrl-Z and sent on after more than the timeout. */
static launched run_with_a_pause(const char *script)
{
    int status;
    char *argv[] = { "sh", "-c", (char *)script, NULL };
    launched l = launched_start(&(launch_options){ .ranks = 2, .timeout_s = 1, .grace_s = 1 }, argv,
                                NULL, "", NULL);
    launched_await(&l, 2);
    kill(l.pid, SIGTSTP);
    assert_int_equal(waitpid(l.pid, &status, WUNTRACED), l.pid);
    assert_true(WIFSTOPPED(status));
    sleep_ms(1500);
    kill(l.pid, SIGCONT);
    launched_wait(&l);
    return l;
}

static void time_spent_stopped_does_not_count(void **state)
{
    (void)state;
    launched l = run_with_a_pause("echo ready; sleep 0.1; echo done");
    assert_int_equal(l.status, 0);
    assert_string_equal(l.err, "");
    launched_forget(&l);
    l = run_with_a_pause("echo ready; sleep 100");
    assert_int_equal(l.status, LAUNCH_TIMED_OUT);
    assert_true(l.seconds >= 2.4 && l.seconds < 5);
    launched_forget(&l);
}

/* Whoever stopped a rank may let it go on: that ends nothing.  The first of two stops is told. */
static void a_stop_is_said_once_and_ends_nothing(void **state)
{
    (void)state;
    char *argv[] = { "sh", "-c",
                     "test $RANK = 1 || exit 0; echo pid $$; kill -TSTP $$; kill -STOP $$; echo on",
                     NULL };
    launched l = launched_start(&(launch_options){ .ranks = 2, .timeout_s = 60, .grace_s = 1 },
                                argv, NULL, "", NULL);
    char sentence[128];
    launched_await(&l, 1);
    size_t bytes;
    char *out = launched_text(l.out_fd, &bytes);
    pid_t pid = (pid_t)atoi(strstr(out, "pid ") + 4);
    free(out);
    snprintf(sentence, sizeof sentence,
             "imbrex: rank 1 was stopped by signal %d (SIGTSTP): kill -CONT %d lets it go on\n",
             SIGTSTP, (int)pid);
    launched_hears(l.err_fd, sentence);
    kill(pid, SIGCONT);
    siginfo_t info = { 0 };
    while (waitid(P_PID, (id_t)l.pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && !info.si_pid) {
        sleep_ms(100); /* by now the launcher has seen the second */
        kill(pid, SIGCONT);
    }
    launched_wait(&l);
    assert_int_equal(l.status, 0);
    assert_string_equal(l.err, sentence);
    launched_says(l.out, "[1] on\n");
    launched_forget(&l);
}

/* To a stopped process SIGTERM alone comes when it goes on. */
static void a_stopped_rank_hears_of_the_limit(void **state)
{
    (void)state;
    char *argv[] = { "sh", "-c", "trap 'echo heard; exit 5' TERM; kill -STOP $$; exit 0", NULL };
    launched l = launched_start(&(launch_options){ .ranks = 2, .timeout_s = 1, .grace_s = 60 },
                                argv, NULL, "", NULL);
    launched_wait(&l);
    assert_int_equal(l.status, LAUNCH_TIMED_OUT);
    launched_says(l.out, "[0] heard\n");
    launched_says(l.out, "[1] heard\n");
    assert_true(l.seconds < 30);
    launched_forget(&l);
}

/* As under nohup: neither this process nor its ranks hear of it. */
static void what_is_ignored_at_the_start_stays_so(void **state)
{
    (void)state;
    static const int signals[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM };
    char *argv[] = { "sh", "-c", "echo ready; sleep 0.5; echo done", NULL };
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        signal(signals[i], SIG_IGN);
        launched l =
            launched_start(&(launch_options){ .ranks = 2, .grace_s = 0.1 }, argv, NULL, "", NULL);
        signal(signals[i], SIG_DFL);
        launched_await(&l, 2);
        kill(l.pid, signals[i]);
        launched_wait(&l);
        if (l.status != 0)
            fail_msg("signal %d: status %d, not 0: %s", signals[i], l.status, l.err);
        assert_string_equal(l.err, "");
        launched_says(l.out, "[0] done\n");
        launched_says(l.out, "[1] done\n");
        launched_forget(&l);
    }
}

/* More pipes than files may be open, unless the launcher raises its own limit. */
static void ranks_may_need_many_files(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 64, before.rlim_max }), 0);
    launched l = launched_shell(40, 5, "ulimit -n", "");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_string_equal(l.err, "");
    assert_int_equal(l.status, 0);
    launched_says(l.out, "[39] 64\n"); /* a rank has the limit that we had */
    launched_forget(&l);
}

static void ranks_die_with_a_killed_launcher(void **state)
{
    (void)state;
    char *argv[] = { "sh", "-c", "sleep 1000 & echo pid $!; echo pid $$; exec sleep 1000", NULL };
    launched l =
        launched_start(&(launch_options){ .ranks = 3, .grace_s = 5 }, argv, NULL, "", NULL);
    launched_await(&l, 6);
    kill(l.pid, SIGKILL);
    launched_wait(&l);
    assert_int_equal(l.status, -1);
    assert_all_gone(l.out, 6);
    launched_forget(&l);
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
    launched l =
        launched_start(&(launch_options){ .ranks = 2, .grace_s = 5 }, argv, NULL, "", NULL);
    dies_as_it_reaps = false;
    launched_wait(&l);
    assert_int_equal(l.status, -1);
    const char *said = strstr(l.out, "bystander ");
    assert_non_null(said);
    pid_t bystander = (pid_t)atoi(said + strlen("bystander "));
    assert_int_equal(waitpid(bystander, &status, 0), bystander);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    launched_forget(&l);
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
    launched l = launched_start(&(launch_options){ .ranks = 1, .grace_s = 1 }, NULL, make_progress,
                                "", NULL);
    launched_wait(&l);
    assert_int_equal(l.status, 0);
    assert_string_equal(l.out, "");
    assert_string_equal(l.err, "");
    launched_forget(&l);
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
        cmocka_unit_test(a_signal_that_ends_late_is_named),
        cmocka_unit_test(ranks_see_their_environment),
        cmocka_unit_test(input_goes_to_rank_0_only),
        cmocka_unit_test(failure_ends_those_who_do_not_listen),
        cmocka_unit_test(others_may_report_before_they_end),
        cmocka_unit_test(descendants_end_with_the_run),
        cmocka_unit_test(descendants_end_without_proc),
        cmocka_unit_test(a_late_writer_is_heard),
        cmocka_unit_test(sigterm_reaches_every_rank),
        cmocka_unit_test(sigint_gives_130_and_a_second_kills),
        cmocka_unit_test(time_spent_stopped_does_not_count),
        cmocka_unit_test(a_stop_is_said_once_and_ends_nothing),
        cmocka_unit_test(a_stopped_rank_hears_of_the_limit),
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
