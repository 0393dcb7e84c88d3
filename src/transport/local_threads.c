/* local_threads.c - ranks of one process: a peer's memory object is simply shared.
 *
 * What ranks swap are tickets, for meetings may fail on some ranks alone: whoever has failed frees
 * its memory while another still comes to share it.  So an offer stands in a list until its rank
 * withdraws it, before it may free the memory, and who comes later finds nothing under the ticket.
 */
#include <stdlib.h>

#include "base/process.h"
#include "group/transport.h"

struct imx_transport {
    imx_transport_desc desc;
    const bool *peers;
    uint64_t *tickets; /* [size] */
    /* what this rank offers, under lock */
    imx_memory *own;
    uint64_t ticket;
    imx_transport *next;
};

static imx_transport *offers; /* of all groups of the process */
static uint64_t tickets;      /* so far: none is given twice */

static void threads_close(imx_transport *transport)
{
    if (!transport)
        return;
    free(transport->tickets);
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
    IMX_GOTO(imx_sys_alloc((size_t)desc->size, sizeof *transport->tickets, &transport->tickets));
    *out = transport;
    return IMBREX_OK;
fail:
    threads_close(transport);
    return status;
}

static uint64_t offer(imx_transport *transport, imx_memory *own)
{
    imx_process_lock(IMX_LOCK_OFFERS);
    uint64_t ticket = ++tickets;
    transport->own = own;
    transport->ticket = ticket;
    transport->next = offers;
    offers = transport;
    imx_process_unlock(IMX_LOCK_OFFERS);
    return ticket;
}

static void threads_withdraw(imx_transport *transport)
{
    imx_process_lock(IMX_LOCK_OFFERS);
    imx_transport **at = &offers;
    while (*at && *at != transport)
        at = &(*at)->next;
    if (*at)
        *at = transport->next;
    imx_process_unlock(IMX_LOCK_OFFERS);
}

/* The lock is held until this rank has its reference: the owner keeps its own as long. */
static imbrex_status share(const imx_transport *transport, int rank, imx_memory **memory)
{
    const imx_transport_desc *desc = &transport->desc;
    imx_process_lock(IMX_LOCK_OFFERS);
    const imx_transport *of = offers;
    while (of && of->ticket != transport->tickets[rank])
        of = of->next;
    imbrex_status status = of ? desc->backend->memory_share(desc->device, of->own, memory)
                              : imx_fail(IMBREX_PEER, "rank %d has taken its memory back", rank);
    imx_process_unlock(IMX_LOCK_OFFERS);
    return status;
}

/* A ticket means something only between ranks of one process; others ignore it. */
static imbrex_status threads_swap(imx_transport *transport, imx_memory *own, imx_memory **memories)
{
    const imx_transport_desc *desc = &transport->desc;
    uint64_t ticket = offer(transport, own);
    IMX_TRY(desc->allgather(desc->ctx, &ticket, transport->tickets, sizeof ticket));
    for (int r = 0; r < desc->size; r++) {
        if (transport->peers[r])
            IMX_TRY(share(transport, r, &memories[r]));
    }
    return IMBREX_OK;
}

const imx_transport_kind imx_transport_local_threads = {
    .create = threads_create,
    .close = threads_close,
    .swap = threads_swap,
    .withdraw = threads_withdraw,
};
