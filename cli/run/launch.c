/* launch.c - one loop over the ranks' output, our signals and a few deadlines; everything else is a
 * reaction to one of them. */
#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "options.h"
#include "run.h"

#define NEVER INT64_MAX

enum { AGAIN_MS = 200, LEFT_OVER_MS = 1000, DYING_MS = 2000, OTHER_FILES = 32 };

enum { KILLED = 0x400 }; /* of a process's flags in /proc: the kernel's PF_SIGNALED */

/* What the ranks are to do. */
typedef struct launch_job {
    char *const *argv; /* or NULL, and: */
    int (*rank_main)(int rank, void *ctx);
    void *ctx;
} launch_job;

typedef struct launcher {
    const launch_options *options;
    const launch_job *job;
    relay *lines;
    int signals;          /* signalfd */
    sigset_t mask_before; /* and dispositions, for the ranks */
    struct sigaction pipe_before, child_before;
    struct rlimit files_before;
    rank_env env;
    int *exec_errno; /* shared with the ranks */
    family *kin;
    pid_t guardian;
    pid_t *ranks; /* [ranks], 0: not started; shared with the guardian.  They stay zombies to the
                   * end, so that their group numbers stay theirs */
    bool *ended, *stopped; /* [ranks]; stopped: once, and that was said */
    int started, alive;
    int first;         /* rank that failed, while another may be the cause; -1: none */
    siginfo_t how;     /* it ended */
    int status;        /* of the first failing rank */
    bool failed;       /* status is known */
    bool stop;         /* a signal came when all ranks had ended: write no more */
    int64_t signal_ms; /* when the last signal was passed on, or 0 */
    int64_t timeout_at, judge_at, term_at, kill_at;
} launcher;

/* ---- A rank's first steps -------------------------------------------------------------------- */

static void set_files(const launcher *l, int rank, const int ends[3])
{
    bool reads = rank == 0 && l->options->output != LAUNCH_DIRECT;
    int nothing = reads ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++) {
        int end = fd == 0 && !reads ? nothing : ends[fd];
        if (end >= 0)
            dup2(end, fd);
    }
}

/* The terminal is the launcher's to read: a rank that asked there would be stopped, as its group is
 * in the background, and could not be answered.  Without a terminal /dev/tty fails at once.  setsid
 * would do that too, but the leader of a session gets any free terminal that it opens, and no group
 * in it could stop itself. */
static void leave_terminal(void)
{
    int terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0)
        return;
    ioctl(terminal, TIOCNOTTY);
    close(terminal);
}

/* In the new process. */
static _Noreturn void be_rank(launcher *l, int rank, pid_t parent, const int ends[3])
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(1);
    set_files(l, rank, ends);
    for (int fd = 0; fd < 3; fd++)
        if (ends[fd] >= 0)
            close(ends[fd]);
    relay_destroy(l->lines);
    close(l->signals);
    leave_terminal();
    rank_env_set(&l->env, rank, l->options->ranks);
    sigaction(SIGPIPE, &l->pipe_before, NULL);
    sigaction(SIGCHLD, &l->child_before, NULL);
    sigprocmask(SIG_SETMASK, &l->mask_before, NULL);
    setrlimit(RLIMIT_NOFILE, &l->files_before);
    if (!l->job->argv)
        exit(cli_finish(l->job->rank_main(rank, l->job->ctx)));
    execvp(l->job->argv[0], l->job->argv);
    *l->exec_errno = errno;
    _exit(errno == ENOENT ? 127 : 126);
}

/* ---- Ending ---------------------------------------------------------------------------------- */

static void signal_ranks(const launcher *l, int signal)
{
    for (int rank = 0; rank < l->started; rank++)
        if (!l->ended[rank] || signal == SIGKILL) /* SIGKILL: also what the rank has left behind */
            kill(-l->ranks[rank], signal);
}

static int64_t grace_ms(const launcher *l)
{
    return (int64_t)(l->options->grace_s * 1000);
}

static void later(int64_t *deadline, int64_t ms)
{
    *deadline += *deadline == NEVER ? 0 : ms;
}

static void earlier(int64_t *deadline, int64_t at)
{
    if (at < *deadline)
        *deadline = at;
}

/* The first failing rank: says so and starts the grace of the others.  After a signal of our own,
 * why a rank ends is no news. */
