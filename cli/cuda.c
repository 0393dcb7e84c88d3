/* cuda.c - the driver's functions, events and a host function that holds a stream, and graphs. */
#include "cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cli.h"

/* ---- The driver ------------------------------------------------------------------------------ */

const cuda_calls *cuda;

static cuda_calls loaded;

/* The library stays open: the operators use it too. */
static imbrex_status load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return failure_note(IMBREX_UNSUPPORTED, "no NVIDIA driver to time with: %s", dlerror());
#define LOAD(name, symbol, takes)                                                            \
    if (!(*(void **)&loaded.name = dlsym(library, symbol)))                                  \
        return failure_note(IMBREX_UNSUPPORTED, "the NVIDIA driver is too old: it lacks %s", \
                            symbol);
    CUDA_CALLS_TABLE(LOAD)
#undef LOAD
    return IMBREX_OK;
}

/* OK for result 0, else DEVICE with a sentence that names the call and the driver's word for it. */
static imbrex_status driver_check(int result, const char *call)
{
    const char *name = "?";
    if (result == 0)
        return IMBREX_OK;
    if (cuda->cuGetErrorName(result, &name) != 0)
        name = "an unknown error";
    return failure_note(IMBREX_DEVICE, "cannot time on the GPU: %s says %s (%d)", call, name,
                        result);
}

/* Once is enough. */
static imbrex_status open_driver(void)
{
    if (!cuda) {
        imbrex_status status = load();
        if (status != IMBREX_OK)
            return status;
        cuda = &loaded;
    }
    return driver_check(cuda->cuInit(0), "cuInit");
}

/* ---- A clock --------------------------------------------------------------------------------- */

enum { HOLD_S = 1 };

struct cuda_timer {
    int gpu;
    CUcontext context;
    imbrex_stream stream;
    CUevent begin, end;
    pthread_mutex_t lock;
    pthread_cond_t opened;
    int64_t holds, releases; /* under the lock; equal: the stream may go on */
};

static imbrex_status equip(cuda_timer *timer, int index)
{
    TRY(driver_check(cuda->cuDeviceGet(&timer->gpu, index), "cuDeviceGet"));
    TRY(driver_check(cuda->cuDevicePrimaryCtxRetain(&timer->context, timer->gpu),
                     "cuDevicePrimaryCtxRetain"));
    TRY(driver_check(cuda->cuCtxSetCurrent(timer->context), "cuCtxSetCurrent"));
    TRY(driver_check(cuda->cuStreamCreate(&timer->stream, CUDA_STREAM_NON_BLOCKING),
                     "cuStreamCreate"));
    TRY(driver_check(cuda->cuEventCreate(&timer->begin, CUDA_EVENT_TIMED), "cuEventCreate"));
    return driver_check(cuda->cuEventCreate(&timer->end, CUDA_EVENT_TIMED), "cuEventCreate");
}

imbrex_status cuda_timer_open(const char *device, cuda_timer **out)
{
    int index;
    if (sscanf(device, "cuda:%d", &index) != 1)
        return failure_note(IMBREX_UNSUPPORTED, "device %s has no clock of its own", device);
    TRY(open_driver());
    cuda_timer *timer = calloc(1, sizeof *timer);
    if (!timer)
        return failure_note(IMBREX_NO_MEMORY, "out of memory");
    pthread_mutex_init(&timer->lock, NULL);
    pthread_cond_init(&timer->opened, NULL);
    imbrex_status status = equip(timer, index);
    if (status == IMBREX_OK)
        *out = timer;
    else
        cuda_timer_close(timer);
    return status;
}

void cuda_timer_close(cuda_timer *timer)
{
    if (!timer)
        return;
    if (timer->begin)
        cuda->cuEventDestroy(timer->begin);
    if (timer->end)
        cuda->cuEventDestroy(timer->end);
    if (timer->stream)
        cuda->cuStreamDestroy(timer->stream);
    if (timer->context)
        cuda->cuDevicePrimaryCtxRelease(timer->gpu);
    pthread_cond_destroy(&timer->opened);
    pthread_mutex_destroy(&timer->lock);
    free(timer);
}

