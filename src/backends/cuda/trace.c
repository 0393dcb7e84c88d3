/* trace.c - spans of GPUs: what blocks wrote down (kernels/trace.h), brought to the host's clock.
 *
 *     ring    device memory of a prepared kernel: | records [blocks][each] | counts [blocks] |
 *     timed   the host's: what a step of the network is, noted as it is enqueued
 *     times   host memory: when it began and ended, from the signals before and after it
 *
 * A kernel is compiled to write into its ring if it is prepared while tracing is on.  A launch is
 * told from the next by the time of its blocks: launches of one prepared kernel never overlap.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "kernels/trace.h"

enum {
    EACH = 1024, /* records of a block */
    TIMED = 8192 /* steps of the network */
};

struct imx_cuda_ring {
    imx_cuda_ring *next;
    const char *name; /* of the kernel */
    imx_memory *room;
    int blocks, stream;
};

static size_t records_bytes(const imx_cuda_ring *ring)
{
    return (size_t)ring->blocks * EACH * sizeof(imx_trace_record);
}

/* ---- making a ring --------------------------------------------------------------------------- */

static imbrex_status copy_and_wait(imx_device *device, void *to, const void *from, size_t bytes)
{
    IMX_TRY(imx_driver_check(imx_driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to,
                                                       (CUdeviceptr)(uintptr_t)from, bytes,
                                                       device->setup),
                             "cuMemcpyAsync", "cannot reach the records of a trace"));
    return imx_driver_check(imx_driver->cuStreamSynchronize(device->setup), "cuStreamSynchronize",
                            "cannot reach the records of a trace");
}

static imbrex_status tell(imx_device *device, CUmodule module, const imx_cuda_ring *ring)
{
    imx_trace_room room = {
        .records = ring->room->base,
        .counts = (uint32_t *)((char *)ring->room->base + records_bytes(ring)),
        .each = EACH,
    };
    CUdeviceptr at = 0;
    size_t bytes = 0;
    IMX_TRY(imx_driver_check(imx_driver->cuModuleGetGlobal(&at, &bytes, module, "imx_trace_to"),
                             "cuModuleGetGlobal", "kernel %s cannot be traced", ring->name));
    return copy_and_wait(device, (void *)(uintptr_t)at, &room, sizeof room);
}

/* With the context current. */
imbrex_status imx_cuda_trace_prepare(imx_device *device, CUmodule module, const char *name,
                                     int blocks, imx_cuda_ring **out)
{
    imx_cuda_ring *ring = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *ring, &ring));
    ring->name = name;
    ring->blocks = blocks;
    imbrex_status status;
    IMX_GOTO(imx_cuda_memory_create(device, records_bytes(ring) + (size_t)blocks * sizeof(uint32_t),
                                    &ring->room));
    IMX_GOTO(tell(device, module, ring));
    ring->next = device->rings;
    device->rings = ring;
    *out = ring;
    return IMBREX_OK;
fail:
    imx_cuda_trace_destroy(device, ring);
    return status;
}

void imx_cuda_trace_destroy(imx_device *device, imx_cuda_ring *ring)
{
    imx_cuda_ring **at = &device->rings;
    if (!ring)
        return;
    while (*at && *at != ring)
        at = &(*at)->next;
    if (*at)
        *at = ring->next;
    imx_cuda_memory_release(ring->room);
    free(ring);
}

void imx_cuda_trace_launched(imx_device *device, imx_cuda_ring *ring, imbrex_stream stream)
{
    if (ring)
        ring->stream = imx_cuda_stream_number(device, stream);
}

/* ---- from records to spans ------------------------------------------------------------------- */

/* What becomes of a record.  lane 0: one span of all blocks; else it is the block's own. */
static const struct {
    const char *name;
    imbrex_span_kind kind;
    bool all; /* blocks together do one thing */
    bool own; /* it stays within the rank */
} kinds[IMX_TRACE_KINDS] = {
    [IMX_TRACE_KERNEL] = { NULL, IMBREX_SPAN_KERNEL, true, false },
    [IMX_TRACE_TILE] = { "tile", IMBREX_SPAN_TILE, false, false },
    [IMX_TRACE_STORE] = { "store", IMBREX_SPAN_COPY, true, false },
    [IMX_TRACE_CHUNK] = { "chunk", IMBREX_SPAN_WAIT, false, false },
    [IMX_TRACE_PART] = { "part", IMBREX_SPAN_WAIT, false, false },
    [IMX_TRACE_CREDIT] = { "credit", IMBREX_SPAN_WAIT, false, false },
    [IMX_TRACE_PUSH] = { "push", IMBREX_SPAN_COPY, true, false },
    [IMX_TRACE_FOLD] = { "fold", IMBREX_SPAN_COPY, false, true },
    [IMX_TRACE_LAST] = { "last store", IMBREX_SPAN_COPY, false, true },
};