static void fail_first(launcher *l)
{
    const char *others = l->alive ? "; ending the others" : "";
    const siginfo_t *how = &l->how;
    int rank = l->first;
    bool killed = how->si_code != CLD_EXITED;
    l->judge_at = NEVER;
    l->failed = true;
    l->status = killed ? 128 + how->si_status : how->si_status;
    int64_t now = now_ms();
    earlier(&l->term_at, now + grace_ms(l) * 2 / 5);
    earlier(&l->kill_at, now + grace_ms(l));
    if (l->signal_ms)
        return;
    if (*l->exec_errno)
        relay_say(l->lines, "imbrex: cannot run '%s': %s", l->job->argv[0],
                  strerror(*l->exec_errno));
    else if (killed)
        relay_say(l->lines, "imbrex: rank %d was killed by signal %d (%s)%s", rank, how->si_status,
                  strsignal(how->si_status), others);
    else
        relay_say(l->lines, "imbrex: rank %d ended with exit code %d%s", rank, how->si_status,
                  others);
}

/* Whether a signal has killed it that has not ended yet: a core may be written, or a GPU's memory
 * given back, while others see its connections closed, and end. */
static bool is_dying(pid_t pid)
{
    char path[40], line[512];
    unsigned flags = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = '\0';
    const char *rest = strrchr(line, ')'); /* a name may have any characters */
    return rest && sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && flags & KILLED;
}

static bool is_any_dying(const launcher *l)
{
    for (int rank = 0; rank < l->started; rank++)
        if (!l->ended[rank] && is_dying(l->ranks[rank]))
            return true;
    return false;
}

/* Of ranks that ended since we last looked, or are about to, one that a signal killed is the
 * likelier cause. */
static void look_for_ends(launcher *l)
{
    for (int rank = 0; rank < l->started; rank++) {
        siginfo_t info = { 0 };
        if (l->ended[rank] ||
            waitid(P_PID, (id_t)l->ranks[rank], &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
            info.si_pid == 0)
            continue;
        l->ended[rank] = true;
        l->alive--;
        bool bad = info.si_code != CLD_EXITED || info.si_status != 0;
        if (bad && (l->first < 0 || (l->how.si_code == CLD_EXITED && info.si_code != CLD_EXITED))) {
            l->first = rank;
            l->how = info;
        }
    }
    if (l->first < 0 || l->failed)
        return;
    if (l->how.si_code == CLD_EXITED && l->signal_ms == 0 && is_any_dying(l))
        earlier(&l->judge_at, now_ms() + DYING_MS);
    else
        fail_first(l);
}

static const char *stop_name(int signal)
{
    return signal == SIGSTOP   ? "SIGSTOP"
           : signal == SIGTSTP ? "SIGTSTP"
           : signal == SIGTTIN ? "SIGTTIN"
                               : "SIGTTOU";
}

/* Whoever stopped a rank may let it go on, so that it ends nothing; the others only wait, and would
 * not say for what.  Once a rank: some stop and continue without end. */
static void look_for_stops(launcher *l)
{
    for (int rank = 0; rank < l->started; rank++) {
        siginfo_t info = { 0 };
        if (l->ended[rank] || l->stopped[rank] ||
            waitid(P_PID, (id_t)l->ranks[rank], &info, WSTOPPED | WNOHANG) < 0 || info.si_pid == 0)
            continue;
        l->stopped[rank] = true;
        relay_say(l->lines,
                  "imbrex: rank %d was stopped by signal %d (%s): kill -CONT %d lets it go on",
                  rank, info.si_status, stop_name(info.si_status), (int)info.si_pid);
    }
}

static void kill_rest(launcher *l)
{
    char names[128] = "";
    size_t length = 0;
    for (int rank = 0; rank < l->started && length < sizeof names - 16; rank++)
        if (!l->ended[rank])
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%d",
                                       length ? ", " : "", rank);
    if (l->alive)
        relay_say(l->lines, "imbrex: killing what has not ended: rank %s", names);
    signal_ranks(l, SIGKILL);
}

/* ---- Reactions ------------------------------------------------------------------------------- */

static void pass_on(launcher *l, int signal)
{
    int64_t now = now_ms();
    l->stop = l->alive == 0;
    if (l->signal_ms && now - l->signal_ms >= AGAIN_MS) {
        l->kill_at = now;
        return;
    }
    if (l->signal_ms == 0)
        earlier(&l->kill_at, now + grace_ms(l));
    l->signal_ms = now;
    signal_ranks(l, signal);
}

/* Until someone continues us.  No time has passed meanwhile. */
static void stop_all(launcher *l)
{
    int64_t begin = now_ms();
    signal_ranks(l, SIGSTOP);
    raise(SIGSTOP);
    int64_t paused = now_ms() - begin;
    later(&l->timeout_at, paused);
    later(&l->judge_at, paused);
    later(&l->term_at, paused);
    later(&l->kill_at, paused);
    signal_ranks(l, SIGCONT);
}

