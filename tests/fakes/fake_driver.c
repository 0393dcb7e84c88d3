/* fake_driver.c - the driver's table and the compiler's, filled with functions over host memory. */
#define _GNU_SOURCE
#include "fake_driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_function.h"
#include "fake_memory.h"
#include "fake_module.h"
#include "fake_nvrtc.h"
#include "fake_stream.h"
#include "ptx_tensor.h"

enum { GPUS_MOST = 8, ATTRIBUTES = 160 };

struct CUctx_st {
    int gpu, retained;
};

static struct {
    int gpus, links;
    int refuses; /* descriptors of memory */
    int reached[GPUS_MOST][GPUS_MOST];
    int attributes[ATTRIBUTES];
    int others_from, others[ATTRIBUTES]; /* of GPUs from this one on, where not 0 */
    struct CUctx_st contexts[GPUS_MOST];
    CUdeviceptr pageable; /* one range; all other memory is of a kind that no copy waits for */
    size_t pageable_bytes;
    int live, compiled, encoded, asked;
    int local_bytes, stack_bytes; /* that a kernel's thread wants, and has */
    int countdown;
    const char *failed;
} fake;

static _Thread_local CUcontext current;

static void count(int *what, int by)
{
    __atomic_add_fetch(what, by, __ATOMIC_RELAXED);
}

void fake_driver_count(int objects)
{
    count(&fake.live, objects);
}

