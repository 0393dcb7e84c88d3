/* cpu.c - the CPU as a device: its table of functions. */
#include "cpu.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

void imx_cpu_sleep(const uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

void imx_cpu_wake(const uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void info(imx_text *text)
{
    imx_text_add(text, "device cpu: %ld cores\n", sysconf(_SC_NPROCESSORS_ONLN));
}

/* What the emulations take: more would overflow a time, and help nobody. */
#define LINK_LEAST 1e-6
enum { MS_MOST = 60000, THREADS_MOST = 1024, CACHE_BYTES = 64 << 20 };

static imbrex_status device_open(const imx_device_desc *desc, imx_device **out)
{
    if (desc->index > 0)
        return imx_fail(IMBREX_INVALID, "device cpu:%d does not exist: there is only cpu:0",
                        desc->index);
    if (desc->env->cpu_threads < 1 || desc->env->cpu_threads > THREADS_MOST)
        return imx_fail(IMBREX_INVALID, "IMBREX_CPU_THREADS is %lld: want from 1 to %d",
                        (long long)desc->env->cpu_threads, THREADS_MOST);
    if (desc->env->chaos_ms > MS_MOST)
        return imx_fail(IMBREX_INVALID, "IMBREX_CHAOS is %lld: want at most %d",
                        (long long)desc->env->chaos_ms, MS_MOST);
    if (desc->env->cpu_link > 0 && desc->env->cpu_link < LINK_LEAST)
        return imx_fail(IMBREX_INVALID, "IMBREX_CPU_LINK is %g: want 0 or at least %g GB/s",
                        desc->env->cpu_link, LINK_LEAST);
    imx_device *device = NULL;
    imbrex_status status;
    IMX_GOTO(imx_sys_alloc(1, sizeof *device, &device));
    if (desc->env->check)
        IMX_GOTO(imx_sys_alloc(1, sizeof *device->check, &device->check));
    device->env = desc->env;
    device->rank = desc->rank;
    device->local_size = desc->local_size;
    device->threads = (int)desc->env->cpu_threads;
    device->chaos_ns = desc->env->chaos_ms * 1000000;
    device->link_ns = desc->env->cpu_link > 0 ? 1 / desc->env->cpu_link : 0; /* GB/s is byte/ns */
    *out = device;
    return IMBREX_OK;
fail:
    free(device);
    return status;
}

static void device_close(imx_device *device)
{
    while (device && device->streams)
        imx_cpu_stream_destroy(device, device->streams);
    if (device && device->check)
        imx_cpu_check_thread_end(device->check->host);
    if (device)
        free(device->check);
    free(device);
}

static void target(const imx_device *device, imx_target *out)
{
    *out = (imx_target){ .workers = device->threads,
                         .workers_most = THREADS_MOST,
                         .cache_bytes = CACHE_BYTES };
    snprintf(out->name, sizeof out->name, "%ld cores, %d threads a rank, %s",
             sysconf(_SC_NPROCESSORS_ONLN), device->threads, imx_kernel_gemm.cpu_info());
}

static void link_to(const imx_device *device, const char *id, imx_text *text)
{
    (void)id;
    if (device->link_ns > 0)
        imx_text_add(text, "wire of %g GB/s", 1 / device->link_ns);
    else
        imx_text_add(text, "memory");
}

/* Their uses are stored last. */
static imbrex_status whole_lines(const imx_device *device, const char *id, bool *whole)
{
    (void)device;
    (void)id;
    *whole = true;
    return IMBREX_OK;
}

static void set_watch(imx_device *device, const imbrexd_watch *watch)
{
    device->watch = watch;
}

static imbrex_status set_trace(imx_device *device, imbrexd_trace *trace)
{
    device->trace = trace;
    return IMBREX_OK;
}

const imx_backend imx_backend_cpu = {
    .name = "cpu",
    .info = info,
    .open = device_open,
    .close = device_close,
    .target = target,
    .link = link_to,
    .whole_lines = whole_lines,
    .memory_create = imx_cpu_memory_create,
    .memory_export = imx_cpu_memory_export,
    .memory_import = imx_cpu_memory_import,
    .memory_share = imx_cpu_memory_share,
    .memory_release = imx_cpu_memory_release,
    .forked_release = true,
    .memory_own = imx_cpu_check_memory_own,
    .sentence = imx_cpu_check_sentence,
    .check_read = imx_cpu_check_host_reads,
    .set_watch = set_watch,
    .set_trace = set_trace,
    .stream_is = imx_cpu_stream_is,
    .stream_create = imx_cpu_stream_create,
    .stream_destroy = imx_cpu_stream_destroy,
    .stream_sync = imx_cpu_stream_sync,
    .event_create = imx_cpu_event_create,
    .event_destroy = imx_cpu_event_destroy,
    .event_record = imx_cpu_event_record,
    .event_wait = imx_cpu_event_wait,
    .copy = imx_cpu_copy,
    .signals = imx_cpu_signals,
    .call = imx_cpu_call,
    .prepare = imx_cpu_prepare,
    .prepared_destroy = imx_cpu_prepared_destroy,
    .launch = imx_cpu_launch,
    .user_prepare = imx_cpu_user_prepare,
    .user_destroy = imx_cpu_user_destroy,
    .user_launch = imx_cpu_user_launch,
};
