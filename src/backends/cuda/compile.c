/* compile.c - the device "compile:90": a GPU that is not there.  Plans made on it have their
 * kernels compiled into the cache, where a machine that has such a GPU finds them; nothing can run.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda.h"
#include "nvrtc.h"

struct imx_prepared {
    char said[120];
};

/* What plans depend on, as vendors give it of a GPU of the kind; desc.sms says otherwise. */
typedef struct model {
    int arch, sms;
    size_t shared_bytes_most;
    int memory_gb_s, clock_mhz;
    const char *name;
} model;

static const model models[] = {
    { 80, 108, 166912, 2039, 1410, "NVIDIA A100-SXM4-80GB" },
    { 86, 84, 101376, 696, 1740, "NVIDIA A40" },
    { 87, 16, 166912, 204, 1300, "Orin" },
    { 89, 142, 101376, 864, 2520, "NVIDIA L40S" },
    { 90, 132, 232448, 4917, 1980, "NVIDIA H200" },
    { 100, 148, 232448, 8000, 1965, "NVIDIA B200" },
    { 103, 148, 232448, 8000, 1965, "NVIDIA B300" },
    { 120, 188, 101376, 1792, 2617, "NVIDIA RTX PRO 6000 Blackwell" },
};
enum { MODELS = sizeof models / sizeof models[0] };

/* ---- the device ------------------------------------------------------------------------------ */

static bool usable(void)
{
    return false; /* only who names it wants it */
}

static void info(imx_text *text)
{
    imx_text_add(text, "device compile: for a GPU that is not here, sm_");
    for (int i = 0; i < MODELS; i++)
        imx_text_add(text, "%s%d", i ? ", " : "", models[i].arch);
    imx_text_add(text, "\n");
}

static void device_close(imx_device *device)
{
    free(device);
}

static imbrex_status device_open(const imx_device_desc *desc, imx_device **out)
{
    const model *m = models, *end = models + MODELS;
    while (m < end && m->arch != desc->index)
        m++;
    if (m == end) {
        char number[16] = "";
        if (desc->index >= 0)
            snprintf(number, sizeof number, ":%d", desc->index);
        return imx_fail(
            IMBREX_UNSUPPORTED,
            "\"compile%s\" names no GPU to compile for: want \"compile:90\" for sm_90 or "
            "the like; `imbrex info` lists them",
            number);
    }
    IMX_TRY(imx_nvrtc_open(desc->env->nvrtc));
    imx_device *device = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *device, &device));
    device->arch = m->arch;
    device->sms = m->sms;
    device->shared_bytes_most = m->shared_bytes_most;
    device->memory_gb_s = m->memory_gb_s;
    device->clock_mhz = m->clock_mhz;
    snprintf(device->name, sizeof device->name, "%s", m->name);
    imbrex_status status;
    IMX_GOTO(imx_cuda_form(desc->env, device));
    imx_folder_find(desc->env->cache_dir, &device->cache);
    if (!device->cache.path[0])
        IMX_GOTO(
            imx_fail(IMBREX_SYSTEM, "there is no folder to compile into: %s", device->cache.why));
    *out = device;
    return IMBREX_OK;
fail:
    device_close(device);
    return status;
}

static void target(const imx_device *device, imx_target *out)
{
    *out = (imx_target){
        .index = device->arch,
        .workers = device->sms,
        .workers_most = device->sms,
        .arch = device->form,
        .shared_bytes = device->shared_bytes_most,
        .memory_gb_s = device->memory_gb_s,
        .clock_mhz = device->clock_mhz,
        .alignment = 16,
    };
    snprintf(out->model, sizeof out->model, "%s", device->name);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* The number before or after words of the compiler's log; -1: they are not there. */
static int number_before(const char *log, const char *words)
{
    const char *at = strstr(log, words);
    while (at && at > log && at[-1] == ' ')
        at--;
    const char *from = at;
    while (from && from > log && from[-1] >= '0' && from[-1] <= '9')
        from--;
    return from < at ? atoi(from) : -1;
}

static void say(const char *name, const char *log, imx_prepared *p)
{
    imx_text text = { .at = p->said, .size = sizeof p->said };
    imx_text_add(&text, "%s: %s", name, log ? "compiled" : "was in the cache");
    int registers = log ? number_before(log, "registers") : -1;
    int spilled = log ? number_before(log, "bytes spill stores") : -1;
    if (registers >= 0)
        imx_text_add(&text, ", %d registers", registers);
    if (spilled >= 0)
        imx_text_add(&text, ", %d bytes spilled", spilled);
}

static void prepared_destroy(imx_device *device, imx_prepared *prepared)
{
    (void)device;
    free(prepared);
}

static imbrex_status prepare(imx_device *device, const imx_kernel *kernel, const void *largest,
                             int blocks, imx_prepared **out)
{
    imx_cuda_target form = { .arch = device->form, .shared_bytes_most = device->shared_bytes_most };
    imx_cuda_config config = { 0 };
    IMX_TRY(imx_cuda_configure(kernel, largest, &form, device->arch, blocks, &config));
    imx_prepared *p = NULL;
    void *cubin = NULL;
    size_t bytes = 0;
    char *log = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *p, &p));
    imbrex_status status;
    IMX_GOTO(imx_cuda_build(&device->cache, &config, device->arch, &cubin, &bytes, &log));
    say(kernel->name, log, p);
    free(cubin);
    free(log);
    *out = p;
    return IMBREX_OK;
