/* bench_case.h - one shape of `imbrex bench`: makes its candidates, and times them in turn. */
#ifndef CLI_BENCH_CASE_H
#define CLI_BENCH_CASE_H

#include "bench_cublas.h"
#include "bench_report.h"
#include "measure.h"

/* What all shapes of a rank share. */
typedef struct bench_setting {
    const bench_request *request;
    imbrex_group *group, *alone; /* alone: this rank by itself */
    share share;
    progress *bar;        /* NULL: none */
    cuda_timer *timer;    /* NULL: the host's clock and default streams */
    imbrex_stream stream; /* of the timer, or NULL */
    cublasLtHandle_t cublas;
    void *workspace; /* for cublas; NULL: not to be had */
} bench_setting;

/* Collective.  What an algorithm cannot do is said on standard error by rank 0, and *left_out
 * counts it.  An error if nothing was timed. */
IMBREX_TRY bench_case(bench_setting *setting, const bench_shape *shape, bench_result *result,
                      int *left_out);

#endif /* CLI_BENCH_CASE_H */
