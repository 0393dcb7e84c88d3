/* rendezvous_desc.h - which ranks meet, where, and until when. */
#ifndef IMX_RENDEZVOUS_DESC_H
#define IMX_RENDEZVOUS_DESC_H

#include "launch_env.h"
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

#endif /* IMX_RENDEZVOUS_DESC_H */
