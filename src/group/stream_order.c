/* stream_order.c - an event after the latest use outside of captures, and one after the latest in
 * one: the second must not take the first's place, which later runs outside still wait for. */
#include "stream_order.h"

#include "group.h"

static imx_stream_use *latest(imx_stream_order *order)
{
    return order->capture ? &order->inside : &order->outside;
}

imbrex_status imx_stream_order_create(const imbrex_group *group, imx_stream_order *order)
{
    IMX_TRY(group->backend->event_create(group->device, &order->outside.done));
    return group->backend->event_create(group->device, &order->inside.done);
}

void imx_stream_order_destroy(const imbrex_group *group, imx_stream_order *order,
                              imbrex_stream stream)
{
    const imx_backend *backend = group->backend;
    imx_event *events[] = { order->outside.done, order->inside.done };
    if (order->outside.stream) {
        imbrex_status waited = backend->event_wait(group->device, order->outside.done, stream);
        if (waited == IMBREX_OK)
            waited = backend->stream_sync(group->device, stream);
        (void)waited;
    }
    for (int i = 0; i < 2; i++) {
        if (events[i])
            backend->event_destroy(group->device, events[i]);
    }
}

imx_event *imx_stream_order_begin(const imbrex_group *group, imx_stream_order *order,
                                  imbrex_stream stream)
{
    const imx_backend *backend = group->backend;
    order->capture = backend->capture ? backend->capture(group->device, stream) : 0;
    const imx_stream_use *last = latest(order);
    if (!last->stream || last->capture != order->capture)
        return NULL; /* the first, here or in this capture */
    if (last->stream == stream && stream != backend->per_thread)
        return NULL; /* the stream keeps the order */
    return last->done;
}

imbrex_status imx_stream_order_take(const imbrex_group *group, imx_stream_order *order,
                                    imbrex_stream stream)
{
    imx_event *before = imx_stream_order_begin(group, order, stream);
    return before ? group->backend->event_wait(group->device, before, stream) : IMBREX_OK;
}

imbrex_status imx_stream_order_end(const imbrex_group *group, imx_stream_order *order,
                                   imbrex_stream stream)
{
    imx_stream_use *last = latest(order);
    last->stream = stream;
    last->capture = order->capture;
    imbrex_status status = group->backend->event_record(group->device, last->done, stream);
    if (status != IMBREX_OK) { /* nothing else says when the use is over */
        imbrex_status drained = group->backend->stream_sync(group->device, stream);
        (void)drained;
    }
    return status;
}
