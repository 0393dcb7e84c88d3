/* kernel.c - makes kernels ready and launches them, knowing none: a kernel's launch.c says what to
 * compile and with what shape to launch, as plain data. */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "signals.h"

struct imx_prepared {
    imx_prepared *next_idle;
    CUtensorMap maps[IMX_TENSOR_MAPS];
    imx_tensor_map from[IMX_TENSOR_MAPS]; /* what these were made from; address NULL: nothing */
    const imx_kernel *kernel;
    imx_cuda_config config;
    CUmodule module;
    CUfunction function;
    imx_cuda_ring *ring; /* NULL: not traced */
    bool own;            /* nothing of the caller's or of a trace's is in it, and it is ready */
};

struct imx_cuda_dropped {
    imx_cuda_dropped *next;
    CUmodule module;
};

/* ---- the backend's own kernel ---------------------------------------------------------------- */

static void signals_config(const void *largest, const imx_cuda_target *target, int blocks,
                           imx_cuda_config *config)
{
    (void)largest;
    (void)target;
    (void)blocks;
    *config = (imx_cuda_config){
        .source = "backends/cuda/signals.cu",
        .entry = "imx_signals",
        .blocks = 1,
        .cluster = 1,
        .threads = 32,
    };
}

static void signals_launch(const void *args, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    (void)args;
    (void)config;
    launch->blocks = 1;
}

const imx_kernel imx_cuda_signals_kernel = {
    .name = "signals",
    .cuda_config = signals_config,
    .cuda_launch = signals_launch,
};

/* ---- what nobody uses any more --------------------------------------------------------------- */

/* cuModuleLoadData and cuModuleUnload wait for all kernels of the context, and some calls of other
 * threads for them (test_gpu_waits.c).  Where ranks share a context, one that has no rows of
 * its own would unload what it needs no more while a second rank's kernel waits for what a third
 * one is about to enqueue.  So nothing is unloaded there before the device is closed, which may
 * wait.  imbrex's own kernels are found again by the next plan that wants the same, there and where
 * a rank is alone, which keeps the last ones: that saves a plan most of its time. */
enum { IDLE_MOST = 128 };

static bool same_config(const imx_cuda_config *x, const imx_cuda_config *y)
{
    return strcmp(x->source, y->source) == 0 && strcmp(x->entry, y->entry) == 0 &&
           strcmp(x->options, y->options) == 0 && x->blocks == y->blocks &&
           x->cluster == y->cluster && x->threads == y->threads && x->early == y->early &&
           x->shared_bytes == y->shared_bytes && memcmp(x->kept, y->kept, sizeof x->kept) == 0;
}

static imx_prepared *take_idle(imx_device *device, const imx_prepared *like)
{
    imx_prepared **at = &device->idle;
    while (*at && ((*at)->kernel != like->kernel || !same_config(&(*at)->config, &like->config)))
        at = &(*at)->next_idle;
    imx_prepared *p = *at;
    if (p)
        *at = p->next_idle;
    return p;
}

static void unload(imx_device *device, CUmodule module)
{
    CUcontext before;
    if (!module || imx_cuda_enter(device->context, &before) != IMBREX_OK)
        return;
    CUresult unloaded = imx_driver->cuModuleUnload(module);
    (void)unloaded;
    imx_cuda_leave(device->context, before);
}

static void unload_dropped(imx_device *device)
{
    while (device->dropped) {
        imx_cuda_dropped *dropped = device->dropped;
        device->dropped = dropped->next;
        unload(device, dropped->module);
        free(dropped);
    }
}

/* All but so many, the last ones that were used. */
static void unload_idle(imx_device *device, int most)
{
    imx_prepared **at = &device->idle;
    for (int i = 0; *at && i < most; i++)
        at = &(*at)->next_idle;
    while (*at) {
        imx_prepared *p = *at;
        *at = p->next_idle;
        unload(device, p->module);
        free(p);
    }
}

static void tidy(imx_device *device)
{
    if (imx_cuda_shared(device))
        return;
    unload_dropped(device);
    unload_idle(device, IDLE_MOST);
}

void imx_cuda_module_drop(imx_device *device, CUmodule module)
{
    imx_cuda_dropped *dropped = module ? imx_sys.calloc(1, sizeof *dropped) : NULL;
    if (!dropped) {
        unload(device, module);
        return;
    }
    dropped->module = module;
    dropped->next = device->dropped;
    device->dropped = dropped;
    tidy(device);
}

void imx_cuda_prepared_destroy(imx_device *device, imx_prepared *p)
{
    if (!p)
        return;
    if (p->own) {
        p->next_idle = device->idle;
        device->idle = p;
        tidy(device);
        return;
    }
    imx_cuda_trace_destroy(device, p->ring);
    imx_cuda_module_drop(device, p->module);
    free(p);
}

void imx_cuda_modules_end(imx_device *device)
{
    unload_dropped(device);
    unload_idle(device, 0);
}

/* ---- prepare --------------------------------------------------------------------------------- */

