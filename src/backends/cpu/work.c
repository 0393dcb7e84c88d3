/* work.c - what a stream's worker does: copies, posts, waits, kernels, and the spans of each. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu.h"

enum { NAP_NS = 5000000 }; /* between two looks at the abort word */

static bool aborted(const imx_device *device)
{
    const imbrexd_watch *watch = device->watch;
    return __atomic_load_n(watch->abort[watch->rank], __ATOMIC_ACQUIRE) != 0;
}

/* Or until the group has failed. */
static void sleep_for(const imx_device *device, int64_t time_ns)
{
    int64_t now_ns = imbrexd_now_ns(), end_ns = now_ns + time_ns;
    for (; now_ns < end_ns && !aborted(device); now_ns = imbrexd_now_ns()) {
        int64_t until_ns = imx_min(end_ns, now_ns + NAP_NS);
        struct timespec until = { .tv_sec = until_ns / 1000000000,
                                  .tv_nsec = until_ns % 1000000000 };
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

void imx_cpu_chaos(const imx_device *device, uint32_t *seed)
{
    if (!device->chaos_ns)
        return;
    *seed = *seed * 1664525 + 1013904223;
    sleep_for(device, (int64_t)(*seed >> 8) * device->chaos_ns / (1 << 24));
}

static void note(const imx_device *device, imbrex_span span, const char *name)
{
    strncpy(span.name, name, sizeof span.name - 1);
    span.end_ns = imbrexd_now_ns();
    imbrexd_trace_add(device->trace, &span);
}

static void copy(imx_device *device, int stream, const imx_cpu_entry *entry)
{
    imbrex_span span = {
        .begin_ns = imbrexd_now_ns(),
        .kind = IMBREX_SPAN_COPY,
        .stream = stream,
        .peer = entry->copy.rank,
        .index = -1,
        .bytes = (int64_t)entry->copy.bytes,
    };
    imx_cpu_check_doing("a copy", -1);
    if (entry->copy.bytes && imx_cpu_check_access(entry->copy.src, entry->copy.bytes, 0, 1, 0) &&
        imx_cpu_check_access(entry->copy.dst, entry->copy.bytes, 0, 1, 1))
        memcpy(entry->copy.dst, entry->copy.src, entry->copy.bytes);
    if (device->link_ns > 0 && entry->copy.rank != device->rank)
        sleep_for(device, (int64_t)((double)entry->copy.bytes * device->link_ns));
    if (device->trace)
        note(device, span, "copy");
}

static void signal(imx_device *device, int stream, uint32_t *seed, const imx_signal_op *op)
{
    uint64_t value = (op->word ? *op->word : 0) + op->add;
    imx_cpu_check_doing(op->kind == IMX_POST ? "a post" : "a wait", op->point.plan);
    if (op->kind == IMX_POST) {
        if (op->point.rank != device->rank)
            imx_cpu_chaos(device, seed);
        if (!aborted(device))
            imbrexd_signal_post(op->signal, value);
        return;
    }
    imbrex_span span = {
        .begin_ns = imbrexd_now_ns(),
        .kind = IMBREX_SPAN_WAIT,
        .stream = stream,
        .peer = op->point.rank,
        .index = op->point.index,
    };
    /* A wait that gives up leaves the abort word set: the rest of the stream is skipped. */
    imbrexd_signal_wait(device->watch, op->signal, value, op->point);
    if (device->trace)
        note(device, span, "wait");
}

static void launch(imx_device *device, int stream, const imx_cpu_entry *entry)
{
    imbrex_span span = {
        .begin_ns = imbrexd_now_ns(),
        .kind = IMBREX_SPAN_KERNEL,
        .stream = stream,
        .peer = -1,
        .index = -1,
    };
    imx_cpu_prepared_run(device, entry->launch.prepared, entry->launch.args, stream);
    if (device->trace)
        note(device, span, imx_cpu_prepared_name(entry->launch.prepared));
}

static void call(imx_device *device, int stream, const imx_cpu_entry *entry)
{
    imbrex_span span = entry->call.span;
    span.begin_ns = imbrexd_now_ns();
    span.stream = stream;
    entry->call.fn(entry->call.args);
    span.end_ns = imbrexd_now_ns();
    if (device->trace)
        imbrexd_trace_add(device->trace, &span);
}

/* Events order streams of one rank, so they hold also after an abort: nothing is freed early. */
static void await(const imx_event *event, uint32_t recording)
{
    imx_cpu_check_passive(&event->reached, recording);
    uint32_t reached; /* acquire: what the recording stream did before is visible here */
    while ((int32_t)((reached = __atomic_load_n(&event->reached, __ATOMIC_ACQUIRE)) - recording) <
           0)
        imx_cpu_sleep(&event->reached, reached);
    imx_cpu_check_passive(NULL, 0);
    imx_cpu_check_take(&event->clock);
}

void imx_cpu_work(imx_device *device, int stream, uint32_t *seed, const imx_cpu_entry *entry)
{
    if (entry->kind == IMX_CPU_RECORD) {
        imx_cpu_check_give(&entry->event.event->clock);
        __atomic_store_n(&entry->event.event->reached, entry->event.recording, __ATOMIC_RELEASE);
        imx_cpu_wake(&entry->event.event->reached);
        imx_cpu_event_drop(entry->event.event);
    } else if (entry->kind == IMX_CPU_AWAIT) {
        await(entry->event.event, entry->event.recording);
        imx_cpu_event_drop(entry->event.event);
    } else if (aborted(device)) {
        return;
    } else if (entry->kind == IMX_CPU_COPY) {
        imx_cpu_chaos(device, seed);
        if (!aborted(device))
            copy(device, stream, entry);
    } else if (entry->kind == IMX_CPU_CALL) {
        imx_cpu_chaos(device, seed);
        call(device, stream, entry);
    } else if (entry->kind == IMX_CPU_SIGNAL) {
        signal(device, stream, seed, &entry->signal);
    } else {
        launch(device, stream, entry);
    }
}
