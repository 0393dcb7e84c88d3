/* measure.h - times candidates against each other as DESIGN's figures are taken: round by round in
 * turn, from a barrier to the end of the slowest rank, then the median over rounds.  On a GPU the
 * barrier is on the stream and the clock is the GPU's own. */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include "cli.h"
#include "cuda.h"
#include "share.h"

typedef struct candidate {
    const char *name;
    imbrex_status (*enqueue)(void *ctx); /* one call, on the stream that is timed */
    void *ctx;
    imbrex_group *group; /* the one whose stream is to be idle at the end */
    int inner;           /* calls between two looks at the clock */
    double us;           /* out: of one call */
} candidate;

/* The clock of the group's device: a GPU's own, or NULL for the host's.  graph: whether calls are
 * to be captured, which only GPUs can. */
IMBREX_TRY measure_clock(imbrex_group *group, bool graph, cuda_timer **timer);

/* GB/s of the emulated wire between ranks, as IMBREX_CPU_LINK has it; NAN: there is none. */
double measure_wire(void);

/* Collective: calls of c that make a round, the same on all ranks. */
IMBREX_TRY measure_inner(cuda_timer *timer, share *s, candidate *c, int *inner);

/* From here on a call of c is a replay of `calls` calls, captured on the timer's stream, where one
 * has run before.  Collective if a call is. */
IMBREX_TRY measure_capture(cuda_timer *timer, candidate *c, int calls, cuda_graph **graph);

/* Collective: every candidate runs `warm` times, then once in each of `rounds` rounds. */
IMBREX_TRY measure(share *s, candidate *candidates, int count, int warm, int rounds, progress *bar);

/* The same by a GPU's clock, calls being enqueued on its stream; NULL: by the host's, calls being
 * enqueued on the default stream of a candidate's group. */
IMBREX_TRY measure_by(cuda_timer *timer, share *s, candidate *candidates, int count, int warm,
                      int rounds, progress *bar);

/* The middle one of values[count], which it sorts; of an even number the upper one. */
double measure_median(double *values, int count);

#endif /* CLI_MEASURE_H */
