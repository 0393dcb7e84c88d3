/* door.h - how the first ranks of the nodes reach rank 0 with a connection of their own: rank 0
 * opens a door to all, and lets in who proves that it belongs to the group (handshake.h). */
#ifndef IMX_DOOR_H
#define IMX_DOOR_H

#include "handshake.h"

enum { IMX_DOOR_ADDRESSES = 8 };

/* Where rank 0 can be reached, and a fresh part of the key; swapped by the group. */
typedef struct imx_door_offer {
    uint64_t key[2];
    uint32_t addresses[IMX_DOOR_ADDRESSES]; /* IPv4, as on the wire */
    int32_t count, port;
} imx_door_offer;

/* A connection between rank 0 and the first rank of another node. */
typedef struct imx_door_wire {
    int fd;   /* -1: none, or no more */
    int rank; /* at the other end */
    imx_seal_pair seals;
} imx_door_wire;

/* Rank 0: a listening socket; -1: a rank 0 that cannot listen offers nothing. */
int imx_door_open(imx_door_offer *offer);

/* The offered addresses; returns how many. */
int imx_door_places(const imx_door_offer *offer, imx_socket_address places[IMX_DOOR_ADDRESSES]);

/* A connection to the first address that answers, by the deadline; -1: none does. */
int imx_door_call(const imx_door_offer *offer, int64_t deadline);

/* A caller's side of the handshake on wire->fd, which is closed, and -1, if rank 0 does not let it
 * in by the deadline. */
void imx_door_enter(const imx_handshake_id *id, int64_t deadline, imx_door_wire *wire);

/* Rank 0's side, with `callers` at the door and strangers among them, who hold up nobody: until as
 * many of wires[count] are there, or the deadline. */
void imx_door_let_in(int listener, const imx_handshake_id *id, int callers, int64_t deadline,
                     imx_door_wire *wires, int count);

#endif /* IMX_DOOR_H */
