/* user.c - kernels of the caller's on GPUs: compiled or taken out of the cache, loaded, launched
 * with their team. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "nvrtc.h"

struct imx_user {
    CUmodule module;
    CUfunction function;
    size_t shared_bytes;
    char name[64];
};

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static imbrex_status build(const imx_device *device, const imx_user_desc *desc, void **cubin,
                           size_t *bytes)
{
    if (!desc->text)
        return imx_fail(IMBREX_INVALID, "desc.source and desc.file are NULL: want one, in CUDA C");
    if (ends_with(desc->file, ".cubin")) {
        IMX_TRY(imx_sys_alloc(1, desc->text_bytes + 1, cubin));
        memcpy(*cubin, desc->text, desc->text_bytes);
        *bytes = desc->text_bytes;
        return IMBREX_OK;
    }
    imx_cache_key key = desc->key;
    int numbers[] = { device->arch, imx_nvrtc_version() };
    imx_cache_key_add(&key, numbers, sizeof numbers);
    if (imx_cache_load(&device->cache, &key, cubin, bytes))
        return IMBREX_OK;
    IMX_TRY(imx_nvrtc_compile_user(desc, device->arch, cubin, bytes));
    imx_cache_store(&device->cache, &key, *cubin, *bytes);
    return IMBREX_OK;
}

/* One at a time: ranks of one process want the same kernel; the second finds it in the cache. */
static imbrex_status build_alone(const imx_device *device, const imx_user_desc *desc, void **cubin,
                                 size_t *bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    imbrex_status status = build(device, desc, cubin, bytes);
    pthread_mutex_unlock(&lock);
    return status;
}

imbrex_status imx_cuda_user_compile(imx_device *device, const imx_user_desc *desc, imx_user **user,
                                    imx_user_facts *facts)
{
    void *cubin = NULL;
    size_t bytes = 0;
    (void)user;
    (void)facts;
    IMX_TRY(build_alone(device, desc, &cubin, &bytes));
    free(cubin);
    return IMBREX_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

static imbrex_status attribute(const imx_user *user, int which, int *value)
{
    return imx_driver_check(imx_driver->cuFuncGetAttribute(value, which, user->function),
                            "cuFuncGetAttribute", "cannot look at kernel %s", user->name);
}

/* IMBREXD_KERNEL leaves an array that is as large as the args. */
static imbrex_status find_entry(imx_user *user, const char *file, size_t *args_bytes)
{
    char array[96];
    CUdeviceptr at = 0;
    snprintf(array, sizeof array, "imbrexd_args_%s", user->name);
    CUresult found = imx_driver->cuModuleGetGlobal(&at, args_bytes, user->module, array);
    if (found == CUDA_SUCCESS)
        found = imx_driver->cuModuleGetFunction(&user->function, user->module, user->name);
    if (found == CUDA_ERROR_NOT_FOUND)
        return imx_fail(IMBREX_INVALID,
                        "%s has no kernel %s: want IMBREXD_KERNEL(%s, ...) in it, or another "
                        "desc.name",
                        file, user->name, user->name);
    return imx_driver_check(found, "cuModuleGetFunction", "cannot load kernel %s", user->name);
}

static imbrex_status check_shared(const imx_device *device, const imx_user *user)
{
    int fixed = 0;
    IMX_TRY(attribute(user, CU_FUNC_SHARED_SIZE_BYTES, &fixed));
    if (user->shared_bytes + (size_t)fixed > device->shared_bytes_most)
        return imx_fail(IMBREX_INVALID,
                        "desc.shared_bytes is %zu, and kernel %s itself has %d: a block of this "
                        "GPU has at most %zu",
                        user->shared_bytes, user->name, fixed, device->shared_bytes_most);
    return imx_cuda_function_ready(user->function, user->name, user->shared_bytes);
}

static imbrex_status load(const imx_device *device, imx_user *user, const char *file,
                          const void *cubin, imx_user_facts *facts)
{
    CUresult loaded = imx_driver->cuModuleLoadData(&user->module, cubin);
    if (loaded == CUDA_ERROR_INVALID_IMAGE || loaded == CUDA_ERROR_NO_BINARY_FOR_GPU)
        return imx_fail(IMBREX_INVALID, "%s is not for this GPU, an sm_%d", file, device->arch);
    IMX_TRY(imx_driver_check(loaded, "cuModuleLoadData", "the GPU does not take kernel %s",
                             user->name));
    IMX_TRY(find_entry(user, file, &facts->args_bytes));
    IMX_TRY(attribute(user, CU_FUNC_MAX_THREADS_PER_BLOCK, &facts->threads_most));
    return check_shared(device, user);
}

imbrex_status imx_cuda_user_prepare(imx_device *device, const imx_user_desc *desc, imx_user **out,
                                    imx_user_facts *facts)
{
    imx_user *user = NULL;
    void *cubin = NULL;
    size_t bytes = 0;
    CUcontext before;
    IMX_TRY(imx_sys_alloc(1, sizeof *user, &user));
    snprintf(user->name, sizeof user->name, "%s", desc->name);
    user->shared_bytes = desc->shared_bytes;
    imbrex_status status;
    IMX_GOTO(build_alone(device, desc, &cubin, &bytes));
    IMX_GOTO(imx_cuda_enter(device->context, &before));
    status = load(device, user, desc->file, cubin, facts);
    imx_cuda_leave(device->context, before);
    if (status != IMBREX_OK)
        goto fail;
    free(cubin);
    *out = user;
    return IMBREX_OK;
fail:
    free(cubin);
    imx_cuda_user_destroy(device, user);
    return status;
}

void imx_cuda_user_destroy(imx_device *device, imx_user *user)
{
    CUcontext before;
    if (user && user->module && imx_cuda_enter(device->context, &before) == IMBREX_OK) {
        CUresult unloaded = imx_driver->cuModuleUnload(user->module);
        (void)unloaded;
        imx_cuda_leave(device->context, before);
    }
    free(user);
}

/* ---- launch ---------------------------------------------------------------------------------- */

imbrex_status imx_cuda_user_launch(imx_device *device, imx_user *user,
                                   const imx_user_launch *launch, imbrex_stream stream)
{
    if (launch->after)
        IMX_TRY(imx_cuda_event_wait(device, launch->after, stream));
    imbrexd_team team = *launch->team;
    team.watch = device->watch;
    void *params[] = { (void *)launch->args, &team };
    CUlaunchConfig config = {
        .grid = { (unsigned)launch->grid, 1, 1 },
        .block = { (unsigned)launch->block, 1, 1 },
        .shared_bytes = (unsigned)user->shared_bytes,
        .stream = (CUstream)stream,
    };
    CUcontext before;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    CUresult launched = imx_driver->cuLaunchKernelEx(&config, user->function, params, NULL);
    imx_cuda_leave(device->context, before);
    if (launched == CUDA_ERROR_INVALID_HANDLE)
        return imx_fail(IMBREX_INVALID,
                        "stream, %p, is not one of GPU %d, where kernel %s was loaded", stream,
                        device->gpu, user->name);
    return imx_driver_check(launched, "cuLaunchKernelEx",
                            "cannot launch kernel %s with %d blocks of %d threads", user->name,
                            launch->grid, launch->block);
}
