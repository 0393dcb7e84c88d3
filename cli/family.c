/* family.c - adopts orphans as the kernel's "subreaper" and ends them. */
#define _GNU_SOURCE
#include "family.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

/* One that does not die on SIGKILL hangs in the kernel: it is left alone after so many rounds. */
enum { ROUNDS = 400, ROUND_MS = 5 };

struct family {
    int subreaper; /* as it was */
    pid_t *before; /* children that are not ours to end; 0 at the end */
};

/* Ends with 0; NULL if out of memory.  Empty where the kernel keeps no such list. */
static pid_t *list_children(void)
{
    size_t count = 0, capacity = 16;
    pid_t *pids = calloc(capacity, sizeof *pids);
    FILE *file = pids ? fopen("/proc/thread-self/children", "re") : NULL;
    while (file && fscanf(file, "%d", &pids[count]) == 1) {
        if (++count < capacity)
            continue;
        capacity *= 2;
        pid_t *more = realloc(pids, capacity * sizeof *pids);
        if (!more) {
            free(pids);
            pids = NULL;
            break;
        }
        pids = more;
    }
    if (file)
        fclose(file);
    if (pids)
        pids[count] = 0;
    return pids;
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
        for (int round = 0; round < ROUNDS && end_children(kin); round++)
            poll(NULL, 0, round ? ROUND_MS : 0);
        prctl(PR_SET_CHILD_SUBREAPER, (unsigned long)kin->subreaper);
    }
    free(kin->before);
    free(kin);
}
