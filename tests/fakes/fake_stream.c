/* fake_stream.c - streams are threads that take operations off a list; a capture keeps the lists
 * and replays them.  One lock for all, since this is about order, not about speed; but a condition
 * for each thing that is waited for: tests have tens of streams, which would wake each other. */
#include "fake_stream.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_crew.h"
#include "fake_driver.h"
#include "fake_function.h"
#include "fake_memory.h"
#include "fake_nvrtc.h"
#include "sanitized.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t reached = PTHREAD_COND_INITIALIZER; /* some event */
static pthread_cond_t room = PTHREAD_COND_INITIALIZER;    /* on some GPU */

/* ---- blocks ---------------------------------------------------------------------------------- */

/* As trace.cuh does it. */
static void note(const imx_trace_room *traces, int block, int what, int peer, int64_t begin_ns)
{
    uint32_t at = traces->counts[block]++;
    if (at < traces->each)
        traces->records[(uint32_t)block * traces->each + at] = (imx_trace_record){
            .begin = (uint64_t)(begin_ns - FAKE_CLOCK_BEHIND_NS),
            .end = (uint64_t)(imbrexd_now_ns() - FAKE_CLOCK_BEHIND_NS),
            .what = what,
            .peer = peer,
            .index = block,
        };
}

/* ---- operations ------------------------------------------------------------------------------ */

typedef enum op_kind { COPY, SET, LAUNCH, CALL, RECORD, AWAIT } op_kind;

struct CUevent_st {
    int refs;
    uint64_t recorded, reached;
    fake_graph *graph;   /* it was last recorded in this capture */
    struct op *captured; /* by this operation */
};

typedef struct op {
    struct op *next;
    op_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    int value;
    CUfunction function;
    void (*call)(void *arg); /* with `to`, which it frees */
    int blocks;
    CUevent event;
    uint64_t version;
    struct op *source; /* captured AWAIT: the RECORD that it waits for */
    bool awaited;      /* captured RECORD */
    imbrexd_watch watch;
    imbrexd_team team; /* of a caller's kernel */
    size_t shared_bytes;
    int threads, cluster; /* of a kernel that was compiled */
    _Alignas(64) char args[PTX_PARAM_BYTES];
} op;

typedef struct op_list {
    op *first, **end;
} op_list;

struct CUstream_st {
    pthread_t thread;
    pthread_cond_t given, idle; /* an operation or `stop`; neither an operation nor busy */
    op_list list;
    bool busy, stop, failed; /* failed: a kernel has */
    int gpu;
    imbrexd_watch watch; /* of the last kernel; rank's abort word says whether the group failed */
    fake_graph *graph;   /* it is being captured into */
    int slot;
};

enum { SLOTS = 16 };

struct fake_graph {
    bool open; /* the capture goes on */
    int number, slots;
    op_list lists[SLOTS];
    CUstream streams[SLOTS]; /* being captured; then: that replay; [0] is the caller's */
};

static _Thread_local int captures;
static int graph_count; /* begun so far, of all threads */

bool fake_stream_captures(void)
{
    return captures > 0;
}

static void event_drop(CUevent event)
{
    if (event && --event->refs == 0)
        free(event);
}

static pthread_key_t scratch;

static void make_scratch(void)
{
    if (pthread_key_create(&scratch, free))
        abort(); /* the test cannot go on */
}

/* The thread's, which it keeps for its next block: new memory is a fault for each page.  Under
 * AddressSanitizer each block has its own, so that it finds who goes beyond, and gives it back. */
static void *scratch_of(size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (SANITIZED_ADDRESSES)
        return aligned_alloc(64, imx_align(bytes, 64));
    pthread_once(&once, make_scratch);
    void *at = pthread_getspecific(scratch);
    if (malloc_usable_size(at) < bytes) {
        free(at);
        at = aligned_alloc(64, imx_align(bytes, 64));
        pthread_setspecific(scratch, at);
    }
    return at;
}

static void run_block(void *arg, int index)
{
    const op *o = arg;
    const imx_kernel *kernel = o->function->kernel;
    size_t bytes = o->shared_bytes;
    if (kernel)
        bytes = kernel->cpu_scratch ? imx_align(kernel->cpu_scratch(o->args), 64) : 0;
    imbrexd_block block = { .index = index,
                            .count = o->blocks,
                            .watch = &o->watch,
                            .scratch = bytes ? scratch_of(bytes) : NULL };
    const imx_trace_room *traces = o->function->traces;
    int64_t begin_ns = imbrexd_now_ns();
    if (kernel)
        kernel->cpu(o->args, &block);
    else
        o->function->entry->run(o->args, &o->team, &block);
    if (traces->records) {
        note(traces, index, IMX_TRACE_TILE, 0, begin_ns);
        note(traces, index, IMX_TRACE_PUSH, 1, begin_ns);
        note(traces, index, IMX_TRACE_KERNEL, -1, begin_ns);
    }
    if (SANITIZED_ADDRESSES)
        free(block.scratch);
}

