/* build.c - from a kernel's config to its cubin. */
#include <pthread.h>
#include <string.h>

#include "base/source.h"
#include "cuda.h"
#include "nvrtc.h"

/* All that the cubin depends on.  The source's text holds all that it includes. */
static imx_cache_key key_of(const imx_cuda_config *config, int arch, const imx_source *source)
{
    imx_cache_key key = source->key;
    int numbers[] = { arch, imx_nvrtc_version() };
    imx_cache_key_add(&key, config->options, strlen(config->options));
    imx_cache_key_add(&key, config->entry, strlen(config->entry));
    imx_cache_key_add(&key, numbers, sizeof numbers);
    return key;
}

static imbrex_status build(const imx_folder *cache, const imx_cuda_config *config, int arch,
                           const imx_source *source, void **cubin, size_t *bytes, char **log)
{
    imx_cache_key key = key_of(config, arch, source);
    if (imx_cache_load(cache, &key, cubin, bytes))
        return IMBREX_OK;
    IMX_TRY(
        imx_nvrtc_compile(config->source, source->text, config->options, arch, cubin, bytes, log));
    imx_cache_store(cache, &key, *cubin, *bytes);
    return IMBREX_OK;
}

imbrex_status imx_cuda_configure(const imx_kernel *kernel, const void *largest,
                                 const imx_cuda_target *target, int arch, int blocks,
                                 imx_cuda_config *config)
{
    *config = (imx_cuda_config){ 0 };
    if (kernel->cuda_config)
        kernel->cuda_config(largest, target, blocks, config);
    if (config->source)
        return IMBREX_OK;
    return imx_fail(IMBREX_UNSUPPORTED, "kernel %s has no form for this shape on sm_%d%s%s",
                    kernel->name, arch, config->wants ? ": " : "",
                    config->wants ? config->wants : "");
}

/* One at a time: ranks of one process want the same kernel; the second finds it in the cache. */
imbrex_status imx_cuda_build(const imx_folder *cache, const imx_cuda_config *config, int arch,
                             void **cubin, size_t *bytes, char **log)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const imx_source *source;
    if (log)
        *log = NULL;
    IMX_TRY(imx_source_expand(config->source, &source));
    pthread_mutex_lock(&lock);
    imbrex_status status = build(cache, config, arch, source, cubin, bytes, log);
    pthread_mutex_unlock(&lock);
    return status;
}