static void react_to_signal(launcher *l)
{
    struct signalfd_siginfo got;
    if (read(l->signals, &got, sizeof got) != sizeof got)
        return;
    int signal = (int)got.ssi_signo;
    if (signal == SIGCHLD) {
        look_for_ends(l);
        look_for_stops(l);
    } else if (signal == SIGTSTP) {
        stop_all(l);
    } else {
        pass_on(l, signal);
    }
}

static void react_to_time(launcher *l)
{
    int64_t now = now_ms();
    if (now >= l->judge_at || (now >= l->timeout_at && l->first >= 0)) {
        l->judge_at = NEVER;
        if (!l->failed)
            fail_first(l);
    }
    if (now >= l->timeout_at) {
        relay_say(l->lines, "imbrex: not done after %g s; ending all ranks", l->options->timeout_s);
        l->timeout_at = NEVER;
        l->term_at = now;
        earlier(&l->kill_at, now + grace_ms(l));
        l->status = l->failed ? l->status : LAUNCH_TIMED_OUT;
        l->failed = true;
    }
    if (now >= l->term_at) {
        l->term_at = NEVER;
        signal_ranks(l, SIGTERM);
        signal_ranks(l, SIGCONT);
    }
    if (now >= l->kill_at) {
        l->kill_at = NEVER;
        kill_rest(l);
    }
}

static void step(launcher *l, int64_t deadline)
{
    earlier(&deadline, l->timeout_at);
    earlier(&deadline, l->judge_at);
    earlier(&deadline, l->term_at);
    earlier(&deadline, l->kill_at);
    int64_t left = deadline - now_ms();
    int timeout_ms = deadline == NEVER ? -1 : left < 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
    if (relay_step(l->lines, l->signals, timeout_ms))
        react_to_signal(l);
    react_to_time(l);
}

/* From then on its number may be another group's: the guardian is to forget it first. */
static void reap_rank(launcher *l, int rank)
{
    pid_t pid = l->ranks[rank];
    __atomic_store_n(&l->ranks[rank], 0, __ATOMIC_RELEASE);
    waitpid(pid, NULL, 0);
}

/* What ranks left running may still write for a while; what is written already is always brought
 * out, unless a signal says that nobody wants it. */
static void finish(launcher *l)
{
    l->timeout_at = l->judge_at = l->term_at = l->kill_at = NEVER;
    int64_t until = now_ms() + LEFT_OVER_MS;
    while (relay_hears(l->lines) && now_ms() < until && !l->stop)
        step(l, until);
    signal_ranks(l, SIGKILL);
    for (int rank = 0; rank < l->started; rank++)
        reap_rank(l, rank);
    l->started = 0;
    guardian_end(l->guardian);
    family_end(l->kin);
    l->kin = NULL;

    until = now_ms() + LEFT_OVER_MS;
    while (!l->stop && (relay_hears(l->lines) || !relay_empty(l->lines))) {
        bool idle = relay_empty(l->lines);
        if (idle && now_ms() >= until) /* a process that is not of ours holds a pipe */
            relay_deafen(l->lines);
        else
            step(l, idle ? until : NEVER);
    }
}

/* ---- Beginning ------------------------------------------------------------------------------- */

/* Signals are read from a file descriptor, so that none comes between two lines of this file.  One
 * that is ignored, as under nohup, would be read, too, if it were blocked: it is left out. */
