/* info.c - what `imbrex info` says about GPUs: which there are, how they reach each other, what
 * works and why not. */
#include "cuda.h"

#include <string.h>

#include "nvrtc.h"

const char *imx_cuda_lacks(CUdevice gpu)
{
    static const struct {
        int attribute;
        const char *why;
    } needs[] = {
        { CU_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
          "it does not see host memory under the host's addresses" },
    };
    if (imx_cuda_attribute(gpu, CU_COMPUTE_CAPABILITY_MAJOR) < 8)
        return "it is older than compute capability 8.0 (Ampere)";
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
        if (!imx_cuda_attribute(gpu, needs[i].attribute))
            return needs[i].why;
    }
    return NULL;
}

static void add_gpu(imx_text *text, int index, CUdevice gpu)
{
    char name[96] = "?";
    size_t bytes = 0;
    if (imx_driver->cuDeviceGetName(name, sizeof name, gpu) != CUDA_SUCCESS ||
        imx_driver->cuDeviceTotalMem(&bytes, gpu) != CUDA_SUCCESS)
        bytes = 0;
    const char *lacks = imx_cuda_lacks(gpu);
    imx_text_add(text, "gpu %d: %s, sm_%d%d, %d SMs, %.1f GiB%s%s\n", index, name,
                 imx_cuda_attribute(gpu, CU_COMPUTE_CAPABILITY_MAJOR),
                 imx_cuda_attribute(gpu, CU_COMPUTE_CAPABILITY_MINOR),
                 imx_cuda_attribute(gpu, CU_MULTIPROCESSOR_COUNT), (double)bytes / (1 << 30),
                 lacks ? "; cannot be used: " : "", lacks ? lacks : "");
}

static const char NVLINK[] = "NVLink";

/* Atomics between GPUs work over NVLink and not over PCIe. */
static const char *link_between(CUdevice from, CUdevice to)
{
    int reaches = 0, atomics = 0;
    if (imx_driver->cuDeviceGetP2PAttribute(&reaches, CU_P2P_ACCESS_SUPPORTED, from, to) ||
        imx_driver->cuDeviceGetP2PAttribute(&atomics, CU_P2P_NATIVE_ATOMIC_SUPPORTED, from, to))
        return "unknown";
    return !reaches ? "NOT REACHED" : atomics ? NVLINK : "PCIe, slow";
}

CUresult imx_cuda_identify(CUdevice gpu, char id[IMX_CUDA_ID])
{
    CUuuid uuid;
    CUresult got = imx_driver->cuDeviceGetUuid(&uuid, gpu);
    imx_text text = { .at = id, .size = IMX_CUDA_ID };
    for (int i = 0; i < 16 && got == CUDA_SUCCESS; i++)
        imx_text_add(&text, "%02x", uuid.bytes[i]);
    return got;
}

/* The GPU of that id, or -1: one that this process does not see. */
static CUresult find_gpu(const char *id, CUdevice *found)
{
    char other[IMX_CUDA_ID];
    int count = 0;
    CUresult failed = imx_driver->cuDeviceGetCount(&count);
    *found = -1;
    for (int i = 0; i < count && failed == CUDA_SUCCESS && *found < 0; i++) {
        CUdevice gpu;
        failed = imx_driver->cuDeviceGet(&gpu, i);
        if (failed == CUDA_SUCCESS)
            failed = imx_cuda_identify(gpu, other);
        if (failed == CUDA_SUCCESS && strcmp(id, other) == 0)
            *found = gpu;
    }
    return failed;
}

void imx_cuda_link(const imx_device *device, const char *id, imx_text *text)
{
    CUdevice gpu;
    const char *link = "unknown";
    if (find_gpu(id, &gpu) == CUDA_SUCCESS && gpu >= 0)
        link = gpu == device->gpu ? "one GPU" : link_between(device->gpu, gpu);
    imx_text_add(text, "%s", link);
}

