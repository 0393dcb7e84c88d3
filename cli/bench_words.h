/* bench_words.h - the options of `imbrex bench` and `imbrex compile` that say which plans. */
#ifndef CLI_BENCH_WORDS_H
#define CLI_BENCH_WORDS_H

#include "bench_op.h"
#include "options.h"

enum { BENCH_WORDS_RANKS = 2, BENCH_WORDS_ROWS = 10 };

/* As they were given, or 0 and NULL. */
typedef struct bench_words {
    int64_t m, n, k, ranks, chunk_rows, sms;
    int64_t plan_m; /* of bench: rows that plans are for; 0: their shape's */
    const char *dtype, *layout, *sizes;
    bool bias, total;
    bool plans; /* of compile: an operator must have a plan */
    option rows[BENCH_WORDS_ROWS];
} bench_words;

/* The table of these options, and behind them of `own`, which takes ranks and bias.  Lives as long
 * as the words. */
const option *bench_words_options(bench_words *words, const option *own);

/* One rank's product, or the matrix, of no operator yet; what was not given is the device's. */
bench_shape bench_words_shape(const bench_words *words, bool gpu);

#endif /* CLI_BENCH_WORDS_H */
