/* rendezvous.h - the ranks of a job find rank 0, prove that they belong to it, and wait until all
 * are there.
 *
 * On one host rank 0 listens on an abstract unix socket, whose name follows from what makes this
 * group this group; on several, on the first free TCP port above MASTER_PORT, which torchrun's
 * agent holds itself.  Strangers that call there are dropped; the ranks call until the deadline.
 *
 * Ranks of two launches that nothing tells apart (the same port, token and user, no job's id) must
 * not make a group together:
 *
 *   at once    Rank 0 waits a moment longer than for its ranks.  If a rank comes whose number is
 *              taken, or another rank 0, nobody can say who belongs to whom: all fail.
 *   later      Rank 0 listens for as long as the group lives.  Another rank 0 finds the place
 *              taken; a rank that finds the group complete is told.
 *   again      A process remembers with which rank 0 it first met under a key.  Ranks that remember
 *              different ones make no group.
 */
#ifndef IMX_RENDEZVOUS_H
#define IMX_RENDEZVOUS_H

#include "launch_env.h"
#include "oob.h"
#include "socket.h"

enum { IMX_RENDEZVOUS_PORTS = 32 };

typedef struct imx_rendezvous_desc {
    const imx_launch_env *launch;
    const char *token;  /* ""; the job's name and this user's id serve */
    const char *bind;   /* where rank 0 listens, if not at launch->address; "": there */
    uint64_t sequence;  /* number of this group in the job */
    int64_t timeout_ms; /* > 0 */

    /* Of ranks that have their place and its key from each other already, and nobody else has. */
    bool alone;       /* rank 0 goes to listen no more once they have met, or failed to */
    int64_t later_ms; /* limit of what they swap then; 0: timeout_ms */
    int listener;     /* rank 0's at one of places; it stays the caller's */
    const imx_socket_address *places; /* where the others look for it, over TCP */
    int place_count;                  /* 0: where the launch says */
} imx_rendezvous_desc;

typedef struct imx_host imx_host;

/* Collective.  oob is zeroed memory; close it, on failure too.  TIMEOUT names the ranks that did
 * not come, on all that did.  *host: what rank 0 still listens with; imx_host_close it with the
 * group.  NULL on other ranks, and on failure. */
imbrex_status imx_rendezvous_meet(const imx_rendezvous_desc *desc, imx_oob *oob,
                                  imx_host **host) IMX_MUST_CHECK;

/* PEER: another user's process is at the unix address where rank 0 would listen. */
imbrex_status imx_rendezvous_fail_foreign(const imx_socket_address *address,
                                          int64_t user) IMX_MUST_CHECK;

#endif /* IMX_RENDEZVOUS_H */
