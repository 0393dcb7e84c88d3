/* check.c - the checker's threads and their clocks, what orders threads of one rank, and reports.
 */
#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/process.h"

imx_cpu_check_state imx_cpu_check;

const imbrexd_checker *imbrex_checker;

static const imbrexd_checker hooks = {
    .post = imx_cpu_check_post,
    .wait = imx_cpu_check_wait,
    .held = imx_cpu_check_held,
    .came = imx_cpu_check_came,
    .count = imx_cpu_check_count,
    .access = imx_cpu_check_access,
    .fence = imx_cpu_check_fence,
};

static uint32_t epochs[IMX_CHECK_THREADS]; /* the last of each thread; kept when it ends, so that
                                              the next of that number goes on from there */
static _Thread_local imx_cpu_check_thread *self;

/* The latest sentences, found by the fault that they belong to. */
enum { REPORTS = 16, SENTENCE = 700 };
static struct {
    const imbrexd_fault *fault;
    char text[SENTENCE];
} reports[REPORTS];
static int report_count;

void imx_cpu_check_lock(void)
{
    imx_process_lock(IMX_LOCK_CHECK);
}

void imx_cpu_check_unlock(void)
{
    imx_process_unlock(IMX_LOCK_CHECK);
}

/* ---- threads --------------------------------------------------------------------------------- */

static bool is_taken(uint32_t id)
{
    for (const imx_cpu_check_thread *t = imx_cpu_check.threads; t; t = t->next) {
        if (t->id == id)
            return true;
    }
    return false;
}

imbrex_status imx_cpu_check_thread_begin(imx_device *device, int stream, imx_cpu_check_thread **out)
{
    *out = NULL;
    if (!device->check)
        return IMBREX_OK;
    imx_cpu_check_thread *thread = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *thread, &thread));
    thread->device = device;
    thread->stream = stream;
    thread->block = -1;
    imx_cpu_check_lock();
    while (thread->id < IMX_CHECK_THREADS && is_taken(thread->id))
        thread->id++;
    if (thread->id == IMX_CHECK_THREADS) {
        imx_cpu_check_unlock();
        free(thread);
        return imx_fail(IMBREX_UNSUPPORTED,
                        "IMBREX_CHECK watches at most %d streams and kernels' threads in a process",
                        IMX_CHECK_THREADS);
    }
    thread->clock = device->check->clock;
    thread->clock.at[thread->id] = ++epochs[thread->id];
    thread->next = imx_cpu_check.threads;
    imx_cpu_check.threads = thread;
    /* relaxed: a constant, which threads that were started later look at */
    __atomic_store_n(&imbrex_checker, &hooks, __ATOMIC_RELAXED);
    imx_cpu_check_unlock();
    *out = thread;
    return IMBREX_OK;
}

void imx_cpu_check_thread_end(imx_cpu_check_thread *thread)
{
    if (!thread)
        return;
    imx_cpu_check_lock();
    imx_cpu_check_join(&thread->device->check->clock, &thread->clock);
    imx_cpu_check_join(&imx_cpu_check.ended, &thread->clock);
    for (imx_cpu_check_thread **at = &imx_cpu_check.threads; *at; at = &(*at)->next) {
        if (*at == thread) {
            *at = thread->next;
            break;
        }
    }
    imx_cpu_check_unlock();
    free(thread);
}

void imx_cpu_check_enter(imx_cpu_check_thread *thread)
{
    self = thread;
}

imx_cpu_check_thread *imx_cpu_check_current(void)
{
    return self;
}

/* After a fault nothing is in order any more. */
imx_cpu_check_thread *imx_cpu_check_self(void)
{
    if (!self)
        return NULL;
    imx_cpu_check.progress++;
    const imbrexd_watch *watch = self->device->watch;
    if (__atomic_load_n(watch->abort[watch->rank], __ATOMIC_ACQUIRE))
        return NULL; /* acquire as in every look at that word */
    return self;
}

void imx_cpu_check_work(imx_cpu_check_thread *thread, int more)
{
    if (!thread)
        return;
    imx_cpu_check_lock();
    imx_cpu_check.progress++;
    thread->work += more;
    if (!more) /* what the host had waited for when it gave this work comes before it */
        imx_cpu_check_join(&thread->clock, &thread->device->check->clock);
    imx_cpu_check_unlock();
}

void imx_cpu_check_passive(const uint32_t *word, uint32_t until)
{
    if (!self)
        return;
    imx_cpu_check_lock();
    imx_cpu_check.progress++;
    self->passive = word;
    self->until = until;
    imx_cpu_check_unlock();
}

void imx_cpu_check_doing(const char *what, int plan)
{
    if (!self)
        return;
    self->what = what;
    self->plan = plan >= 0 ? plan : self->plan;
    self->team = NULL;
    self->block = -1;
}

void imx_cpu_check_doing_block(const char *what, const imbrexd_team *team,
                               const imbrexd_block *block)
{
    if (!self)
        return;
    imx_cpu_check_doing(what, 0);
    self->team = team;
    self->block = block->count > 1 ? block->index : -1;
}

const char *imx_cpu_check_keep(const char *name)
{
    static struct kept {
        struct kept *next;
        char name[];
    } * all;
    imx_cpu_check_lock();
    struct kept *k = all;
    while (k && strcmp(k->name, name) != 0)
        k = k->next;
    if (!k && (k = imx_sys.calloc(1, sizeof *k + strlen(name) + 1))) {
        strcpy(k->name, name);
        k->next = all;
        all = k;
    }
    imx_cpu_check_unlock();
    return k ? k->name : "a kernel";
}

