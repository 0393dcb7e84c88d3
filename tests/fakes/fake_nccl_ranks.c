/* fake_nccl_ranks.c - loads the fake NCCL and joins it to the fake driver. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/cuda/driver.h"
#include "fake_nccl.h"
#include "fake_stream.h"

static int enqueue(void *stream, void (*fn)(void *arg), void *arg)
{
    return fake_stream_call(stream, fn, arg);
}

static bool has_gpu(void)
{
    CUcontext context = NULL;
    return imx_driver->cuCtxGetCurrent(&context) == CUDA_SUCCESS && context;
}

/* Stays loaded, so that what is set here is what imbrex meets. */
fake_nccl_state *fake_nccl_install(void)
{
    void *library = dlopen(FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    fake_nccl_state *state = library ? dlsym(library, FAKE_NCCL_SYMBOL) : NULL;
    if (!state) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    setenv("IMBREX_NCCL", FAKE_NCCL, 1);
    *state = (fake_nccl_state){ .version = 22809, .enqueue = enqueue, .has_gpu = has_gpu };
    return state;
}
