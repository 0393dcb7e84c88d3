/* seal.c - a key for every message, from the direction's key and the message's number. */
#include "seal.h"

#include "base/siphash.h"

uint64_t imx_seal_next(imx_seal *seal, const void *message, size_t bytes)
{
    const uint64_t numbers[2] = { 2 * seal->count, 2 * seal->count + 1 };
    const uint64_t key[2] = { imx_siphash(seal->key, &numbers[0], sizeof numbers[0]),
                              imx_siphash(seal->key, &numbers[1], sizeof numbers[1]) };
    seal->count++;
    return imx_siphash(key, message, bytes);
}
