/* test_gpu_waits.c - which calls of the driver wait for a kernel on another stream: if that kernel
 * waits for another rank of this process, for ever.  What plans' runs call must not; of all other
 * calls it is told, and whether they hold up launches of other threads meanwhile.  And that a rank
 * may end a plan while another's kernel waits for a third one. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/cuda/clock.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/nvrtc.h"
#include "backends/cuda/signals.h"
#include "gpu.h"
#include "group/group.h"

enum { LIMIT_S = 100, PATIENCE_MS = 300, LATER_MS = 20, PAGE = 2 << 20, LINE = 16 /* words */ };

/* What the calls are made with; later ones use what earlier ones made. */
typedef struct scene {
    imx_device *device;
    imbrex_stream spinning, other;
    CUstream own, made;
    CUevent event, made_event;
    imx_memory *memory; /* two pages that calls use, and one for posts */
    CUdeviceptr at;     /* of them */
    char *pageable, *host;
    imx_prepared *second;
    void *cubin;
    CUmodule module, roomy;
    CUfunction function, roomy_function;
    CUmemHandle handle;
    CUdeviceptr place, allocated;
    CUcontext context;
} scene;

static CUdeviceptr address(const void *at)
{
    return (CUdeviceptr)(uintptr_t)at;
}

/* ---- calls ----------------------------------------------------------------------------------- */

#define CALL(name, call)                        \
    static CUresult name(scene *s)              \
    {                                           \
        const imx_driver_calls *d = imx_driver; \
        (void)d;                                \
        (void)s;                                \
        return call;                            \
    }

/* A status, which is as good as the driver's result. */
static CUresult launch(const scene *s, imx_prepared *prepared, imbrex_stream stream)
{
    uint64_t *post = (uint64_t *)((char *)s->memory->base + 2 * PAGE);
    imx_signals_args args = { .count = 1 };
    args.ops[0] = (imx_signals_op){ .signal = post, .add = 1, .kind = IMX_SIGNALS_POST };
    return (CUresult)imx_cuda_kernel_launch(s->device, prepared, &args, sizeof args, stream);
}

static CUresult raw_launch(CUfunction function, scene *s, unsigned threads)
{
    int n = 1;
    void *params[] = { &s->at, &n };
    CUlaunchConfig config = { .grid = { 1, 1, 1 }, .block = { threads, 1, 1 }, .stream = s->own };
    return imx_driver->cuLaunchKernelEx(&config, function, params, NULL);
}

static const CUmemAllocationProp prop = {
    .type = CU_MEM_PINNED,
    .handle_types = CU_MEM_POSIX_FD,
    .location = { .type = CU_MEM_LOCATION_DEVICE, .id = 0 },
};
static const CUmemAccessDesc access_desc = {
    .location = { .type = CU_MEM_LOCATION_DEVICE, .id = 0 },
    .flags = CU_MEM_READWRITE,
};
enum { REGISTERED = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP };

static CUresult ask_pointer(scene *s)
{
    unsigned type;
    int attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *values[] = { &type };
    return imx_driver->cuPointerGetAttributes(1, &attribute, values, s->at);
}

static CUresult ask_capture(scene *s)
{
    int state;
    uint64_t number = 0;
    return imx_driver->cuStreamGetCaptureInfo(s->own, &state, &number, NULL, NULL, NULL);
}

CALL(launch_loaded, launch(s, s->device->signals, s->own))
CALL(launch_second, launch(s, s->second, s->own))
CALL(copy_flag, d->cuMemcpyAsync(s->at, s->at + PAGE, 8, s->own))
CALL(copy_much, d->cuMemcpyAsync(s->at, s->at + PAGE, PAGE, s->own))
CALL(record, d->cuEventRecord(s->event, s->own))
CALL(await, d->cuStreamWaitEvent(s->own, s->event, 0))
CALL(sync_other, d->cuStreamSynchronize(s->own))
CALL(clear_few, d->cuMemsetD8Async(s->at, 0, 24, s->own))
CALL(clear_much, d->cuMemsetD8Async(s->at, 0, PAGE, s->own))
CALL(up_few, d->cuMemcpyAsync(s->at, address(s->pageable), 200, s->own))
CALL(up_much, d->cuMemcpyAsync(s->at, address(s->pageable), PAGE, s->own))
CALL(down_few, d->cuMemcpyAsync(address(s->pageable), s->at, 200, s->own))
CALL(down_much, d->cuMemcpyAsync(address(s->pageable), s->at, PAGE, s->own))
CALL(retain, d->cuDevicePrimaryCtxRetain(&s->context, s->device->gpu))
CALL(release, d->cuDevicePrimaryCtxRelease(s->device->gpu))
CALL(stream_make,
     d->cuStreamCreateWithPriority(&s->made, CU_STREAM_NON_BLOCKING, s->device->priority))
