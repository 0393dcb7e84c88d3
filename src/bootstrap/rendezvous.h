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

#include "host.h"
#include "oob.h"
#include "rendezvous_desc.h"

/* Collective.  oob is zeroed memory; close it, on failure too.  TIMEOUT names the ranks that did
 * not come, on all that did.  *host: what rank 0 still listens with; imx_host_close it with the
 * group.  NULL on other ranks, and on failure. */
imbrex_status imx_rendezvous_meet(const imx_rendezvous_desc *desc, imx_oob *oob,
                                  imx_host **host) IMX_MUST_CHECK;

#endif /* IMX_RENDEZVOUS_H */
