/* cuda.c - NVIDIA GPUs as devices: opening one, and the backend's table of functions. */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>

#include "nvrtc.h"
#include "signals.h"

/* ---- the current context --------------------------------------------------------------------- */

imbrex_status imx_cuda_enter(CUcontext context, CUcontext *before)
{
    CUcontext now = NULL;
    IMX_TRY(imx_driver_check(imx_driver->cuCtxGetCurrent(&now), "cuCtxGetCurrent",
                             "cannot use the GPU"));
    if (now != context)
        IMX_TRY(imx_driver_check(imx_driver->cuCtxSetCurrent(context), "cuCtxSetCurrent",
                                 "cannot use the GPU"));
    *before = now;
    return IMBREX_OK;
}

void imx_cuda_leave(CUcontext context, CUcontext before)
{
    if (before == context)
        return;
    CUresult ignored = imx_driver->cuCtxSetCurrent(before);
    (void)ignored;
}

/* ---- ranks on one GPU ------------------------------------------------------------------------ */

enum { GPUS_MOST = 128, CONNECTIONS_LEAST = 32, CACHE_BYTES = 256 << 20 };

/* Ranks of this process, by GPU; atomic. */
static uint32_t users[GPUS_MOST];

/* Streams of one process share the hardware's queues, 8 unless the environment says more: a stream
 * whose kernel waits for a signal could then hold up the one that sends it. */
static imbrex_status count_in(imx_device *device)
{
    uint32_t before = __atomic_fetch_add(&users[device->gpu], 1, __ATOMIC_RELAXED);
    device->counted = true;
    const char *set = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int64_t connections = 0;
    if (!before ||
        (set && imx_env_parse_int(set, &connections) && connections >= CONNECTIONS_LEAST))
        return IMBREX_OK;
    return imx_fail(IMBREX_INVALID,
                    "several ranks or groups of this process share GPU %d, which needs "
                    "CUDA_DEVICE_MAX_CONNECTIONS=%d: set it before the program starts",
                    device->gpu, CONNECTIONS_LEAST);
}

bool imx_cuda_shared(const imx_device *device)
{
    return __atomic_load_n(&users[device->gpu], __ATOMIC_RELAXED) > 1;
}

/* ---- open and close -------------------------------------------------------------------------- */

int imx_cuda_attribute(CUdevice gpu, int which)
{
    int value = 0;
    return imx_driver->cuDeviceGetAttribute(&value, which, gpu) == CUDA_SUCCESS ? value : 0;
}

static imbrex_status choose(const imx_device_desc *desc, CUdevice *gpu)
{
    int count = 0;
    IMX_TRY(imx_driver_check(imx_driver->cuDeviceGetCount(&count), "cuDeviceGetCount",
                             "cannot count the GPUs"));
    count = (int)imx_min(count, GPUS_MOST);
    if (desc->index >= count)
        return imx_fail(IMBREX_INVALID,
                        "device cuda:%d does not exist: the driver sees %d GPU%s (%s)", desc->index,
                        count, count == 1 ? "" : "s",
                        getenv("CUDA_VISIBLE_DEVICES") ? "CUDA_VISIBLE_DEVICES is set" : "all");
    int index = desc->index >= 0 ? desc->index : desc->local_rank % (int)imx_max(1, count);
    IMX_TRY(imx_driver_check(imx_driver->cuDeviceGet(gpu, index), "cuDeviceGet",
                             "cannot use GPU %d", index));
    const char *lacks = imx_cuda_lacks(*gpu);
    return lacks ? imx_fail(IMBREX_UNSUPPORTED, "GPU %d cannot be used: %s", index, lacks)
                 : IMBREX_OK;
}

enum { ARCH_LEAST = 80 };

imbrex_status imx_cuda_form(const imx_env *env, imx_device *device)
{
    device->form = env->cuda_arch ? (int)imx_min(env->cuda_arch, INT16_MAX) : device->arch;
    if (device->form >= ARCH_LEAST && device->form <= device->arch)
        return IMBREX_OK;
    return imx_fail(IMBREX_INVALID, "IMBREX_CUDA_ARCH is %lld: want from %d to the GPU's %d",
                    (long long)env->cuda_arch, ARCH_LEAST, device->arch);
}

