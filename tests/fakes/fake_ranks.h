/* fake_ranks.h - ranks on fake GPUs. */
#ifndef FAKE_RANKS_H
#define FAKE_RANKS_H

#include "ranks.h"

/* As ranks_run, on device "cuda" with so many fake GPUs; counts also what was not given back. */
int fake_ranks_run(const ranks_desc *desc, int gpus, rank_main run, void *ctx);

/* For the start of a program: an empty folder for compiled kernels, removed by end; and connections
 * enough for ranks to share a GPU. */
void fake_ranks_begin(void);
void fake_ranks_end(void);

#endif /* FAKE_RANKS_H */
