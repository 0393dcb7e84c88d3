/* cuda_graph.h - a chain of calls, captured once and replayed as one launch. */
#ifndef CLI_CUDA_GRAPH_H
#define CLI_CUDA_GRAPH_H

#include "imbrex.h"

typedef struct cuda_graph cuda_graph;

/* Captures `count` calls of enqueue(ctx), which enqueues on the stream, idle so far.  Collective if
 * enqueue is. */
IMBREX_TRY cuda_graph_capture(imbrex_stream stream, imbrex_status (*enqueue)(void *ctx), void *ctx,
                              int count, cuda_graph **out);
void cuda_graph_destroy(cuda_graph *graph); /* NULL is fine */

/* Enqueues one replay on the stream it was captured on; ctx is the cuda_graph. */
IMBREX_TRY cuda_graph_run(void *ctx);

#endif /* CLI_CUDA_GRAPH_H */
