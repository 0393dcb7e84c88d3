/* data.h - how the operands of one rank lie in memory. */
#ifndef CLI_DATA_H
#define CLI_DATA_H

#include "op.h"

/* A set is a[m, k] (without a product [m, n]), b, bias[n], gamma[n], residual, h and c[m, n], one
 * after another.  A rank's share of a is its rows of it, and its share of c lies at the start of
 * c. */
typedef struct bench_data {
    imbrex_group *group;
    char *sets; /* [count][set_bytes], symmetric */
    int count;
    size_t set_bytes;
    size_t own, b, bias, scales_a, own_scales, scales_b, c; /* offsets in a set; own: of this rank's
                                                               rows of a */
    size_t gamma, residual, h;                              /* with a norm; as c */
    struct bench_experts *experts;                          /* NULL: the operator has none */
    struct bench_states *states;                            /* likewise; sets are its own */
} bench_data;

#endif /* CLI_DATA_H */