CALL(stream_first, launch(s, s->device->signals, s->made))
CALL(stream_end, d->cuStreamDestroy(s->made))
CALL(event_make, d->cuEventCreate(&s->made_event, CU_EVENT_DISABLE_TIMING))
CALL(event_end, d->cuEventDestroy(s->made_event))
CALL(module_load, d->cuModuleLoadData(&s->module, s->cubin))
CALL(module_get, d->cuModuleGetFunction(&s->function, s->module, "imx_signals"))
CALL(function_load, d->cuFuncLoad ? d->cuFuncLoad(s->function) : CUDA_SUCCESS)
CALL(carve_out, d->cuFuncSetAttribute(s->function, CU_FUNC_PREFERRED_SHARED_CARVEOUT, 100))
CALL(module_end, d->cuModuleUnload(s->module))
CALL(memory_take, d->cuMemCreate(&s->handle, PAGE, &prop, 0))
CALL(memory_reserve, d->cuMemAddressReserve(&s->place, PAGE, 0, 0, 0))
CALL(memory_map, d->cuMemMap(s->place, PAGE, 0, s->handle, 0))
CALL(memory_allow, d->cuMemSetAccess(s->place, PAGE, &access_desc, 1))
CALL(memory_unmap, d->cuMemUnmap(s->place, PAGE))
CALL(memory_forget, d->cuMemAddressFree(s->place, PAGE))
CALL(memory_give, d->cuMemRelease(s->handle))
CALL(alloc, d->cuMemAlloc(&s->allocated, PAGE))
CALL(dealloc, d->cuMemFree(s->allocated))
CALL(pin, d->cuMemHostRegister(s->host, PAGE, REGISTERED))
CALL(unpin, d->cuMemHostUnregister(s->host))
CALL(launch_roomy, s->roomy_function ? raw_launch(s->roomy_function, s, 32) : CUDA_SUCCESS)
CALL(more_stack, d->cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 65536))

static const struct {
    const char *name;
    bool must; /* not wait */
    CUresult (*call)(scene *s);
} calls[] = {
    { "a launch", true, launch_loaded },
    { "the first launch of a prepared kernel", true, launch_second },
    { "8 bytes within the GPU", true, copy_flag },
    { "2 MiB within the GPU", true, copy_much },
    { "cuEventRecord", true, record },
    { "cuStreamWaitEvent", true, await },
    { "cuStreamSynchronize of another stream", true, sync_other },
    { "cuPointerGetAttributes", true, ask_pointer },
    { "cuStreamGetCaptureInfo", true, ask_capture },
    { "clearing 24 bytes", false, clear_few },
    { "clearing 2 MiB", false, clear_much },
    { "200 bytes from pageable memory", false, up_few },
    { "2 MiB from pageable memory", false, up_much },
    { "200 bytes to pageable memory", false, down_few },
    { "2 MiB to pageable memory", false, down_much },
    { "cuDevicePrimaryCtxRetain", false, retain },
    { "cuDevicePrimaryCtxRelease, not the last", false, release },
    { "cuStreamCreateWithPriority", false, stream_make },
    { "the first launch on a stream", false, stream_first },
    { "cuStreamDestroy", false, stream_end },
    { "cuEventCreate", false, event_make },
    { "cuEventDestroy", false, event_end },
    { "cuModuleLoadData", false, module_load },
    { "cuModuleGetFunction", false, module_get },
    { "cuFuncLoad", false, function_load },
    { "cuFuncSetAttribute", false, carve_out },
    { "cuModuleUnload", false, module_end },
    { "cuMemCreate", false, memory_take },
    { "cuMemAddressReserve", false, memory_reserve },
    { "cuMemMap", false, memory_map },
    { "cuMemSetAccess", false, memory_allow },
    { "cuMemUnmap", false, memory_unmap },
    { "cuMemAddressFree", false, memory_forget },
    { "cuMemRelease", false, memory_give },
    { "cuMemAlloc", false, alloc },
    { "cuMemFree", false, dealloc },
    { "cuMemHostRegister", false, pin },
    { "cuMemHostUnregister", false, unpin },
    { "a launch that wants more local memory", false, launch_roomy },
    { "cuCtxSetLimit of local memory", false, more_stack },
};

/* ---- a call beneath a kernel ----------------------------------------------------------------- */

typedef struct caller {
    scene *s;
    CUresult (*call)(scene *s);
    int begin_ms;
    int result;
    int64_t took_ns;
    uint64_t ended; /* atomic */
} caller;

static CUresult launch_elsewhere(scene *s)
{
    return launch(s, s->device->signals, s->other);
}