void fake_driver_count_compiled(void)
{
    count(&fake.compiled, 1);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Every call that can fail begins with this or with what contains it. */
CUresult fake_driver_may_fail(const char *call)
{
    if (__atomic_load_n(&fake.countdown, __ATOMIC_RELAXED) &&
        __atomic_sub_fetch(&fake.countdown, 1, __ATOMIC_RELAXED) == 0) {
        __atomic_store_n(&fake.failed, call, __ATOMIC_RELAXED);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult fake_driver_in_context(const char *call)
{
    if (!current || !__atomic_load_n(&current->retained, __ATOMIC_RELAXED)) {
        fprintf(stderr, "%s: no current context\n", call);
        return 201;
    }
    return fake_driver_may_fail(call);
}

/* What a real driver refuses while the thread captures a stream. */
CUresult fake_driver_outside_capture(const char *call)
{
    if (fake_stream_captures()) {
        fprintf(stderr, "%s: in a capture\n", call);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return fake_driver_in_context(call);
}

/* ---- devices and contexts -------------------------------------------------------------------- */

static CUresult init(unsigned flags)
{
    (void)flags;
    FAKE_TRY(fake.gpus ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE);
    return fake_driver_may_fail("cuInit");
}

static CUresult driver_version(int *version)
{
    *version = fake.attributes[0] ? fake.attributes[0] : 13000;
    return CUDA_SUCCESS;
}

static CUresult error_name(CUresult error, const char **name)
{
    *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

static CUresult error_string(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "fake";
    return CUDA_SUCCESS;
}

static CUresult device_count(int *gpus)
{
    *gpus = fake.gpus;
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int index)
{
    *device = index;
    return index < fake.gpus ? fake_driver_may_fail("cuDeviceGet") : CUDA_ERROR_INVALID_VALUE;
}

static CUresult device_name(char *name, int bytes, CUdevice device)
{
    snprintf(name, (size_t)bytes, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
    memset(uuid, 0x10 + device, sizeof *uuid);
    return fake_driver_may_fail("cuDeviceGetUuid");
}

static CUresult device_memory(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)16 << 30;
    return CUDA_SUCCESS;
}

int fake_driver_attribute(int gpu, int which)
{
    bool other = fake.others_from && gpu >= fake.others_from && fake.others[which];
    return other ? fake.others[which] : fake.attributes[which];
}

int fake_driver_gpu(void)
{
    return (int)(current - fake.contexts);
}

static CUresult device_attribute(int *value, int which, CUdevice device)
{
    *value = fake_driver_attribute(device, which);
    return CUDA_SUCCESS;
}

static CUresult p2p_attribute(int *value, int which, CUdevice from, CUdevice to)
{
    (void)which;
    *value = from != to && fake.links;
    return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    FAKE_TRY(fake_stream_captures() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
    FAKE_TRY(fake_driver_may_fail("cuDevicePrimaryCtxRetain"));
    *context = &fake.contexts[device];
    count(&fake.contexts[device].retained, 1);
    count(&fake.live, 1);
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device)
{
    count(&fake.contexts[device].retained, -1);
    count(&fake.live, -1);
    return CUDA_SUCCESS;
}

static CUresult get_current(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

static CUresult priorities(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return fake_driver_in_context("cuCtxGetStreamPriorityRange");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *pointer(CUdeviceptr at)
{
    return (void *)(uintptr_t)at;
}

static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access,
                           size_t entries)
{
    FAKE_TRY(fake_driver_outside_capture("cuMemSetAccess"));
    for (size_t i = 0; i < entries; i++) {
        if (access[i].flags != CU_MEM_READWRITE || access[i].location.id >= fake.gpus)
            return CUDA_ERROR_INVALID_VALUE;
        if (access[i].location.id && !fake.links) /* GPU 0 owns all memory of such a test */
            return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    return mprotect(pointer(at), bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE
                                                                : CUDA_SUCCESS;
}

static CUresult export(void *out, CUmemHandle handle, int type, unsigned long long flags)
{
    (void)flags;
    FAKE_TRY(fake_driver_outside_capture("cuMemExportToShareableHandle"));
    if (fake.refuses)
        return CUDA_ERROR_NOT_SUPPORTED;
    *(int *)out = fcntl((int)handle - 1, F_DUPFD_CLOEXEC, 0);
    return type != CU_MEM_POSIX_FD || *(int *)out < 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult enable_peer(CUcontext owner, unsigned flags)
{
    FAKE_TRY(fake_driver_outside_capture("cuCtxEnablePeerAccess"));
    if (!fake.links || flags || owner == current)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return __atomic_exchange_n(&fake.reached[current->gpu][owner->gpu], 1, __ATOMIC_RELAXED)
               ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
               : CUDA_SUCCESS;
}

/* The real one knows no pageable memory. */
static CUresult pointer_attributes(unsigned number, int *attributes, void **values, CUdeviceptr at)
{
    count(&fake.asked, 1);
    if (number != 1 || attributes[0] != CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        return CUDA_ERROR_INVALID_VALUE;
    *(unsigned *)values[0] = at - fake.pageable < fake.pageable_bytes ? 0 : 2;
    return CUDA_SUCCESS;
}

static CUresult host_register(void *at, size_t bytes, unsigned flags)
{
    (void)at;
    (void)bytes;
    if (flags != (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP))
        return CUDA_ERROR_INVALID_VALUE;
    FAKE_TRY(fake_driver_outside_capture("cuMemHostRegister"));
    count(&fake.live, 1);
    return CUDA_SUCCESS;
}

static CUresult host_unregister(void *at)
{
    (void)at;
    count(&fake.live, -1);
    return current ? CUDA_SUCCESS : 201;
}

static CUresult memset_async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream)
{
    FAKE_TRY(fake_driver_in_context("cuMemsetD8Async"));
    return fake_stream_set(pointer(at), value, bytes, stream);
}

static CUresult memcpy_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    FAKE_TRY(fake_driver_in_context("cuMemcpyAsync"));
    return fake_stream_copy(pointer(to), pointer(from), bytes, stream);
}

/* ---- streams, events, functions -------------------------------------------------------------- */

static CUresult stream_create(CUstream *stream, unsigned flags, int priority)
{
    FAKE_TRY(fake_driver_in_context("cuStreamCreateWithPriority"));
    if (flags != CU_STREAM_NON_BLOCKING || priority != -5)
        return CUDA_ERROR_INVALID_VALUE;
    FAKE_TRY(fake_stream_create(stream));
    fake_stream_set_gpu(*stream, fake_driver_gpu());
    count(&fake.live, 1);
    return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream)
{
    fake_stream_destroy(stream);
    count(&fake.live, -1);
    return CUDA_SUCCESS;
}

static CUresult stream_sync(CUstream stream)
{
    FAKE_TRY(
        fake_stream_sync(stream)); /* an error is one of the work: it comes when that has ended */
    return fake_driver_outside_capture("cuStreamSynchronize");
}

static CUresult stream_wait(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    FAKE_TRY(fake_driver_in_context("cuStreamWaitEvent"));
    return fake_event_wait(event, stream);
}

static CUresult event_create(CUevent *event, unsigned flags)
{
    FAKE_TRY(fake_driver_in_context("cuEventCreate"));
    if (flags != CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_VALUE;
    *event = fake_event_create();
    count(&fake.live, 1);
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    fake_event_destroy(event);
    count(&fake.live, -1);
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    FAKE_TRY(fake_driver_in_context("cuEventRecord"));
    return fake_event_record(event, stream);
}

static CUresult function_attribute(int *value, int which, CUfunction function)
{
    (void)function;
    *value = which == CU_FUNC_MAX_THREADS_PER_BLOCK ? 1024
             : which == CU_FUNC_LOCAL_SIZE_BYTES    ? fake.local_bytes
                                                    : 0;
    return fake_driver_in_context("cuFuncGetAttribute");
}

static CUresult function_load(CUfunction function)
{
    FAKE_TRY(fake_driver_outside_capture("cuFuncLoad"));
    *fake_function_loaded(function) = true;
    return CUDA_SUCCESS;
}

static CUresult get_limit(size_t *value, int which)
{
    *value = (size_t)__atomic_load_n(&fake.stack_bytes, __ATOMIC_RELAXED);
    FAKE_TRY(which == CU_LIMIT_STACK_SIZE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
    return fake_driver_in_context("cuCtxGetLimit");
}

static CUresult set_limit(int which, size_t value)
{
    FAKE_TRY(which == CU_LIMIT_STACK_SIZE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
    FAKE_TRY(fake_driver_outside_capture("cuCtxSetLimit"));
    __atomic_store_n(&fake.stack_bytes, (int)value, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

static CUresult set_function(CUfunction function, int which, int value)
{
    FAKE_TRY(fake_driver_outside_capture("cuFuncSetAttribute"));
    if (which == CU_FUNC_PREFERRED_SHARED_CARVEOUT)
        return fake_function_split(function, current->gpu, value);
    return which != CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
                   value > fake.attributes[CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN]
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

static _Thread_local int launched;

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **params,
                       void **extra)
{
    FAKE_TRY(fake_driver_in_context("cuLaunchKernelEx"));
    int gpu = fake_stream_gpu(config->stream);
    if (gpu >= 0 && current != &fake.contexts[gpu])
        return CUDA_ERROR_INVALID_HANDLE;
    if (!*fake_function_loaded(function) ||
        fake.local_bytes > __atomic_load_n(&fake.stack_bytes, __ATOMIC_RELAXED)) {
        fprintf(stderr, "cuLaunchKernelEx: would wait for an idle GPU\n");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (extra || !fake_function_takes(function, config))
        return CUDA_ERROR_INVALID_VALUE;
    launched++;
    return fake_stream_launch(function, config, params);
}

/* The rules of the manual that a caller can break. */
static CUresult encode(CUtensorMap *encoded, int dtype, uint32_t rank, void *address,
                       const uint64_t *sizes, const uint64_t *strides, const uint32_t *box,
                       const uint32_t *steps, int interleave, int swizzle, int promotion, int fill)
{
    FAKE_TRY(fake_driver_in_context("cuTensorMapEncodeTiled"));
    ptx_why why;
    if (!ptx_map_encode(encoded, dtype, rank, address, sizes, strides, box, steps, interleave,
                        swizzle, promotion, fill, &why)) {
        fprintf(stderr, "cuTensorMapEncodeTiled: %s\n", why.text);
        return CUDA_ERROR_INVALID_VALUE;
    }
    count(&fake.encoded, 1);
    return CUDA_SUCCESS;
}

static const imx_driver_calls driver = {
    .cuInit = init,
    .cuDriverGetVersion = driver_version,
    .cuGetErrorName = error_name,
    .cuGetErrorString = error_string,
    .cuDeviceGetCount = device_count,
    .cuDeviceGet = device_get,
    .cuDeviceGetName = device_name,
    .cuDeviceGetUuid = device_uuid,
    .cuDeviceTotalMem = device_memory,
    .cuDeviceGetAttribute = device_attribute,
    .cuDeviceGetP2PAttribute = p2p_attribute,
    .cuDevicePrimaryCtxRetain = retain,
    .cuDevicePrimaryCtxRelease = release,
    .cuCtxGetCurrent = get_current,
    .cuCtxSetCurrent = set_current,
    .cuCtxGetLimit = get_limit,
    .cuCtxSetLimit = set_limit,
    .cuCtxGetStreamPriorityRange = priorities,
    .cuMemGetAllocationGranularity = fake_memory_granularity,
    .cuMemCreate = fake_memory_create,
    .cuMemRelease = fake_memory_release,
    .cuMemAddressReserve = fake_memory_reserve,
    .cuMemAddressFree = fake_memory_unreserve,
    .cuMemMap = fake_memory_map,
    .cuMemUnmap = fake_memory_unmap,
    .cuMemSetAccess = set_access,
    .cuMemExportToShareableHandle = export,
    .cuMemImportFromShareableHandle = fake_memory_import,
    .cuMemAlloc = fake_memory_alloc,
    .cuMemFree = fake_memory_free,
    .cuIpcGetMemHandle = fake_memory_handle,
    .cuIpcOpenMemHandle = fake_memory_open,
    .cuIpcCloseMemHandle = fake_memory_close,
    .cuCtxEnablePeerAccess = enable_peer,
    .cuMemHostRegister = host_register,
    .cuMemHostUnregister = host_unregister,
    .cuMemsetD8Async = memset_async,
    .cuPointerGetAttributes = pointer_attributes,
    .cuMemcpyAsync = memcpy_async,
    .cuStreamCreateWithPriority = stream_create,
    .cuStreamDestroy = stream_destroy,
    .cuStreamSynchronize = stream_sync,
    .cuStreamWaitEvent = stream_wait,
    .cuStreamGetCaptureInfo = fake_stream_capture,
    .cuEventCreate = event_create,
    .cuEventDestroy = event_destroy,
    .cuEventRecord = event_record,
    .cuModuleLoadData = fake_module_load,
    .cuModuleUnload = fake_module_unload,
    .cuModuleGetFunction = fake_module_function,
    .cuModuleGetGlobal = fake_module_global,
    .cuFuncGetAttribute = function_attribute,
    .cuFuncSetAttribute = set_function,
    .cuFuncLoad = function_load,
    .cuLaunchKernelEx = launch,
    .cuTensorMapEncodeTiled = encode,
};

/* ---- settings -------------------------------------------------------------------------------- */

void fake_driver_install(int gpus)
{
    memset(&fake, 0, sizeof fake);
    fake_module_forget();
    fake.gpus = gpus;
    fake.links = 1;
    fake.stack_bytes = 1024;
    for (int i = 0; i < GPUS_MOST; i++)
        fake.contexts[i].gpu = i;
    fake_function_forget();
    fake.attributes[CU_MULTIPROCESSOR_COUNT] = 12;
    fake.attributes[CU_COMPUTE_CAPABILITY_MAJOR] = 9;
    fake.attributes[CU_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1;
    fake.attributes[CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = 232448;
    fake.attributes[CU_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1;
    fake.attributes[CU_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1;
    imx_driver = &driver;
    imx_nvrtc = &fake_nvrtc_calls;
}

void fake_driver_set(int attribute, int value)
{
    fake.attributes[attribute] = value;
}

void fake_driver_set_from(int gpu, int attribute, int value)
{
    fake.others_from = gpu;
    fake.others[attribute] = value;
}

void fake_driver_set_links(int reached)
{
    fake.links = reached;
}

void fake_driver_refuse_descriptors(void)
{
    fake.refuses = 1;
}

void fake_driver_set_local(int bytes)
{
    fake.local_bytes = bytes;
}

void fake_driver_set_pageable(const void *at, size_t bytes)
{
    fake.pageable = (CUdeviceptr)(uintptr_t)at;
    fake.pageable_bytes = bytes;
}

void fake_driver_fail(int n)
{
    fake.failed = NULL;
    fake.countdown = n;
}

const char *fake_driver_failed(void)
{
    return fake.failed;
}

int fake_driver_live(void)
{
    return fake.live;
}

int fake_driver_compiled(void)
{
    return fake.compiled;
}

int fake_driver_launched(void)
{
    return launched;
}

int fake_driver_encoded(void)
{
    return fake.encoded;
}

int fake_driver_asked(void)
{
    return fake.asked;
}
