/* host.h - rank 0's side of the rendezvous: lets the ranks of its group in, and nobody else. */
#ifndef IMX_HOST_H
#define IMX_HOST_H

#include "handshake.h"
#include "rendezvous.h"

/* Listens until all ranks are connected to star, an open one, and tells them so; or fails, and
 * tells those that are there why. */
imbrex_status imx_host_meet(const imx_rendezvous_desc *desc, const imx_handshake_id *id,
                            int64_t deadline, imx_star *star) IMX_MUST_CHECK;

#endif /* IMX_HOST_H */