static bool take_signals(launcher *l)
{
    static const int taken[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP };
    struct sigaction before;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (sigaction(taken[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaddset(&mask, taken[i]);
    sigprocmask(SIG_BLOCK, &mask, &l->mask_before);
    sigaction(SIGPIPE, &(struct sigaction){ .sa_handler = SIG_IGN }, &l->pipe_before);
    sigaction(SIGCHLD, &(struct sigaction){ .sa_handler = SIG_DFL }, &l->child_before);
    l->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signals >= 0;
}

/* A rank's two pipes end here.  Its own limit stays as it was: programs that use select need it. */
static bool allow_files(launcher *l)
{
    rlim_t need = 2 * (rlim_t)l->options->ranks + OTHER_FILES;
    getrlimit(RLIMIT_NOFILE, &l->files_before);
    struct rlimit files = l->files_before;
    if (files.rlim_cur >= need)
        return true;
    files.rlim_cur = files.rlim_max < need ? files.rlim_max : need;
    if (files.rlim_cur >= need && setrlimit(RLIMIT_NOFILE, &files) == 0)
        return true;
    fprintf(stderr, "imbrex: %d rank%s %llu open files, and %llu are allowed: raise ulimit -Hn\n",
            l->options->ranks, l->options->ranks == 1 ? " needs" : "s need",
            (unsigned long long)need, (unsigned long long)files.rlim_cur);
    return false;
}

static void *share_memory(size_t bytes)
{
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? NULL : shared;
}

static bool begin(launcher *l)
{
    int fd; /* 0, 1 and 2 are in use from here on, whatever they are */
    while ((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0 && fd <= STDERR_FILENO)
        fcntl(fd, F_SETFD, 0);
    close(fd);
    size_t ranks = (size_t)l->options->ranks;
    l->exec_errno = share_memory(sizeof *l->exec_errno);
    l->ranks = share_memory(ranks * sizeof *l->ranks);
    l->ended = calloc(ranks, sizeof *l->ended);
    l->stopped = calloc(ranks, sizeof *l->stopped);
    l->lines = relay_create(l->options->ranks, l->options->output == LAUNCH_PREFIX);
    return take_signals(l) && l->exec_errno && l->ranks && l->ended && l->stopped &&
           rank_env_choose(&l->env) && (l->kin = family_begin()) &&
           (l->guardian = guardian_start(l->ranks, l->options->ranks)) > 0;
}

static void end(launcher *l)
{
    family_end(l->kin);
    relay_destroy(l->lines);
    if (l->exec_errno)
        munmap(l->exec_errno, sizeof *l->exec_errno);
    if (l->ranks)
        munmap(l->ranks, (size_t)l->options->ranks * sizeof *l->ranks);
    setrlimit(RLIMIT_NOFILE, &l->files_before);
    if (l->signals >= 0)
        close(l->signals);
    sigaction(SIGPIPE, &l->pipe_before, NULL);
    sigaction(SIGCHLD, &l->child_before, NULL);
    sigprocmask(SIG_SETMASK, &l->mask_before, NULL);
    free(l->ended);
    free(l->stopped);
}

static bool start_rank(launcher *l, int rank)
{
    int ends[3] = { -1, -1, -1 };
    if (l->options->output != LAUNCH_DIRECT && !relay_attach(l->lines, rank, ends))
        return false;
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        be_rank(l, rank, parent, ends);
    int error = errno;
    for (int fd = 0; fd < 3; fd++)
        if (ends[fd] >= 0)
            close(ends[fd]);
    errno = error;
    if (pid < 0)
        return false;
    setpgid(pid, pid); /* so does the rank: whoever comes first */
    l->ranks[l->started++] = pid;
    l->alive++;
    return true;
}

static int launch(const launch_options *options, const launch_job *job)
{
    launcher l = { .options = options,
                   .job = job,
                   .signals = -1,
                   .first = -1,
                   .timeout_at = NEVER,
                   .judge_at = NEVER,
                   .term_at = NEVER,
                   .kill_at = NEVER };
    fflush(NULL); /* else a copy of this process would write it again */
    if (!allow_files(&l))
        return CLI_FAILED;
    if (!begin(&l)) {
        fprintf(stderr, "imbrex: cannot start ranks: %s\n", strerror(errno));
        end(&l);
        return CLI_FAILED;
    }
    if (options->timeout_s > 0)
        l.timeout_at = now_ms() + (int64_t)(options->timeout_s * 1000);
    for (int rank = 0; rank < options->ranks; rank++)
        if (!start_rank(&l, rank)) {
            relay_say(l.lines, "imbrex: cannot start rank %d: %s", rank, strerror(errno));
            l.failed = true;
            l.status = CLI_FAILED;
            l.kill_at = now_ms();
            break;
        }
    while (l.alive)
        step(&l, NEVER);
    finish(&l);
    if (relay_lost(l.lines) && l.status == CLI_OK)
        l.status = CLI_FAILED;
    end(&l);
    return l.status;
}

int launch_command(const launch_options *options, char *const argv[])
{
    return launch(options, &(launch_job){ .argv = argv });
}

int launch_ranks(const launch_options *options, int (*rank_main)(int rank, void *ctx), void *ctx)
{
    return launch(options, &(launch_job){ .rank_main = rank_main, .ctx = ctx });
}

int launch_count(const options_page *page, int64_t given, int usual)
{
    int started = launch_size();
    if (!launch_is_rank())
        return given ? (int)given : usual;
    if (given && started && given != started)
        return options_wrong(page, "--ranks is %lld, but the launcher has started %d: leave it out",
                             (long long)given, started);
    return started;
}

int launch_start(int64_t ranks, int (*rank_main)(int rank, void *ctx), const void *request)
{
    void *ctx = (void *)request;
    const launch_options options = {
        .ranks = (int)ranks,
        .output = LAUNCH_DIRECT,
        .grace_s = LAUNCH_GRACE_S,
    };
    return launch_is_rank() ? rank_main(-1, ctx) : launch_ranks(&options, rank_main, ctx);
}