imbrex_status cuda_timer_gpu(const cuda_timer *timer, cuda_gpu_id *id)
{
    return driver_check(cuda->cuDeviceGetUuid(id, timer->gpu), "cuDeviceGetUuid");
}

imbrex_stream cuda_timer_stream(const cuda_timer *timer)
{
    return timer->stream;
}

/* On a thread of the driver; the stream goes on when it returns. */
static void wait_for_release(void *ctx)
{
    cuda_timer *timer = ctx;
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += HOLD_S;
    pthread_mutex_lock(&timer->lock);
    while (timer->releases < timer->holds &&
           pthread_cond_timedwait(&timer->opened, &timer->lock, &limit) == 0)
        ;
    pthread_mutex_unlock(&timer->lock);
}

imbrex_status cuda_timer_hold(cuda_timer *timer)
{
    pthread_mutex_lock(&timer->lock);
    timer->holds++;
    pthread_mutex_unlock(&timer->lock);
    return driver_check(cuda->cuLaunchHostFunc(timer->stream, wait_for_release, timer),
                        "cuLaunchHostFunc");
}

void cuda_timer_release(cuda_timer *timer)
{
    pthread_mutex_lock(&timer->lock);
    timer->releases = timer->holds;
    pthread_cond_broadcast(&timer->opened);
    pthread_mutex_unlock(&timer->lock);
}

imbrex_status cuda_timer_begin(cuda_timer *timer)
{
    return driver_check(cuda->cuEventRecord(timer->begin, timer->stream), "cuEventRecord");
}

imbrex_status cuda_timer_end(cuda_timer *timer)
{
    return driver_check(cuda->cuEventRecord(timer->end, timer->stream), "cuEventRecord");
}

imbrex_status cuda_timer_us(cuda_timer *timer, double *us)
{
    float ms;
    TRY(driver_check(cuda->cuEventElapsedTime(&ms, timer->begin, timer->end),
                     "cuEventElapsedTime"));
    *us = (double)ms * 1e3;
    return IMBREX_OK;
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

struct cuda_graph {
    imbrex_stream stream;
    CUgraph captured;
    CUgraphExec replay;
};

/* Ends the capture also if a call failed: else the stream is of no more use. */
static imbrex_status capture(cuda_graph *graph, imbrex_status (*enqueue)(void *), void *ctx,
                             int count)
{
    imbrex_status status =
        driver_check(cuda->cuStreamBeginCapture(graph->stream, CUDA_CAPTURE_THREAD_LOCAL),
                     "cuStreamBeginCapture");
    if (status != IMBREX_OK)
        return status;
    for (int i = 0; i < count && status == IMBREX_OK; i++)
        status = enqueue(ctx);
    int ended = cuda->cuStreamEndCapture(graph->stream, &graph->captured);
    if (status == IMBREX_OK)
        status = driver_check(ended, "cuStreamEndCapture");
    if (status == IMBREX_OK)
        status = driver_check(cuda->cuGraphInstantiate(&graph->replay, graph->captured, 0),
                              "cuGraphInstantiate");
    return status;
}

imbrex_status cuda_graph_capture(imbrex_stream stream, imbrex_status (*enqueue)(void *ctx),
                                 void *ctx, int count, cuda_graph **out)
{
    cuda_graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return failure_note(IMBREX_NO_MEMORY, "out of memory");
    graph->stream = stream;
    imbrex_status status = capture(graph, enqueue, ctx, count);
    if (status == IMBREX_OK)
        *out = graph;
    else
        cuda_graph_destroy(graph);
    return status;
}

void cuda_graph_destroy(cuda_graph *graph)
{
    if (!graph)
        return;
    if (graph->replay)
        cuda->cuGraphExecDestroy(graph->replay);
    if (graph->captured)
        cuda->cuGraphDestroy(graph->captured);
    free(graph);
}

imbrex_status cuda_graph_run(void *ctx)
{
    cuda_graph *graph = ctx;
    return driver_check(cuda->cuGraphLaunch(graph->replay, graph->stream), "cuGraphLaunch");
}
