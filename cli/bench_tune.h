/* bench_tune.h - `imbrex bench --tune`: lets the library measure, and shows the figures. */
#ifndef CLI_BENCH_TUNE_H
#define CLI_BENCH_TUNE_H

#include "bench_op.h"
#include "cli.h"

/* Collective.  bar: NULL on ranks that say nothing.  table: print the candidates. */
IMBREX_TRY bench_tune(imbrex_group *group, const bench_shape *shape, progress *bar, bool table);

#endif /* CLI_BENCH_TUNE_H */
