/* ipc.c - GPU memory as cudaIpc shares it, for machines whose driver refuses descriptors of memory:
 * 64 bytes that name an allocation.  They travel in a memfd, so that whoever passes descriptors of
 * memory between processes sees no difference.
 *
 * It is the second choice: the manual leaves undefined what becomes of a mapping whose owner frees
 * the memory or dies, and cuMemFree waits for the whole GPU.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda.h"

/* ---- which kind ------------------------------------------------------------------------------ */

/* A refusal is an answer, *refused; what else fails is a failure. */
static imbrex_status judge(CUresult result, const char *call, imx_text *why, bool *refused)
{
    const char *name = "?";
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return imx_driver_check(result, call, "cannot try how GPU memory is shared");
    *refused = result != CUDA_SUCCESS;
    if (*refused && imx_driver->cuGetErrorName(result, &name) != CUDA_SUCCESS)
        name = "?";
    if (*refused)
        imx_text_add(why, "cudaIpc, because %s says %s (%d)", call, name, result);
    return IMBREX_OK;
}

/* Containers and hypervisors refuse what the attributes promise: only a descriptor tells. */
static imbrex_status try_descriptor(CUdevice gpu, imx_text *why, bool *refused)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_PINNED,
        .handle_types = CU_MEM_POSIX_FD,
        .location = { .type = CU_MEM_LOCATION_DEVICE, .id = gpu },
    };
    size_t page = 0;
    CUmemHandle handle = 0;
    int fd = -1;
    IMX_TRY(judge(imx_driver->cuMemGetAllocationGranularity(&page, &prop, 0),
                  "cuMemGetAllocationGranularity", why, refused));
    if (*refused)
        return IMBREX_OK;
    IMX_TRY(judge(imx_driver->cuMemCreate(&handle, page, &prop, 0), "cuMemCreate", why, refused));
    if (*refused)
        return IMBREX_OK;
    imbrex_status status =
        judge(imx_driver->cuMemExportToShareableHandle(&fd, handle, CU_MEM_POSIX_FD, 0),
              "cuMemExportToShareableHandle", why, refused);
    if (status == IMBREX_OK && !*refused)
        close(fd);
    CUresult ignored = imx_driver->cuMemRelease(handle);
    (void)ignored;
    return status;
}

imbrex_status imx_cuda_ipc_choose(CUdevice gpu, const imx_env *env, bool *ipc, imx_text *why)
{
    const char *asked = env->cuda_memory;
    *ipc = strcmp(asked, "ipc") == 0;
    if (*ipc)
        imx_text_add(why, "cudaIpc, because IMBREX_CUDA_MEMORY asks for it");
    if (*asked)
        return IMBREX_OK;
    *ipc = true;
    if (!imx_cuda_attribute(gpu, CU_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
        imx_text_add(why, "cudaIpc, because the driver has no virtual memory management "
                          "(cuMemCreate) for this GPU");
    else if (!imx_cuda_attribute(gpu, CU_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        imx_text_add(why, "cudaIpc, because this GPU's memory cannot be passed between processes "
                          "as a file descriptor");
    else
        return try_descriptor(gpu, why, ipc);
    return IMBREX_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Smaller allocations share a page of the driver's, all of which a handle would open. */
enum { PAGE = 2 << 20 };

imbrex_status imx_cuda_ipc_take(size_t bytes, CUdeviceptr *at, size_t *room)
{
    size_t all = imx_align(bytes ? bytes : 1, PAGE);
    IMX_TRY(imx_driver_check(imx_driver->cuMemAlloc(at, all), "cuMemAlloc",
                             "cannot take %zu bytes of GPU memory", all));
    *room = all;
    return IMBREX_OK;
}

/* What the memfd holds. */
typedef struct carried {
    char magic[16];
    CUipcHandle handle;
} carried;

static const char magic[16] = "imbrex cudaIpc";

imbrex_status imx_cuda_ipc_export(CUdeviceptr at, int *fd)
{
    carried c = { 0 };
    memcpy(c.magic, magic, sizeof magic);
    IMX_TRY(imx_driver_check(imx_driver->cuIpcGetMemHandle(&c.handle, at), "cuIpcGetMemHandle",
                             "cannot share GPU memory between processes in either way"));
    int made = imx_sys.memfd_create("imbrex handle", MFD_CLOEXEC);
    if (made < 0)
        return imx_fail_errno("cannot make a memfd for a handle of GPU memory");
    if (pwrite(made, &c, sizeof c, 0) != (ssize_t)sizeof c) {
        imbrex_status status = imx_fail_errno("cannot write a handle of GPU memory");
        close(made);
        return status;
    }
    *fd = made;
    return IMBREX_OK;
}

/* By its size first: a driver's own descriptor need not stand being read. */
bool imx_cuda_ipc_carries(int fd, CUipcHandle *handle)
{
    struct stat found;
    carried c;
    if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size != sizeof c ||
        pread(fd, &c, sizeof c, 0) != (ssize_t)sizeof c ||
        memcmp(c.magic, magic, sizeof magic) != 0)
        return false;
    *handle = c.handle;
    return true;
}

imbrex_status imx_cuda_ipc_open(CUipcHandle handle, CUdevice gpu, CUdeviceptr *at)
{
    return imx_driver_check(
        imx_driver->cuIpcOpenMemHandle(at, handle, CU_IPC_LAZY_ENABLE_PEER_ACCESS),
        "cuIpcOpenMemHandle", "GPU %d cannot take a peer's memory", gpu);
}

imbrex_status imx_cuda_ipc_reach(CUcontext owner, CUdevice of, CUdevice by)
{
    CUresult result = imx_driver->cuCtxEnablePeerAccess(owner, 0);
    if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) /* by an earlier piece, or the caller */
        return IMBREX_OK;
    return imx_driver_check(result, "cuCtxEnablePeerAccess", "GPU %d cannot use memory of GPU %d",
                            by, of);
}
