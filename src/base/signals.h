/* signals.h - which signals a thread of the library leaves to others. */
#ifndef IMX_SIGNALS_H
#define IMX_SIGNALS_H

#include <signal.h>
#include <stddef.h>

/* What a thread blocks from its beginning: signals are the caller's threads' to take, but for those
 * that a thread brings upon itself and a profiler's. */
static inline sigset_t imx_signals_of_others(void)
{
    static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF };
    sigset_t others;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        sigdelset(&others, own[i]);
    return others;
}

#endif /* IMX_SIGNALS_H */
