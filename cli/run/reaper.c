/* reaper.c - ends what ranks leave behind: adopts orphans as the kernel's "subreaper", and a
 * guardian sleeps until the kernel says that its parent has died. */
#define _GNU_SOURCE
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"

/* ---- Orphans --------------------------------------------------------------------------------- */

/* One that does not die on SIGKILL hangs in the kernel: it is left alone after so long. */
enum { END_MS = 2000, ROUND_MS = 5, ROUNDS_LEAST = 4, PIDS_MOST = 1 << 22 };

struct family {
    int subreaper; /* as it was */
    pid_t *before; /* children that are not ours to end; 0 at the end */
};

typedef struct pid_list {
    pid_t *at; /* 0 at the end */
    size_t count, capacity;
} pid_list;

static bool add(pid_list *list, pid_t pid)
{
    if (list->count + 2 > list->capacity) {
        size_t capacity = 2 * list->capacity + 16;
        pid_t *more = realloc(list->at, capacity * sizeof *more);
        if (!more)
            return false;
        list->at = more;
        list->capacity = capacity;
    }
    list->at[list->count] = pid;
    list->count += pid != 0;
    list->at[list->count] = 0;
    return true;
}

/* Whether there is such a child, also one that runs. */
static bool is_child(idtype_t which, pid_t pid)
{
    siginfo_t info;
    return waitid(which, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/* Where there is no /proc, or the kernel keeps no such list in it: every number that a process can
 * have is tried, which takes a second or two. */
static bool search(pid_list *list)
{
    bool good = true, any = is_child(P_ALL, 0);
    for (pid_t pid = 1; pid < PIDS_MOST && any && good; pid++)
        good = !is_child(P_PID, pid) || add(list, pid);
    return good;
}

/* Ends with 0; NULL if out of memory. */
static pid_t *list_children(void)
{
    pid_list list = { .at = NULL };
    bool good = add(&list, 0);
    FILE *file = fopen("/proc/thread-self/children", "re");
    for (int pid; file && good && fscanf(file, "%d", &pid) == 1;)
        good = add(&list, pid);
    if (file)
        fclose(file);
    else
        good = good && search(&list);
    if (good)
        return list.at;
    free(list.at);
    return NULL;
}

static bool contains(const pid_t *pids, pid_t pid)
{
    while (*pids && *pids != pid)
        pids++;
    return *pids == pid;
}

family *family_begin(void)
{
    family *kin = calloc(1, sizeof *kin);
    if (!kin)
        return NULL;
    if (prctl(PR_GET_CHILD_SUBREAPER, &kin->subreaper) < 0 ||
        prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || !(kin->before = list_children())) {
        int error = errno;
        family_end(kin);
        errno = error;
        return NULL;
    }
    return kin;
}

/* One round; killing a child makes its own children ours, for the next.  False: none is left. */
static bool end_children(const family *kin)
{
    pid_t *pids = list_children();
    bool left = false;
    for (pid_t *pid = pids; pid && *pid; pid++) {
        if (contains(kin->before, *pid))
            continue;
        left = true;
        kill(*pid, SIGKILL);
        waitpid(*pid, NULL, WNOHANG);
    }
    free(pids);
    return left;
}

void family_end(family *kin)
{
    if (!kin)
        return;
    if (kin->before) {
        int64_t until = now_ms() + END_MS;
        for (int round = 0; end_children(kin) && (round < ROUNDS_LEAST || now_ms() < until);
             round++)
            poll(NULL, 0, round ? ROUND_MS : 0);
        prctl(PR_SET_CHILD_SUBREAPER, (unsigned long)kin->subreaper);
    }
    free(kin->before);
    free(kin);
}

/* ---- The guardian ---------------------------------------------------------------------------- */

/* Holds none of the parent's files: whoever reads its output must see that it ended. */
static _Noreturn void guard(pid_t parent, const pid_t *groups, int count)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    setsid(); /* no terminal's signals */
    close_range(0, ~0U, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    while (getppid() == parent) /* others may send signals, too */
        sigwaitinfo(&all, NULL);
    for (int i = 0; i < count; i++)
        if (groups[i] > 0)
            kill(-groups[i], SIGKILL);
    _exit(0);
}

pid_t guardian_start(const pid_t *groups, int count)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        guard(parent, groups, count);
    return pid;
}

void guardian_end(pid_t guardian)
{
    kill(guardian, SIGKILL);
    waitpid(guardian, NULL, 0);
}