/* As it was compiled.  What it does wrong ends it, and its stream says so from then on. */
static bool run_compiled(const op *o, int gpu)
{
    char why[512];
    ptx_launch launch = {
        .module = o->function->module,
        .function = o->function->compiled,
        .params = o->args,
        .blocks = o->blocks,
        .threads = o->threads,
        .cluster = o->cluster,
        .shared_bytes = o->shared_bytes,
        .gpu = gpu,
    };
    bool ok = ptx_run(&launch, why);
    if (!ok)
        fprintf(stderr, "%s\n", why);
    return ok;
}

/* ---- room on a GPU --------------------------------------------------------------------------- */

enum { GPUS_MOST = 8 };
static int held[GPUS_MOST]; /* multiprocessors, by kernels that run; under the lock */

/* A block with more than half of the shared memory has a multiprocessor for itself. */
static int holds(const op *o, int gpu)
{
    int most = fake_driver_attribute(gpu, CU_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    return o->kind == LAUNCH && 2 * o->shared_bytes > (size_t)most ? o->blocks : 0;
}

/* What multiprocessors do: kernels, and copies from a GPU's memory to its own. */
static bool wants_room(const op *o)
{
    int gpu = o->kind == COPY ? fake_memory_gpu(o->to) : -1;
    return o->kind == LAUNCH || (gpu >= 0 && gpu == fake_memory_gpu(o->from));
}

/* With the lock held: beneath kernels that hold all multiprocessors nothing else begins.  A kernel
 * of many blocks begins with those that there is room for; here all of them begin then. */
static void take_room(const op *o, int gpu)
{
    int all = fake_driver_attribute(gpu, CU_MULTIPROCESSOR_COUNT);
    while (held[gpu] >= all && wants_room(o))
        pthread_cond_wait(&room, &lock);
    held[gpu] += holds(o, gpu);
}

/* After a fault a GPU's stream goes on with memory that nobody will use; here it would be a race
 * that hides others, so copies and kernels end.  Signals look at the abort word themselves. */
static bool given_up(CUstream stream, const op *o)
{
    if (o->kind == LAUNCH)
        stream->watch = o->watch;
    const imbrexd_watch *watch = &stream->watch;
    bool signals = o->kind == LAUNCH && o->function->kernel == &fake_signals_kernel;
    return watch->abort && !signals &&
           __atomic_load_n(watch->abort[watch->rank], __ATOMIC_ACQUIRE) != 0;
}

/* With the lock held; lets it go while it works. */
static void perform(CUstream stream, op *o)
{
    if (o->kind == RECORD) {
        o->event->reached = o->version;
        pthread_cond_broadcast(&reached);
        return;
    }
    if (o->kind == AWAIT) {
        while (o->event->reached < o->version)
            pthread_cond_wait(&reached, &lock);
        return;
    }
    int gpu = stream->gpu;
    bool failed = false;
    if (gpu >= 0)
        take_room(o, gpu);
    pthread_mutex_unlock(&lock);
    if (o->kind == CALL)
        o->call(o->to);
    else if (given_up(stream, o))
        ;
    else if (o->kind == COPY && o->bytes == sizeof(uint64_t) && (uintptr_t)o->to % 8 == 0)
        imbrexd_signal_post(o->to, *(const uint64_t *)o->from); /* a flag: one store */
    else if (o->kind == COPY)
        memcpy(o->to, o->from, o->bytes);
    else if (o->kind == SET)
        fake_memory_fill(o->to, o->value, o->bytes);
    else if (o->function->compiled)
        failed = !run_compiled(o, gpu);
    else
        fake_crew_run(o->blocks, run_block, o); /* at once, as on a GPU: they may wait for others */
    pthread_mutex_lock(&lock);
    stream->failed |= failed;
    if (gpu >= 0 && holds(o, gpu)) {
        held[gpu] -= holds(o, gpu);
        pthread_cond_broadcast(&room);
    }
}

static void *work(void *arg)
{
    CUstream stream = arg;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->list.first && !stream->stop)
            pthread_cond_wait(&stream->given, &lock);
        op *o = stream->list.first;
        if (!o)
            break;
        stream->list.first = o->next;
        if (!o->next)
            stream->list.end = &stream->list.first;
        stream->busy = true;
        perform(stream, o);
        stream->busy = false;
        event_drop(o->event);
        free(o);
        if (!stream->list.first)
            pthread_cond_broadcast(&stream->idle);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void append(op_list *list, op *o)
{
    o->next = NULL;
    *list->end = o;
    list->end = &o->next;
}

/* CUDA's default streams go by small numbers: the process has one, and each thread.  They are begun
 * when first used and never end. */
static CUstream real(CUstream named)
{
    static CUstream standard;
    static _Thread_local CUstream own;
    CUstream *at = named == CU_STREAM_PER_THREAD ? &own : &standard;
    if (named != (CUstream)1 && named != CU_STREAM_PER_THREAD)
        return named;
    pthread_mutex_lock(&lock);
    if (!*at && fake_stream_create(at) != CUDA_SUCCESS)
        abort();
    pthread_mutex_unlock(&lock);
    return *at;
}

/* With the lock held. */
static CUresult put(CUstream stream, const op *from)
{
    op *o = aligned_alloc(64, imx_align(sizeof *o, 64));
    *o = *from;
    if (o->event)
        o->event->refs++;
    append(stream->graph ? &stream->graph->lists[stream->slot] : &stream->list, o);
    if (stream->graph && o->kind == RECORD) {
        o->event->graph = stream->graph;
        o->event->captured = o;
    }
    if (!stream->graph)
        pthread_cond_signal(&stream->given);
    return CUDA_SUCCESS;
}

static CUresult put_locked(CUstream named, const op *from)
{
    CUstream stream = real(named);
    pthread_mutex_lock(&lock);
    CUresult result = put(stream, from);
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult fake_stream_copy(void *to, const void *from, size_t bytes, CUstream stream)
{
    return put_locked(stream, &(op){ .kind = COPY, .to = to, .from = from, .bytes = bytes });
}

CUresult fake_stream_call(CUstream stream, void (*fn)(void *arg), void *arg)
{
    return put_locked(stream, &(op){ .kind = CALL, .call = fn, .to = arg });
}

CUresult fake_stream_set(void *at, int value, size_t bytes, CUstream stream)
{
    return put_locked(stream, &(op){ .kind = SET, .to = at, .value = value, .bytes = bytes });
}

/* A compiled kernel says itself where its parameters lie. */
static void take_params(const ptx_function *compiled, void **params, op *o)
{
    for (int i = 0; i < compiled->param_count; i++)
        memcpy(o->args + compiled->params[i].at, params[i], compiled->params[i].bytes);
}

CUresult fake_stream_launch(CUfunction function, const CUlaunchConfig *config, void **params)
{
    op o = { .kind = LAUNCH,
             .function = function,
             .blocks = (int)config->grid[0],
             .threads = (int)config->block[0],
             .cluster = fake_function_cluster(config),
             .shared_bytes = config->shared_bytes };
    if (function->compiled)
        take_params(function->compiled, params, &o);
    else
        o.blocks += fake_function_args(function, params[0], o.args);
    if (!function->kernel)
        memcpy(&o.team, params[1], sizeof o.team);
    memcpy(&o.watch, function->kernel ? params[1] : &o.team.watch, sizeof o.watch);
    return put_locked(config->stream, &o);
}

/* ---- streams --------------------------------------------------------------------------------- */

void fake_stream_set_gpu(CUstream stream, int gpu)
{
    stream->gpu = gpu;
}

int fake_stream_gpu(CUstream stream)
{
    return real(stream)->gpu;
}

CUresult fake_stream_create(CUstream *out)
{
    CUstream stream = calloc(1, sizeof *stream);
    stream->gpu = -1;
    stream->list.end = &stream->list.first;
    pthread_cond_init(&stream->given, NULL);
    pthread_cond_init(&stream->idle, NULL);
    if (pthread_create(&stream->thread, NULL, work, stream)) {
        free(stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = stream;
    return CUDA_SUCCESS;
}

void fake_stream_destroy(CUstream stream)
{
    pthread_mutex_lock(&lock);
    stream->stop = true;
    pthread_cond_signal(&stream->given);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->given);
    pthread_cond_destroy(&stream->idle);
    free(stream);
}

CUresult fake_stream_sync(CUstream named)
{
    CUstream stream = real(named);
    pthread_mutex_lock(&lock);
    bool captured = stream->graph != NULL;
    while (!captured && (stream->list.first || stream->busy))
        pthread_cond_wait(&stream->idle, &lock);
    bool failed = stream->failed;
    pthread_mutex_unlock(&lock);
    return captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
           : failed ? CUDA_ERROR_LAUNCH_FAILED
                    : CUDA_SUCCESS;
}

CUresult fake_stream_capture(CUstream named, int *state, uint64_t *number, void **graph,
                             const void **after, size_t *after_count)
{
    CUstream stream = real(named);
    pthread_mutex_lock(&lock);
    *state = stream->graph ? CU_STREAM_CAPTURE_ACTIVE : CU_STREAM_CAPTURE_NONE;
    *number = stream->graph ? (uint64_t)stream->graph->number : 0;
    pthread_mutex_unlock(&lock);
    return graph || after || after_count ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* ---- events ---------------------------------------------------------------------------------- */

CUevent fake_event_create(void)
{
    CUevent event = calloc(1, sizeof *event);
    event->refs = 1;
    return event;
}

void fake_event_destroy(CUevent event)
{
    pthread_mutex_lock(&lock);
    event_drop(event);
    pthread_mutex_unlock(&lock);
}

CUresult fake_event_record(CUevent event, CUstream named)
{
    CUstream stream = real(named);
    pthread_mutex_lock(&lock);
    event->graph = NULL;
    if (!stream->graph)
        event->recorded++;
    CUresult result =
        put(stream, &(op){ .kind = RECORD, .event = event, .version = event->recorded });
    pthread_mutex_unlock(&lock);
    return result;
}

/* A stream that waits for a captured event is captured from there on. */
static CUresult wait_captured(CUevent event, CUstream stream)
{
    fake_graph *graph = event->graph;
    if (!stream->graph) {
        if (!graph->open)
            return CUDA_ERROR_CAPTURED_EVENT;
        stream->graph = graph;
        stream->slot = graph->slots++;
        graph->streams[stream->slot] = stream;
    }
    if (stream->graph != graph)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    event->captured->awaited = true;
    return put(stream, &(op){ .kind = AWAIT, .event = event, .source = event->captured });
}

CUresult fake_event_wait(CUevent event, CUstream named)
{
    CUstream stream = real(named);
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (event->graph)
        result = wait_captured(event, stream);
    else if (event->recorded && stream->graph)
        result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    else if (event->recorded)
        result = put(stream, &(op){ .kind = AWAIT, .event = event, .version = event->recorded });
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

int fake_graph_begin(imbrex_stream handle)
{
    CUstream stream = handle;
    if (real(stream) != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fake_graph *graph = calloc(1, sizeof *graph);
    for (int i = 0; i < SLOTS; i++)
        graph->lists[i].end = &graph->lists[i].first;
    pthread_mutex_lock(&lock);
    graph->number = graph_count++;
    graph->open = true;
    graph->slots = 1;
    graph->streams[0] = stream;
    stream->graph = graph;
    stream->slot = 0;
    pthread_mutex_unlock(&lock);
    captures++;
    return 0;
}

/* Every stream that came in must have led back. */
static bool is_joined(const fake_graph *graph, int slot)
{
    const op *last = graph->lists[slot].first;
    while (last && last->next)
        last = last->next;
    return last && last->kind == RECORD && last->awaited;
}

int fake_graph_end(imbrex_stream handle, fake_graph **out)
{
    CUstream stream = handle;
    int result = 0;
    captures--;
    pthread_mutex_lock(&lock);
    fake_graph *graph = stream->graph;
    graph->open = false;
    for (int i = 0; i < graph->slots; i++) {
        graph->streams[i]->graph = NULL;
        if (i > 0 && !is_joined(graph, i))
            result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    pthread_mutex_unlock(&lock);
    graph->streams[0] = NULL;
    for (int i = 1; i < graph->slots; i++) {
        int gpu = graph->streams[i]->gpu;
        fake_stream_create(&graph->streams[i]);
        fake_stream_set_gpu(graph->streams[i], gpu);
    }
    *out = graph;
    return result;
}

void fake_graph_launch(fake_graph *graph, imbrex_stream stream)
{
    CUstream first = real(stream);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < graph->slots; i++) {
        for (op *o = graph->lists[i].first; o; o = o->next) {
            if (o->kind == RECORD)
                o->version = ++o->event->recorded;
        }
    }
    for (int i = 0; i < graph->slots; i++) {
        for (op *o = graph->lists[i].first; o; o = o->next) {
            if (o->kind == AWAIT)
                o->version = o->source->version;
            put(i ? graph->streams[i] : first, o);
        }
    }
    pthread_mutex_unlock(&lock);
}

void fake_graph_destroy(fake_graph *graph)
{
    for (int i = 0; i < graph->slots; i++) {
        if (i > 0)
            fake_stream_destroy(graph->streams[i]);
        pthread_mutex_lock(&lock);
        for (op *o = graph->lists[i].first, *next; o; o = next) {
            next = o->next;
            if (o->kind == RECORD && o->event->graph == graph)
                o->event->graph = NULL;
            event_drop(o->event);
            free(o);
        }
        pthread_mutex_unlock(&lock);
    }
    free(graph);
}
