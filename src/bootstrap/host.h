/* host.h - rank 0's side of the rendezvous: lets the ranks of its group in, and nobody else. */
#ifndef IMX_HOST_H
#define IMX_HOST_H

#include "handshake.h"
#include "oob.h"
#include "rendezvous_desc.h"

typedef struct imx_host imx_host;

/* Listens until all ranks are connected to oob, an open one, and tells them so; or fails, and
 * tells those that are there why.  settles: nothing tells this launch from another.
 *
 * Then a thread goes on to listen, so that nobody else can be rank 0 of this group, and turns away
 * who comes: on OK until imx_host_close(*out); on failure for some time, with the reason. */
imbrex_status imx_host_meet(const imx_rendezvous_desc *desc, const imx_handshake_id *id,
                            bool settles, int64_t deadline, imx_oob *oob,
                            imx_host **out) IMX_MUST_CHECK;
void imx_host_close(imx_host *host); /* NULL is fine */

/* Ends what still turns ranks away after a failure. */
void imx_host_close_failed(void);

#endif /* IMX_HOST_H */
