/* call.c - a group belongs to one process, and to one thread at a time: who breaks that is told so,
 * instead of what would come of it. */
#include "call.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "agree.h"
#include "base/live.h"
#include "base/process.h"
#include "fault.h"

static _Thread_local char self; /* its address is the thread's name */

void imx_call_own(imx_call_owner *owner)
{
    owner->process = imx_process_now();
    owner->pid = getpid();
}

bool imx_call_may(const imbrex_group *group)
{
    return imx_live_is(IMX_LIVE_GROUP, group) && imx_process_is(group->owner.process);
}

/* acquire: comes after all that the thread before did in its last call. */
static bool take(imx_call *call, imbrex_group *group)
{
    imx_call_owner *owner = &group->owner;
    const void *nobody = NULL;
    if (!__atomic_compare_exchange_n(&owner->thread, &nobody, &self, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED) &&
        nobody != &self)
        return false;
    if (owner->depth++ == 0)
        __atomic_store_n(&owner->call, imx_status_function(), __ATOMIC_RELAXED);
    call->group = group;
    return true;
}

imbrex_status imx_call_allow(const imbrex_group *group)
{
    IMX_TRY(imx_live_need(IMX_LIVE_GROUP, group));
    if (imx_process_is(group->owner.process))
        return IMBREX_OK;
    return imx_fail(IMBREX_INVALID,
                    "this group was made by process %lld; a forked child cannot use it: make a "
                    "group of its own",
                    (long long)group->owner.pid);
}

imbrex_status imx_call_begin(imx_call *call, imbrex_group *group)
{
    IMX_TRY(imx_call_allow(group));
    if (take(call, group))
        return IMBREX_OK;
    const char *other = __atomic_load_n(&group->owner.call, __ATOMIC_RELAXED);
    return imx_fail(IMBREX_INVALID,
                    "another thread is in %s of this group: a group belongs to one thread at a "
                    "time, so let calls follow each other, or make a group for each thread",
                    other ? other : "a call");
}

bool imx_call_await(imx_call *call, imbrex_group *group)
{
    if (!imx_call_may(group))
        return false;
    for (int looks = 0; !take(call, group); looks++) {
        const struct timespec nap = { .tv_nsec = 200000 };
        if (looks < 100)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
    return true;
}

void imx_call_end(imx_call *call)
{
    if (!call->group)
        return;
    imx_call_owner *owner = &call->group->owner;
    if (call->enqueues) {
        imx_fault_note_refusal(call->group);
        if (imbrex_error()[0])
            imx_agree_count_refusal(call->group);
    }
    /* release: the next thread sees what this one did */
    if (--owner->depth == 0)
        __atomic_store_n(&owner->thread, NULL, __ATOMIC_RELEASE);
    call->group = NULL;
}