typedef struct noted {
    imx_trace_record record;
    int block, launch;
} noted;

static int by_begin(const void *a, const void *b)
{
    const noted *x = a, *y = b;
    return (x->record.begin > y->record.begin) - (x->record.begin < y->record.begin);
}

/* Blocks' own ones last; those that make one span side by side. */
static int by_span(const void *a, const void *b)
{
    const noted *x = a, *y = b;
    const int keys[][2] = {
        { !kinds[x->record.what].all, !kinds[y->record.what].all },
        { x->launch, y->launch },
        { x->record.what, y->record.what },
        { x->record.peer, y->record.peer },
        { x->record.index, y->record.index },
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    return by_begin(a, b);
}

static int by_pointed_begin(const void *a, const void *b)
{
    return by_begin(*(noted *const *)a, *(noted *const *)b);
}

/* Blocks of one launch run at the same time, and not at that of another's. */
static int number_kernels(noted **kernels, size_t count)
{
    uint64_t end = 0;
    int launch = 0;
    qsort(kernels, count, sizeof *kernels, by_pointed_begin);
    for (size_t i = 0; i < count; i++) {
        const imx_trace_record *r = &kernels[i]->record;
        launch += i > 0 && r->begin >= end;
        end = r->end > end ? r->end : end;
        kernels[i]->launch = launch;
    }
    return launch;
}

/* list: block after block, each in the order of its ring, in which the block itself comes last of
 * its launch.  One that gave up, or found no room, did not say its end: a launch beyond all. */
static imbrex_status number_launches(noted *list, size_t count)
{
    noted **kernels = NULL;
    size_t kernel_count = 0;
    IMX_TRY(imx_sys_alloc(count, sizeof(noted *), &kernels));
    for (size_t i = 0; i < count; i++)
        if (list[i].record.what == IMX_TRACE_KERNEL)
            kernels[kernel_count++] = &list[i];
    int beyond = number_kernels(kernels, kernel_count) + 1;
    free(kernels);
    for (size_t i = count; i-- > 0;) {
        bool same_block = i + 1 < count && list[i + 1].block == list[i].block;
        if (list[i].record.what != IMX_TRACE_KERNEL)
            list[i].launch = same_block ? list[i + 1].launch : beyond;
    }
    return IMBREX_OK;
}

static bool same_span(const noted *a, const noted *b)
{
    return kinds[a->record.what].all && a->record.what == b->record.what &&
           a->launch == b->launch && a->record.peer == b->record.peer &&
           a->record.index == b->record.index;
}

static int lane_of(const noted *n)
{
    if (!kinds[n->record.what].all)
        return n->block + 1;
    return n->record.what == IMX_TRACE_KERNEL ? 0 : -2 - n->record.peer;
}

static void add(const imx_device *device, const imx_cuda_ring *ring, const noted *first,
                uint64_t end, int64_t offset_ns)
{
    int what = first->record.what;
    imbrex_span span = {
        .begin_ns = (int64_t)first->record.begin + offset_ns,
        .end_ns = (int64_t)end + offset_ns,
        .kind = kinds[what].kind,
        .stream = ring->stream,
        .lane = lane_of(first),
        .peer = kinds[what].own ? device->watch.rank : first->record.peer,
        .index = first->record.index,
    };
    const char *name = kinds[what].name ? kinds[what].name : ring->name;
    strncpy(span.name, name, sizeof span.name - 1);
    imbrexd_trace_add(device->trace, &span);
}

static imbrex_status add_all(const imx_device *device, const imx_cuda_ring *ring, noted *list,
                             size_t count, int64_t offset_ns)
{
    IMX_TRY(number_launches(list, count));
    qsort(list, count, sizeof *list, by_span);
    for (size_t i = 0; i < count;) {
        const noted *first = &list[i];
        uint64_t end = first->record.end;
        for (i++; i < count && same_span(first, &list[i]); i++)
            end = list[i].record.end > end ? list[i].record.end : end;
        add(device, ring, first, end, offset_ns);
    }
    return IMBREX_OK;
}

/* Says what there was no room for. */
static void add_lost(const imx_device *device, int stream, size_t lost, int64_t begin_ns)
{
    imbrex_span span = { .begin_ns = begin_ns,
                         .end_ns = begin_ns,
                         .kind = IMBREX_SPAN_KERNEL,
                         .stream = stream,
                         .peer = -1,
                         .index = -1 };
    imx_text name = { .at = span.name, .size = sizeof span.name };
    imx_text_add(&name, "%zu records lost", lost);
    imbrexd_trace_add(device->trace, &span);
}

/* ---- what is no kernel ----------------------------------------------------------------------- */

uint64_t *imx_cuda_trace_times(imx_device *device, const imbrex_span *span, imbrex_stream stream)
{
    if (!device->trace)
        return NULL;
    size_t at = device->timed_count++;
    if (at >= TIMED)
        return NULL;
    device->timed[at] = *span;
    device->timed[at].stream = imx_cuda_stream_number(device, stream);
    return (uint64_t *)device->times->base + 2 * at;
}

/* What failed as it was enqueued has no end. */
static void collect_timed(imx_device *device, int64_t offset_ns)
{
    size_t count = device->timed_count < TIMED ? device->timed_count : TIMED;
    size_t lost = device->timed_count - count;
    for (size_t i = 0; i < count && device->trace; i++) {
        const uint64_t *times = (const uint64_t *)device->times->base + 2 * i;
        imbrex_span *span = &device->timed[i];
        span->begin_ns = (int64_t)times[0] + offset_ns;
        span->end_ns = (int64_t)times[1] + offset_ns;
        if (times[0] && times[1])
            imbrexd_trace_add(device->trace, span);
    }
    if (lost && device->trace)
        add_lost(device, device->timed[count - 1].stream, lost, device->timed[count - 1].end_ns);
    if (count)
        memset(device->times->base, 0, 2 * count * sizeof(uint64_t));
    device->timed_count = 0;
}

/* ---- collecting ------------------------------------------------------------------------------ */

/* The ring's content, as it lies there, into room; then it is empty. */
static imbrex_status read_ring(imx_device *device, const imx_cuda_ring *ring, void *room)
{
    size_t bytes = records_bytes(ring);
    CUcontext before;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    imbrex_status status = copy_and_wait(device, room, ring->room->base, ring->room->bytes);
    if (status == IMBREX_OK)
        status = imx_driver_check(
            imx_driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)ring->room->base + bytes, 0,
                                        ring->room->bytes - bytes, device->setup),
            "cuMemsetD8Async", "cannot empty a trace");
    if (status == IMBREX_OK)
        status = imx_driver_check(imx_driver->cuStreamSynchronize(device->setup),
                                  "cuStreamSynchronize", "cannot empty a trace");
    imx_cuda_leave(device->context, before);
    return status;
}

