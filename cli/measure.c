/* measure.c - interleaved rounds, the maximum over ranks, the median over rounds. */
#include "measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* So many calls are enqueued before the stream starts on the first: more than a GPU takes at once
 * would wait for it. */
enum { CALLS_HELD = 8 };

/* A round of very short calls has several of them, so that it lasts about so long; on a GPU also of
 * long ones, as they follow each other in use: what the card's power allows for depends on it. */
enum { ROUND_US = 1000, MOST_INNER = 16, LEAST_INNER_GPU = 4 };

imbrex_status measure_clock(imbrex_group *group, bool graph, cuda_timer **timer)
{
    const char *device = imbrex_group_device(group);
    if (strncmp(device, "cuda", 4) == 0)
        return cuda_timer_open(device, timer);
    *timer = NULL;
    if (graph)
        return failure_note(IMBREX_UNSUPPORTED, "--graph needs device cuda, not %s", device);
    return IMBREX_OK;
}

double measure_wire(void)
{
    const char *link = getenv("IMBREX_CPU_LINK");
    double speed = link ? strtod(link, NULL) : 0;
    return speed > 0 ? speed : (double)NAN;
}

static imbrex_status time_by_host(share *s, const candidate *c, double *us)
{
    imbrex_status status = share_barrier(s->group);
    double begin = now_us();
    for (int i = 0; i < c->inner && status == IMBREX_OK; i++)
        status = c->enqueue(c->ctx);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(c->group, NULL);
    *us = (now_us() - begin) / c->inner;
    return status;
}

static imbrex_status enqueue_timed(cuda_timer *timer, share *s, const candidate *c)
{
    imbrex_status status = imbrex_barrier(s->group, cuda_timer_stream(timer));
    if (status == IMBREX_OK)
        status = cuda_timer_begin(timer);
    for (int i = 0; i < c->inner && status == IMBREX_OK; i++) {
        if (i == CALLS_HELD)
            cuda_timer_release(timer);
        status = c->enqueue(c->ctx);
    }
    return status == IMBREX_OK ? cuda_timer_end(timer) : status;
}

static imbrex_status time_by_gpu(cuda_timer *timer, share *s, const candidate *c, double *us)
{
    imbrex_status status = share_barrier(s->group);
    if (status == IMBREX_OK)
        status = cuda_timer_hold(timer);
    if (status == IMBREX_OK)
        status = enqueue_timed(timer, s, c);
    cuda_timer_release(timer);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(c->group, cuda_timer_stream(timer));
    if (status == IMBREX_OK)
        status = cuda_timer_us(timer, us);
    *us /= c->inner;
    return status;
}

static imbrex_status time_once(cuda_timer *timer, share *s, const candidate *c, double *us)
{
    double mine = 0;
    imbrex_status status = timer ? time_by_gpu(timer, s, c, &mine) : time_by_host(s, c, &mine);
    return status == IMBREX_OK ? share_max(s, mine, us) : status;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double measure_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

imbrex_status measure(share *s, candidate *candidates, int count, int warm, int rounds,
                      progress *bar)
{
    return measure_by(NULL, s, candidates, count, warm, rounds, bar);
}

imbrex_status measure_by(cuda_timer *timer, share *s, candidate *candidates, int count, int warm,
                         int rounds, progress *bar)
{
    double *us = calloc((size_t)count * (size_t)rounds, sizeof *us);
    if (!us)
        return IMBREX_NO_MEMORY;
    imbrex_status status = IMBREX_OK;
    for (int i = -warm; i < rounds && status == IMBREX_OK; i++) {
        for (int c = 0; c < count && status == IMBREX_OK; c++) {
            double once;
            status = time_once(timer, s, &candidates[c], &once);
            if (i >= 0)
                us[c * rounds + i] = once;
        }
        progress_step(bar);
    }
    for (int c = 0; c < count && status == IMBREX_OK; c++)
        candidates[c].us = measure_median(us + c * rounds, rounds);
    free(us);
    return status;
}

imbrex_status measure_inner(cuda_timer *timer, share *s, candidate *c, int *inner)
{
    int least = timer ? LEAST_INNER_GPU : 1;
    c->inner = 1;
    TRY(measure_by(timer, s, c, 1, 1, 3, NULL));
    double wanted = c->us > 0 ? ROUND_US / c->us : MOST_INNER;
    *inner = wanted < least ? least : wanted > MOST_INNER ? MOST_INNER : (int)wanted;
    return IMBREX_OK;
}

imbrex_status measure_capture(cuda_timer *timer, candidate *c, int calls, cuda_graph **graph)
{
    TRY(cuda_graph_capture(cuda_timer_stream(timer), c->enqueue, c->ctx, calls, graph));
    c->enqueue = cuda_graph_run;
    c->ctx = *graph;
    return IMBREX_OK;
}
