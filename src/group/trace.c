/* trace.c - the spans that a rank's streams record while tracing is on. */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

#include "call.h"

void imx_trace_free(imbrex_group *group)
{
    if (group->trace)
        free(group->trace->spans);
    free(group->trace);
    group->trace = NULL;
}

imbrex_status imbrex_trace(imbrex_group *group, size_t capacity)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(group->backend->set_trace(group->device, NULL));
    imx_trace_free(group);
    if (!capacity)
        return IMBREX_OK;
    IMX_TRY(imx_sys_alloc(1, sizeof *group->trace, &group->trace));
    imbrex_status status;
    IMX_GOTO(imx_sys_alloc(capacity, sizeof(imbrex_span), &group->trace->spans));
    group->trace->capacity = capacity;
    IMX_GOTO(group->backend->set_trace(group->device, group->trace));
    return IMBREX_OK;
fail:
    imx_trace_free(group);
    return status;
}

size_t imbrex_trace_spans(imbrex_group *group, imbrex_span *spans, size_t max)
{
    IMX_CALL call = { 0 };
    const imbrexd_trace *trace = imx_call_await(&call, group) ? group->trace : NULL;
    imx_status_mute(true);
    bool there = trace && (!group->backend->collect_trace ||
                           group->backend->collect_trace(group->device) == IMBREX_OK);
    imx_status_mute(false);
    if (!there)
        return 0;
    size_t count = trace->count < trace->capacity ? trace->count : trace->capacity;
    size_t copied = count < max ? count : max;
    if (copied && spans)
        memcpy(spans, trace->spans, copied * sizeof *spans);
    return count;
}
