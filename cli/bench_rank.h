/* bench_rank.h - what one rank of `imbrex bench` does. */
#ifndef CLI_BENCH_RANK_H
#define CLI_BENCH_RANK_H

#include "bench_op.h"

enum { BENCH_ALGORITHMS = 8 };

/* What a product on a GPU is compared with. */
typedef enum bench_peer {
    BENCH_PEER_AUTO,   /* cuBLASLt if it is found */
    BENCH_PEER_CUBLAS, /* cuBLASLt, or an error */
    BENCH_PEER_NONE    /* our own product only */
} bench_peer;

typedef struct bench_request {
    const bench_shape *shapes[2]; /* on a CPU, on a GPU: [count], timed one after another */
    int count;
    const char *device;                       /* NULL: the best here */
    const char *algorithms[BENCH_ALGORITHMS]; /* beside "sequential"; NULL: chosen */
    int algorithm_count;
    bench_peer peer;
    int64_t rounds, warm;
    bool json, graph, tune;
    const char *timeline; /* file, or NULL */
} bench_request;

/* Collective over the ranks of the environment.  Rank 0 prints; the exit code. */
int bench_rank(const bench_request *request);

#endif /* CLI_BENCH_RANK_H */
