/* states.h - operands of attention: queries and a cache, or states of this rank's tokens; in sets,
 * as those of products are. */
#ifndef CLI_STATES_H
#define CLI_STATES_H

#include "data.h"

typedef struct bench_states bench_states;

/* Collective.  Takes the memory and fills it. */
IMBREX_TRY bench_states_open(imbrex_group *group, const bench_shape *shape, bench_data *out);
void bench_states_close(bench_states *states); /* NULL is fine */

/* Of set number i, modulo their count. */
imbrex_decode_args bench_states_args(const bench_data *data, const bench_shape *shape, int64_t i);

#endif /* CLI_STATES_H */
