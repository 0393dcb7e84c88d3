/* memory.c - memory that all ranks of a node reach.
 *
 *     device   an allocation of one GPU (cuMemCreate), mapped at an address of its own; another
 *              process maps it through a file descriptor, another GPU's rank of this process by the
 *              handle itself.  Ranks on one GPU share the mapping; all other mappings are one
 *              rank's, which alone gives its GPU the right to use it and takes it away.
 *              Where descriptors are refused it is cuMemAlloc's and travels as ipc.c has it, and
 *              the device says why.
 *     host     a memfd that is registered with the driver: processors and all GPUs use one address.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda.h"

typedef struct cuda_memory {
    imx_memory public;
    CUdevice gpu;
    CUcontext context; /* retained: memory may outlive its device */
    uint32_t refs;     /* ranks of this process that use it; atomic */
    bool host;
    int fd; /* host: -1 for a peer's */
    CUmemHandle handle;
    size_t room; /* bytes in whole pages of the device */
    bool reserved, allocated, mapped, registered;
    bool taken, opened; /* as ipc.c has it: here, or by a peer */
} cuda_memory;

/* Held around all calls that map memory or take mappings away.  Threads that do so beside each
 * other, each on a GPU of its own, made driver 580 free memory of its own twice.  None of these
 * calls waits for a kernel (test_gpu_waits.c). */
static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;

/* Calls that only undo: their results tell nothing that anybody could act on. */
static void undo(CUresult ignored)
{
    (void)ignored;
}

static void unmap(const cuda_memory *m)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)m->public.base;
    pthread_mutex_lock(&mapping);
    if (m->mapped)
        undo(imx_driver->cuMemUnmap(at, m->room));
    if (m->reserved)
        undo(imx_driver->cuMemAddressFree(at, m->room));
    if (m->allocated)
        undo(imx_driver->cuMemRelease(m->handle));
    pthread_mutex_unlock(&mapping);
}

static void destroy(cuda_memory *m)
{
    CUcontext before = NULL;
    bool entered = m->context && imx_cuda_enter(m->context, &before) == IMBREX_OK;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)m->public.base;
    if (m->registered)
        undo(imx_driver->cuMemHostUnregister(m->public.base));
    if (m->taken)
        undo(imx_driver->cuMemFree(at));
    if (m->opened)
        undo(imx_driver->cuIpcCloseMemHandle(at));
    if (m->mapped || m->reserved || m->allocated)
        unmap(m);
    if (m->host && m->public.base)
        munmap(m->public.base, m->public.bytes);
    if (m->fd >= 0)
        close(m->fd);
    if (entered)
        imx_cuda_leave(m->context, before);
    if (m->context)
        undo(imx_driver->cuDevicePrimaryCtxRelease(m->gpu));
    free(m);
}

/* An empty one, and its context made current. */
static imbrex_status begin(imx_device *device, size_t bytes, cuda_memory **out, CUcontext *before)
{
    cuda_memory *m = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *m, &m));
    m->public.bytes = bytes;
    m->gpu = device->gpu;
    m->refs = 1;
    m->fd = -1;
    imbrex_status status;
    IMX_GOTO(imx_driver_check(imx_driver->cuDevicePrimaryCtxRetain(&m->context, m->gpu),
                              "cuDevicePrimaryCtxRetain", "cannot use the GPU"));
    IMX_GOTO(imx_cuda_enter(m->context, before));
    *out = m;
    return IMBREX_OK;
fail:
    destroy(m);
    return status;
}

static imbrex_status finish(imx_device *device, cuda_memory *m, CUcontext before,
                            imbrex_status status, imx_memory **out)
{
    imx_cuda_leave(device->context, before);
    if (status == IMBREX_OK)
        *out = &m->public;
    else
        destroy(m);
    return status;
}

/* ---- device memory --------------------------------------------------------------------------- */

static CUmemAllocationProp shareable(const imx_device *device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_PINNED,
        .handle_types = CU_MEM_POSIX_FD,
        .location = { .type = CU_MEM_LOCATION_DEVICE, .id = device->gpu },
    };
}

static imbrex_status allow(const imx_device *device, const cuda_memory *m, const char *whose)
{
    CUmemAccessDesc access = {
        .location = { .type = CU_MEM_LOCATION_DEVICE, .id = device->gpu },
        .flags = CU_MEM_READWRITE,
    };
    return imx_driver_check(
        imx_driver->cuMemSetAccess((CUdeviceptr)(uintptr_t)m->public.base, m->room, &access, 1),
        "cuMemSetAccess", "GPU %d cannot use %s memory", device->gpu, whose);
}

