/* bench_blas.h - the yardstick: one whole product by the BLAS that this tool was built with. */
#ifndef CLI_BENCH_BLAS_H
#define CLI_BENCH_BLAS_H

#include "bench_data.h"

/* Whether this build has one, and it can compute what this plan does: float32, in host memory. */
bool bench_blas_can(const bench_shape *shape, const imbrex_plan *plan);

typedef struct bench_blas {
    const bench_data *data;
    const bench_shape *shape;
    int threads;
    int64_t calls;
} bench_blas;

/* Threads as the operators have them: what was asked for, else IMBREX_CPU_THREADS, else one. */
int bench_blas_threads(const bench_shape *shape);

/* c[m, n] = a[m, k] b, on the calling thread and threads - 1 others.  Only where bench_blas_can. */
void bench_blas_product(const bench_shape *shape, int threads, const float *a, const float *b,
                        float *c);

/* One product of the next operands; ctx is the bench_blas. */
IMBREX_TRY bench_blas_run(void *ctx);

#endif /* CLI_BENCH_BLAS_H */
