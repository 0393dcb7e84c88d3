/* experts.h - where tokens go, of operators with experts: ids that are alike on all ranks, and
 * where the pairs of tokens and experts lie, in the group and for one rank alone. */
#ifndef CLI_EXPERTS_H
#define CLI_EXPERTS_H

#include "data.h"

typedef struct bench_experts bench_experts;

/* Collective.  Takes memory, and overwrites data's first set.  alone: this rank's group of one. */
IMBREX_TRY bench_experts_open(const bench_data *data, imbrex_group *alone, const bench_shape *shape,
                              bench_experts **out);
void bench_experts_close(bench_experts *experts); /* NULL is fine */

/* Adds what a run takes of it.  alone: for the product of one rank. */
void bench_experts_args(const bench_experts *experts, const bench_shape *shape, bool alone,
                        imbrex_args *args);

#endif /* CLI_EXPERTS_H */