static imbrex_status round_up(const imx_device *device, size_t bytes, size_t *room)
{
    CUmemAllocationProp prop = shareable(device);
    size_t page = 0;
    IMX_TRY(imx_driver_check(imx_driver->cuMemGetAllocationGranularity(&page, &prop, 0),
                             "cuMemGetAllocationGranularity", "cannot share GPU memory"));
    *room = imx_align(bytes ? bytes : 1, page ? page : 1);
    return IMBREX_OK;
}

static imbrex_status map_alone(const imx_device *device, cuda_memory *m, const char *whose)
{
    size_t room = 0;
    CUdeviceptr at = 0;
    IMX_TRY(round_up(device, m->public.bytes, &room));
    IMX_TRY(imx_driver_check(imx_driver->cuMemAddressReserve(&at, room, 0, 0, 0),
                             "cuMemAddressReserve", "no address for %zu bytes of GPU memory",
                             room));
    m->public.base = (void *)(uintptr_t)at;
    m->room = room;
    m->reserved = true;
    IMX_TRY(imx_driver_check(imx_driver->cuMemMap(at, room, 0, m->handle, 0), "cuMemMap",
                             "cannot map %zu bytes of GPU memory", room));
    m->mapped = true;
    return allow(device, m, whose);
}

/* Gives the handle an address that this device may use; whose it is is for the sentence. */
static imbrex_status map(const imx_device *device, cuda_memory *m, const char *whose)
{
    pthread_mutex_lock(&mapping);
    imbrex_status status = map_alone(device, m, whose);
    pthread_mutex_unlock(&mapping);
    return status;
}

/* On a stream of our own: the default one would wait for the caller's. */
static imbrex_status zero(imx_device *device, const cuda_memory *m)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)m->public.base;
    IMX_TRY(imx_driver_check(imx_driver->cuMemsetD8Async(at, 0, m->room, device->setup),
                             "cuMemsetD8Async", "cannot clear GPU memory"));
    return imx_driver_check(imx_driver->cuStreamSynchronize(device->setup), "cuStreamSynchronize",
                            "cannot clear GPU memory");
}

static imbrex_status take(imx_device *device, cuda_memory *m)
{
    CUdeviceptr at = 0;
    IMX_TRY(imx_cuda_ipc_take(m->public.bytes, &at, &m->room));
    m->public.base = (void *)(uintptr_t)at;
    m->taken = true;
    return zero(device, m);
}

static imbrex_status create(imx_device *device, cuda_memory *m)
{
    CUmemAllocationProp prop = shareable(device);
    size_t room = 0;
    IMX_TRY(round_up(device, m->public.bytes, &room));
    pthread_mutex_lock(&mapping);
    CUresult created = imx_driver->cuMemCreate(&m->handle, room, &prop, 0);
    pthread_mutex_unlock(&mapping);
    IMX_TRY(imx_driver_check(created, "cuMemCreate",
                             "cannot take %zu bytes of GPU %d that other processes can map", room,
                             device->gpu));
    m->allocated = true;
    IMX_TRY(map(device, m, "its own"));
    return zero(device, m);
}

imbrex_status imx_cuda_memory_create(imx_device *device, size_t bytes, imx_memory **out)
{
    cuda_memory *m = NULL;
    CUcontext before = NULL;
    IMX_TRY(begin(device, bytes, &m, &before));
    return finish(device, m, before, device->ipc ? take(device, m) : create(device, m), out);
}

/* ---- host memory ----------------------------------------------------------------------------- */

