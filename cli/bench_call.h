/* bench_call.h - the calls of one candidate: each takes the next set of operands, and the host time
 * of the first in every round is noted. */
#ifndef CLI_BENCH_CALL_H
#define CLI_BENCH_CALL_H

#include "bench_data.h"

typedef struct bench_call {
    const bench_data *data;
    const bench_shape *shape;
    imbrex_plan *plan;
    imbrex_stream stream; /* NULL: the default one of the plan's group */
    bool whole;           /* the product alone */
    int64_t calls;
    int inner;       /* calls in a round, or 0: note nothing */
    double *host_us; /* [rounds]: of one call each, the stream being idle before it */
} bench_call;

/* Enqueues one run; ctx is the bench_call. */
IMBREX_TRY bench_call_run(void *ctx);

/* Forgets all calls and starts to note rounds, `rounds` of them at most; false: out of memory. */
bool bench_call_note(bench_call *call, int inner, int rounds);

/* The median host time of the rounds after the first `warm`, and no more notes; NAN if none were
 * taken. */
double bench_call_host_us(bench_call *call, int warm, int rounds);

/* Destroys the plan too. */
void bench_call_close(bench_call *call);

#endif /* CLI_BENCH_CALL_H */