static void *make_call(void *arg)
{
    caller *c = arg;
    CUcontext before;
    usleep((unsigned)c->begin_ms * 1000);
    int64_t begin_ns = imbrexd_now_ns();
    c->result = imx_cuda_enter(c->s->device->context, &before) ? -1 : (int)c->call(c->s);
    c->took_ns = imbrexd_now_ns() - begin_ns;
    imx_cuda_leave(c->s->device->context, before);
    imbrexd_store_release(&c->ended, 1);
    return NULL;
}

/* Runs until it is asked, or for ten times our patience. */
static imbrex_status spin(scene *s)
{
    uint64_t *words = s->device->clock_words->base;
    imx_clock_args args = { .asked = words,
                            .now = words + LINE,
                            .answered = words + 2 * LINE,
                            .questions = 1,
                            .limit_ns = 10 * (uint64_t)PATIENCE_MS * 1000000 };
    *args.asked = *args.answered = 0;
    return imx_cuda_kernel_launch(s->device, s->device->clock, &args, sizeof args, s->spinning);
}

static int try_call(scene *s, int i)
{
    caller callers[2] = { { .s = s, .call = calls[i].call },
                          { .s = s, .call = launch_elsewhere, .begin_ms = LATER_MS } };
    bool waited[2];
    pthread_t threads[2];
    RANK_OK(spin(s));
    usleep(5000); /* the kernel is running by then */
    for (int k = 0; k < 2; k++)
        RANK_CHECK(pthread_create(&threads[k], NULL, make_call, &callers[k]) == 0, "no thread");
    for (int ms = 0; ms < PATIENCE_MS; ms++) {
        if (imbrexd_load_acquire(&callers[0].ended) && imbrexd_load_acquire(&callers[1].ended))
            break;
        usleep(1000);
    }
    for (int k = 0; k < 2; k++)
        waited[k] = !imbrexd_load_acquire(&callers[k].ended);
    imbrexd_store_release(s->device->clock_words->base, 1);
    for (int k = 0; k < 2; k++)
        pthread_join(threads[k], NULL);
    RANK_OK(imx_cuda_stream_sync(s->device, s->spinning));
    RANK_OK(imx_cuda_stream_sync(s->device, s->own));
    RANK_CHECK(callers[0].result == 0, "%s: %d", calls[i].name, callers[0].result);
    RANK_CHECK(callers[1].result == 0, "a launch beside %s: %d", calls[i].name, callers[1].result);
    printf("  %-40s %8.3f ms%s%s\n", calls[i].name, 1e-6 * (double)callers[0].took_ns,
           waited[0] ? ", WAITS for the kernel" : "",
           waited[1] ? ", other threads' launches wait, too" : "");
    RANK_CHECK(!(calls[i].must && (waited[0] || waited[1])), "%s waits", calls[i].name);
    return 0;
}

/* ---- the scene ------------------------------------------------------------------------------- */

static const char roomy_text[] = "extern \"C\" __global__ void roomy(volatile int *out, int n) {\n"
                                 "    volatile int room[4096];\n"
                                 "    for (int i = 0; i < 4096; i++) room[(i * n) % 4096] = i;\n"
                                 "    *out = room[n];\n"
                                 "}\n";

static int make_roomy(scene *s)
{
    void *cubin;
    size_t bytes;
    if (gpu_is_fake())
        return 0;
    RANK_OK(imx_nvrtc_compile("roomy.cu", roomy_text, "", s->device->arch, &cubin, &bytes, NULL));
    CUresult loaded = imx_driver->cuModuleLoadData(&s->roomy, cubin);
    if (loaded == CUDA_SUCCESS)
        loaded = imx_driver->cuModuleGetFunction(&s->roomy_function, s->roomy, "roomy");
    free(cubin);
    RANK_CHECK(loaded == CUDA_SUCCESS, "roomy: %d", loaded);
    return 0;
}

static int set_scene(scene *s, imbrex_group *group)
{
    imx_device *device = s->device = group->device;
    imx_cuda_target target = { .arch = device->form };
    imx_cuda_config config;
    size_t bytes;
    RANK_OK(imx_cuda_clock_prepare(device));
    RANK_OK(imx_cuda_prepare(device, &imx_cuda_signals_kernel, NULL, 1, &s->second));
    imx_cuda_signals_kernel.cuda_config(NULL, &target, 1, &config);
    RANK_OK(imx_cuda_build(&device->cache, &config, device->arch, &s->cubin, &bytes, NULL));
    RANK_OK(imx_cuda_memory_create(device, 3 * PAGE, &s->memory));
    s->at = address(s->memory->base);
    imbrex_stream own;
    RANK_OK(imx_cuda_stream_create(device, &s->spinning));
    RANK_OK(imx_cuda_stream_create(device, &s->other));
    RANK_OK(imx_cuda_stream_create(device, &own));
    s->own = own;
    s->pageable = calloc(1, PAGE);
    s->host = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RANK_CHECK(s->pageable && s->host != MAP_FAILED, "no memory");
    CUresult made = imx_driver->cuEventCreate(&s->event, CU_EVENT_DISABLE_TIMING);
    RANK_CHECK(made == CUDA_SUCCESS, "cuEventCreate: %d", made);
    RANK_CHECK(!make_roomy(s) && !launch_elsewhere(s), "%s", imbrex_error());
    return 0;
}

