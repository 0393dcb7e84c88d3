/* gpu.h - what tests on real GPUs share: whether there are any, ranks on them, and a line a case.
 *
 *     int main(int argc, char **argv)
 *     {
 *         gpu_begin(argc, argv);
 *         if (gpu_wanted("sums"))
 *             gpu_report(gpu_isolated(sums, NULL, 30));
 *         return gpu_end();
 *     }
 *
 * A word on the command line is looked for in the names of cases: only those that have it run.
 * IMBREX_FAKE_GPUS=n stands in n GPUs of the fake driver, so that the tests themselves are tested
 * where there is no GPU.  With IMBREX_FAKE_PTX=FOLDER these run the kernels that the real compiler
 * makes, instruction by instruction; the folder keeps what it has made (1: nothing is kept). */
#ifndef GPU_H
#define GPU_H

#include <sys/types.h>

#include "ranks.h"

/* Ends the program as skipped if there is no GPU.  The driver is looked at in a child: a process
 * that has used it cannot have children that do. */
void gpu_begin(int argc, char **argv);

int gpu_count(void);

int gpu_arch(void); /* compute capability of the first: 90 */
bool gpu_is_fake(void);

/* Runs a function in a process of its own, so that neither a kernel that crashes nor one that hangs
 * takes the rest along.  Its result, from 0 to 100; GPU_DIED: it has none, and why was printed. */
enum { GPU_DIED = 101 };
int gpu_isolated(int (*run)(void *ctx), void *ctx, int limit_s);

/* The same in two steps, for several at once.  ctx is copied with the process. */
pid_t gpu_start(int (*run)(void *ctx), void *ctx, int limit_s);
int gpu_finish(pid_t child);

/* Zeroed memory that processes share. */
void *gpu_shared(size_t bytes);

/* A CUDA graph of what this thread enqueues between begin and end.  0, or why not was
 * said. */
typedef struct gpu_graph gpu_graph;
int gpu_graph_begin(imbrex_stream stream);
int gpu_graph_end(imbrex_stream stream, gpu_graph **graph);
int gpu_graph_launch(gpu_graph *graph, imbrex_stream stream);
void gpu_graph_destroy(gpu_graph *graph);

/* "cuda:1": the GPU of a rank.  spread: ranks go round all GPUs, else all are on GPU 0. */
const char *gpu_of(int rank, bool spread);

/* Says which case comes, unless it is not wanted. */
bool gpu_wanted(const char *format, ...) __attribute__((format(printf, 1, 2)));
void gpu_report(int failed); /* how that case went: 0, or not */

int gpu_end(void); /* the program's exit code */

#endif /* GPU_H */
