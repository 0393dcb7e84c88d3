/* pause.c - a third process stops two ranks, and lets them go on. */
#include "pause.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

bool pause_await(const int *word)
{
    for (int tries = 0; !__atomic_load_n(word, __ATOMIC_ACQUIRE) && tries < 10000; tries++)
        usleep(1000);
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void stop_both(pause_stage *stage, int late, int64_t timeout_ms)
{
    if (!pause_await(&stage->ready))
        return; /* they have failed, and there may be no pids: 0 would be everybody */
    usleep(50000);
    for (int r = 0; r < 2; r++)
        kill(stage->pids[r], SIGSTOP);
    usleep((useconds_t)patient(3 * timeout_ms) * 1000);
    kill(stage->pids[!late], SIGCONT);
    usleep(50000);
    __atomic_store_n(&stage->over, 1, __ATOMIC_RELEASE);
    kill(stage->pids[late], SIGCONT);
}

int pause_run(pause_stage *stage, int late, int64_t timeout_ms, rank_main run, void *ctx)
{
    const ranks_desc desc = { .size = 2, .processes = true, .timeout_ms = timeout_ms };
    *stage = (pause_stage){ .ready = 0 };
    pid_t pauser = fork();
    if (pauser == 0) {
        stop_both(stage, late, timeout_ms);
        _exit(0);
    }
    if (pauser < 0)
        return 1;
    int failed = ranks_run(&desc, run, ctx);
    if (failed)
        kill(pauser, SIGKILL);
    return waitpid(pauser, NULL, 0) != pauser || failed;
}
