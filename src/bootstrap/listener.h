/* listener.h - rank 0's socket, at the one place where the ranks of its group look for it. */
#ifndef IMX_LISTENER_H
#define IMX_LISTENER_H

#include "handshake.h"
#include "rendezvous_desc.h"

/* PEER: another rank 0 of this group is there already, and has been told, or another user's process
 * is. */
imbrex_status imx_listener_open(const imx_rendezvous_desc *desc, const imx_handshake_id *id,
                                int64_t deadline, imx_socket_address *address,
                                int *listener) IMX_MUST_CHECK;

/* PEER: another user's process is at the unix address where rank 0 would listen. */
imbrex_status imx_listener_fail_foreign(const imx_socket_address *address,
                                        int64_t user) IMX_MUST_CHECK;

#endif /* IMX_LISTENER_H */
