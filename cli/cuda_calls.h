/* cuda_calls.h - the few functions of NVIDIA's driver that the tool itself calls: clocks on a
 * stream, and graphs.  Loaded from libcuda.so.1 when asked for; names are those of its manual. */
#ifndef CLI_CUDA_CALLS_H
#define CLI_CUDA_CALLS_H

#include "imbrex.h"

typedef struct CUctx_st *CUcontext;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum { CUDA_EVENT_TIMED = 0, CUDA_STREAM_NON_BLOCKING = 1, CUDA_CAPTURE_THREAD_LOCAL = 1 };

/* Rows: name in the table, name in the library, what it takes. */
#define CUDA_CALLS_TABLE(ROW)                                                                 \
    ROW(cuInit, "cuInit", (unsigned flags))                                                   \
    ROW(cuGetErrorName, "cuGetErrorName", (int error, const char **name))                     \
    ROW(cuDeviceGet, "cuDeviceGet", (int *device, int index))                                 \
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

/* NULL until cuda_calls_open.  A test puts its own table here first. */
extern const cuda_calls *cuda;

/* Loads the driver and starts it; once is enough. */
IMBREX_TRY cuda_calls_open(void);

/* OK for result 0, else DEVICE with a sentence that names the call and the driver's word for it. */
IMBREX_TRY cuda_calls_check(int result, const char *call);

#endif /* CLI_CUDA_CALLS_H */