/* What a thread spills to.  At the launch of a kernel that wants more of it than any before, the
 * driver waits for all that runs in the context. */
static imbrex_status make_local_room(CUfunction function, const char *name)
{
    int wanted = 0;
    size_t have = 0;
    IMX_TRY(imx_driver_check(
        imx_driver->cuFuncGetAttribute(&wanted, CU_FUNC_LOCAL_SIZE_BYTES, function),
        "cuFuncGetAttribute", "cannot look at kernel %s", name));
    IMX_TRY(imx_driver_check(imx_driver->cuCtxGetLimit(&have, CU_LIMIT_STACK_SIZE), "cuCtxGetLimit",
                             "cannot look at the GPU's local memory"));
    if ((size_t)wanted <= have)
        return IMBREX_OK;
    return imx_driver_check(imx_driver->cuCtxSetLimit(CU_LIMIT_STACK_SIZE, (size_t)wanted),
                            "cuCtxSetLimit", "no %d bytes of local memory for kernel %s", wanted,
                            name);
}

/* All that a launch would else catch up on, during which it could wait for kernels of other ranks,
 * and they for this one. */
imbrex_status imx_cuda_function_ready(CUfunction function, const char *name, size_t shared_bytes)
{
    if (imx_driver->cuFuncLoad) /* older drivers have loaded it when they gave it */
        IMX_TRY(imx_driver_check(imx_driver->cuFuncLoad(function), "cuFuncLoad",
                                 "the GPU does not take kernel %s", name));
    IMX_TRY(make_local_room(function, name));
    /* All kernels ask for the same split between cache and shared memory: a multiprocessor changes
     * it only when it is idle, so a kernel with another would never start beneath one that waits
     * for it. */
    IMX_TRY(imx_driver_check(
        imx_driver->cuFuncSetAttribute(function, CU_FUNC_PREFERRED_SHARED_CARVEOUT, 100),
        "cuFuncSetAttribute", "kernel %s cannot have its share of memory", name));
    return imx_driver_check(imx_driver->cuFuncSetAttribute(
                                function, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared_bytes),
                            "cuFuncSetAttribute",
                            "kernel %s cannot have %zu bytes of shared memory", name, shared_bytes);
}

/* Loads the function, not only the module: the first launch must find everything in place. */
static imbrex_status load(imx_prepared *p, const void *cubin)
{
    const char *name = p->kernel->name;
    IMX_TRY(imx_driver_check(imx_driver->cuModuleLoadData(&p->module, cubin), "cuModuleLoadData",
                             "the GPU does not take kernel %s", name));
    IMX_TRY(imx_driver_check(
        imx_driver->cuModuleGetFunction(&p->function, p->module, p->config.entry),
        "cuModuleGetFunction", "kernel %s has no entry %s", name, p->config.entry));
    return imx_cuda_function_ready(p->function, name, p->config.shared_bytes);
}

static imbrex_status configure(const imx_device *device, imx_prepared *p, const void *largest,
                               int blocks)
{
    imx_cuda_target target = {
        .arch = device->form,
        .shared_bytes_most = device->shared_bytes_most,
    };
    IMX_TRY(imx_cuda_configure(p->kernel, largest, &target, device->arch, blocks, &p->config));
    /* Blocks that start early take multiprocessors.  Where this kernel has only some of them, those
     * belong to others, for which the kernel before it may be waiting. */
    p->config.early = p->config.early && blocks >= device->sms;
    p->config.traces = p->config.traces && device->trace;
    if (p->config.traces) {
        size_t length = strlen(p->config.options);
        imx_text options = { .at = p->config.options + length,
                             .size = sizeof p->config.options - length };
        imx_text_add(&options, " -DIMX_TRACE");
    }
    return IMBREX_OK;
}

static imbrex_status build(imx_device *device, const imx_prepared *p, const imx_user_desc *hooks,
                           void **cubin)
{
    size_t bytes = 0;
    if (hooks)
        return imx_cuda_user_build(device, hooks, &p->config, cubin, &bytes);
    return imx_cuda_build(&device->cache, &p->config, device->arch, cubin, &bytes, NULL);
}

static imbrex_status build_and_load(imx_device *device, imx_prepared *p, const imx_user_desc *hooks)
{
    void *cubin = NULL;
    IMX_TRY(build(device, p, hooks, &cubin));
    CUcontext before;
    imbrex_status status = imx_cuda_enter(device->context, &before);
    if (status == IMBREX_OK) {
        status = load(p, cubin);
        if (status == IMBREX_OK && p->config.traces)
            status = imx_cuda_trace_prepare(device, p->module, p->kernel->name, p->config.blocks,
                                            &p->ring);
        imx_cuda_leave(device->context, before);
    }
    free(cubin);
    return status;
}

