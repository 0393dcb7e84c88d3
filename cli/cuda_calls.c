/* cuda_calls.c - fills the table of driver functions. */
#include "cuda_calls.h"

#include <dlfcn.h>

#include "failure.h"

const cuda_calls *cuda;

static cuda_calls loaded;

/* The library stays open: the operators use it too. */
static imbrex_status load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return failure_note(IMBREX_UNSUPPORTED, "no NVIDIA driver to time with: %s", dlerror());
#define LOAD(name, symbol, takes)                                                            \
    if (!(*(void **)&loaded.name = dlsym(library, symbol)))                                  \
        return failure_note(IMBREX_UNSUPPORTED, "the NVIDIA driver is too old: it lacks %s", \
                            symbol);
    CUDA_CALLS_TABLE(LOAD)
#undef LOAD
    return IMBREX_OK;
}

imbrex_status cuda_calls_open(void)
{
    if (!cuda) {
        imbrex_status status = load();
        if (status != IMBREX_OK)
            return status;
        cuda = &loaded;
    }
    return cuda_calls_check(cuda->cuInit(0), "cuInit");
}

imbrex_status cuda_calls_check(int result, const char *call)
{
    const char *name = "?";
    if (result == 0)
        return IMBREX_OK;
    if (cuda->cuGetErrorName(result, &name) != 0)
        name = "an unknown error";
    return failure_note(IMBREX_DEVICE, "cannot time on the GPU: %s says %s (%d)", call, name,
                        result);
}