imbrex_status imx_cuda_whole_lines(const imx_device *device, const char *id, bool *whole)
{
    CUdevice gpu;
    IMX_TRY(imx_driver_check(find_gpu(id, &gpu), "cuDeviceGetUuid", "cannot find a peer's GPU"));
    *whole = gpu >= 0 && gpu != device->gpu && link_between(device->gpu, gpu) == NVLINK;
    return IMBREX_OK;
}

static void add_links(imx_text *text, const CUdevice *gpus, int count, int index)
{
    if (count < 2)
        return;
    imx_text_add(text, "gpu %d to:", index);
    for (int i = 0; i < count; i++) {
        if (i != index)
            imx_text_add(text, " %d %s%s", i, link_between(gpus[index], gpus[i]),
                         i < count - 1 - (index == count - 1) ? "," : "");
    }
    imx_text_add(text, "\n");
}

/* Only with the GPU's context does the driver say what it refuses. */
static imbrex_status try_memory(CUdevice gpu, const imx_env *env, bool *ipc, imx_text *why)
{
    CUcontext context = NULL, before = NULL;
    IMX_TRY(imx_driver_check(imx_driver->cuDevicePrimaryCtxRetain(&context, gpu),
                             "cuDevicePrimaryCtxRetain", "cannot use GPU %d", gpu));
    imbrex_status status = imx_cuda_enter(context, &before);
    if (status == IMBREX_OK) {
        status = imx_cuda_ipc_choose(gpu, env, ipc, why);
        imx_cuda_leave(context, before);
    }
    CUresult ignored = imx_driver->cuDevicePrimaryCtxRelease(gpu);
    (void)ignored;
    return status;
}

static void add_memory(imx_text *text, CUdevice gpu, const imx_env *env)
{
    bool ipc = false;
    char words[256] = "";
    imx_text why = { .at = words, .size = sizeof words };
    if (try_memory(gpu, env, &ipc, &why) != IMBREX_OK)
        imx_text_add(text, "symmetric memory: none: %s\n", imx_status_detail());
    else
        imx_text_add(text, "symmetric memory: %s\n",
                     ipc ? words : "cuMem, passed between processes as file descriptors");
}

static void add_tools(imx_text *text, const imx_env *env)
{
    if (imx_nvrtc_open(env->nvrtc) == IMBREX_OK)
        imx_text_add(text, "kernel compiler: NVRTC %d.%d, %s\n", imx_nvrtc_version() / 1000,
                     imx_nvrtc_version() % 1000 / 10, imx_nvrtc_path());
    else
        imx_text_add(text, "kernel compiler: none: %s\n", imx_status_detail());
    imx_text_add(text, "spans of gpus: of plans made while they are recorded\n");
}

enum { GPUS_SHOWN = 32 };

void imx_cuda_info(imx_text *text)
{
    if (imx_driver_open() != IMBREX_OK) {
        imx_text_add(text, "device cuda: none: %s\n", imx_status_detail());
        return;
    }
    CUdevice gpus[GPUS_SHOWN];
    int count = 0, usable = 0, first = 0;
    imx_env env;
    imbrex_status fell_back = imx_env_read(&env); /* then the default stands for what is wrong */
    (void)fell_back;
    if (imx_driver->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        count = 0;
    count = (int)imx_min(count, GPUS_SHOWN);
    for (int i = 0; i < count; i++) {
        if (imx_driver->cuDeviceGet(&gpus[i], i) != CUDA_SUCCESS)
            gpus[i] = i;
        if (!imx_cuda_lacks(gpus[i]) && usable++ == 0)
            first = i;
    }
    int version = imx_driver_version();
    imx_text_add(text, "device cuda: %d of %d GPUs can be used, driver for CUDA %d.%d\n", usable,
                 count, version / 1000, version % 1000 / 10);
    for (int i = 0; i < count; i++) {
        add_gpu(text, i, gpus[i]);
        add_links(text, gpus, count, i);
    }
    if (usable)
        add_memory(text, gpus[first], &env);
    add_tools(text, &env);
}