fail:
    prepared_destroy(device, p);
    return status;
}

static const char *prepared_describe(const imx_prepared *prepared)
{
    return prepared->said;
}

/* ---- memory: addresses, for a plan to point at ----------------------------------------------- */

typedef struct compile_memory {
    imx_memory public;
    uint32_t refs; /* atomic */
} compile_memory;

/* Pages come into being when they are touched, and nobody touches a plan's. */
static imbrex_status memory_create(imx_device *device, size_t bytes, imx_memory **out)
{
    compile_memory *m = NULL;
    (void)device;
    IMX_TRY(imx_sys_alloc(1, sizeof *m, &m));
    m->refs = 1;
    m->public.bytes = bytes ? bytes : 1;
    m->public.base = imx_sys.mmap(NULL, m->public.bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->public.base == MAP_FAILED) {
        free(m);
        return imx_fail_errno("cannot reserve %zu bytes of addresses", bytes);
    }
    *out = &m->public;
    return IMBREX_OK;
}

static void memory_release(imx_memory *memory)
{
    compile_memory *m = (compile_memory *)memory;
    /* acq_rel: the last one unmaps after everything that the others did with the memory */
    if (!m || __atomic_sub_fetch(&m->refs, 1, __ATOMIC_ACQ_REL))
        return;
    munmap(m->public.base, m->public.bytes);
    free(m);
}

static imbrex_status memory_share(imx_device *device, imx_memory *of_peer, imx_memory **out)
{
    (void)device;
    /* relaxed: the owner holds its own reference meanwhile */
    __atomic_add_fetch(&((compile_memory *)of_peer)->refs, 1, __ATOMIC_RELAXED);
    *out = of_peer;
    return IMBREX_OK;
}

/* ---- what needs a GPU ------------------------------------------------------------------------ */

static imbrex_status cannot(void)
{
    return imx_fail(IMBREX_UNSUPPORTED,
                    "this group's device only compiles: what is to run needs \"cuda\" or \"cpu\"");
}

static imbrex_status memory_export(imx_memory *memory, int *fd)
{
    (void)memory;
    (void)fd;
    return imx_fail(IMBREX_UNSUPPORTED, "ranks on device \"compile\" must be of one process");
}

static imbrex_status memory_import(imx_device *device, int fd, const imx_memory *like,
                                   imx_memory **memory)
{
    (void)device;
    (void)fd;
    (void)like;
    (void)memory;
    return cannot();
}

static imbrex_status copy(imx_device *device, void *dst, const void *src, size_t bytes, int rank,
                          imbrex_stream stream)
{
    (void)device;
    (void)dst;
    (void)src;
    (void)bytes;
    (void)rank;
    (void)stream;
    return cannot();
}

static imbrex_status signals(imx_device *device, const imx_signal_op *ops, int count,
                             imbrex_stream stream)
{
    (void)device;
    (void)ops;
    (void)count;
    (void)stream;
    return cannot();
}

static imbrex_status launch(imx_device *device, imx_prepared *prepared, const void *args,
                            size_t args_bytes, imbrex_stream stream)
{
    (void)device;
    (void)prepared;
    (void)args;
    (void)args_bytes;
    (void)stream;
    return cannot();
}

/* ---- streams and events: names without substance --------------------------------------------- */

/* The form that needs it is then compiled too. */
static imbrex_status whole_lines(const imx_device *device, const char *id, bool *whole)
{
    (void)device;
    (void)id;
    *whole = true;
    return IMBREX_OK;
}

static void set_watch(imx_device *device, const imbrexd_watch *watch)
{
    device->watch = *watch;
}

static imbrex_status set_trace(imx_device *device, imbrexd_trace *trace)
{
    (void)device;
    (void)trace;
    return IMBREX_OK;
}

static imbrex_status stream_create(imx_device *device, imbrex_stream *stream)
{
    *stream = device;
    return IMBREX_OK;
}

static void stream_destroy(imx_device *device, imbrex_stream stream)
{
    (void)device;
    (void)stream;
}

static imbrex_status stream_sync(imx_device *device, imbrex_stream stream)
{
    (void)device;
    (void)stream;
    return IMBREX_OK;
}

static imbrex_status event_create(imx_device *device, imx_event **event)
{
    *event = (imx_event *)device;
    return IMBREX_OK;
}

static void event_destroy(imx_device *device, imx_event *event)
{
    (void)device;
    (void)event;
}

static imbrex_status event_record(imx_device *device, imx_event *event, imbrex_stream stream)
{
    (void)device;
    (void)event;
    (void)stream;
    return IMBREX_OK;
}

const imx_backend imx_backend_compile = {
    .name = "compile",
    .usable = usable,
    .info = info,
    .open = device_open,
    .close = device_close,
    .target = target,
    .whole_lines = whole_lines,
    .memory_create = memory_create,
    .memory_export = memory_export,
    .memory_import = memory_import,
    .memory_share = memory_share,
    .memory_release = memory_release,
    .set_watch = set_watch,
    .set_trace = set_trace,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_sync = stream_sync,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_record,
    .copy = copy,
    .signals = signals,
    .prepare = prepare,
    .prepared_destroy = prepared_destroy,
    .prepared_describe = prepared_describe,
    .launch = launch,
    .user_prepare = imx_cuda_user_compile,
    .user_destroy = imx_cuda_user_destroy,
};
