/* turn.c - an event after the latest use outside of captures, and one after the latest in one: the
 * second must not take the first's place, which later runs outside still wait for. */
#include "turn.h"

#include "group.h"

static imx_use *latest(imx_turn *turn)
{
    return turn->capture ? &turn->inside : &turn->outside;
}

imbrex_status imx_turn_create(const imbrex_group *group, imx_turn *turn)
{
    IMX_TRY(group->backend->event_create(group->device, &turn->outside.done));
    return group->backend->event_create(group->device, &turn->inside.done);
}

void imx_turn_destroy(const imbrex_group *group, imx_turn *turn, imbrex_stream stream)
{
    const imx_backend *backend = group->backend;
    imx_event *events[] = { turn->outside.done, turn->inside.done };
    if (turn->outside.stream) {
        imbrex_status waited = backend->event_wait(group->device, turn->outside.done, stream);
        if (waited == IMBREX_OK)
            waited = backend->stream_sync(group->device, stream);
        (void)waited;
    }
    for (int i = 0; i < 2; i++) {
        if (events[i])
            backend->event_destroy(group->device, events[i]);
    }
}

imx_event *imx_turn_begin(const imbrex_group *group, imx_turn *turn, imbrex_stream stream)
{
    const imx_backend *backend = group->backend;
    turn->capture = backend->capture ? backend->capture(group->device, stream) : 0;
    const imx_use *last = latest(turn);
    if (!last->stream || last->capture != turn->capture)
        return NULL; /* the first, here or in this capture */
    if (last->stream == stream && stream != backend->per_thread)
        return NULL; /* the stream keeps the order */
    return last->done;
}

imbrex_status imx_turn_take(const imbrex_group *group, imx_turn *turn, imbrex_stream stream)
{
    imx_event *before = imx_turn_begin(group, turn, stream);
    return before ? group->backend->event_wait(group->device, before, stream) : IMBREX_OK;
}

imbrex_status imx_turn_end(const imbrex_group *group, imx_turn *turn, imbrex_stream stream)
{
    imx_use *last = latest(turn);
    last->stream = stream;
    last->capture = turn->capture;
    imbrex_status status = group->backend->event_record(group->device, last->done, stream);
    if (status != IMBREX_OK) { /* nothing else says when the use is over */
        imbrex_status drained = group->backend->stream_sync(group->device, stream);
        (void)drained;
    }
    return status;
}
