/* stream.c - a stream is a CUstream, an event a CUevent, as the driver has them. */
#include <stdlib.h>

#include "cuda.h"
#include "signals.h"

/* All that were made until the device is closed.  The driver deals streams out to the hardware's
 * few queues as it makes them, round and round: made anew with every plan, one would soon stand in
 * a queue behind a kernel that waits for it.  So they are used again. */
struct imx_cuda_stream {
    imx_cuda_stream *next;
    CUstream handle;
    int number; /* in order of creation */
    bool idle;  /* nobody's */
};

static imbrex_status make(imx_device *device, imx_cuda_stream **out)
{
    imx_cuda_stream *stream = NULL;
    CUcontext before;
    IMX_TRY(imx_sys_alloc(1, sizeof *stream, &stream));
    imbrex_status status;
    IMX_GOTO(imx_cuda_enter(device->context, &before));
    status = imx_driver_check(imx_driver->cuStreamCreateWithPriority(
                                  &stream->handle, CU_STREAM_NON_BLOCKING, device->priority),
                              "cuStreamCreateWithPriority", "cannot make a stream");
    imx_cuda_leave(device->context, before);
    if (status != IMBREX_OK)
        goto fail;
    stream->next = device->streams;
    stream->number = device->stream_count++;
    device->streams = stream;
    *out = stream;
    return IMBREX_OK;
fail:
    free(stream);
    return status;
}

imbrex_status imx_cuda_stream_create(imx_device *device, imbrex_stream *out)
{
    imx_cuda_stream *stream = device->streams;
    while (stream && !stream->idle)
        stream = stream->next;
    if (!stream)
        IMX_TRY(make(device, &stream));
    stream->idle = false;
    *out = (imbrex_stream)stream->handle;
    return IMBREX_OK;
}

int imx_cuda_stream_number(const imx_device *device, imbrex_stream handle)
{
    const imx_cuda_stream *stream = device->streams;
    while (stream && (imbrex_stream)stream->handle != handle)
        stream = stream->next;
    return stream ? stream->number : 0;
}

/* What is enqueued ends by itself: every wait in it has a deadline. */
static void drain(CUstream stream)
{
    CUresult drained = imx_driver->cuStreamSynchronize(stream);
    (void)drained;
}

/* A stream that a capture has taken in is not for anyone else, and to wait for it would end the
 * capture. */
void imx_cuda_stream_destroy(imx_device *device, imbrex_stream handle)
{
    imx_cuda_stream *stream = device->streams;
    while (stream && (imbrex_stream)stream->handle != handle)
        stream = stream->next;
    CUcontext before;
    if (!handle || !stream || imx_cuda_enter(device->context, &before) != IMBREX_OK)
        return;
    stream->idle = !imx_cuda_stream_capture(device, handle);
    if (stream->idle)
        drain(stream->handle);
    imx_cuda_leave(device->context, before);
}

void imx_cuda_stream_destroy_all(imx_device *device)
{
    while (device->streams) {
        imx_cuda_stream *stream = device->streams;
        device->streams = stream->next;
        drain(stream->handle);
        CUresult destroyed = imx_driver->cuStreamDestroy(stream->handle);
        (void)destroyed;
        free(stream);
    }
}

imbrex_status imx_cuda_stream_sync(imx_device *device, imbrex_stream stream)
{
    CUcontext before;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    imbrex_status status = imx_driver_check(imx_driver->cuStreamSynchronize((CUstream)stream),
                                            "cuStreamSynchronize", "a stream's work failed");
    imx_cuda_leave(device->context, before);
    return status;
}

/* A capture that has failed has no number any more, and what is enqueued there fails, too. */
uint64_t imx_cuda_stream_capture(const imx_device *device, imbrex_stream stream)
{
    CUcontext before;
    int state = CU_STREAM_CAPTURE_NONE;
    uint64_t number = 0;
    if (imx_cuda_enter(device->context, &before) != IMBREX_OK)
        return 0;
    CUresult asked =
        imx_driver->cuStreamGetCaptureInfo((CUstream)stream, &state, &number, NULL, NULL, NULL);
    imx_cuda_leave(device->context, before);
    if (asked != CUDA_SUCCESS || state == CU_STREAM_CAPTURE_NONE)
        return 0;
    return state == CU_STREAM_CAPTURE_ACTIVE ? number + 1 : UINT64_MAX;
}

/* ---- events ---------------------------------------------------------------------------------- */

imbrex_status imx_cuda_event_create(imx_device *device, imx_event **out)
{
    CUcontext before;
    CUevent event = NULL;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    imbrex_status status =
        imx_driver_check(imx_driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING),
                         "cuEventCreate", "cannot make an event");
    imx_cuda_leave(device->context, before);
    if (status == IMBREX_OK)
        *out = (imx_event *)event;
    return status;
}

void imx_cuda_event_destroy(imx_device *device, imx_event *event)
{
    CUcontext before;
    if (!event || imx_cuda_enter(device->context, &before) != IMBREX_OK)
        return;
    CUresult destroyed = imx_driver->cuEventDestroy((CUevent)event);
    (void)destroyed;
    imx_cuda_leave(device->context, before);
}

