/* gpu.h - what tests on real GPUs share: whether there are any, ranks on them, and a line a case.
 *
 *     int main(int argc, char **argv)
 *     {
 *         gpu_begin(argc, argv);
 *         if (gpu_wanted("sums, 2 ranks"))
 *             gpu_report(sums(2));
 *         return gpu_end();
 *     }
 *
 * A word on the command line is looked for in the names of cases: only those that have it run.
 * IMBREX_FAKE_GPUS=n stands in n GPUs of the fake driver, so that the tests themselves are tested
 * where there is no GPU. */
#ifndef GPU_H
#define GPU_H

#include "ranks.h"

/* Ends the program as skipped if there is no GPU.  Child processes may not have used CUDA before
 * they begin: with processes true, the driver is looked at in a child only. */
void gpu_begin(int argc, char **argv, bool processes);

int gpu_count(void);
bool gpu_is_fake(void);

/* "cuda:1": the GPU of a rank.  spread: ranks go round all GPUs, else all are on GPU 0. */
const char *gpu_of(int rank, bool spread);

/* Says which case comes, unless it is not wanted. */
bool gpu_wanted(const char *format, ...) __attribute__((format(printf, 1, 2)));
void gpu_report(int failed); /* how that case went: 0, or how many ranks failed */

int gpu_end(void); /* the program's exit code */

#endif /* GPU_H */
