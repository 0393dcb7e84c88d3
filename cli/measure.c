/* measure.c - interleaved rounds, the maximum over ranks, the median over rounds. */
#include "measure.h"

#include <stdlib.h>
#include <time.h>

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* So many calls are enqueued before the stream starts on the first: more than a GPU takes at once
 * would wait for it. */
enum { CALLS_HELD = 8 };

static imbrex_status time_by_host(const measure_clock *at, share *s, const candidate *c, double *us)
{
    imbrex_status status = share_barrier(s->group);
    double begin = now_us();
    for (int i = 0; i < c->inner && status == IMBREX_OK; i++)
        status = c->enqueue(c->ctx);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(c->group, at->stream);
    *us = (now_us() - begin) / c->inner;
    return status;
}

static imbrex_status enqueue_timed(const measure_clock *at, share *s, const candidate *c)
{
    imbrex_status status = imbrex_barrier(s->group, at->stream);
    if (status == IMBREX_OK)
        status = cuda_timer_begin(at->timer, at->stream);
    for (int i = 0; i < c->inner && status == IMBREX_OK; i++) {
        if (i == CALLS_HELD)
            cuda_timer_release(at->timer);
        status = c->enqueue(c->ctx);
    }
    return status == IMBREX_OK ? cuda_timer_end(at->timer, at->stream) : status;
}

static imbrex_status time_by_gpu(const measure_clock *at, share *s, const candidate *c, double *us)
{
    imbrex_status status = share_barrier(s->group);
    if (status == IMBREX_OK)
        status = cuda_timer_hold(at->timer, at->stream);
    if (status == IMBREX_OK)
        status = enqueue_timed(at, s, c);
    cuda_timer_release(at->timer);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(c->group, at->stream);
    if (status == IMBREX_OK)
        status = cuda_timer_us(at->timer, us);
    *us /= c->inner;
    return status;
}

static imbrex_status time_once(const measure_clock *at, share *s, const candidate *c, double *us)
{
    double mine = 0;
    imbrex_status status = (at->timer ? time_by_gpu : time_by_host)(at, s, c, &mine);
    return status == IMBREX_OK ? share_max(s, mine, us) : status;
}

imbrex_status measure(share *s, candidate *candidates, int count, int warm, int rounds,
                      progress *bar)
{
    const measure_clock host = { 0 };
    return measure_by(&host, s, candidates, count, warm, rounds, bar);
}

imbrex_status measure_by(const measure_clock *clock, share *s, candidate *candidates, int count,
                         int warm, int rounds, progress *bar)
{
    double *us = calloc((size_t)count * (size_t)rounds, sizeof *us);
    if (!us)
        return IMBREX_NO_MEMORY;
    imbrex_status status = IMBREX_OK;
    for (int i = -warm; i < rounds && status == IMBREX_OK; i++) {
        for (int c = 0; c < count && status == IMBREX_OK; c++) {
            double once;
            status = time_once(clock, s, &candidates[c], &once);
            if (i >= 0)
                us[c * rounds + i] = once;
        }
        progress_step(bar);
    }
    for (int c = 0; c < count && status == IMBREX_OK; c++) {
        qsort(us + c * rounds, (size_t)rounds, sizeof *us, ascending);
        candidates[c].us = us[c * rounds + rounds / 2];
    }
    free(us);
    return status;
}
