/* refuse.c - a call that a wrapper of this library refuses by checks of its own, in its place. */
#include <string.h>

#include "agree.h"
#include "call.h"
#include "fault.h"

/* What another rank may wait for. */
static const struct {
    const char *name;
    enum {
        ONE,  /* of some ranks alone */
        ALL,  /* of all ranks: one that meets the others instead waits for this call */
        MEETS /* collective: the others are told where they meet this rank */
    } by;
} calls[] = {
    { "imbrex_plan_run", ALL },
    { "imbrex_plan_run_decode", ALL },
    { "imbrex_launch", ALL },
    { "imbrex_launch_gemm", ALL },
    { "imbrex_put", ONE },
    { "imbrex_signal_post", ONE },
    { "imbrex_barrier", ALL },
    { "imbrex_exchange", ONE },
    { "imbrex_plan_create", MEETS },
    { "imbrex_tune", MEETS },
    { "imbrex_kernel_create", MEETS },
    { "imbrex_mem_alloc", MEETS },
    { "imbrex_group_split", MEETS },
};

enum { CALLS = sizeof calls / sizeof calls[0] };

imbrex_status imbrex_group_refuse(imbrex_group *group, const char *call, const char *why)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(imx_fault_check(group)); /* a rank that is gone would not come to the meeting */
    IMX_TRY(imx_status_need(call, "call", "want the name of the function that is not called"));
    IMX_TRY(imx_status_need(why, "why", "want a sentence"));
    int i = 0;
    while (i < CALLS && strcmp(calls[i].name, call) != 0)
        i++;
    if (i == CALLS)
        return imx_fail(IMBREX_INVALID,
                        "call is \"%.64s\": want the name of a function that other ranks may wait "
                        "for, as \"imbrex_plan_run\", or \"imbrex_plan_create\" for all that make "
                        "plans",
                        call);
    imx_status_enter(calls[i].name); /* its sentence, and the others' */
    imbrex_status refused = imx_fail(IMBREX_INVALID, "%s", why);
    if (calls[i].by == MEETS || (calls[i].by == ALL && imx_agree_is_awaited(group)))
        return imx_agree(group, calls[i].name, refused, NULL, 0);
    imx_call_.enqueues = true;
    return refused;
}
