/* handshake.h - two strangers on a socket find out whether they belong to one group: both prove
 * that they know the group's key, neither shows it.  From the key and both nonces follow the keys
 * of the connection (seal.h), which somebody between the two does not learn.
 *
 *     guest (rank r)                             host (rank 0)
 *     hello: rank, size, sequence, nonce   -->
 *                                          <--   challenge: sequence, nonce
 *     proof over both                      -->
 *                                          <--   verdict, with a proof over all of it
 */
#ifndef IMX_HANDSHAKE_H
#define IMX_HANDSHAKE_H

#include "seal.h"
#include "socket.h"

/* Which group, and who in it. */
typedef struct imx_handshake_id {
    uint64_t key[2];   /* from the token, and what else tells this job from others */
    uint64_t sequence; /* number of the group in its job */
    uint64_t launch;   /* with which rank 0 this process met under this key first; 0: with none */
    int rank, size;
} imx_handshake_id;

/* A name that follows from the group's key and sequence, and does not give the key away. */
uint64_t imx_handshake_name(const imx_handshake_id *id);

/* A key that all ranks of the group have, for what is the same on all their connections. */
void imx_handshake_group_key(const imx_handshake_id *id, uint64_t key[2]);

/* Messages are native structs without holes; the magic word tells machines of another byte order
 * apart. */
typedef struct imx_handshake_hello {
    uint64_t magic;
    uint32_t rank, size;
    uint64_t sequence;
    uint64_t launch;      /* as in imx_handshake_id */
    int64_t remaining_ms; /* until the guest gives up */
    unsigned char nonce[16];
} imx_handshake_hello;

typedef struct imx_handshake_challenge {
    uint64_t magic;
    uint64_t sequence;
    unsigned char nonce[16];
} imx_handshake_challenge;

typedef struct imx_handshake_proof {
    uint64_t magic;
    uint64_t proof;
} imx_handshake_proof;

enum { IMX_HANDSHAKE_WELCOME, IMX_HANDSHAKE_REFUSED, IMX_HANDSHAKE_WRONG_KEY };

typedef struct imx_handshake_verdict {
    uint64_t magic;
    uint64_t proof; /* 0 with WRONG_KEY: whoever gets that must not believe more than it says */
    uint64_t code;
    uint64_t launch; /* the host's, which WELCOME guests have from now on */
    char text[256];  /* why REFUSED */
} imx_handshake_verdict;

/* ---- Host ------------------------------------------------------------------------------------ */

/* A connection that has not proved anything yet.  Starts as { .fd = fd, .limit = ... }. */
typedef struct imx_handshake_guest {
    int fd;
    int64_t limit; /* when the host loses patience */
    int step;      /* 0: it has said nothing yet */
    size_t have;   /* bytes of the current message */
    imx_handshake_hello hello;
    imx_handshake_challenge challenge;
    imx_handshake_proof proof;
} imx_handshake_guest;

/* When fd is readable.  AGAIN: wait for more.  DONE: the guest knows the key; its hello can be
 * believed and wants a verdict.  Else: close it. */
imx_socket_result imx_handshake_step(imx_handshake_guest *guest,
                                     const imx_handshake_id *id) IMX_MUST_CHECK;

/* Sends the verdict.  Else than DONE: the guest did not get it; close it. */
imx_socket_result imx_handshake_answer(imx_handshake_guest *guest, const imx_handshake_id *id,
                                       int code, const char *text) IMX_MUST_CHECK;

/* The host's end of the connection to a guest that is WELCOME. */
imx_seal_pair imx_handshake_seals(const imx_handshake_guest *guest, const imx_handshake_id *id);

/* ---- Guest ----------------------------------------------------------------------------------- */

typedef enum imx_handshake_result {
    IMX_HANDSHAKE_STRANGER,    /* another group of this job, no imbrex at all, or silence */
    IMX_HANDSHAKE_OTHER_KEY,   /* an imbrex rank 0 with another key */
    IMX_HANDSHAKE_TURNED_AWAY, /* by this group's rank 0; the text says why */
    IMX_HANDSHAKE_JOINED
} imx_handshake_result;

/* What the guest knows when it has been heard. */
typedef struct imx_handshake_outcome {
    imx_handshake_result result;
    imx_seal_pair seals; /* JOINED: the guest's end of the connection */
    uint64_t launch;     /* JOINED: the host's */
    char text[256];      /* TURNED_AWAY: why */
} imx_handshake_outcome;

/* The guest's side on a fresh connection.  Gives up on silence at first_deadline, and once it
 * talks to an imbrex of its group's sequence, at deadline.  Fails only for reasons of its own. */
imbrex_status imx_handshake_join(int fd, const imx_handshake_id *id, int64_t first_deadline,
                                 int64_t deadline, imx_handshake_outcome *outcome) IMX_MUST_CHECK;

#endif /* IMX_HANDSHAKE_H */
