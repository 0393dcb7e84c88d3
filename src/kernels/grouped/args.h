/* args.h - the contract of the grouped kernel: for each expert here its rows times its weights,
 *
 *     c[row, n] = a[token of row, k] * b[expert, n, k] or b[expert, k, n]
 *
 * for the rows expert_begin[e] up to expert_begin[e] + expert_rows[e], which are read when the
 * kernel runs; rows between experts are not written.  The row's token is row_pair[row] / top_k: one
 * of own tokens lies in `own`, which begins with token own_first, others in `gathered`.  top_k 0:
 * row r of a is row r of `own`.
 *
 * ready: rows that are not own come in while the kernel runs, those of rank r's chunk q behind
 * ready[r * chunks + q], which is raised to *epoch.  Tiles of own tokens alone come first, then the
 * others, which wait for all rows (order.h).  NULL: all are here.
 *
 * With a dtype of 8 bits b is E4M3, and an element stands for itself times its scale: the sums of
 * 128 of k are added in the order of k, PER_BLOCK each times scale_a[token, block] *
 * scale_b[expert, column / 128, block], PER_ROW all of it times scale_a[token] * scale_b[expert,
 * column] (docs/numerics.md).
 *
 * What is read of the routing may be left from a run that failed: nothing outside of `rows` rows
 * and `tokens` tokens is touched, whatever it says.
 *
 * An element is a sum over k in float32, rounded once, whose order is the same for all elements: on
 * CPUs of 256 products at a time, one after the other, and of those sums likewise; on GPUs as
 * tensor cores add.  So its bits depend on its row of a and its column of b alone: not on where the
 * row lies, nor on how many there are, nor on how the columns of b are shared. */
#ifndef IMX_GROUPED_ARGS_H
#define IMX_GROUPED_ARGS_H

#include <stdint.h>

enum {
    IMX_GROUPED_EXPERTS = 2048, /* here, at most; */
    IMX_GROUPED_ORDERED = 1024, /* with ready */
};

typedef struct imx_grouped_args {
    int64_t n, k;
    int64_t expected;  /* rows of an expert, if all have as many: for the choice of tiles */
    int dtype, layout; /* imbrex_dtype, imbrex_layout */
    int out, scaling;  /* imbrex_dtype of c; imbrex_scaling of a and b of 8 bits */
    int here, top_k;
    int reserved_sms; /* multiprocessors that stay free for others: as the kernel is made */
    const void *own, *gathered;
    int64_t own_first, own_rows, tokens; /* tokens: of all ranks; with top_k 0 nothing */
    int64_t rows;                        /* that c has room for */
    const void *b;
    void *c;
    const float *scale_a, *scale_b;
    int64_t scale_stride; /* floats from a token's scales to the next one's; with top_k 0 a row's */
    const int32_t *expert_begin, *expert_rows, *row_pair;
    const uint64_t *ready, *epoch;
    int64_t chunk_rows;
    int rank, ranks, chunks, plan; /* plan: for the wait point */
} imx_grouped_args;

#endif /* IMX_GROUPED_ARGS_H */
