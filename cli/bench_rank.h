/* bench_rank.h - what one rank of `imbrex bench` does. */
#ifndef CLI_BENCH_RANK_H
#define CLI_BENCH_RANK_H

#include "bench_op.h"

enum { BENCH_ALGORITHMS = 8 };

typedef struct bench_request {
    bench_shape shape;
    const char *device;                       /* NULL: the best here */
    const char *algorithms[BENCH_ALGORITHMS]; /* beside "sequential"; NULL: chosen */
    int algorithm_count;
    int64_t rounds, warm;
    bool json;
} bench_request;

/* Collective over the ranks of the environment.  Rank 0 prints; the exit code. */
int bench_rank(const bench_request *request);

#endif /* CLI_BENCH_RANK_H */
