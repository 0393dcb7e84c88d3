/* oob.h - the connections of a bootstrap once they stand: every rank has one to rank 0, and all
 * that is swapped goes through there.
 *
 *     ranks 1 .. size-1           rank 0
 *     header, own blob      -->   waits for all of them, by the deadline
 *                           <--   header, all blobs; or header, why not
 *
 * A header is believed when its seal has been verified, and what follows it with its digest.
 *
 * A failure anywhere ends the allgather everywhere: rank 0 tells all that it can still reach, and
 * whoever else fails closes its connection, which tells rank 0.
 */
#ifndef IMX_OOB_H
#define IMX_OOB_H

#include "seal.h"
#include "socket.h"

enum { IMX_OOB_TEXT = 400, IMX_OOB_GRACE_MS = 500 };

typedef struct imx_oob_header {
    uint64_t magic;
    uint64_t call;        /* counts the out-of-band allgathers; 0: all ranks are there */
    uint64_t bytes;       /* of one rank's blob */
    int64_t remaining_ms; /* to rank 0: until the sender gives up */
    uint64_t status;      /* from rank 0: an imbrex_status; not OK: the text follows, no blobs */
    uint64_t digest;      /* of what follows, under a key that only the group's ranks have */
    uint64_t seal;        /* of this header, in which it is 0 then */
} imx_oob_header;

/* Rank 0's side of one connection. */
typedef struct imx_oob_link {
    int fd; /* -1: not connected */
    imx_seal_pair seals;
    bool done;
    bool midway; /* part of a message is on its way to the rank: nothing else can be said */
    imx_oob_header in;
    imx_socket_span header, body;
} imx_oob_link;

typedef struct imx_oob {
    int rank, size;
    int64_t timeout_ms;
    const uint64_t *abort; /* of the group that it serves: not 0 ends all waits here; NULL: none */
    uint64_t call;
    uint64_t key[2];      /* of the digests */
    imx_oob_link *links;  /* [size]; all but rank 0 use only links[0].fd */
    struct pollfd *polls; /* [size] */
    int *polled;          /* [size]: whose polls[i] is */
    imbrex_status status; /* the first failure, and what it said */
    char text[IMX_OOB_TEXT];
} imx_oob;

/* One without connections.  oob is zeroed memory; on failure too, imx_oob_close it. */
imbrex_status imx_oob_open(imx_oob *oob, int rank, int size, int64_t timeout_ms) IMX_MUST_CHECK;
void imx_oob_close(imx_oob *oob);

/* Rank 0: all ranks are connected.  Others: waits for rank 0 to say so. */
imbrex_status imx_oob_start(imx_oob *oob, int64_t deadline) IMX_MUST_CHECK;

/* Keeps the failure that imx_fail has just noted, and tells the others. */
imbrex_status imx_oob_fail(imx_oob *oob, imbrex_status status) IMX_MUST_CHECK;

/* Collective.  recv gets size * bytes. */
imbrex_status imx_oob_allgather(imx_oob *oob, const void *send, void *recv,
                                size_t bytes) IMX_MUST_CHECK;

/* "rank 3", "ranks 2 and 5", "ranks 1, 2, 3 and 9 more": the links for which wanted is true. */
void imx_oob_name_ranks(const imx_oob *oob, bool (*wanted)(const imx_oob_link *link),
                        imx_text *text);

#endif /* IMX_OOB_H */