static imbrex_status prepare(imx_device *device, const imx_kernel *kernel, const void *largest,
                             int blocks, const imx_user_desc *hooks, imx_prepared **out)
{
    if (!kernel->cuda_config)
        return imx_fail(IMBREX_UNSUPPORTED, "kernel %s has no form for GPUs in this build",
                        kernel->name);
    imx_prepared *p = imx_sys.aligned_alloc(64, imx_align(sizeof *p, 64));
    if (!p)
        return imx_fail(IMBREX_NO_MEMORY, "no host memory for kernel %s", kernel->name);
    memset(p, 0, sizeof *p);
    p->kernel = kernel;
    imbrex_status status;
    IMX_GOTO(configure(device, p, largest, blocks));
    imx_prepared *idle = hooks || p->config.traces ? NULL : take_idle(device, p);
    if (idle) {
        free(p);
        *out = idle;
        return IMBREX_OK;
    }
    IMX_GOTO(build_and_load(device, p, hooks));
    p->own = !hooks && !p->config.traces;
    *out = p;
    return IMBREX_OK;
fail:
    imx_cuda_prepared_destroy(device, p);
    return status;
}

imbrex_status imx_cuda_prepare(imx_device *device, const imx_kernel *kernel, const void *largest,
                               int blocks, imx_prepared **out)
{
    return prepare(device, kernel, largest, blocks, NULL, out);
}

static imbrex_status find_args(imx_device *device, const imx_prepared *p, const imx_user_desc *desc,
                               size_t *args_bytes)
{
    CUcontext before;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    CUresult found = imx_cuda_user_args(p->module, desc, args_bytes);
    imx_cuda_leave(device->context, before);
    if (found == CUDA_ERROR_NOT_FOUND)
        return imx_cuda_user_lacks(desc);
    return imx_driver_check(found, "cuModuleGetGlobal", "cannot load kernel %s", desc->name);
}

imbrex_status imx_cuda_prepare_hooks(imx_device *device, const imx_user_desc *desc,
                                     imx_prepared **out, size_t *args_bytes)
{
    imx_prepared *p = NULL;
    IMX_TRY(prepare(device, desc->product, desc->largest, desc->blocks, desc, &p));
    imbrex_status status = find_args(device, p, desc, args_bytes);
    if (status == IMBREX_OK)
        *out = p;
    else
        imx_cuda_prepared_destroy(device, p);
    return status;
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* The maps of the launch before are there, and most of them stay. */
static imbrex_status find_maps(imx_device *device, imx_prepared *p, const imx_cuda_launch *launch)
{
    for (int i = 0; i < launch->map_count; i++) {
        const imx_tensor_map *from = &launch->maps[i];
        if (!from->address || imx_cuda_maps_same(&p->from[i], from))
            continue;
        p->from[i].address = NULL;
        IMX_TRY(imx_cuda_maps_find(device->maps, from, &p->maps[i]));
        p->from[i] = *from;
    }
    return IMBREX_OK;
}

/* Within the device's context. */
static imbrex_status enqueue(imx_device *device, imx_prepared *p, const void *args,
                             const imx_cuda_launch *launch, CUstream stream)
{
    void *params[] = { (void *)args, &device->watch, p->maps };
    IMX_TRY(find_maps(device, p, launch));
    CUlaunchAttribute attributes[2];
    unsigned count = 0;
    if (p->config.cluster > 1)
        attributes[count++] = (CUlaunchAttribute){
            .id = CU_LAUNCH_CLUSTER_DIMENSION,
            .value.cluster = { (unsigned)p->config.cluster, 1, 1 },
        };
    if (p->config.early)
        attributes[count++] = (CUlaunchAttribute){
            .id = CU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION,
            .value.allowed = 1,
        };
    CUlaunchConfig config = {
        .grid = { (unsigned)launch->blocks, 1, 1 },
        .block = { (unsigned)p->config.threads, 1, 1 },
        .shared_bytes = (unsigned)p->config.shared_bytes,
        .stream = stream,
        .attributes = attributes,
        .attribute_count = count,
    };
    CUresult launched = imx_driver->cuLaunchKernelEx(&config, p->function, params, NULL);
    if (launched == CUDA_ERROR_INVALID_HANDLE)
        return imx_fail(IMBREX_INVALID,
                        "stream, %p, is not one of GPU %d, where kernel %s was loaded",
                        (void *)stream, device->gpu, p->kernel->name);
    return imx_driver_check(launched, "cuLaunchKernelEx",
                            "cannot launch kernel %s with %d blocks of %d threads", p->kernel->name,
                            launch->blocks, p->config.threads);
}

imbrex_status imx_cuda_kernel_launch(imx_device *device, imx_prepared *p, const void *args,
                                     size_t args_bytes, imbrex_stream stream)
{
    (void)args_bytes; /* the driver knows what the entry takes */
    imx_cuda_launch launch;
    launch.blocks = launch.map_count = 0;
    p->kernel->cuda_launch(args, &p->config, &launch);
    if (launch.blocks < 1)
        return IMBREX_OK;
    CUcontext before;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    imbrex_status status = enqueue(device, p, args, &launch, (CUstream)stream);
    imx_cuda_leave(device->context, before);
    if (status == IMBREX_OK)
        imx_cuda_trace_launched(device, p->ring, stream);
    return status;
}
