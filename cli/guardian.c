/* guardian.c - sleeps until the kernel says that its parent has died. */
#define _GNU_SOURCE
#include "guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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
