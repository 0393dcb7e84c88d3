/* bench_shapes.h - which operators at which sizes: the words of the command line, read. */
#ifndef CLI_BENCH_SHAPES_H
#define CLI_BENCH_SHAPES_H

#include "bench_op.h"

typedef struct bench_shapes {
    bench_shape *list; /* [count], to be freed */
    int count;
} bench_shapes;

/* Every operator of ops, "ag_gemm,gemm_rs", at every size of `sizes`, which is "m,n,k;m,n,k" or a
 * file with one "m,n,k" a line; "op:m,n,k" is for that operator alone.  m,n and a product's k.
 * sizes NULL: those of `like`, from which everything else is copied.  Each of ops wants a shape.
 * ops NULL: every size names its own operator; with `plans`, which is for callers that refuse the
 * operators that have none, the others are for ag_gemm and gemm_rs.  total > 1: n of ag_gemm and k
 * of gemm_rs are of so many ranks together.  False: `wrong` holds a sentence. */
bool bench_shapes_read(const char *ops, const char *sizes, const bench_shape *like, int total,
                       bool plans, bench_shapes *out, char *wrong, size_t size);

#endif /* CLI_BENCH_SHAPES_H */
