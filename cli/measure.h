/* measure.h - times candidates against each other as DESIGN's figures are taken: round by round in
 * turn, from a barrier to the end of the slowest rank, then the median over rounds.  On a GPU the
 * barrier is on the stream and the clock is the GPU's own. */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include "cuda_timer.h"
#include "progress.h"
#include "share.h"

typedef struct candidate {
    const char *name;
    imbrex_status (*enqueue)(void *ctx); /* one call, on the stream that is timed */
    void *ctx;
    imbrex_group *group; /* the one whose stream is to be idle at the end */
    int inner;           /* calls between two looks at the clock */
    double us;           /* out: of one call */
} candidate;

/* Collective: every candidate runs `warm` times, then once in each of `rounds` rounds. */
IMBREX_TRY measure(share *s, candidate *candidates, int count, int warm, int rounds, progress *bar);

/* The same by a GPU's clock, calls being enqueued on its stream; NULL: by the host's, calls being
 * enqueued on the default stream of a candidate's group. */
IMBREX_TRY measure_by(cuda_timer *timer, share *s, candidate *candidates, int count, int warm,
                      int rounds, progress *bar);

#endif /* CLI_MEASURE_H */