static imbrex_status collect(imx_device *device, const imx_cuda_ring *ring, int64_t offset_ns)
{
    imx_trace_record *room = NULL;
    noted *list = NULL;
    size_t most = (size_t)ring->blocks * EACH, count = 0, lost = 0;
    IMX_TRY(imx_sys_alloc(1, ring->room->bytes, &room));
    imbrex_status status;
    IMX_GOTO(imx_sys_alloc(most, sizeof *list, &list));
    IMX_GOTO(read_ring(device, ring, room));
    const uint32_t *counts = (const uint32_t *)(room + most);
    for (int b = 0; b < ring->blocks && device->trace; b++) {
        for (uint32_t i = 0; i < counts[b] && i < EACH; i++)
            list[count++] = (noted){ .record = room[(size_t)b * EACH + i], .block = b };
        lost += counts[b] > EACH ? counts[b] - EACH : 0;
    }
    if (count)
        IMX_GOTO(add_all(device, ring, list, count, offset_ns));
    if (lost)
        add_lost(device, ring->stream, lost, (int64_t)list[0].record.begin + offset_ns);
fail:
    free(list);
    free(room);
    return status;
}

/* The clocks are compared now, not when tracing began: they drift apart. */
imbrex_status imx_cuda_trace_collect(imx_device *device)
{
    int64_t offset_ns = 0;
    if ((device->rings || device->timed_count) && device->trace)
        IMX_TRY(imx_cuda_clock_offset(device, &offset_ns));
    collect_timed(device, offset_ns);
    for (const imx_cuda_ring *ring = device->rings; ring; ring = ring->next)
        IMX_TRY(collect(device, ring, offset_ns));
    return IMBREX_OK;
}

/* All that tracing needs later: then nothing may be loaded or allocated. */
static imbrex_status get_ready(imx_device *device)
{
    IMX_TRY(imx_cuda_clock_prepare(device));
    if (!device->timed)
        IMX_TRY(imx_sys_alloc(TIMED, sizeof *device->timed, &device->timed));
    if (device->times)
        return IMBREX_OK;
    return imx_cuda_memory_create_host(device, 2 * TIMED * sizeof(uint64_t), &device->times);
}

/* What was recorded before is nobody's. */
imbrex_status imx_cuda_trace_set(imx_device *device, imbrexd_trace *trace)
{
    device->trace = NULL;
    imx_status_mute(true);
    imbrex_status emptied = imx_cuda_trace_collect(device);
    imx_status_mute(false);
    (void)emptied;
    if (trace)
        IMX_TRY(get_ready(device));
    device->trace = trace;
    return IMBREX_OK;
}
