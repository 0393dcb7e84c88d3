/* bench_trace.h - the picture of one call of each algorithm on every rank, and its figures. */
#ifndef CLI_BENCH_TRACE_H
#define CLI_BENCH_TRACE_H

#include "bench_case.h"

/* Collective, after the shape was timed; rank 0 writes request->timeline and prints the figures,
 * on standard error if standard output is JSON. */
IMBREX_TRY bench_trace(bench_setting *setting, const bench_shape *shape);

#endif /* CLI_BENCH_TRACE_H */
