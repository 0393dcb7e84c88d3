/* imbrex_gemm.h - a kernel of your own around the library's product, c[m, n] = a[m, k] * b: the
 * library brings the pipeline, you bring the hooks, which it calls in between.  docs/device.md says
 * by whom, and what a hook may do there.
 *
 *     #include "imbrex_gemm.h"
 *     typedef struct { ... } my_args;
 *     IMBREXD_FN void part_done(const my_args *args, const imbrexd_team *team,
 *                               const imbrexd_gemm *gemm, int rank, int chunk) { ... }
 *
 *     #define IMBREXD_GEMM_NAME my_product
 *     #define IMBREXD_GEMM_ARGS my_args
 *     #define IMBREXD_GEMM_DONE part_done
 *     #include "imbrex_gemm_kernel.h"
 *
 * The host makes it with desc.gemm and launches it with imbrex_launch_gemm.  Rows belong to ranks
 * as everywhere: c's rows of rank r go to operands.c[r], own memory or a peer's.  They are cut into
 * chunks of gemm->chunk_rows, counted from each rank's first row.  Hooks, each free when absent;
 * (...) is (const ARGS *args, const imbrexd_team *team, const imbrexd_gemm *gemm, and
 *
 *     ORDER   unsigned (..., unsigned index)    which tile comes index-th: a permutation of theirs
 *     BEGIN   int (...)                 before c is first written: have the readers read?
 *     WAIT    int (..., int rank, int chunk)    before rows of a are first read: are they here?
 *     DONE    void (..., int rank, int chunk)   the chunk's c is written, all of it
 *     SUM     int (..., int chunk, imbrexd_gemm_sum *sum)     own rows become a sum: are the parts
 *                               of this chunk of them here that others bring, and where?
 *     BESIDE  int (..., unsigned thread, unsigned threads)    what runs beside the product
 *     END     void (...)                all of this rank's product, and what ran beside, is done
 *
 * What returns an int returns 1, or 0 where a wait of its own gave up: the group has failed then,
 * and the kernel cannot be launched again.  0 for any other reason makes the group fail. */
#ifndef IMBREX_GEMM_H
#define IMBREX_GEMM_H

#include "imbrex_device.h"

/* The product of a launch. */
typedef struct imbrexd_gemm {
    int64_t m, n, k;
    int32_t ranks;      /* how the rows of a and c are cut */
    int32_t first;      /* whose rows come first; then the next rank's, ... */
    int32_t chunk_rows; /* of each rank's rows */
    int32_t chunks;     /* most that a rank has in any launch */
    int32_t dtype;      /* imbrex_dtype of a, b and c */
    uint32_t tiles;     /* of all ranks' rows */
    /* imbrexd_gemm_add, on CPUs. */
    void (*add)(int dtype, void *to, const void *parts, size_t stride_bytes, int count,
                int64_t elements);
} imbrexd_gemm;

/* What becomes of this rank's rows of c: the sum of as many parts of them as there are ranks, each
 * [rows, n] and stride_bytes after the one before, in that order in float32, rounded once to the
 * product's dtype.  operands.c[rank] is one of them.  Fast where all are aligned to 16 bytes. */
typedef struct imbrexd_gemm_sum {
    void *to; /* [rows, n] */
    const void *parts;
    size_t stride_bytes;
} imbrexd_gemm_sum;

/* First row of a rank, rank * m / ranks; of rank `ranks`: m.  In 32 bits: GPUs divide 64 by a call
 * that takes many registers. */
IMBREXD_FN int imbrexd_gemm_row(const imbrexd_gemm *gemm, int rank)
{
    unsigned m = (unsigned)gemm->m, ranks = (unsigned)gemm->ranks, r = (unsigned)rank;
    return (int)(r * (m / ranks) + r * (m % ranks) / ranks);
}