static imbrex_status map_host(cuda_memory *m, int fd)
{
    m->host = true;
    void *base = imx_sys.mmap(NULL, m->public.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return imx_fail_errno("cannot map %zu bytes of memory", m->public.bytes);
    m->public.base = base;
    IMX_TRY(imx_driver_check(
        imx_driver->cuMemHostRegister(base, m->public.bytes,
                                      CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
        "cuMemHostRegister", "the GPU cannot use %zu bytes of host memory", m->public.bytes));
    m->registered = true;
    return IMBREX_OK;
}

static imbrex_status create_host(cuda_memory *m)
{
    m->fd = imx_sys.memfd_create("imbrex", 0);
    if (m->fd < 0)
        return imx_fail_errno("cannot create %zu bytes of shared memory (memfd)", m->public.bytes);
    if (imx_sys.ftruncate(m->fd, (long)m->public.bytes) != 0)
        return imx_fail_errno("cannot size shared memory to %zu bytes", m->public.bytes);
    return map_host(m, m->fd);
}

imbrex_status imx_cuda_memory_create_host(imx_device *device, size_t bytes, imx_memory **out)
{
    cuda_memory *m = NULL;
    CUcontext before = NULL;
    IMX_TRY(begin(device, bytes, &m, &before));
    return finish(device, m, before, create_host(m), out);
}

/* ---- peers ----------------------------------------------------------------------------------- */

static imbrex_status descriptor(const cuda_memory *m, int *fd)
{
    pthread_mutex_lock(&mapping);
    CUresult made = imx_driver->cuMemExportToShareableHandle(fd, m->handle, CU_MEM_POSIX_FD, 0);
    pthread_mutex_unlock(&mapping);
    return imx_driver_check(made, "cuMemExportToShareableHandle",
                            "cannot make a descriptor of GPU memory");
}

imbrex_status imx_cuda_memory_export(imx_memory *memory, int *out)
{
    cuda_memory *m = (cuda_memory *)memory;
    int fd = -1;
    if (m->host) {
        fd = imx_sys.dup(m->fd);
        if (fd < 0)
            return imx_fail_errno("cannot duplicate the descriptor of shared memory");
    } else {
        CUcontext before;
        CUdeviceptr at = (CUdeviceptr)(uintptr_t)m->public.base;
        IMX_TRY(imx_cuda_enter(m->context, &before));
        imbrex_status status = m->taken ? imx_cuda_ipc_export(at, &fd) : descriptor(m, &fd);
        imx_cuda_leave(m->context, before);
        IMX_TRY(status);
    }
    *out = fd;
    return IMBREX_OK;
}

static imbrex_status open_handle(const imx_device *device, CUipcHandle handle, cuda_memory *m)
{
    CUdeviceptr at = 0;
    IMX_TRY(imx_cuda_ipc_open(handle, device->gpu, &at));
    m->public.base = (void *)(uintptr_t)at;
    m->opened = true;
    return IMBREX_OK;
}

static imbrex_status import(imx_device *device, int fd, bool host, cuda_memory *m)
{
    struct stat found;
    if (host && fstat(fd, &found) != 0)
        return imx_fail_errno("cannot look at a peer's memory");
    if (host && (size_t)found.st_size < m->public.bytes) /* past its end would be SIGBUS */
        return imx_fail(IMBREX_PEER, "a peer's memory has %lld bytes, not %zu",
                        (long long)found.st_size, m->public.bytes);
    if (host)
        return map_host(m, fd);
    CUipcHandle handle;
    if (imx_cuda_ipc_carries(fd, &handle))
        return open_handle(device, handle, m);
    pthread_mutex_lock(&mapping);
    CUresult imported = imx_driver->cuMemImportFromShareableHandle(&m->handle, (void *)(intptr_t)fd,
                                                                   CU_MEM_POSIX_FD);
    pthread_mutex_unlock(&mapping);
    IMX_TRY(imx_driver_check(imported, "cuMemImportFromShareableHandle",
                             "GPU %d cannot take a peer's memory by its descriptor; "
                             "IMBREX_CUDA_MEMORY=ipc on all ranks goes another way",
                             device->gpu));
    m->allocated = true;
    return map(device, m, "a peer's");
}

imbrex_status imx_cuda_memory_import(imx_device *device, int fd, const imx_memory *like,
                                     imx_memory **out)
{
    cuda_memory *m = NULL;
    CUcontext before = NULL;
    IMX_TRY(begin(device, like->bytes, &m, &before));
    imbrex_status status = import(device, fd, ((const cuda_memory *)like)->host, m);
    return finish(device, m, before, status, out);
}

static imbrex_status reach(const imx_device *device, const cuda_memory *m)
{
    CUcontext before;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    imbrex_status status = imx_cuda_ipc_reach(m->context, m->gpu, device->gpu);
    imx_cuda_leave(device->context, before);
    return status;
}

/* Another GPU's memory gets a mapping of this rank's own, which keeps the memory as long as it
 * lasts: what ranks in threads of their own change is then never one mapping. */
static imbrex_status map_beside(imx_device *device, const cuda_memory *of, imx_memory **out)
{
    cuda_memory *m = NULL;
    CUcontext before = NULL;
    char whose[24];
    snprintf(whose, sizeof whose, "GPU %d's", of->gpu);
    IMX_TRY(begin(device, of->public.bytes, &m, &before));
    m->handle = of->handle;
    return finish(device, m, before, map(device, m, whose), out);
}

imbrex_status imx_cuda_memory_share(imx_device *device, imx_memory *of_peer, imx_memory **out)
{
    cuda_memory *m = (cuda_memory *)of_peer;
    bool foreign = !m->host && m->gpu != device->gpu;
    if (foreign && !m->taken)
        return map_beside(device, m, out);
    if (foreign)
        IMX_TRY(reach(device, m));
    /* relaxed: the owner holds its own reference meanwhile */
    __atomic_add_fetch(&m->refs, 1, __ATOMIC_RELAXED);
    *out = of_peer;
    return IMBREX_OK;
}

void imx_cuda_memory_release(imx_memory *memory)
{
    cuda_memory *m = (cuda_memory *)memory;
    /* acq_rel: the last one unmaps after everything that the others did with the memory */
    if (m && __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL) == 0)
        destroy(m);
}
