/* fake_ranks.h - ranks on fake GPUs. */
#ifndef FAKE_RANKS_H
#define FAKE_RANKS_H

#include "ranks.h"

/* As ranks_run, on device "cuda" with so many fake GPUs; counts also what was not given back. */
int fake_ranks_run(const ranks_desc *desc, int gpus, rank_main run, void *ctx);

/* The same on GPUs of that major compute capability, which run kernels as they are compiled; the
 * build's folder keeps what was. */
int fake_ranks_run_compiled(const ranks_desc *desc, int gpus, int major, rank_main run, void *ctx);

/* Whether there is a compiler for it; says so if not. */
bool fake_ranks_can_compile(void);

/* For the start of a program: an empty folder for compiled kernels, removed by end; and connections
 * enough for ranks to share a GPU. */
void fake_ranks_begin(void);
void fake_ranks_end(void);

#endif /* FAKE_RANKS_H */
