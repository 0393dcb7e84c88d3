/* stream_order.h - what is there once and streams use in turn: a plan's memory, a prepared kernel.
 *
 * Uses follow each other, also on different streams, outside of captures and within one.  Across a
 * capture's border no stream may wait for another: what a replay follows, and what follows it, is
 * for whoever launches the graph to say.
 */
#ifndef IMX_STREAM_ORDER_H
#define IMX_STREAM_ORDER_H

#include "backends/backend.h"

typedef struct imx_stream_use {
    imx_event *done;
    imbrex_stream stream; /* NULL: there was none */
    uint64_t capture;     /* that it was in; 0: none */
} imx_stream_use;

typedef struct imx_stream_order {
    const imx_backend *backend;
    imx_device *device;
    imx_stream_use outside, inside; /* the latest outside of captures, and in one */
    uint64_t capture;               /* of the use that begins; 0: none */
} imx_stream_order;

imbrex_status imx_stream_order_create(const imx_backend *backend, imx_device *device,
                                      imx_stream_order *order) IMX_MUST_CHECK;

/* Waits, by way of the stream, until the latest use outside of captures is done. */
void imx_stream_order_destroy(imx_stream_order *order, imbrex_stream stream);

/* Whether there was a use in a capture. */
static inline bool imx_stream_order_captured(const imx_stream_order *order)
{
    return order->inside.stream;
}

/* A use on the stream begins: what is to be waited for first, or NULL. */
imx_event *imx_stream_order_begin(imx_stream_order *order, imbrex_stream stream);

/* The same, and it is waited for. */
imbrex_status imx_stream_order_take(imx_stream_order *order, imbrex_stream stream) IMX_MUST_CHECK;

/* The use is enqueued. */
imbrex_status imx_stream_order_end(imx_stream_order *order, imbrex_stream stream) IMX_MUST_CHECK;

#endif /* IMX_STREAM_ORDER_H */
