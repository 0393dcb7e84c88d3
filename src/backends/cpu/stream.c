/* stream.c - a stream is a worker thread behind a ring of entries with one producer (the thread
 * that owns the group) and one consumer (the worker).
 *
 *     tail: entries ever put in, by the producer     head: entries ever finished, by the worker
 *
 * Each side sleeps on the other's word, having said so first (worker_sleeps, host_sleeps), so that
 * nobody makes a system call for someone who is awake.  The host says, too, which head it waits
 * for: it is not woken before.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "cpu.h"

enum { ENTRIES = 512, POLLS = 200 };

struct imx_cpu_stream {
    imx_cpu_stream *next;
    imx_device *device;
    int number;
    unsigned long thread;
    imx_cpu_check_thread *check;
    _Alignas(64) uint32_t tail;
    uint32_t host_sleeps;
    uint32_t host_wants; /* head; written before host_sleeps */
    _Alignas(64) uint32_t head;
    uint32_t worker_sleeps;
    _Alignas(64) imx_cpu_entry ring[ENTRIES];
};

/* Until *word is no longer seen.  The order of the two seq_cst operations here and of the two in
 * publish makes sure that one side sees the other: either the sleeper sees the new word, or the
 * publisher sees the sleeper. */
static uint32_t await_change(const uint32_t *word, uint32_t seen, uint32_t *sleeps)
{
    uint32_t now;
    for (int i = 0; i < POLLS; i++) {
        if ((now = __atomic_load_n(word, __ATOMIC_ACQUIRE)) != seen)
            return now;
    }
    __atomic_store_n(sleeps, 1, __ATOMIC_SEQ_CST);
    while ((now = __atomic_load_n(word, __ATOMIC_SEQ_CST)) == seen)
        imx_cpu_sleep(word, seen);
    __atomic_store_n(sleeps, 0, __ATOMIC_RELAXED);
    return now;
}

/* seq_cst, which includes release: the entry (or its effect) comes before the word. */
static void publish(uint32_t *word, uint32_t value, const uint32_t *sleeps)
{
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(sleeps, __ATOMIC_SEQ_CST))
        imx_cpu_wake(word);
}

/* publish for the host, who is woken when what it wants is there: whoever sees it sleep sees also
 * which head that is. */
static void finish(imx_cpu_stream *stream, uint32_t head)
{
    __atomic_store_n(&stream->head, head, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&stream->host_sleeps, __ATOMIC_SEQ_CST) &&
        (int32_t)(head - __atomic_load_n(&stream->host_wants, __ATOMIC_RELAXED)) >= 0)
        imx_cpu_wake(&stream->head);
}

static void *work(void *arg)
{
    imx_cpu_stream *stream = arg;
    prctl(PR_SET_NAME, "imbrex-stream");
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: the emulated wire sleeps for short times */
    uint32_t seed = (uint32_t)(stream->device->rank * 7919 + stream->number * 104729 + 1);
    uint32_t head = 0, tail = 0;
    imx_cpu_check_enter(stream->check);
    for (bool stop = false; !stop;) {
        if (head == tail)
            tail = await_change(&stream->tail, tail, &stream->worker_sleeps);
        const imx_cpu_entry *entry = &stream->ring[head % ENTRIES];
        stop = entry->kind == IMX_CPU_STOP;
        imx_cpu_check_work(stream->check, 0);
        if (!stop)
            imx_cpu_work(stream->device, stream->number, &seed, entry);
        imx_cpu_check_work(stream->check, -1);
        finish(stream, ++head);
    }
    return NULL;
}

/* Until at most `left` entries are unfinished. */
static void drain_to(imx_cpu_stream *stream, uint32_t left)
{
    uint32_t head = __atomic_load_n(&stream->head, __ATOMIC_ACQUIRE);
    while (stream->tail - head > left) {
        __atomic_store_n(&stream->host_wants, stream->tail - left, __ATOMIC_RELAXED);
        head = await_change(&stream->head, head, &stream->host_sleeps);
    }
}

/* The next free entry; blocks while the ring is full.  commit hands it over. */
static imx_cpu_entry *reserve(imx_cpu_stream *stream, imx_cpu_kind kind)
{
    drain_to(stream, ENTRIES - 1);
    imx_cpu_entry *entry = &stream->ring[stream->tail % ENTRIES];
    entry->kind = kind;
    return entry;
}

static void commit(imx_cpu_stream *stream)
{
    imx_cpu_check_work(stream->check, 1);
    publish(&stream->tail, stream->tail + 1, &stream->worker_sleeps);
}

imbrex_status imx_cpu_stream_create(imx_device *device, imbrex_stream *out)
{
    imx_cpu_stream *stream = imx_sys.aligned_alloc(64, sizeof *stream);
    if (!stream)
        return imx_fail(IMBREX_NO_MEMORY, "no memory for a stream");
    memset(stream, 0, offsetof(imx_cpu_stream, ring)); /* of which no entry is read unwritten */
    stream->device = device;
    stream->number = device->stream_count;
    imbrex_status status;
    IMX_GOTO(imx_cpu_check_thread_begin(device, stream->number, &stream->check));
    int error = imx_sys.thread_create(&stream->thread, work, stream);
    if (error) {
        status = imx_cpu_room_refused("start a stream's thread", error);
        goto fail;
    }
    device->stream_count++;
    stream->next = device->streams;
    device->streams = stream;
    *out = stream;
    return IMBREX_OK;
fail:
    imx_cpu_check_thread_end(stream->check);
    free(stream);
    return status;
}