imbrex_status imx_cuda_event_record(imx_device *device, imx_event *event, imbrex_stream stream)
{
    CUcontext before;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    imbrex_status status =
        imx_driver_check(imx_driver->cuEventRecord((CUevent)event, (CUstream)stream),
                         "cuEventRecord", "cannot mark a place in a stream");
    imx_cuda_leave(device->context, before);
    return status;
}

imbrex_status imx_cuda_event_wait(imx_device *device, imx_event *event, imbrex_stream stream)
{
    CUcontext before;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    imbrex_status status =
        imx_driver_check(imx_driver->cuStreamWaitEvent((CUstream)stream, (CUevent)event, 0),
                         "cuStreamWaitEvent", "cannot make a stream wait for another");
    imx_cuda_leave(device->context, before);
    return status;
}

/* ---- copies and signals ---------------------------------------------------------------------- */

/* One address space: the driver sees by the addresses whose memory it is. */
imbrex_status imx_cuda_copy(imx_device *device, void *dst, const void *src, size_t bytes, int rank,
                            imbrex_stream stream)
{
    CUcontext before;
    if (!bytes)
        return IMBREX_OK;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    imbrex_status status = imx_driver_check(
        imx_driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)dst, (CUdeviceptr)(uintptr_t)src, bytes,
                                  (CUstream)stream),
        "cuMemcpyAsync", "cannot copy %zu bytes to or from rank %d", bytes, rank);
    imx_cuda_leave(device->context, before);
    return status;
}

/* The call in the plural takes memory that the driver does not know for no error. */
static bool is_pageable(const void *at)
{
    unsigned type = 0;
    int attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *values[] = { &type };
    CUresult asked =
        imx_driver->cuPointerGetAttributes(1, &attribute, values, (CUdeviceptr)(uintptr_t)at);
    return asked != CUDA_SUCCESS || type == 0;
}

/* A copy of pageable memory holds the driver's lock of the context until the stream has come to it,
 * and with the lock all other ranks that are threads of this process: if the stream waits for one
 * of them, for ever.  So the stream is waited for first, which holds nothing. */
imbrex_status imx_cuda_copy_any(imx_device *device, void *dst, const void *src, size_t bytes,
                                int rank, imbrex_stream stream)
{
    CUcontext before;
    if (!bytes)
        return IMBREX_OK;
    IMX_TRY(imx_cuda_enter(device->context, &before));
    bool pageable = is_pageable(dst) || is_pageable(src);
    imx_cuda_leave(device->context, before);
    if (pageable && !imx_cuda_stream_capture(device, stream))
        IMX_TRY(imx_cuda_stream_sync(device, stream));
    return imx_cuda_copy(device, dst, src, bytes, rank, stream);
}

static const int signal_kinds[] = {
    [IMX_POST] = IMX_SIGNALS_POST,
    [IMX_WAIT] = IMX_SIGNALS_WAIT,
    [IMX_TIME] = IMX_SIGNALS_TIME,
};

/* The op as the kernel's next one, whose values are all read first: one that an op before it raises
 * is raised here.  false: it has to be another launch's. */
static bool add_op(imx_signals_args *args, const imx_signal_op *op)
{
    imx_signals_op *next = &args->ops[args->count];
    if (args->count == IMX_SIGNALS_ROOM)
        return false;
    *next = (imx_signals_op){
        .signal = op->signal,
        .word = op->word,
        .add = op->add,
        .point = op->point,
        .kind = signal_kinds[op->kind],
        .step = args->count ? args->ops[args->count - 1].step + !op->beside : 0,
    };
    for (int i = 0; i < args->count && op->word; i++) {
        const imx_signals_op *raise = &args->ops[i];
        if (raise->signal != op->word || raise->kind != IMX_SIGNALS_POST)
            continue;
        if (raise->word != op->word)
            return false;
        next->add = op->add + raise->add;
    }
    args->count++;
    return true;
}

/* A plan's post of its epoch is an 8-byte copy of that word: the copy engine needs no room on
 * a multiprocessor, so it gets through beneath a kernel that fills the GPU and waits for just this
 * post.  Copies and kernels that came before on the stream are complete by then. */
static bool is_copy(const imx_signal_op *op)
{
    return op->kind == IMX_POST && op->word && !op->add && op->point.plan > 0;
}

imbrex_status imx_cuda_signals(imx_device *device, const imx_signal_op *ops, int count,
                               imbrex_stream stream)
{
    for (int done = 0; done < count;) {
        if (is_copy(&ops[done])) {
            const imx_signal_op *op = &ops[done++];
            IMX_TRY(imx_cuda_copy(device, op->signal, op->word, sizeof *op->signal, op->point.rank,
                                  stream));
            continue;
        }
        imx_signals_args args = { 0 };
        while (done < count && !is_copy(&ops[done]) && add_op(&args, &ops[done]))
            done++;
        IMX_TRY(imx_cuda_kernel_launch(device, device->signals, &args, sizeof args, stream));
    }
    return IMBREX_OK;
}
