/* gpu_graph.c - CUDA graphs through the driver, which the library itself never makes; or the fake
 * driver's. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "backends/cuda/driver.h"
#include "fake_driver.h"
#include "gpu.h"

enum { CAPTURE_THREAD_LOCAL = 1 }; /* other threads are other ranks: what they call is their own */

struct gpu_graph {
    void *graph, *executable;
    fake_graph *fake;
};

static struct {
    CUresult (*context)(CUstream stream, CUcontext *context);
    CUresult (*begin)(CUstream stream, int mode);
    CUresult (*end)(CUstream stream, void **graph);
    CUresult (*instantiate)(void **executable, void *graph, unsigned long long flags);
    CUresult (*upload)(void *executable, CUstream stream);
    CUresult (*launch)(void *executable, CUstream stream);
    CUresult (*destroy_executable)(void *executable);
    CUresult (*destroy)(void *graph);
} calls;

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    *(void **)&calls.context = dlsym(library, "cuStreamGetCtx");
    *(void **)&calls.begin = dlsym(library, "cuStreamBeginCapture_v2");
    *(void **)&calls.end = dlsym(library, "cuStreamEndCapture");
    *(void **)&calls.instantiate = dlsym(library, "cuGraphInstantiateWithFlags");
    *(void **)&calls.upload = dlsym(library, "cuGraphUpload");
    *(void **)&calls.launch = dlsym(library, "cuGraphLaunch");
    *(void **)&calls.destroy_executable = dlsym(library, "cuGraphExecDestroy");
    *(void **)&calls.destroy = dlsym(library, "cuGraphDestroy");
}

static int check(int result, const char *call)
{
    const char *name = "?";
    if (!result)
        return 0;
    if (imx_driver->cuGetErrorName(result, &name) != CUDA_SUCCESS)
        name = "?";
    fprintf(stderr, "%s: %s (%d)\n", call, name, result);
    return 1;
}

/* A graph is made and launched with its GPU's context, as the caller's thread has it. */
static int make_current(imbrex_stream stream)
{
    CUcontext context;
    return check(calls.context((CUstream)stream, &context), "cuStreamGetCtx") ||
           check(imx_driver->cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

int gpu_graph_begin(imbrex_stream stream)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (gpu_is_fake())
        return check(fake_graph_begin(stream), "begin");
    pthread_once(&once, load);
    if (!calls.context || !calls.begin || !calls.end || !calls.instantiate || !calls.upload ||
        !calls.launch)
        return check(CUDA_ERROR_NOT_SUPPORTED, "the driver has no graphs");
    return make_current(stream) ||
           check(calls.begin((CUstream)stream, CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture");
}

int gpu_graph_end(imbrex_stream stream, gpu_graph **graph)
{
    gpu_graph *g = calloc(1, sizeof *g);
    *graph = g;
    if (gpu_is_fake())
        return check(fake_graph_end(stream, &g->fake), "end");
    return check(calls.end((CUstream)stream, &g->graph), "cuStreamEndCapture") ||
           check(calls.instantiate(&g->executable, g->graph, 0), "cuGraphInstantiateWithFlags") ||
           check(calls.upload(g->executable, (CUstream)stream), "cuGraphUpload") ||
           check(imx_driver->cuStreamSynchronize((CUstream)stream), "cuStreamSynchronize");
}

int gpu_graph_launch(gpu_graph *g, imbrex_stream stream)
{
    if (!gpu_is_fake())
        return check(calls.launch(g->executable, (CUstream)stream), "cuGraphLaunch");
    fake_graph_launch(g->fake, stream);
    return 0;
}

void gpu_graph_destroy(gpu_graph *g)
{
    if (!g)
        return;
    if (g->fake)
        fake_graph_destroy(g->fake);
    if (g->executable)
        check(calls.destroy_executable(g->executable), "cuGraphExecDestroy");
    if (g->graph)
        check(calls.destroy(g->graph), "cuGraphDestroy");
    free(g);
}
