/* bench_shapes.h - which operators at which sizes: the words of the command line, read. */
#ifndef CLI_BENCH_SHAPES_H
#define CLI_BENCH_SHAPES_H

#include "bench_words.h"

enum { BENCH_SHAPES = 256 };

typedef struct bench_shapes {
    bench_shape list[2][BENCH_SHAPES]; /* what is run on a CPU, and what on a GPU */
    int count;
} bench_shapes;

/* Every operator of ops, "ag_gemm,gemm_rs", at every size of words->sizes, which is "m,n,k;m,n,k"
 * or a file with one "m,n,k" a line; "op:m,n,k" is for that operator alone.  m,n and a product's k.
 * Without sizes: at that of bench_words_shape, from which everything else is copied.  Each of ops
 * wants a shape.  ops NULL: every size names its own operator; of compile, the others are for
 * ag_gemm and gemm_rs.  words->total: n of ag_gemm and k of gemm_rs are of words->ranks together.
 * Returns 0, or what options_wrong returns. */
int bench_shapes_read(const options_page *page, const bench_words *words, const char *ops,
                      bench_shapes *out);

#endif /* CLI_BENCH_SHAPES_H */
