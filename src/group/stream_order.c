/* stream_order.c - an event after the latest use outside of captures, and one after the latest in
 * one: the second must not take the first's place, which later runs outside still wait for. */
#include "stream_order.h"

static imx_stream_use *latest(imx_stream_order *order)
{
    return order->capture ? &order->inside : &order->outside;
}

imbrex_status imx_stream_order_create(const imx_backend *backend, imx_device *device,
                                      imx_stream_order *order)
{
    order->backend = backend;
    order->device = device;
    IMX_TRY(backend->event_create(device, &order->outside.done));
    return backend->event_create(device, &order->inside.done);
}

void imx_stream_order_destroy(imx_stream_order *order, imbrex_stream stream)
{
    const imx_backend *backend = order->backend;
    imx_event *events[] = { order->outside.done, order->inside.done };
    if (order->outside.stream) {
        imbrex_status waited = backend->event_wait(order->device, order->outside.done, stream);
        if (waited == IMBREX_OK)
            waited = backend->stream_sync(order->device, stream);
        (void)waited;
    }
    for (int i = 0; i < 2; i++) {
        if (events[i])
            backend->event_destroy(order->device, events[i]);
    }
}

imx_event *imx_stream_order_begin(imx_stream_order *order, imbrex_stream stream)
{
    const imx_backend *backend = order->backend;
    order->capture = backend->capture ? backend->capture(order->device, stream) : 0;
    const imx_stream_use *last = latest(order);
    if (!last->stream || last->capture != order->capture)
        return NULL; /* the first, here or in this capture */
    if (last->stream == stream && stream != backend->per_thread)
        return NULL; /* the stream keeps the order */
    return last->done;
}

imbrex_status imx_stream_order_take(imx_stream_order *order, imbrex_stream stream)
{
    imx_event *before = imx_stream_order_begin(order, stream);
    return before ? order->backend->event_wait(order->device, before, stream) : IMBREX_OK;
}

imbrex_status imx_stream_order_end(imx_stream_order *order, imbrex_stream stream)
{
    imx_stream_use *last = latest(order);
    last->stream = stream;
    last->capture = order->capture;
    imbrex_status status = order->backend->event_record(order->device, last->done, stream);
    if (status != IMBREX_OK) { /* nothing else says when the use is over */
        imbrex_status drained = order->backend->stream_sync(order->device, stream);
        (void)drained;
    }
    return status;
}
