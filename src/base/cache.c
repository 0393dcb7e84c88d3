/* cache.c - the files of the cache: | magic | key | bytes | digest | image |.
 *
 * Keys and digests are SipHash, which the rendezvous needs anyway, with constant keys: they have to
 * tell texts apart and to see damage.  Keeping an attacker out is the work of owner and mode: who
 * may write the folder may as well write the program.
 */
#include "cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "siphash.h"

typedef struct header {
    char magic[8];
    imx_cache_key key, digest;
    uint64_t bytes;
} header;

static const char magic[8] = "imbrex1"; /* changes with the layout */

enum { IMAGE_BYTES_MOST = 64 << 20, NAME_MOST = 48 };

void imx_cache_key_add(imx_cache_key *key, const void *part, size_t bytes)
{
    const uint64_t first[2] = { key->words[0], key->words[1] };
    const uint64_t second[2] = { key->words[1] ^ 0x9e3779b97f4a7c15, key->words[0] };
    key->words[0] = imx_siphash(first, part, bytes);
    key->words[1] = imx_siphash(second, part, bytes);
}

static imx_cache_key digest_of(const void *image, size_t bytes)
{
    imx_cache_key digest = { { 1, 2 } };
    imx_cache_key_add(&digest, image, bytes);
    return digest;
}

static void name_file(const imx_cache_key *key, char name[NAME_MOST])
{
    snprintf(name, NAME_MOST, "%016llx%016llx.kernel", (unsigned long long)key->words[0],
             (unsigned long long)key->words[1]);
}

/* The file's header says what follows it, and that is what was written. */
static bool is_whole(const header *h, const imx_cache_key *key, size_t bytes)
{
    if (bytes < sizeof *h || memcmp(h->magic, magic, sizeof magic) != 0 ||
        memcmp(&h->key, key, sizeof *key) != 0 || h->bytes == 0 || h->bytes != bytes - sizeof *h)
        return false;
    imx_cache_key digest = digest_of(h + 1, h->bytes);
    return memcmp(&digest, &h->digest, sizeof digest) == 0;
}

bool imx_cache_load(const imx_folder *folder, const imx_cache_key *key, void **image, size_t *bytes)
{
    char name[NAME_MOST];
    size_t read = 0;
    name_file(key, name);
    header *file = imx_folder_read(folder, name, sizeof *file + IMAGE_BYTES_MOST, &read);
    if (!file || !is_whole(file, key, read)) {
        free(file);
        return false;
    }
    *bytes = file->bytes;
    memmove(file, file + 1, *bytes);
    *image = file;
    return true;
}

void imx_cache_store(const imx_folder *folder, const imx_cache_key *key, const void *image,
                     size_t bytes)
{
    char name[NAME_MOST];
    name_file(key, name);
    header h = { .key = *key, .digest = digest_of(image, bytes), .bytes = bytes };
    memcpy(h.magic, magic, sizeof magic);
    const struct iovec parts[] = { { &h, sizeof h }, { (void *)image, bytes } };
    bool kept = imx_folder_write(folder, name, parts, 2);
    (void)kept; /* what is not kept is compiled again */
}
