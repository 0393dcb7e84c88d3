/* bench_blas.c - cblas_sgemm over all of c at once. */
#include "bench_blas.h"

#include <stdlib.h>
#include <string.h>

int bench_blas_threads(const bench_shape *shape)
{
    const char *threads = getenv("IMBREX_CPU_THREADS");
    int wanted = shape->sms ? shape->sms : threads ? atoi(threads) : 1;
    return wanted > 0 ? wanted : 1;
}

#ifdef IMX_HAVE_CBLAS
#include <cblas.h>

/* OpenBLAS has it; weak, so that any other CBLAS links too. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));

/* Where a group computes, if it was not told, only the description of its plans says. */
bool bench_blas_can(const bench_shape *shape, const imbrex_plan *plan)
{
    char text[400];
    imbrex_plan_describe(plan, text, sizeof text);
    return shape->dtype == IMBREX_F32 && strstr(text, " on cpu:");
}

void bench_blas_product(const bench_shape *s, int threads, const float *a, const float *b, float *c)
{
    bool nk = s->layout == IMBREX_NK;
    if (openblas_set_num_threads)
        openblas_set_num_threads(threads); /* the operators set their own */
    cblas_sgemm(CblasRowMajor, CblasNoTrans, nk ? CblasTrans : CblasNoTrans, (int)s->m, (int)s->n,
                (int)s->k, 1, a, (int)s->k, b, (int)(nk ? s->k : s->n), 0, c, (int)s->n);
}

#else

bool bench_blas_can(const bench_shape *shape, const imbrex_plan *plan)
{
    (void)shape;
    (void)plan;
    return false;
}

void bench_blas_product(const bench_shape *shape, int threads, const float *a, const float *b,
                        float *c)
{
    (void)shape;
    (void)threads;
    (void)a;
    (void)b;
    (void)c;
}

#endif

imbrex_status bench_blas_run(void *ctx)
{
    bench_blas *blas = ctx;
    imbrex_args args = bench_data_args(blas->data, blas->shape, blas->calls++, true);
    bench_blas_product(blas->shape, blas->threads, args.a, args.b, args.c);
    return IMBREX_OK;
}
