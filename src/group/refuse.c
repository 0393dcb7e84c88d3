/* refuse.c - a call that a wrapper of this library refuses by checks of its own, in its place. */
#include <string.h>

#include "group.h"

/* What another rank may wait for. */
static const struct {
    const char *name;
    bool meets; /* collective: the others are told where they meet this rank */
} calls[] = {
    { "imbrex_plan_run", false },     { "imbrex_plan_run_decode", false },
    { "imbrex_launch", false },       { "imbrex_launch_gemm", false },
    { "imbrex_put", false },          { "imbrex_signal_post", false },
    { "imbrex_barrier", false },      { "imbrex_exchange", false },
    { "imbrex_plan_create", true },   { "imbrex_tune", true },
    { "imbrex_kernel_create", true }, { "imbrex_mem_alloc", true },
    { "imbrex_group_split", true },
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
    imx_call_.enqueues = !calls[i].meets;
    imbrex_status refused = imx_fail(IMBREX_INVALID, "%s", why);
    if (calls[i].meets || imx_agree_is_awaited(group))
        return imx_agree(group, calls[i].name, refused, NULL, 0);
    imx_agree_count_refusal(group);
    return refused;
}
