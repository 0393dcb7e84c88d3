/* seal.h - a connection after its handshake: each message carries a MAC (SipHash-2-4, 64 bits) that
 * only its two ends can make, under a key of its own.
 *
 * Each direction has its key, and the number of the message is in it: what was altered, repeated,
 * sent back, left out or put in another order does not verify.  Nothing is encrypted.
 */
#ifndef IMX_SEAL_H
#define IMX_SEAL_H

#include <stddef.h>
#include <stdint.h>

/* One direction. */
typedef struct imx_seal {
    uint64_t key[2];
    uint64_t count; /* messages so far */
} imx_seal;

/* One end of a connection. */
typedef struct imx_seal_pair {
    imx_seal send, receive;
} imx_seal_pair;

/* The MAC of the next message of this direction; the receiver makes it again, and compares. */
uint64_t imx_seal_next(imx_seal *seal, const void *message, size_t bytes);

#endif /* IMX_SEAL_H */
