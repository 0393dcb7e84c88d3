/* check.c - the checker's threads and their clocks, what orders threads of one rank, and reports.
 */
#include "check.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

imx_check_state imx_check;

const imbrexd_checker *imbrex_checker;

static const imbrexd_checker hooks = {
    .post = imx_check_post,
    .wait = imx_check_wait,
    .held = imx_check_held,
    .came = imx_check_came,
    .count = imx_check_count,
    .access = imx_check_access,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t epochs[IMX_CHECK_THREADS]; /* the last of each thread; kept when it ends, so that
                                              the next of that number goes on from there */
static _Thread_local imx_check_thread *self;

/* The latest sentences, found by the fault that they belong to. */
enum { REPORTS = 16, SENTENCE = 700 };
static struct {
    const imbrexd_fault *fault;
    char text[SENTENCE];
} reports[REPORTS];
static int report_count;

void imx_check_lock(void)
{
    pthread_mutex_lock(&lock);
}

void imx_check_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* ---- threads --------------------------------------------------------------------------------- */

static bool is_taken(uint32_t id)
{
    for (const imx_check_thread *t = imx_check.threads; t; t = t->next) {
        if (t->id == id)
            return true;
    }
    return false;
}

imbrex_status imx_check_thread_begin(imx_device *device, int stream, imx_check_thread **out)
{
    *out = NULL;
    if (!device->check)
        return IMBREX_OK;
    imx_check_thread *thread = NULL;
    IMX_TRY(imx_sys_alloc(1, sizeof *thread, &thread));
    thread->device = device;
    thread->stream = stream;
    imx_check_lock();
    while (thread->id < IMX_CHECK_THREADS && is_taken(thread->id))
        thread->id++;
    if (thread->id == IMX_CHECK_THREADS) {
        imx_check_unlock();
        free(thread);
        return imx_fail(IMBREX_UNSUPPORTED,
                        "IMBREX_CHECK watches at most %d streams and kernels' threads in a process",
                        IMX_CHECK_THREADS);
    }
    thread->clock = device->check->clock;
    thread->clock.at[thread->id] = ++epochs[thread->id];
    thread->next = imx_check.threads;
    imx_check.threads = thread;
    /* relaxed: a constant, which threads that were started later look at */
    __atomic_store_n(&imbrex_checker, &hooks, __ATOMIC_RELAXED);
    imx_check_unlock();
    *out = thread;
    return IMBREX_OK;
}

void imx_check_thread_end(imx_check_thread *thread)
{
    if (!thread)
        return;
    imx_check_lock();
    imx_check_join(&thread->device->check->clock, &thread->clock);
    for (imx_check_thread **at = &imx_check.threads; *at; at = &(*at)->next) {
        if (*at == thread) {
            *at = thread->next;
            break;
        }
    }
    imx_check_unlock();
    free(thread);
}

void imx_check_enter(imx_check_thread *thread)
{
    self = thread;
}

imx_check_thread *imx_check_current(void)
{
    return self;
}

/* After a fault nothing is in order any more. */
imx_check_thread *imx_check_self(void)
{
    if (!self)
        return NULL;
    imx_check.progress++;
    const imbrexd_watch *watch = self->device->watch;
    if (__atomic_load_n(watch->abort[watch->rank], __ATOMIC_ACQUIRE))
        return NULL; /* acquire as in every look at that word */
    return self;
}

void imx_check_work(imx_check_thread *thread, int more)
{
    if (!thread)
        return;
    imx_check_lock();
    imx_check.progress++;
    thread->work += more;
    if (!more) /* what the host had waited for when it gave this work comes before it */
        imx_check_join(&thread->clock, &thread->device->check->clock);
    imx_check_unlock();
}

void imx_check_passive(bool passive)
{
    if (!self)
        return;
    imx_check_lock();
    imx_check.progress++;
    self->passive = passive;
    imx_check_unlock();
}

void imx_check_doing(const char *what, int plan)
{
    if (!self)
        return;
    self->what = what;
    self->plan = plan >= 0 ? plan : self->plan;
}

/* ---- clocks ---------------------------------------------------------------------------------- */

void imx_check_join(imx_check_clock *into, const imx_check_clock *from)
{
    for (int i = 0; i < IMX_CHECK_THREADS; i++)
        into->at[i] = into->at[i] > from->at[i] ? into->at[i] : from->at[i];
}

void imx_check_advance(imx_check_thread *thread)
{
    thread->clock.at[thread->id] = ++epochs[thread->id];
}

void imx_check_order(imx_check_thread *from, imx_check_thread *to)
{
    if (!from || !to)
        return;
    imx_check_lock();
    imx_check_join(&to->clock, &from->clock);
    to->plan = from->plan;
    to->stream = from->stream;
    imx_check_advance(from);
    imx_check_unlock();
}

/* Without memory for it nothing is handed over, which may be reported: better than silence. */
void imx_check_give(imx_check_clock **clock)
{
    if (!self)
        return;
    imx_check_lock();
    if (!*clock)
        *clock = imx_sys.calloc(1, sizeof **clock);
    if (*clock)
        imx_check_join(*clock, &self->clock);
    imx_check_advance(self);
    imx_check_unlock();
}

void imx_check_take(imx_check_clock *const *clock)
{
    if (!self)
        return;
    imx_check_lock();
    if (*clock)
        imx_check_join(&self->clock, *clock);
    imx_check_unlock();
}

void imx_check_host(imx_device *device, bool waits, imx_check_thread *done)
{
    if (!device->check)
        return;
    imx_check_lock();
    imx_check.progress++;
    device->check->waits = waits;
    if (done)
        imx_check_join(&device->check->clock, &done->clock);
    imx_check_unlock();
}

/* ---- reports --------------------------------------------------------------------------------- */

imx_check_mark imx_check_mark_of(const imx_check_thread *thread)
{
    return (imx_check_mark){
        .what = thread->what ? thread->what : "a stream",
        .thread = thread->id,
        .epoch = thread->clock.at[thread->id],
        .rank = thread->device->rank,
        .stream = thread->stream,
        .plan = thread->plan,
    };
}

void imx_check_name(const imx_check_mark *mark, char *text, size_t size)
{
    snprintf(text, size, "%s of rank %d (stream %d%s", mark->what, mark->rank, mark->stream,
             mark->plan ? "" : ")");
    if (mark->plan) {
        size_t length = strlen(text);
        snprintf(text + length, size - length, ", plan %d)", mark->plan);
    }
}

/* The first mistake is the group's fault; the others' follow from it. */
void imx_check_report(const imx_check_thread *thread, imbrexd_site site, const char *format, ...)
{
    const imbrexd_watch *watch = thread->device->watch;
    int at = report_count++ % REPORTS;
    va_list list;
    va_start(list, format);
    vsnprintf(reports[at].text, sizeof reports[at].text, format, list);
    va_end(list);
    reports[at].fault = watch->fault;
    site.plan = site.plan ? site.plan : thread->plan;
    imbrexd_fault_raise(watch, IMBREXD_FAULT_PROTOCOL, site, 0, 0);
}

const char *imx_check_sentence(imx_device *device, const imbrexd_fault *fault)
{
    (void)device;
    const char *text = NULL;
    imx_check_lock();
    for (int i = 1; i <= REPORTS && i <= report_count && !text; i++) {
        int at = (report_count - i) % REPORTS;
        if (reports[at].fault == fault)
            text = reports[at].text;
    }
    imx_check_unlock();
    return text;
}
