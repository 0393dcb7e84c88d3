/* fake_calls.c - the driver functions that the tool itself calls: clocks that always tell the same,
 * and the fake streams' captures. */
#include "fake_calls.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "fake_stream.h"

struct fake_calls fake_calls;

static pthread_t holder;
static bool held;

static int fails(const char *call)
{
    return fake_calls.failing && strcmp(fake_calls.failing, call) == 0 ? 2 : 0;
}

static int init(unsigned flags)
{
    return (int)flags;
}

static int error_name(int error, const char **name)
{
    *name = "CUDA_ERROR_OUT_OF_MEMORY";
    return error != 2;
}

static int device_get(int *gpu, int index)
{
    *gpu = 10 + index;
    return fails("cuDeviceGet");
}

static int device_uuid(cuda_gpu_id *id, int gpu)
{
    memset(id, fake_calls.one_gpu ? 0 : gpu, sizeof *id);
    return fails("cuDeviceGetUuid");
}

static int retain(CUcontext *context, int gpu)
{
    if (fails("cuDevicePrimaryCtxRetain"))
        return 2;
    *context = (CUcontext)(uintptr_t)gpu;
    fake_calls.live++;
    return 0;
}

static int release(int gpu)
{
    assert_in_range(gpu, 10, 20);
    fake_calls.live--;
    return 0;
}

static int set_current(CUcontext context)
{
    assert_non_null(context);
    return fails("cuCtxSetCurrent");
}

static int stream_create(imbrex_stream *stream, unsigned flags)
{
    assert_int_equal(flags, 1); /* CU_STREAM_NON_BLOCKING */
    fake_calls.live++;
    return fake_stream_create((CUstream *)stream);
}

static int stream_destroy(imbrex_stream stream)
{
    fake_calls.live--;
    fake_stream_destroy((CUstream)stream);
    return 0;
}

static int event_create(CUevent *event, unsigned flags)
{
    assert_int_equal(flags, 0);
    if (fails("cuEventCreate"))
        return 2;
    *event = malloc(1);
    fake_calls.live++;
    return 0;
}

static int event_destroy(CUevent event)
{
    free(event);
    fake_calls.live--;
    return 0;
}

static int event_record(CUevent event, imbrex_stream stream)
{
    assert_non_null(stream);
    assert_non_null(event);
    return fails("cuEventRecord");
}

/* The stream is idle: what held it must have let it go. */
void fake_calls_join(void)
{
    if (held)
        pthread_join(holder, NULL);
    held = false;
}

static int event_elapsed(float *ms, CUevent begin, CUevent end)
{
    assert_ptr_not_equal(begin, end);
    fake_calls_join();
    *ms = FAKE_ELAPSED_MS;
    return fails("cuEventElapsedTime");
}

typedef struct host_call {
    void (*function)(void *ctx);
    void *ctx;
} host_call;

static void *call_back(void *ctx)
{
    host_call call = *(host_call *)ctx;
    free(ctx);
    call.function(call.ctx);
    return NULL;
}

static int launch_host(imbrex_stream stream, void (*function)(void *), void *ctx)
{
    assert_non_null(stream);
    host_call *call = malloc(sizeof *call);
    *call = (host_call){ function, ctx };
    fake_calls_join();
    held = true;
    return pthread_create(&holder, NULL, call_back, call);
}

static int capture_begin(imbrex_stream stream, int mode)
{
    assert_int_equal(mode, 1);
    return fake_graph_begin(stream);
}

static int capture_end(imbrex_stream stream, CUgraph *graph)
{
    fake_calls.graphs++;
    return fake_graph_end(stream, (fake_graph **)graph);
}

static int instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    *out = (CUgraphExec)graph;
    return (int)flags || fails("cuGraphInstantiate");
}

static int graph_launch(CUgraphExec graph, imbrex_stream stream)
{
    fake_graph_launch((fake_graph *)graph, stream);
    fake_calls.replays++;
    return 0;
}

static int exec_destroy(CUgraphExec graph)
{
    assert_non_null(graph);
    return 0;
}

static int graph_destroy(CUgraph graph)
{
    fake_graph_destroy((fake_graph *)graph);
    fake_calls.graphs--;
    return 0;
}

const cuda_calls fake_calls_table = {
    .cuInit = init,
    .cuGetErrorName = error_name,
    .cuDeviceGet = device_get,
    .cuDeviceGetUuid = device_uuid,
    .cuDevicePrimaryCtxRetain = retain,
    .cuDevicePrimaryCtxRelease = release,
    .cuCtxSetCurrent = set_current,
    .cuStreamCreate = stream_create,
    .cuStreamDestroy = stream_destroy,
    .cuEventCreate = event_create,
    .cuEventDestroy = event_destroy,
    .cuEventRecord = event_record,
    .cuEventElapsedTime = event_elapsed,
    .cuLaunchHostFunc = launch_host,
    .cuStreamBeginCapture = capture_begin,
    .cuStreamEndCapture = capture_end,
    .cuGraphInstantiate = instantiate,
    .cuGraphLaunch = graph_launch,
    .cuGraphExecDestroy = exec_destroy,
    .cuGraphDestroy = graph_destroy,
};
