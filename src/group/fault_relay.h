/* fault_relay.h - what ends the waits of one node is told to all others: between nodes there is no
 * memory in which all could see an abort word.
 *
 * The first rank of each node has a TCP connection to rank 0, and a thread that looks at its own
 * abort word and at these connections.  Rank 0 passes on what it hears.  Where no connection can be
 * made (a firewall), and when a wire is cut, the deadlines of the waits are what is left: then the
 * other nodes fail later, and know less.
 */
#ifndef IMX_FAULT_RELAY_H
#define IMX_FAULT_RELAY_H

#include "state.h"

/* Collective, for a group over several nodes.  *out is NULL on ranks that are not the first of
 * their node, and where there is nobody to talk to. */
imbrex_status imx_fault_relay_open(imbrex_group *group, imx_fault_relay **out) IMX_MUST_CHECK;

/* Takes leave of the others.  NULL is fine. */
void imx_fault_relay_close(imx_fault_relay *relay);

#endif /* IMX_FAULT_RELAY_H */
