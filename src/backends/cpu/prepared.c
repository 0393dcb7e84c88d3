/* prepared.c - runs the blocks of a kernel side by side: block 0 on the stream's worker, the others
 * on threads that belong to the prepared kernel and sleep between launches. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

typedef struct helper {
    imx_prepared *prepared;
    unsigned long thread;
    bool started;
    uint32_t seed; /* of the chaos sleeps */
    imx_cpu_check_thread *check;
    imbrexd_block block;
} helper;

struct imx_prepared {
    const imx_device *device;
    const imx_kernel *kernel;
    int blocks;
    char *scratch; /* [blocks][scratch_bytes] */
    size_t scratch_bytes;
    helper *helpers; /* [blocks]; the first has no thread */
    const void *args;
    uint32_t launches; /* atomic, futex: the helpers wait for the next */
    uint32_t running;  /* atomic, futex: helpers that have not ended */
    uint32_t stop;
};

/* Ranks' kernels, and the blocks of one, may start in any order: chaos makes them do so. */
static void run_block(const imx_prepared *p, helper *self)
{
    imx_cpu_chaos(p->device, &self->seed);
    imx_cpu_check_doing(p->kernel->name, -1);
    p->kernel->cpu(p->args, &self->block);
}

static void *help(void *arg)
{
    helper *self = arg;
    imx_prepared *p = self->prepared;
    imx_cpu_check_enter(self->check);
    for (uint32_t seen = 0;;) {
        uint32_t launches; /* acquire: args and block were set before */
        while ((launches = __atomic_load_n(&p->launches, __ATOMIC_ACQUIRE)) == seen)
            imx_cpu_sleep(&p->launches, seen);
        seen = launches;
        if (p->stop)
            return NULL;
        run_block(p, self);
        /* acq_rel: whoever sees 0 sees what every block wrote */
        if (__atomic_sub_fetch(&p->running, 1, __ATOMIC_ACQ_REL) == 0)
            imx_cpu_wake(&p->running);
        imx_cpu_check_work(self->check, -1); /* only now: see imx_cpu_check_passive */
    }
}

static void start(imx_prepared *p)
{
    __atomic_store_n(&p->running, (uint32_t)p->blocks - 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&p->launches, 1, __ATOMIC_RELEASE);
    imx_cpu_wake(&p->launches);
}

void imx_cpu_prepared_run(imx_device *device, imx_prepared *p, const void *args, int stream)
{
    p->args = args;
    for (int i = 0; i < p->blocks; i++) {
        p->helpers[i].block = (imbrexd_block){
            .index = i,
            .count = p->blocks,
            .stream = stream,
            .watch = device->watch,
            .scratch = p->scratch_bytes ? p->scratch + (size_t)i * p->scratch_bytes : NULL,
            .trace = device->trace,
        };
    }
    imx_cpu_check_thread *self = imx_cpu_check_current();
    for (int i = 1; i < p->blocks; i++) {
        imx_cpu_check_order(self, p->helpers[i].check);
        imx_cpu_check_work(p->helpers[i].check, 1);
    }
    if (p->blocks > 1)
        start(p);
    run_block(p, &p->helpers[0]);
    imx_cpu_check_passive(&p->running, 0);
    uint32_t running;
    while (p->blocks > 1 && (running = __atomic_load_n(&p->running, __ATOMIC_ACQUIRE)) != 0)
        imx_cpu_sleep(&p->running, running);
    imx_cpu_check_passive(NULL, 0);
    for (int i = 1; i < p->blocks; i++)
        imx_cpu_check_order(p->helpers[i].check, self);
}

imbrex_status imx_cpu_prepare(imx_device *device, const imx_kernel *kernel, const void *largest,
                              int blocks, imx_prepared **out)
{
    imx_prepared *p = NULL;
    char why[300];
    if (kernel->cpu_ready && !kernel->cpu_ready(why, sizeof why))
        return imx_fail(IMBREX_NO_MEMORY, "%s", why);
    IMX_TRY(imx_sys_alloc(1, sizeof *p, &p));
    p->device = device;
    p->kernel = kernel;
    p->blocks = blocks;
    p->scratch_bytes = kernel->cpu_scratch ? imx_align(kernel->cpu_scratch(largest), 64) : 0;
    imbrex_status status;
    IMX_GOTO(imx_sys_alloc((size_t)blocks, sizeof *p->helpers, &p->helpers));
    for (int i = 0; i < blocks; i++)
        p->helpers[i].seed = (uint32_t)(device->rank * 7919 + i * 104729 + 2);
    if (p->scratch_bytes) {
        IMX_GOTO(imx_cpu_room_check(device, (size_t)blocks * p->scratch_bytes, 0));
        p->scratch = imx_sys.aligned_alloc(64, (size_t)blocks * p->scratch_bytes);
        if (!p->scratch) {
            status = imx_fail(IMBREX_NO_MEMORY, "no memory for %d x %zu bytes of scratch for %s",
                              blocks, p->scratch_bytes, kernel->name);
            goto fail;
        }
    }
    for (int i = 1; i < blocks; i++) {
        helper *h = &p->helpers[i];
        h->prepared = p;
        IMX_GOTO(imx_cpu_check_thread_begin(device, -1, &h->check));
        int error = imx_sys.thread_create(&h->thread, help, h);
        if (error) {
            snprintf(why, sizeof why, "start thread %d of %d for %s", i + 1, blocks, kernel->name);
            status = imx_cpu_room_refused(why, error);
            goto fail;
        }
        h->started = true;
    }
    *out = p;
    return IMBREX_OK;
fail:
    imx_cpu_prepared_destroy(device, p);
    return status;
}

void imx_cpu_prepared_destroy(imx_device *device, imx_prepared *p)
{
    (void)device;
    if (!p)
        return;
    p->stop = 1;
    if (p->helpers)
        start(p);
    for (int i = 1; p->helpers && i < p->blocks; i++) {
        if (p->helpers[i].started)
            pthread_join(p->helpers[i].thread, NULL);
        imx_cpu_check_thread_end(p->helpers[i].check);
    }
    free(p->helpers);
    free(p->scratch);
    free(p);
}

const char *imx_cpu_prepared_name(const imx_prepared *p)
{
    return p->kernel->name;
}
