/* cuda_timer.c - events, and a host function that holds a stream. */
#include "cuda_timer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda_calls.h"
#include "failure.h"
#include "try.h"

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
    TRY(cuda_calls_check(cuda->cuDeviceGet(&timer->gpu, index), "cuDeviceGet"));
    TRY(cuda_calls_check(cuda->cuDevicePrimaryCtxRetain(&timer->context, timer->gpu),
                         "cuDevicePrimaryCtxRetain"));
    TRY(cuda_calls_check(cuda->cuCtxSetCurrent(timer->context), "cuCtxSetCurrent"));
    TRY(cuda_calls_check(cuda->cuStreamCreate(&timer->stream, CUDA_STREAM_NON_BLOCKING),
                         "cuStreamCreate"));
    TRY(cuda_calls_check(cuda->cuEventCreate(&timer->begin, CUDA_EVENT_TIMED), "cuEventCreate"));
    return cuda_calls_check(cuda->cuEventCreate(&timer->end, CUDA_EVENT_TIMED), "cuEventCreate");
}

imbrex_status cuda_timer_open(const char *device, cuda_timer **out)
{
    int index;
    if (sscanf(device, "cuda:%d", &index) != 1)
        return failure_note(IMBREX_UNSUPPORTED, "device %s has no clock of its own", device);
    TRY(cuda_calls_open());
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
    return cuda_calls_check(cuda->cuLaunchHostFunc(timer->stream, wait_for_release, timer),
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
    return cuda_calls_check(cuda->cuEventRecord(timer->begin, timer->stream), "cuEventRecord");
}

imbrex_status cuda_timer_end(cuda_timer *timer)
{
    return cuda_calls_check(cuda->cuEventRecord(timer->end, timer->stream), "cuEventRecord");
}

imbrex_status cuda_timer_us(cuda_timer *timer, double *us)
{
    float ms;
    TRY(cuda_calls_check(cuda->cuEventElapsedTime(&ms, timer->begin, timer->end),
                         "cuEventElapsedTime"));
    *us = (double)ms * 1e3;
    return IMBREX_OK;
}