/* Rows of its chunk, which may be none. */
IMBREXD_FN int imbrexd_gemm_chunk_rows(const imbrexd_gemm *gemm, int rank, int chunk)
{
    int64_t left = (int64_t)imbrexd_gemm_row(gemm, rank + 1) - imbrexd_gemm_row(gemm, rank) -
                   (int64_t)chunk * gemm->chunk_rows;
    return left <= 0 ? 0 : left < gemm->chunk_rows ? (int)left : gemm->chunk_rows;
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/* to[elements], less than 2^32 of them, = the sum of `count` parts, at least one, each stride_bytes
 * after the one before, in that order in float32, rounded once to the product's dtype; by this one
 * of `threads`, its share. */
IMBREXD_FN void imbrexd_gemm_add(const imbrexd_gemm *gemm, void *to, const void *parts,
                                 size_t stride_bytes, int count, int64_t elements, unsigned thread,
                                 unsigned threads);

#else

IMBREXD_FN void imbrexd_gemm_add(const imbrexd_gemm *gemm, void *to, const void *parts,
                                 size_t stride_bytes, int count, int64_t elements, unsigned thread,
                                 unsigned threads)
{
    int64_t begin = elements * thread / threads, end = elements * (thread + 1) / threads;
    int64_t at = begin * (gemm->dtype == IMBREX_F32 ? 4 : 2);
    gemm->add(gemm->dtype, (char *)to + at, (const char *)parts + at, stride_bytes, count,
              end - begin);
}

#endif

/* The hooks as the pipeline calls them, made by imbrex_gemm_kernel.h. */
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

IMBREXD_FN unsigned imbrexd_hook_order(const void *args, const imbrexd_team *team,
                                       const imbrexd_gemm *gemm, unsigned index);
IMBREXD_FN int imbrexd_hook_begin(const void *args, const imbrexd_team *team,
                                  const imbrexd_gemm *gemm);
IMBREXD_FN int imbrexd_hook_wait(const void *args, const imbrexd_team *team,
                                 const imbrexd_gemm *gemm, int rank, int chunk);
IMBREXD_FN void imbrexd_hook_done(const void *args, const imbrexd_team *team,
                                  const imbrexd_gemm *gemm, int rank, int chunk);
IMBREXD_FN int imbrexd_hook_sum(const void *args, const imbrexd_team *team,
                                const imbrexd_gemm *gemm, int chunk, imbrexd_gemm_sum *sum);
IMBREXD_FN int imbrexd_hook_beside(const void *args, const imbrexd_team *team,
                                   const imbrexd_gemm *gemm, unsigned thread, unsigned threads);
IMBREXD_FN int imbrexd_hook_orders(void); /* whether there is such a hook */
IMBREXD_FN int imbrexd_hook_sums(void);
IMBREXD_FN void imbrexd_hook_end(const void *args, const imbrexd_team *team,
                                 const imbrexd_gemm *gemm);

#else

struct imbrexd_hooks {
    void (*enter)(const imbrexd_block *block); /* the thread's block from here on */
    unsigned (*order)(const void *args, const imbrexd_team *team, const imbrexd_gemm *gemm,
                      unsigned index);
    int (*begin)(const void *args, const imbrexd_team *team, const imbrexd_gemm *gemm);
    int (*wait)(const void *args, const imbrexd_team *team, const imbrexd_gemm *gemm, int rank,
                int chunk);
    void (*done)(const void *args, const imbrexd_team *team, const imbrexd_gemm *gemm, int rank,
                 int chunk);
    int (*sum)(const void *args, const imbrexd_team *team, const imbrexd_gemm *gemm, int chunk,
               imbrexd_gemm_sum *sum); /* NULL: own rows become none */
    int (*beside)(const void *args, const imbrexd_team *team, const imbrexd_gemm *gemm,
                  unsigned thread, unsigned threads); /* NULL: there is nothing */
    void (*end)(const void *args, const imbrexd_team *team, const imbrexd_gemm *gemm);
};

#endif

#endif /* IMBREX_GEMM_H */
