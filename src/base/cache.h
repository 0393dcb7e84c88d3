/* cache.h - compiled kernels on disk, so that they are compiled once and not at every start.
 *
 * One file an image (a cubin, a shared object), named by its key.  A file is only used if its
 * header, key and digest are right, and a shared object only if it loads; otherwise the kernel is
 * compiled again and the file replaced.
 * The cache never fails a call: without a folder there is none, and `imbrex info` says why.
 */
#ifndef IMX_CACHE_H
#define IMX_CACHE_H

#include "folder.h"

/* What an image depends on; start with zeros and add each part. */
typedef struct imx_cache_key {
    uint64_t words[2];
} imx_cache_key;

void imx_cache_key_add(imx_cache_key *key, const void *part, size_t bytes);

/* False: not there, or not to be trusted.  Free *image with free(). */
bool imx_cache_load(const imx_folder *folder, const imx_cache_key *key, void **image,
                    size_t *bytes);

void imx_cache_store(const imx_folder *folder, const imx_cache_key *key, const void *image,
                     size_t bytes);

#endif /* IMX_CACHE_H */
