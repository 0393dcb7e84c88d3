/* turn.c - an event after the latest use outside of captures, and one after the latest in one: the
 * second must not take the first's place, which later runs outside still wait for. */
#include "turn.h"

#include "group.h"

imbrex_status imx_turn_create(const imbrex_group *group, imx_turn *turn)
{
    for (int i = 0; i < 2; i++)
        IMX_TRY(group->backend->event_create(group->device, &turn->latest[i].done));
    return IMBREX_OK;
}

void imx_turn_destroy(const imbrex_group *group, imx_turn *turn, imbrex_stream stream)
{
    const imx_backend *backend = group->backend;
    if (turn->latest[0].stream) {
        imbrex_status waited = backend->event_wait(group->device, turn->latest[0].done, stream);
        if (waited == IMBREX_OK)
            waited = backend->stream_sync(group->device, stream);
        (void)waited;
    }
    for (int i = 0; i < 2; i++) {
        if (turn->latest[i].done)
            backend->event_destroy(group->device, turn->latest[i].done);
    }
}

imx_event *imx_turn_begin(const imbrex_group *group, imx_turn *turn, imbrex_stream stream)
{
    const imx_backend *backend = group->backend;
    turn->capture = backend->capture ? backend->capture(group->device, stream) : 0;
    int i = turn->capture != 0;
    bool before = turn->latest[i].stream && turn->latest[i].capture == turn->capture;
    bool other = turn->latest[i].stream != stream || stream == backend->per_thread;
    return before && other ? turn->latest[i].done : NULL;
}

imbrex_status imx_turn_take(const imbrex_group *group, imx_turn *turn, imbrex_stream stream)
{
    imx_event *before = imx_turn_begin(group, turn, stream);
    return before ? group->backend->event_wait(group->device, before, stream) : IMBREX_OK;
}

imbrex_status imx_turn_end(const imbrex_group *group, imx_turn *turn, imbrex_stream stream)
{
    int i = turn->capture != 0;
    turn->latest[i].stream = stream;
    turn->latest[i].capture = turn->capture;
    imbrex_status status =
        group->backend->event_record(group->device, turn->latest[i].done, stream);
    if (status != IMBREX_OK) { /* nothing else says when the use is over */
        imbrex_status drained = group->backend->stream_sync(group->device, stream);
        (void)drained;
    }
    return status;
}
