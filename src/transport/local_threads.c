/* local_threads.c - ranks of one process: a peer's memory object is simply shared. */
#include <stdlib.h>

#include "../core/transport.h"

struct imx_transport {
    imx_transport_desc desc;
    const bool *peers;
    imx_memory **offers; /* [size] */
};

static void threads_close(imx_transport *transport)
{
    if (!transport)
        return;
    free(transport->offers);
    free(transport);
}

static imbrex_status threads_create(const imx_transport_desc *desc, const bool *peers,
                                    imx_transport **out)
{
    imx_transport *transport = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *transport, &transport));
    transport->desc = *desc;
    transport->peers = peers;
    imbrex_status status;
    IMX_GOTO(imx_sys_alloc((size_t)desc->size, sizeof *transport->offers, &transport->offers));
    *out = transport;
    return IMBREX_OK;
fail:
    threads_close(transport);
    return status;
}

/* The addresses mean something only between ranks of one process; others ignore them.  The owner
 * keeps its memory until all ranks have met again, so a peer's is there to be shared. */
static imbrex_status threads_swap(imx_transport *transport, imx_memory *own, imx_memory **memories)
{
    const imx_transport_desc *desc = &transport->desc;
    IMX_TRY(desc->allgather(desc->ctx, &own, transport->offers, sizeof own));
    for (int r = 0; r < desc->size; r++) {
        if (transport->peers[r])
            IMX_TRY(desc->backend->memory_share(desc->device, transport->offers[r], &memories[r]));
    }
    return IMBREX_OK;
}

const imx_transport_kind imx_transport_local_threads = {
    .name = "local_threads",
    .create = threads_create,
    .close = threads_close,
    .swap = threads_swap,
};