static int all_calls(void *ctx)
{
    (void)ctx;
    static const imbrex_bootstrap alone = { .rank = 0, .size = 1 };
    imbrex_group_desc desc = { .bootstrap = &alone, .device = "cuda:0", .timeout_ms = 20000 };
    imbrex_group *group;
    CUcontext before;
    scene s = { 0 };
    RANK_OK(imbrex_group_create(&desc, &group));
    RANK_OK(imx_cuda_enter(group->device->context, &before));
    if (set_scene(&s, group))
        return 1;
    int failed = 0;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        failed |= try_call(&s, (int)i);
    return failed; /* the process ends, and with it all that it made */
}

/* ---- a plan that ends beneath a kernel ------------------------------------------------------- */

enum { WAITER, ENDER, POSTER, RANKS };
enum { STEP_MS = 2000 }; /* of a rank; the waiter's deadline is later */

/* How far the ranks have come; atomic. */
typedef struct stage {
    uint64_t waits, ended, passed;
} stage;

static bool await_step(const uint64_t *step)
{
    for (int ms = 0; !imbrexd_load_acquire(step) && ms < STEP_MS; ms++)
        usleep(1000);
    return imbrexd_load_acquire(step);
}

/* The poster lets the waiter go only once the ender has ended its plan, so that must not wait for
 * the waiter. */
static int end_beneath(imbrex_group *group, stage *st, uint64_t *signal, imbrex_plan *plan)
{
    int64_t begin_ns, took_ns;
    switch (imbrex_group_rank(group)) {
    case WAITER:
        RANK_OK(imbrex_signal_wait(group, signal, 1, NULL));
        usleep(LATER_MS * 1000); /* the kernel is running by then */
        imbrexd_store_release(&st->waits, 1);
        break;
    case ENDER:
        RANK_CHECK(await_step(&st->waits), "nobody waits");
        begin_ns = imbrexd_now_ns();
        imbrex_plan_destroy(plan);
        took_ns = imbrexd_now_ns() - begin_ns;
        imbrexd_store_release(&st->ended, 1);
        RANK_CHECK(await_step(&st->passed), "nobody was let go"); /* a group's end may wait, too */
        RANK_CHECK(took_ns < STEP_MS * 500000LL, "a plan's end took %lld ms",
                   (long long)(took_ns / 1000000));
        return 0;
    default:
        RANK_CHECK(await_step(&st->ended), "no plan has ended");
        RANK_OK(imbrex_signal_post(group, signal, 1, WAITER, NULL));
    }
    RANK_OK(imbrex_stream_sync(group, NULL));
    if (imbrex_group_rank(group) == WAITER)
        imbrexd_store_release(&st->passed, 1);
    imbrex_plan_destroy(plan);
    return 0;
}

static int stage_rank(int rank, const imbrex_bootstrap *bootstrap, void *ctx)
{
    imbrex_group_desc desc = {
        .bootstrap = bootstrap,
        .device = gpu_of(rank, false),
        .timeout_ms = 3 * STEP_MS,
    };
    imbrex_coll_desc gather = { .m = 48, .n = 8, .dtype = IMBREX_F32 };
    imbrex_group *group;
    imbrex_plan *plan;
    void *signal;
    RANK_OK(imbrex_group_create(&desc, &group));
    RANK_OK(imbrex_mem_alloc(group, sizeof(uint64_t), &signal));
    RANK_OK(imbrex_plan_all_gather(group, &gather, &plan));
    int failed = end_beneath(group, ctx, signal, plan);
    if (failed)
        imbrex_group_abort(group);
    imbrex_group_destroy(group);
    return failed;
}

static int plan_ends(void *ctx)
{
    stage st = { 0 };
    ranks_desc desc = { .size = RANKS };
    (void)ctx;
    return ranks_run_bare(&desc, stage_rank, &st);
}

int main(int argc, char **argv)
{
    gpu_begin(argc, argv);
    if (gpu_wanted("calls beneath a kernel"))
        gpu_report(gpu_isolated(all_calls, NULL, LIMIT_S));
    if (gpu_wanted("a plan ends beneath a kernel"))
        gpu_report(gpu_isolated(plan_ends, NULL, LIMIT_S));
    return gpu_end();
}
