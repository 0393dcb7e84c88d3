/* driver.c - finds the driver, fills the table, and puts its errors into sentences. */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

const imx_driver_calls *imx_driver;

static imx_driver_calls loaded; /* filled once and then only read */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { VERSION_LEAST = 12000 };

/* The library stays open for good: contexts of other users may live in it. */
static imbrex_status load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "no NVIDIA driver: libcuda.so.1 is not found; install the driver, or give "
                        "this container access to the GPUs, or use device \"cpu\" (%s)",
                        dlerror());
#define LOAD(name, symbol, takes)                                                               \
    if (!(*(void **)&loaded.name = dlsym(library, symbol)))                                     \
        return imx_fail(IMBREX_UNSUPPORTED,                                                     \
                        "the NVIDIA driver is too old: it lacks %s; imbrex needs a driver for " \
                        "CUDA %d.%d or newer",                                                  \
                        symbol, VERSION_LEAST / 1000, VERSION_LEAST % 1000 / 10);
    IMX_DRIVER_TABLE(LOAD)
#undef LOAD
#define LOAD(name, symbol, takes) *(void **)&loaded.name = dlsym(library, symbol);
    IMX_DRIVER_LATER_TABLE(LOAD)
#undef LOAD
    return IMBREX_OK;
}

static imbrex_status start(const imx_driver_calls *calls)
{
    CUresult result = calls->cuInit(0);
    if (result == CUDA_ERROR_NO_DEVICE)
        return imx_fail(IMBREX_UNSUPPORTED,
                        "the NVIDIA driver sees no GPU: is CUDA_VISIBLE_DEVICES empty?");
    const char *name = NULL;
    if (result != CUDA_SUCCESS && calls->cuGetErrorName(result, &name) != CUDA_SUCCESS)
        name = "?";
    if (result != CUDA_SUCCESS)
        return imx_fail(IMBREX_DEVICE,
                        "the NVIDIA driver does not start: cuInit says %s (%d); look at nvidia-smi",
                        name, result);
    int version = 0, count = 0;
    result = calls->cuDriverGetVersion(&version);
    if (result == CUDA_SUCCESS && version < VERSION_LEAST)
        return imx_fail(
            IMBREX_UNSUPPORTED, "the NVIDIA driver is for CUDA %d.%d: imbrex needs %d.%d or newer",
            version / 1000, version % 1000 / 10, VERSION_LEAST / 1000, VERSION_LEAST % 1000 / 10);
    if (result != CUDA_SUCCESS || calls->cuDeviceGetCount(&count) != CUDA_SUCCESS || count < 1)
        return imx_fail(IMBREX_UNSUPPORTED, "the NVIDIA driver sees no GPU");
    return IMBREX_OK;
}

imbrex_status imx_driver_open(void)
{
    imbrex_status status = IMBREX_OK;
    pthread_mutex_lock(&lock);
    const imx_driver_calls *calls = imx_driver;
    if (!calls) {
        status = load();
        calls = &loaded;
    }
    if (status == IMBREX_OK)
        status = start(calls); /* cuInit does nothing the second time */
    if (status == IMBREX_OK && !imx_driver)
        imx_driver = calls; /* once: other ranks of this process read it without the lock */
    pthread_mutex_unlock(&lock);
    return status;
}

int imx_driver_version(void)
{
    int version = 0;
    return imx_driver && imx_driver->cuDriverGetVersion(&version) == CUDA_SUCCESS ? version : 0;
}

/* ---- errors ---------------------------------------------------------------------------------- */

typedef struct meaning {
    CUresult first, last;
    imbrex_status status;
    const char *advice;
} meaning;

static const meaning meanings[] = {
    { CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, IMBREX_NO_MEMORY,
      "the GPU's memory is full" },
    { CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER,
      IMBREX_UNSUPPORTED, "the driver is too old" },
    { CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_NO_BINARY_FOR_GPU, IMBREX_DEVICE,
      "was the kernel compiled for another GPU? clear IMBREX_CACHE_DIR" },
    { CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, IMBREX_UNSUPPORTED,
      "the GPUs cannot reach each other's memory: `imbrex info` shows which can" },
    { CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, IMBREX_DEVICE,
      "a kernel failed and took the process's GPU context with it: end the process; "
      "compute-sanitizer tells which kernel" },
    { CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED, IMBREX_UNSUPPORTED,
      "`imbrex info` says what this machine can do" },
    { CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_CAPTURED_EVENT, IMBREX_INVALID,
      "a graph is being captured on this stream: see what imbrex.h says about graphs" },
};

imbrex_status imx_driver_check(CUresult result, const char *call, const char *format, ...)
{
    if (result == CUDA_SUCCESS)
        return IMBREX_OK;
    char sentence[200];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    const char *name = "?", *text = "?";
    if (imx_driver->cuGetErrorName(result, &name) != CUDA_SUCCESS ||
        imx_driver->cuGetErrorString(result, &text) != CUDA_SUCCESS)
        text = "a result that the driver has no words for";
    const meaning *m = meanings, *end = meanings + sizeof meanings / sizeof meanings[0];
    while (m < end && (result < m->first || result > m->last))
        m++;
    return imx_fail(m < end ? m->status : IMBREX_DEVICE, "%s: %s says %s (%d), %s%s%s", sentence,
                    call, name, result, text, m < end ? "; " : "", m < end ? m->advice : "");
}
