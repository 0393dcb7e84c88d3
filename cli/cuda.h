/* cuda.h - what the tool itself does on a GPU of NVIDIA's: the few functions of the driver that it
 * calls, a clock on a stream, and graphs. */
#ifndef CLI_CUDA_H
#define CLI_CUDA_H

#include "imbrex.h"

typedef struct CUctx_st *CUcontext;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum { CUDA_EVENT_TIMED = 0, CUDA_STREAM_NON_BLOCKING = 1, CUDA_CAPTURE_THREAD_LOCAL = 1 };

/* A GPU's own, whatever its index is to a process. */
typedef struct cuda_gpu_id {
    unsigned char bytes[16];
} cuda_gpu_id;

/* Rows: name in the table, name in the library, what it takes. */
#define CUDA_CALLS_TABLE(ROW)                                                                 \
    ROW(cuInit, "cuInit", (unsigned flags))                                                   \
    ROW(cuGetErrorName, "cuGetErrorName", (int error, const char **name))                     \
    ROW(cuDeviceGet, "cuDeviceGet", (int *device, int index))                                 \
    ROW(cuDeviceGetUuid, "cuDeviceGetUuid_v2", (cuda_gpu_id * id, int gpu))                   \
    ROW(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, int gpu)) \
    ROW(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int gpu))                 \
    ROW(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                              \
    ROW(cuStreamCreate, "cuStreamCreate", (imbrex_stream * stream, unsigned flags))           \
    ROW(cuStreamDestroy, "cuStreamDestroy_v2", (imbrex_stream stream))                        \
    ROW(cuEventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                    \
    ROW(cuEventDestroy, "cuEventDestroy_v2", (CUevent event))                                 \
    ROW(cuEventRecord, "cuEventRecord", (CUevent event, imbrex_stream stream))                \
    ROW(cuEventElapsedTime, "cuEventElapsedTime", (float *ms, CUevent begin, CUevent end))    \
    ROW(cuLaunchHostFunc, "cuLaunchHostFunc",                                                 \
        (imbrex_stream stream, void (*function)(void *ctx), void *ctx))                       \
    ROW(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (imbrex_stream stream, int mode))    \
    ROW(cuStreamEndCapture, "cuStreamEndCapture", (imbrex_stream stream, CUgraph * graph))    \
    ROW(cuGraphInstantiate, "cuGraphInstantiateWithFlags",                                    \
        (CUgraphExec * out, CUgraph graph, unsigned long long flags))                         \
    ROW(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec graph, imbrex_stream stream))            \
    ROW(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec graph))                        \
    ROW(cuGraphDestroy, "cuGraphDestroy", (CUgraph graph))

typedef struct cuda_calls {
#define CUDA_CALLS_FIELD(name, symbol, takes) int(*name) takes;
    CUDA_CALLS_TABLE(CUDA_CALLS_FIELD)
#undef CUDA_CALLS_FIELD
} cuda_calls;

/* NULL until cuda_timer_open.  A test puts its own table here first. */
extern const cuda_calls *cuda;

/* Whether cuBLASLt is found and opens on this device; its context is current afterwards. */
IMBREX_TRY cuda_blas_check(const char *device);

/* ---- A clock --------------------------------------------------------------------------------- */

/* The GPU itself reads it: two events on the stream that is timed, one of ordinary priority, as
 * callers have them.
 *
 *     hold ── barrier of the group ── begin ── calls ── end
 *
 * hold keeps the stream from starting until the host has enqueued what follows and calls release,
 * so that what the host needs for it is not timed. */
typedef struct cuda_timer cuda_timer;

/* device as imbrex_group_device has it, "cuda:1".  Its primary context, which the operators share,
 * becomes this thread's current one. */
IMBREX_TRY cuda_timer_open(const char *device, cuda_timer **out);
void cuda_timer_close(cuda_timer *timer); /* NULL is fine; streams must be idle */

IMBREX_TRY cuda_timer_gpu(const cuda_timer *timer, cuda_gpu_id *id);
imbrex_stream cuda_timer_stream(const cuda_timer *timer); /* the one that is timed */

/* Holds the stream until release, one second at most: a device that takes no more work before it
 * has done some must not wait for a host that waits for it. */
IMBREX_TRY cuda_timer_hold(cuda_timer *timer);
void cuda_timer_release(cuda_timer *timer);

IMBREX_TRY cuda_timer_begin(cuda_timer *timer);
IMBREX_TRY cuda_timer_end(cuda_timer *timer);

/* Microseconds from begin to end, once the stream is idle. */
IMBREX_TRY cuda_timer_us(cuda_timer *timer, double *us);

/* ---- Graphs ---------------------------------------------------------------------------------- */

typedef struct cuda_graph cuda_graph;

/* Captures `count` calls of enqueue(ctx), which enqueues on the stream, idle so far.  Collective if
 * enqueue is. */
IMBREX_TRY cuda_graph_capture(imbrex_stream stream, imbrex_status (*enqueue)(void *ctx), void *ctx,
                              int count, cuda_graph **out);
void cuda_graph_destroy(cuda_graph *graph); /* NULL is fine */

/* Enqueues one replay on the stream it was captured on; ctx is the cuda_graph. */
IMBREX_TRY cuda_graph_run(void *ctx);

#endif /* CLI_CUDA_H */
