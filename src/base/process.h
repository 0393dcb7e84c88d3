/* process.h - which process this is, and what must hold in a child of fork: there the threads are
 * not that groups have, and what they are connected to is the parent's. */
#ifndef IMX_PROCESS_H
#define IMX_PROCESS_H

#include "imx.h"

/* A number for this process, another one in every child of fork, whoever made that child. */
uint64_t imx_process_now(void);

/* Whether this is the process that had the number.  As cheap as one load. */
bool imx_process_is(uint64_t number);

/* The library's own locks, so that a child of fork finds none of them held by a thread that it has
 * not.  They are held for short, and none within another. */
typedef enum imx_process_locks {
    IMX_LOCK_LIVE,
    IMX_LOCK_IDENTITY,
    IMX_LOCK_OFFERS, /* of local_threads.c */
    IMX_LOCK_CHECK,
    IMX_LOCK_LAUNCHES, /* of rendezvous.c */
    IMX_LOCKS
} imx_process_locks;

void imx_process_lock(imx_process_locks which);
void imx_process_unlock(imx_process_locks which);

#endif /* IMX_PROCESS_H */
