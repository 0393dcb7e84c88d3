/* bench.h - the words of `imbrex bench` and `imbrex compile`, what a rank does then, what it finds
 * out, and the forms in which it says so. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "candidates.h"
#include "measure.h"
#include "options.h"

/* ---- shapes.c: the options of `imbrex bench` and `imbrex compile` that say which plans ------- */

enum { BENCH_WORDS_RANKS = 2, BENCH_WORDS_ROWS = 20 };

/* As they were given, or 0 and NULL. */
typedef struct bench_words {
    int64_t m, n, k, ranks, chunk_rows, sms;
    int64_t plan_m; /* of bench: rows that plans are for; 0: their shape's */
    int64_t experts, top_k;
    int64_t heads, kv_heads, head_dim, page;
    double skew;
    const char *dtype, *layout, *scaling, *sizes, *parallel;
    bool bias, norm, total;
    bool plans; /* of compile: an operator must have a plan */
    option rows[BENCH_WORDS_ROWS];
} bench_words;

/* The table of these options, and behind them of `own`, which takes ranks and bias.  Lives as long
 * as the words. */
const option *bench_words_options(bench_words *words, const option *own);

/* One rank's product, or the matrix, of no operator yet; what was not given is the device's. */
bench_shape bench_words_shape(const bench_words *words, bool gpu);

/* ---- shapes.c: those words, read ------------------------------------------------------------- */

enum { BENCH_SHAPES = 256 };

typedef struct bench_shapes {
    bench_shape list[2][BENCH_SHAPES]; /* what is run on a CPU, and what on a GPU */
    int count;
} bench_shapes;

/* Every operator of ops, names with commas, at every size of words->sizes, which is "m,n,k;m,n,k"
 * or a file with one "m,n,k" a line; "op:m,n,k" is for that operator alone.  m,n and a product's k.
 * Without sizes: at that of bench_words_shape, from which everything else is copied.  Each of ops
 * wants a shape.  ops NULL: every size names its own operator; of compile, the others are for
 * all products.  words->total: n of those that gather and k of the others are of words->ranks
 * together.
 * Returns 0, or what options_wrong returns. */
int bench_shapes_read(const options_page *page, const bench_words *words, const char *ops,
                      bench_shapes *out);

/* ---- rank.c ---------------------------------------------------------------------------------- */

enum { BENCH_ALGORITHMS = 8 };

/* What a product on a GPU is compared with. */
typedef enum bench_peer {
    BENCH_PEER_AUTO,   /* cuBLASLt if it is found */
    BENCH_PEER_CUBLAS, /* cuBLASLt, or an error */
    BENCH_PEER_NONE    /* our own product only */
} bench_peer;

typedef struct bench_request {
    const bench_shape *shapes[2]; /* on a CPU, on a GPU: [count], timed one after another */
    int count;
    const char *device;                       /* NULL: the best here */
    const char *algorithms[BENCH_ALGORITHMS]; /* beside "sequential"; NULL: chosen */
    int algorithm_count;
    bench_peer peer;
    int64_t rounds, warm;
    bool json, graph, tune;
    bool chart;           /* also where the output is no terminal */
    const char *timeline; /* file, or NULL */
} bench_request;

/* Collective over the ranks of the environment.  Rank 0 prints; the exit code. */
int bench_rank(const bench_request *request);

/* ---- report.c -------------------------------------------------------------------------------- */

enum { BENCH_CANDIDATES = BENCH_ALGORITHMS + 3 };

/* A candidate's figures; NAN where there is none. */
typedef struct bench_figure {
    const char *name;
    char plan[640]; /* imbrex_plan_describe, or empty */
    bench_facts facts;
    double us, host_us;            /* of one call; its time on the host */
    double plan_ms, plan_again_ms; /* to make the plan the first and the second time */
} bench_figure;

typedef struct bench_result {
    const bench_request *request;
    const bench_shape *shape;
    int ranks, sets, inner; /* sets: of operands, 0: there are none */
    const char *device;     /* of rank 0 */
    bool device_clock;
    int base; /* which of the figures the others are divided by */
    bench_figure figures[BENCH_CANDIDATES];
    int count;
} bench_result;

void bench_report_table(const bench_result *result);
/* One object on one line. */
void bench_report_json(const bench_result *result);

/* ---- trace.c: the picture of one call of each algorithm on every rank, and its figures ------- */

/* What all shapes of a rank share. */
typedef struct bench_setting {
    const bench_request *request;
    imbrex_group *group, *alone; /* alone: this rank by itself */
    share share;
    progress *bar;        /* NULL: none */
    cuda_timer *timer;    /* NULL: the host's clock and default streams */
    imbrex_stream stream; /* of the timer, or NULL */
    cublasLtHandle_t cublas;
    void *workspace; /* for cublas; NULL: not to be had */
} bench_setting;

/* Collective, after the shape was timed; rank 0 writes request->timeline and prints the figures,
 * on standard error if standard output is JSON. */
IMBREX_TRY bench_trace(bench_setting *setting, const bench_shape *shape);

#endif /* CLI_BENCH_H */