static imbrex_status describe(imx_device *device, const imx_env *env)
{
    device->arch = 10 * imx_cuda_attribute(device->gpu, CU_COMPUTE_CAPABILITY_MAJOR) +
                   imx_cuda_attribute(device->gpu, CU_COMPUTE_CAPABILITY_MINOR);
    IMX_TRY(imx_cuda_form(env, device));
    device->sms = imx_cuda_attribute(device->gpu, CU_MULTIPROCESSOR_COUNT);
    device->shared_bytes_most =
        (size_t)imx_cuda_attribute(device->gpu, CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    int64_t khz = imx_cuda_attribute(device->gpu, CU_MEMORY_CLOCK_RATE); /* of two edges each */
    int64_t bytes = imx_cuda_attribute(device->gpu, CU_GLOBAL_MEMORY_BUS_WIDTH) / 8;
    device->memory_gb_s = (int)(2 * khz * bytes / 1000000);
    device->clock_mhz = imx_cuda_attribute(device->gpu, CU_CLOCK_RATE) / 1000;
    if (imx_driver->cuDeviceGetName(device->name, sizeof device->name, device->gpu) != CUDA_SUCCESS)
        device->name[0] = '\0';
    return imx_driver_check(imx_cuda_identify(device->gpu, device->id), "cuDeviceGetUuid",
                            "cannot identify GPU %d", device->gpu);
}

/* The driver loads its own kernels, and takes what it stages copies through, when they are first
 * used: so all of them are used now, before anybody waits on the GPU. */
static imbrex_status warm_up(imx_device *device, const imx_device_desc *desc)
{
    enum { HALF = 1 << 20 };
    imx_memory *memory = NULL;
    char *host = NULL;
    IMX_TRY(imx_sys_alloc(1, HALF, &host));
    imbrex_status status;
    IMX_GOTO(imx_cuda_memory_create(device, 2 * HALF, &memory)); /* which clears it */
    char *base = memory->base;
    const struct {
        char *to, *from;
        size_t bytes;
    } copies[] = {
        { base, base + HALF, 8 }, { base, base + HALF, HALF }, { base + 1, base + HALF + 2, 99 },
        { base, host, 8 },        { base, host, HALF },        { host, base, 8 },
        { host, base, HALF },
    };
    for (size_t i = 0; i < sizeof copies / sizeof copies[0] && status == IMBREX_OK; i++)
        status = imx_cuda_copy(device, copies[i].to, copies[i].from, copies[i].bytes, desc->rank,
                               device->setup);
    imbrex_status drained = imx_cuda_stream_sync(device, device->setup);
    status = status == IMBREX_OK ? drained : status;
fail:
    imx_cuda_memory_release(memory);
    free(host);
    return status;
}

/* With the context current: what the backend itself needs of the GPU. */
static imbrex_status equip(imx_device *device, const imx_device_desc *desc)
{
    int least = 0;
    IMX_TRY(imx_driver_check(imx_driver->cuCtxGetStreamPriorityRange(&least, &device->priority),
                             "cuCtxGetStreamPriorityRange", "cannot make streams"));
    IMX_TRY(imx_driver_check(imx_driver->cuStreamCreateWithPriority(
                                 &device->setup, CU_STREAM_NON_BLOCKING, device->priority),
                             "cuStreamCreateWithPriority", "cannot make a stream"));
    IMX_TRY(imx_cuda_memory_create_host(device, (size_t)desc->size * sizeof(uint64_t *),
                                        &device->abort_table));
    imx_text why = { .at = device->memory_why, .size = sizeof device->memory_why };
    IMX_TRY(imx_cuda_ipc_choose(device->gpu, desc->env, &device->ipc, &why));
    IMX_TRY(warm_up(device, desc));
    IMX_TRY(imx_nvrtc_open(desc->env->nvrtc));
    imx_folder_find(desc->env->cache_dir, &device->cache);
    IMX_TRY(imx_cuda_maps_create(&device->maps));
    IMX_TRY(imx_cuda_prepare(device, &imx_cuda_signals_kernel, NULL, 1, &device->signals));
    imx_signals_args nothing = { 0 };
    IMX_TRY(
        imx_cuda_kernel_launch(device, device->signals, &nothing, sizeof nothing, device->setup));
    return imx_cuda_stream_sync(device, device->setup);
}

static void device_close(imx_device *device)
{
    if (!device)
        return;
    CUcontext before;
    if (device->context && imx_cuda_enter(device->context, &before) == IMBREX_OK) {
        imx_cuda_stream_destroy_all(device);
        imx_cuda_prepared_destroy(device, device->signals);
        imx_cuda_prepared_destroy(device, device->clock);
        CUresult ignored = CUDA_SUCCESS;
        if (device->setup)
            ignored = imx_driver->cuStreamDestroy(device->setup);
        (void)ignored;
        imx_cuda_leave(device->context, before);
    }
    imx_cuda_modules_end(device);
    imx_cuda_memory_release(device->abort_table);
    imx_cuda_memory_release(device->clock_words);
    imx_cuda_memory_release(device->times);
    if (device->context) {
        CUresult ignored = imx_driver->cuDevicePrimaryCtxRelease(device->gpu);
        (void)ignored;
    }
    if (device->counted)
        __atomic_fetch_sub(&users[device->gpu], 1, __ATOMIC_RELAXED);
    imx_cuda_maps_destroy(device->maps);
    free(device->timed);
    free(device);
}

static imbrex_status device_open(const imx_device_desc *desc, imx_device **out)
{
    imx_device *device = NULL;
    IMX_TRY(imx_driver_open());
    IMX_TRY(imx_sys_alloc(1, sizeof *device, &device));
    device->ranks = desc->size;
    imbrex_status status;
    IMX_GOTO(choose(desc, &device->gpu));
    IMX_GOTO(count_in(device));
    IMX_GOTO(describe(device, desc->env));
    IMX_GOTO(imx_driver_check(imx_driver->cuDevicePrimaryCtxRetain(&device->context, device->gpu),
                              "cuDevicePrimaryCtxRetain", "cannot use GPU %d", device->gpu));
    CUcontext before;
    IMX_GOTO(imx_cuda_enter(device->context, &before));
    status = equip(device, desc);
    imx_cuda_leave(device->context, before);
    if (status != IMBREX_OK)
        goto fail;
    *out = device;
    return IMBREX_OK;
fail:
    device_close(device);
    return status;
}

static bool usable(void)
{
    if (imx_driver_open() != IMBREX_OK)
        return false;
    int count = 0;
    CUdevice gpu;
    if (imx_driver->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return false;
    for (int i = 0; i < count; i++) {
        if (imx_driver->cuDeviceGet(&gpu, i) == CUDA_SUCCESS && !imx_cuda_lacks(gpu))
            return true;
    }
    return false;
}

static void take_common_form(imx_device *device, size_t shared_bytes)
{
    device->form = ARCH_LEAST;
    device->shared_bytes_most = shared_bytes;
}

static void target(const imx_device *device, imx_target *out)
{
    *out = (imx_target){
        .index = device->gpu,
        .workers = device->sms,
        .workers_most = device->sms,
        .arch = device->form,
        .shared_bytes = device->shared_bytes_most,
        .memory_gb_s = device->memory_gb_s,
        .clock_mhz = device->clock_mhz,
        .cache_bytes = CACHE_BYTES,
        .alignment = 16,
        .memory = device->ipc ? device->memory_why : NULL,
    };
    snprintf(out->id, sizeof out->id, "%s", device->id);
    snprintf(out->model, sizeof out->model, "%s", device->name);
    snprintf(out->name, sizeof out->name, "%s, %d SMs, sm_%d", device->name, device->sms,
             device->form);
}

static bool look(int i, const imx_env *env, imx_target *out)
{
    imx_device device = { .arch = 0 };
    *out = (imx_target){ .arch = 0 };
    if (imx_driver_open() != IMBREX_OK || imx_driver->cuDeviceGet(&device.gpu, i) != CUDA_SUCCESS)
        return false;
    if (!imx_cuda_lacks(device.gpu) && describe(&device, env) == IMBREX_OK)
        target(&device, out);
    return true;
}

static imbrex_status within(imx_device *device, imbrex_status (*fn)(void *ctx), void *ctx)
{
    CUcontext before;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    imbrex_status status = fn(ctx);
    imx_cuda_leave(device->context, before);
    return status;
}

/* Kernels get the watch by value and follow its pointers: the table of abort words is copied to
 * where they can read it; all else already lies in host memory that they see. */
static void set_watch(imx_device *device, const imbrexd_watch *watch)
{
    uint64_t **table = device->abort_table->base;
    for (int r = 0; r < device->ranks; r++)
        table[r] = watch->abort[r];
    device->watch = *watch;
    device->watch.abort = table;
}

const imx_backend imx_backend_cuda = {
    .name = "cuda",
    .usable = usable,
    .look = look,
    .info = imx_cuda_info,
    .open = device_open,
    .close = device_close,
    .target = target,
    .take_common_form = take_common_form,
    .within = within,
    .per_thread = (imbrex_stream)CU_STREAM_PER_THREAD,
    .capture = imx_cuda_stream_capture,
    .link = imx_cuda_link,
    .whole_lines = imx_cuda_whole_lines,
    .memory_create = imx_cuda_memory_create,
    .memory_create_host = imx_cuda_memory_create_host,
    .memory_export = imx_cuda_memory_export,
    .memory_import = imx_cuda_memory_import,
    .memory_share = imx_cuda_memory_share,
    .memory_release = imx_cuda_memory_release,
    .set_watch = set_watch,
    .set_trace = imx_cuda_trace_set,
    .collect_trace = imx_cuda_trace_collect,
    .stream_create = imx_cuda_stream_create,
    .stream_destroy = imx_cuda_stream_destroy,
    .stream_sync = imx_cuda_stream_sync,
    .event_create = imx_cuda_event_create,
    .event_destroy = imx_cuda_event_destroy,
    .event_record = imx_cuda_event_record,
    .event_wait = imx_cuda_event_wait,
    .copy = imx_cuda_copy,
    .copy_any = imx_cuda_copy_any,
    .signals = imx_cuda_signals,
    .trace_times = imx_cuda_trace_times,
    .prepare = imx_cuda_prepare,
    .prepared_destroy = imx_cuda_prepared_destroy,
    .launch = imx_cuda_kernel_launch,
    .user_prepare = imx_cuda_user_prepare,
    .user_destroy = imx_cuda_user_destroy,
    .user_launch = imx_cuda_user_launch,
};
