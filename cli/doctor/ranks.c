/* ranks.c - two ranks gather a matrix and look at every number of it: all that a run needs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "doctor.h"

enum { ROWS = 512, COLUMNS = 256, TIMEOUT_MS = 20000 };

typedef struct gathering {
    imbrex_group *group;
    imbrex_plan *plan;
    float *own, *all; /* of the device */
    double us;
    int64_t wrong; /* numbers */
} gathering;

static float number(int64_t row, int64_t column)
{
    return (float)(row * COLUMNS + column); /* below 2^24 */
}

static imbrex_status run(gathering *g, float *host)
{
    int rank = imbrex_group_rank(g->group), size = imbrex_group_size(g->group);
    int64_t first = (int64_t)rank * ROWS;
    for (int64_t i = 0; i < (int64_t)ROWS * COLUMNS; i++)
        host[i] = number(first + i / COLUMNS, i % COLUMNS);
    const imbrex_args args = { .a = g->own, .c = g->all };
    TRY(imbrex_copy(g->group, g->own, host, (size_t)ROWS * COLUMNS * sizeof *host, NULL));
    TRY(imbrex_plan_run(g->plan, &args, NULL)); /* once for what only a first run does */
    TRY(imbrex_stream_sync(g->group, NULL));
    double begin = now_us();
    TRY(imbrex_plan_run(g->plan, &args, NULL));
    TRY(imbrex_stream_sync(g->group, NULL));
    g->us = now_us() - begin;
    size_t bytes = (size_t)size * ROWS * COLUMNS * sizeof *host;
    memset(host, 0, bytes);
    TRY(imbrex_copy(g->group, host, g->all, bytes, NULL));
    TRY(imbrex_stream_sync(g->group, NULL));
    for (int64_t i = 0; i < (int64_t)size * ROWS * COLUMNS; i++)
        g->wrong += host[i] != number(i / COLUMNS, i % COLUMNS);
    return IMBREX_OK;
}

static imbrex_status gather(gathering *g, const char *device)
{
    const imbrex_group_desc desc = { .device = device, .timeout_ms = TIMEOUT_MS };
    TRY(imbrex_group_create(&desc, &g->group));
    int size = imbrex_group_size(g->group);
    size_t bytes = (size_t)ROWS * COLUMNS * sizeof(float);
    const imbrex_coll_desc coll = { .m = (int64_t)size * ROWS, .n = COLUMNS, .dtype = IMBREX_F32 };
    void *room;
    TRY(imbrex_mem_alloc(g->group, bytes * ((size_t)size + 1), &room));
    g->own = room;
    g->all = g->own + ROWS * COLUMNS;
    TRY(imbrex_plan_all_gather(g->group, &coll, &g->plan));
    float *host = malloc(bytes * (size_t)size);
    if (!host)
        return IMBREX_NO_MEMORY;
    imbrex_status status = failure_drain(run(g, host), g->group, NULL);
    free(host);
    return status;
}

static void check(const char *device, const char *advice, doctor_finding *found)
{
    gathering g = { 0 };
    imbrex_status status = gather(&g, device);
    if (status != IMBREX_OK)
        doctor_say(found, DOCTOR_BROKEN, advice, "%s", failure_text(status));
    else if (g.wrong)
        doctor_say(found, DOCTOR_BROKEN, advice, "an all_gather left %lld numbers wrong",
                   (long long)g.wrong);
    else
        doctor_ok(found, "an all_gather of %d KiB from each is right, in %.0f us",
                  (int)(ROWS * COLUMNS * sizeof(float) / 1024), g.us);
    imbrex_plan_destroy(g.plan);
    if (g.own)
        imbrex_mem_free(g.group, g.own);
    imbrex_group_destroy(g.group);
}

void doctor_cpu_ranks(const doctor_view *view, doctor_finding *found)
{
    (void)view;
    check("cpu", "docs/failure.md says what the sentence means; lines above may say why", found);
}

/* On two GPUs, or both on one. */
void doctor_gpu_ranks(const doctor_view *view, doctor_finding *found)
{
    char value[256];
    int usable = 0;
    if (!doctor_line(view, "device cuda", value, sizeof value) ||
        sscanf(value, "%d of", &usable) != 1 || usable < 1)
        return;
    check("cuda",
          "lines above may say why; IMBREX_CUDA_MEMORY=ipc passes memory another way, and "
          "docs/troubleshooting.md has messages",
          found);
}