/* relaxed: see above. */
void imx_cpu_check_lend(const imbrexd_checker **checker)
{
    __atomic_store_n(checker, __atomic_load_n(&imbrex_checker, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

void imx_cpu_check_join(imx_cpu_check_clock *into, const imx_cpu_check_clock *from)
{
    for (int i = 0; i < IMX_CHECK_THREADS; i++)
        into->at[i] = into->at[i] > from->at[i] ? into->at[i] : from->at[i];
}

void imx_cpu_check_advance(imx_cpu_check_thread *thread)
{
    thread->clock.at[thread->id] = ++epochs[thread->id];
}

void imx_cpu_check_order(imx_cpu_check_thread *from, imx_cpu_check_thread *to)
{
    if (!from || !to)
        return;
    imx_cpu_check_lock();
    imx_cpu_check_join(&to->clock, &from->clock);
    to->plan = from->plan;
    to->stream = from->stream;
    imx_cpu_check_advance(from);
    imx_cpu_check_unlock();
}

/* Without memory for it nothing is handed over, which may be reported: better than silence. */
void imx_cpu_check_give(imx_cpu_check_clock **clock)
{
    if (!self)
        return;
    imx_cpu_check_lock();
    if (!*clock)
        *clock = imx_sys.calloc(1, sizeof **clock);
    if (*clock)
        imx_cpu_check_join(*clock, &self->clock);
    imx_cpu_check_advance(self);
    imx_cpu_check_unlock();
}

void imx_cpu_check_take(imx_cpu_check_clock *const *clock)
{
    if (!self)
        return;
    imx_cpu_check_lock();
    if (*clock)
        imx_cpu_check_join(&self->clock, *clock);
    imx_cpu_check_unlock();
}

void imx_cpu_check_host_waits(imx_device *device, const imx_cpu_check_thread *stream)
{
    if (!device->check)
        return;
    imx_cpu_check_lock();
    imx_cpu_check.progress++;
    device->check->awaited = stream;
    imx_cpu_check_unlock();
}

void imx_cpu_check_host_goes_on(imx_device *device, const imx_cpu_check_thread *stream)
{
    if (!device->check)
        return;
    imx_cpu_check_lock();
    imx_cpu_check.progress++;
    device->check->awaited = NULL;
    imx_cpu_check_join(&device->check->clock, &stream->clock);
    imx_cpu_check_unlock();
}

/* A thread of its own, which comes after all that the host has waited for, and before what it gives
 * to do from here on. */
void imx_cpu_check_host_reads(imx_device *device, const void *at, size_t bytes)
{
    if (!device->check)
        return;
    if (!device->check->host &&
        imx_cpu_check_thread_begin(device, IMX_CHECK_HOST, &device->check->host))
        return; /* too many threads: it goes unwatched */
    imx_cpu_check_thread *host = device->check->host;
    imx_cpu_check_lock();
    imx_cpu_check.progress++;
    host->what = "the host";
    imx_cpu_check_join(&host->clock, &device->check->clock);
    imx_cpu_check_read_by(host, at, bytes);
    imx_cpu_check_join(&device->check->clock, &host->clock);
    imx_cpu_check_advance(host);
    imx_cpu_check_unlock();
}

/* ---- reports --------------------------------------------------------------------------------- */

imx_cpu_check_mark imx_cpu_check_mark_of(const imx_cpu_check_thread *thread)
{
    return (imx_cpu_check_mark){
        .what = thread->what ? thread->what : "a stream",
        .thread = thread->id,
        .epoch = thread->clock.at[thread->id],
        .rank = thread->device->rank,
        .stream = thread->stream,
        .plan = thread->plan,
        .block = thread->block,
    };
}

void imx_cpu_check_name(const imx_cpu_check_mark *mark, char *text, size_t size)
{
    imx_text to = { .at = text, .size = size };
    imx_text_add(&to, "%s of rank %d", mark->what, mark->rank);
    if (mark->stream == IMX_CHECK_HOST)
        return;
    imx_text_add(&to, " (stream %d", mark->stream);
    if (mark->block >= 0)
        imx_text_add(&to, ", block %d", mark->block);
    if (mark->plan)
        imx_text_add(&to, ", plan %d", mark->plan);
    imx_text_add(&to, ")");
}

/* The first mistake is the group's fault; the others' follow from it. */
void imx_cpu_check_report(const imx_cpu_check_thread *thread, imbrexd_wait_point point,
                          const char *format, ...)
{
    const imbrexd_watch *watch = thread->device->watch;
    int at = report_count++ % REPORTS;
    va_list list;
    va_start(list, format);
    vsnprintf(reports[at].text, sizeof reports[at].text, format, list);
    va_end(list);
    reports[at].fault = watch->fault;
    point.plan = point.plan ? point.plan : thread->plan;
    imbrexd_fault_raise(watch, IMBREXD_FAULT_PROTOCOL, point, 0, 0);
}

const char *imx_cpu_check_sentence(imx_device *device, const imbrexd_fault *fault)
{
    (void)device;
    const char *text = NULL;
    imx_cpu_check_lock();
    for (int i = 1; i <= REPORTS && i <= report_count && !text; i++) {
        int at = (report_count - i) % REPORTS;
        if (reports[at].fault == fault)
            text = reports[at].text;
    }
    imx_cpu_check_unlock();
    return text;
}
