/* bench_cublas.c - chooses among the ways, and runs the chosen one. */
#include "bench_cublas.h"

#include "cli.h"

enum { TRIES = 4 };

imbrex_status bench_cublas_run(void *ctx)
{
    bench_cublas *b = ctx;
    imbrex_args args = bench_data_args(b->data, b->shape, b->calls++, true);
    return cuda_blas_run(&b->product, b->way, &args, cuda_timer_stream(b->timer));
}

static imbrex_status time_way(bench_cublas *b, double *us)
{
    TRY(bench_cublas_run(b)); /* loads its kernel */
    TRY(cuda_timer_begin(b->timer));
    for (int i = 0; i < TRIES; i++)
        TRY(bench_cublas_run(b));
    TRY(cuda_timer_end(b->timer));
    TRY(imbrex_stream_sync(b->alone, cuda_timer_stream(b->timer)));
    return cuda_timer_us(b->timer, us);
}

imbrex_status bench_cublas_open(bench_cublas *b, cublasLtHandle_t handle, void *workspace)
{
    int best = 0;
    double least = 0;
    TRY(cuda_blas_prepare(handle, b->shape, workspace, &b->product));
    for (b->way = 0; b->way < b->product.count; b->way++) {
        double us;
        TRY(time_way(b, &us));
        if (b->way == 0 || us < least) {
            least = us;
            best = b->way;
        }
    }
    b->way = best;
    return IMBREX_OK;
}

void bench_cublas_close(bench_cublas *b)
{
    cuda_blas_finish(&b->product);
}
