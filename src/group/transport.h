/* transport.h - the seam to other ranks: how a piece of memory becomes reachable for a peer, and
 * how a peer's death is noticed.
 *
 * There is one transport for each way that two ranks can stand to each other; a group has a row of
 * them, one a peer.
 *
 *   local_threads   ranks of one process: the memory object itself is shared
 *   local_fds       ranks of one host: the memory's file descriptor is passed over a unix socket
 */
#ifndef IMX_TRANSPORT_H
#define IMX_TRANSPORT_H

#include "backends/backend.h"

typedef struct imx_transport imx_transport; /* one rank's connections of one kind */

/* What a transport needs of its group. */
typedef struct imx_transport_desc {
    const imx_backend *backend;
    imx_device *device;
    int rank, size;
    int64_t timeout_ms;
    imbrex_status (*allgather)(void *ctx, const void *send, void *recv, size_t bytes);
    void *ctx; /* of allgather */
} imx_transport_desc;

typedef struct imx_transport_kind {
    /* Local: takes all that a rank may lack, before the ranks rely on each other in open. */
    imbrex_status (*create)(const imx_transport_desc *desc, const bool *peers,
                            imx_transport **transport);

    /* Collective over the whole group, whether or not this transport has any peer: connects to
     * every peer p with peers[p].  NULL: needs no connection. */
    imbrex_status (*open)(imx_transport *transport);
    void (*close)(imx_transport *transport); /* NULL is fine */

    /* Collective: each rank offers its memory, of one size on all ranks, and gets its peers' in
     * memories[p] for every p with peers[p].  On failure some may be there: the caller releases
     * them. */
    imbrex_status (*swap)(imx_transport *transport, imx_memory *own, imx_memory **memories);

    /* Local, after every swap, once all ranks have met again or this one gives up: from now on own
     * may be released, whatever the peers do.  NULL: it might be all along. */
    void (*withdraw)(imx_transport *transport);

    /* From now on until close, and from a thread of its own, calls gone(ctx, rank) once for every
     * peer that closed its side or whose process ended; and a swap waits for nobody any more once
     * *abort is not 0.  NULL: a peer cannot go without the rest of the process. */
    imbrex_status (*watch)(imx_transport *transport, const uint64_t *abort,
                           void (*gone)(void *ctx, int rank), void *ctx);
} imx_transport_kind;

extern const imx_transport_kind imx_transport_local_threads;
extern const imx_transport_kind imx_transport_local_fds;

#endif /* IMX_TRANSPORT_H */
