/* bench_data.h - operands of one rank, several sets of them, so that calls in a row do not find
 * theirs in a cache. */
#ifndef CLI_BENCH_DATA_H
#define CLI_BENCH_DATA_H

#include "bench_op.h"

/* A set is a[m, k] (without a product [m, n]), b, bias[n] and c[m, n], one after another.  A rank's
 * share of a is its rows of it, and its share of c lies at the start of c. */
typedef struct bench_data {
    imbrex_group *group;
    char *sets; /* [count][set_bytes], symmetric */
    int count;
    size_t set_bytes;
    size_t own, b, bias, c; /* offsets in a set; own: of this rank's rows of a */
} bench_data;

/* Collective: takes the memory and fills it with values as from N(0, 1). */
IMBREX_TRY bench_data_open(imbrex_group *group, const bench_shape *shape, bench_data *out);
void bench_data_close(bench_data *data);

/* Of set number i, modulo their count: what the operator takes.  whole: all of a instead of the
 * rank's share, and no bias, for the product alone. */
imbrex_args bench_data_args(const bench_data *data, const bench_shape *shape, int64_t i,
                            bool whole);

#endif /* CLI_BENCH_DATA_H */
