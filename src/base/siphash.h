/* siphash.h - a keyed hash of short messages, SipHash-2-4: who does not know the key cannot make
 * it. */
#ifndef IMX_SIPHASH_H
#define IMX_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t imx_siphash(const uint64_t key[2], const void *message, size_t bytes);

#endif /* IMX_SIPHASH_H */