void imx_cpu_stream_destroy(imx_device *device, imbrex_stream handle)
{
    imx_cpu_stream *stream = handle;
    if (!stream)
        return;
    reserve(stream, IMX_CPU_STOP);
    commit(stream);
    imx_cpu_check_host_waits(device, stream->check);
    pthread_join(stream->thread, NULL);
    imx_cpu_check_host_goes_on(device, stream->check);
    imx_cpu_check_thread_end(stream->check);
    for (imx_cpu_stream **at = &device->streams; *at; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    }
    free(stream);
}

imbrex_status imx_cpu_stream_sync(imx_device *device, imbrex_stream handle)
{
    imx_cpu_stream *stream = handle;
    imx_cpu_check_host_waits(device, stream->check);
    drain_to(stream, 0);
    imx_cpu_check_host_goes_on(device, stream->check);
    return IMBREX_OK;
}

bool imx_cpu_stream_is(const imx_device *device, imbrex_stream handle)
{
    const imx_cpu_stream *stream = device->streams;
    while (stream && stream != handle)
        stream = stream->next;
    return stream != NULL;
}

imbrex_status imx_cpu_event_create(imx_device *device, imx_event **event)
{
    (void)device;
    IMX_TRY(imx_sys_alloc(1, sizeof **event, event));
    (*event)->refs = 1;
    return IMBREX_OK;
}

/* acq_rel: whoever frees it comes after all who used it. */
void imx_cpu_event_drop(imx_event *event)
{
    if (__atomic_sub_fetch(&event->refs, 1, __ATOMIC_ACQ_REL))
        return;
    free(event->clock);
    free(event);
}

void imx_cpu_event_destroy(imx_device *device, imx_event *event)
{
    (void)device;
    if (event)
        imx_cpu_event_drop(event);
}

static imbrex_status put_event(imx_cpu_stream *stream, imx_cpu_kind kind, imx_event *event)
{
    imx_cpu_entry *entry = reserve(stream, kind);
    __atomic_add_fetch(&event->refs, 1, __ATOMIC_RELAXED); /* the caller has one: it stays */
    entry->event.event = event;
    entry->event.recording = event->recorded;
    commit(stream);
    return IMBREX_OK;
}

imbrex_status imx_cpu_event_record(imx_device *device, imx_event *event, imbrex_stream stream)
{
    (void)device;
    event->recorded++;
    return put_event(stream, IMX_CPU_RECORD, event);
}

imbrex_status imx_cpu_event_wait(imx_device *device, imx_event *event, imbrex_stream stream)
{
    (void)device;
    return put_event(stream, IMX_CPU_AWAIT, event);
}

imbrex_status imx_cpu_copy(imx_device *device, void *dst, const void *src, size_t bytes, int rank,
                           imbrex_stream stream)
{
    (void)device;
    imx_cpu_entry *entry = reserve(stream, IMX_CPU_COPY);
    entry->copy.dst = dst;
    entry->copy.src = src;
    entry->copy.bytes = bytes;
    entry->copy.rank = rank;
    commit(stream);
    return IMBREX_OK;
}

imbrex_status imx_cpu_signals(imx_device *device, const imx_signal_op *ops, int count,
                              imbrex_stream stream)
{
    (void)device;
    for (int i = 0; i < count; i++) {
        reserve(stream, IMX_CPU_SIGNAL)->signal = ops[i];
        commit(stream);
    }
    return IMBREX_OK;
}

imbrex_status imx_cpu_launch(imx_device *device, imx_prepared *prepared, const void *args,
                             size_t args_bytes, imbrex_stream stream)
{
    (void)device;
    if (args_bytes > IMX_ARGS_BYTES)
        return imx_fail(IMBREX_INTERNAL, "%s has %zu bytes of args: at most %d fit",
                        imx_cpu_prepared_name(prepared), args_bytes, IMX_ARGS_BYTES);
    imx_cpu_entry *entry = reserve(stream, IMX_CPU_LAUNCH);
    entry->launch.prepared = prepared;
    memcpy(entry->launch.args, args, args_bytes);
    commit(stream);
    return IMBREX_OK;
}

imbrex_status imx_cpu_call(imx_device *device, void (*fn)(const void *args), const void *args,
                           size_t args_bytes, const imbrex_span *span, imbrex_stream stream)
{
    (void)device;
    if (args_bytes > IMX_ARGS_BYTES)
        return imx_fail(IMBREX_INTERNAL, "a call has %zu bytes of args: at most %d fit", args_bytes,
                        IMX_ARGS_BYTES);
    imx_cpu_entry *entry = reserve(stream, IMX_CPU_CALL);
    entry->call.fn = fn;
    entry->call.span = *span;
    memcpy(entry->call.args, args, args_bytes);
    commit(stream);
    return IMBREX_OK;
}
