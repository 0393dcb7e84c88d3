/* rendezvous.h - the ranks of a job find rank 0, prove that they belong to it, and wait until all
 * are there.
 *
 * On one host rank 0 listens on an abstract unix socket, whose name follows from what makes this
 * group this group; on several, on the first free TCP port above MASTER_PORT, which torchrun's
 * agent holds itself.  Strangers that call there are dropped; the ranks call until the deadline.
 */
#ifndef IMX_RENDEZVOUS_H
#define IMX_RENDEZVOUS_H

#include "launch_env.h"
#include "star.h"

enum { IMX_RENDEZVOUS_PORTS = 32 };

typedef struct imx_rendezvous_desc {
    const imx_launch_env *launch;
    const char *token;  /* ""; the job's name and this user's id serve */
    const char *bind;   /* where rank 0 listens, if not at launch->address; "": there */
    uint64_t sequence;  /* number of this group in the job */
    int64_t timeout_ms; /* > 0 */
} imx_rendezvous_desc;

/* Collective.  star is zeroed memory; close it, on failure too.  TIMEOUT names the ranks that did
 * not come, on all that did. */
imbrex_status imx_rendezvous_meet(const imx_rendezvous_desc *desc, imx_star *star) IMX_MUST_CHECK;

/* PEER: another user's process is at the unix address where rank 0 would listen. */
imbrex_status imx_rendezvous_fail_foreign(const imx_socket_address *address,
                                          int64_t user) IMX_MUST_CHECK;

#endif /* IMX_RENDEZVOUS_H */
