/* cuda_graph.c - stream capture, instantiation, launch. */
#include "cuda_graph.h"

#include <stdlib.h>

#include "cuda_calls.h"
#include "failure.h"

struct cuda_graph {
    imbrex_stream stream;
    CUgraph captured;
    CUgraphExec replay;
};

/* Ends the capture also if a call failed: else the stream is of no more use. */
static imbrex_status capture(cuda_graph *graph, imbrex_status (*enqueue)(void *), void *ctx,
                             int count)
{
    imbrex_status status =
        cuda_calls_check(cuda->cuStreamBeginCapture(graph->stream, CUDA_CAPTURE_THREAD_LOCAL),
                         "cuStreamBeginCapture");
    if (status != IMBREX_OK)
        return status;
    for (int i = 0; i < count && status == IMBREX_OK; i++)
        status = enqueue(ctx);
    int ended = cuda->cuStreamEndCapture(graph->stream, &graph->captured);
    if (status == IMBREX_OK)
        status = cuda_calls_check(ended, "cuStreamEndCapture");
    if (status == IMBREX_OK)
        status = cuda_calls_check(cuda->cuGraphInstantiate(&graph->replay, graph->captured, 0),
                                  "cuGraphInstantiate");
    return status;
}

imbrex_status cuda_graph_capture(imbrex_stream stream, imbrex_status (*enqueue)(void *ctx),
                                 void *ctx, int count, cuda_graph **out)
{
    cuda_graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return failure_note(IMBREX_NO_MEMORY, "out of memory");
    graph->stream = stream;
    imbrex_status status = capture(graph, enqueue, ctx, count);
    if (status == IMBREX_OK)
        *out = graph;
    else
        cuda_graph_destroy(graph);
    return status;
}

void cuda_graph_destroy(cuda_graph *graph)
{
    if (!graph)
        return;
    if (graph->replay)
        cuda->cuGraphExecDestroy(graph->replay);
    if (graph->captured)
        cuda->cuGraphDestroy(graph->captured);
    free(graph);
}

imbrex_status cuda_graph_run(void *ctx)
{
    cuda_graph *graph = ctx;
    return cuda_calls_check(cuda->cuGraphLaunch(graph->replay, graph->stream), "cuGraphLaunch");
}
