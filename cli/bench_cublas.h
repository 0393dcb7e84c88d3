/* bench_cublas.h - the yardstick on a GPU: one whole product by cuBLASLt, in the fastest of the
 * ways that it proposes. */
#ifndef CLI_BENCH_CUBLAS_H
#define CLI_BENCH_CUBLAS_H

#include "bench_data.h"
#include "cuda.h"
#include "cuda_blas.h"

typedef struct bench_cublas {
    const bench_data *data;
    const bench_shape *shape;
    imbrex_group *alone;
    cuda_timer *timer;
    cuda_blas_product product;
    int way;
    int64_t calls;
} bench_cublas;

/* Tries every way a few times and keeps the fastest.  data, shape, alone and timer are set.
 * Local; to be closed also after a failure. */
IMBREX_TRY bench_cublas_open(bench_cublas *b, cublasLtHandle_t handle, void *workspace);
void bench_cublas_close(bench_cublas *b);

/* One product of the next operands; ctx is the bench_cublas. */
IMBREX_TRY bench_cublas_run(void *ctx);

#endif /* CLI_BENCH_CUBLAS_H */
