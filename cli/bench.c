/* bench.c - `imbrex bench`: one operator, timed against itself without overlap and against its
 * product alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_rank.h"
#include "cli.h"
#include "launch.h"
#include "options.h"

/* What the options say, before it is checked. */
typedef struct bench_words {
    const char *dtype, *layout;
    char *algorithms;
    const char *algorithm;
    int64_t m, n, k, ranks, chunk_rows, sms;
} bench_words;

static int rank_main(int rank, void *ctx)
{
    (void)rank;
    return bench_rank(ctx);
}

/* Outside every launcher, the ranks are started here. */
static int start(const bench_request *request, int64_t ranks)
{
    if (launch_is_rank())
        return bench_rank(request);
    launch_options launch = {
        .ranks = (int)ranks,
        .output = LAUNCH_DIRECT,
        .grace_s = LAUNCH_GRACE_S,
    };
    return launch_ranks(&launch, rank_main, (void *)request);
}

/* "copy,sequential": those beside sequential, which is always timed. */
static int split_algorithms(const options_page *page, char *list, bench_request *request)
{
    char *rest = NULL;
    for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (strcmp(word, "sequential") == 0)
            continue;
        if (request->algorithm_count == BENCH_ALGORITHMS)
            return options_wrong(page, "--algorithm names more than %d", BENCH_ALGORITHMS);
        request->algorithms[request->algorithm_count++] = word;
    }
    return 0;
}

static int index_of(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return 0;
}

static int check_shape(const options_page *page, const char *name, const bench_words *w,
                       bench_shape *shape)
{
    char names[128];
    bench_op_names(names, sizeof names);
    if (!name)
        return options_wrong(page, "which operator? One of %s", names);
    const bench_op *op = bench_op_find(name);
    if (!op)
        return options_wrong(page, "no operator '%s': want one of %s", name, names);
    if (!op->product && (shape->bias || w->layout || w->k))
        return options_wrong(page, "%s has no product: --k, --layout and --bias say nothing", name);
    *shape = (bench_shape){
        .op = op,
        .m = w->m,
        .n = w->n,
        .k = !op->product ? 0
             : w->k       ? w->k
                          : 1024,
        .dtype = (imbrex_dtype)index_of(bench_dtype_names, 3, w->dtype),
        .layout = (imbrex_layout)(w->layout ? index_of(bench_layout_names, 2, w->layout) : 0),
        .chunk_rows = (int)w->chunk_rows,
        .sms = (int)w->sms,
        .bias = shape->bias,
    };
    return 0;
}

static int check_request(const options_page *page, const char *name, bench_words *w,
                         bench_request *request)
{
    int wrong = check_shape(page, name, w, &request->shape);
    if (wrong < 0)
        return wrong;
    if (!w->algorithm) {
        request->algorithm_count = 1; /* the chosen one */
        return 0;
    }
    w->algorithms = strdup(w->algorithm);
    if (!w->algorithms)
        return options_wrong(page, "out of memory");
    return split_algorithms(page, w->algorithms, request);
}

int cli_bench(int argc, char **argv)
{
    const double largest = 1 << 24;
    bench_words w = { .dtype = "f32", .m = 1024, .n = 1024, .ranks = 2 };
    bench_request request = { .rounds = 15, .warm = 3 };
    const option options[] = {
        { "m", 0, .integer = &w.m, .metavar = "M", .min = 1, .max = largest,
          .help = "rows, of all ranks together (1024)" },
        { "n", 0, .integer = &w.n, .metavar = "N", .min = 1, .max = largest,
          .help = "columns of one rank's c (1024)" },
        { "k", 0, .integer = &w.k, .metavar = "K", .min = 1, .max = largest,
          .help = "inner size of one rank's product (1024)" },
        { "dtype", 0, .text = &w.dtype, .metavar = "TYPE", .choices = "bf16|f16|f32",
          .help = "bf16, f16 or f32 (f32)" },
        { "layout", 0, .text = &w.layout, .metavar = "ORDER", .choices = "nk|kn",
          .help = "how b lies: nk or kn (nk)" },
        { "bias", 0, .flag = &request.shape.bias, .help = "add a bias" },
        { "ranks", 0, .integer = &w.ranks, .metavar = "R", .min = 1, .max = 64,
          .help = "ranks to start, outside every launcher (2)" },
        { "device", 0, .text = &request.device, .metavar = "NAME",
          .help = "what to compute on (the best here)" },
        { "algorithm", 0, .text = &w.algorithm, .metavar = "LIST",
          .help = "time these, such as copy,sequential (the one that is\nchosen)" },
        { "chunk-rows", 0, .integer = &w.chunk_rows, .metavar = "N", .min = 0, .max = largest,
          .help = "rows that travel under one signal (0: chosen)" },
        { "sms", 0, .integer = &w.sms, .metavar = "N", .min = 0, .max = 1024,
          .help = "SMs, or threads on cpu, of a rank (0: chosen)" },
        { "rounds", 0, .integer = &request.rounds, .metavar = "N", .min = 1, .max = 10000,
          .help = "how often each candidate is timed (15)" },
        { "warm", 0, .integer = &request.warm, .metavar = "N", .min = 0, .max = 10000,
          .help = "rounds before that (3)" },
        { "json", 0, .flag = &request.json, .help = "print JSON instead of the table" },
        { 0 },
    };
    const options_page page = {
        .command = "bench",
        .synopsis = "{ag_gemm | gemm_rs | all_gather | reduce_scatter} [options]",
        .about =
            "Times an operator on R ranks, in turn with\n\n"
            "  sequential  the same without overlap: communicate, then compute, or the other way\n"
            "  products    one rank's product alone, by the same code\n"
            "  blas        one rank's product alone, by one call of the BLAS (f32)",
        .options = options,
        .notes =
            "m, n, k are one rank's product: c[m, n] = all_gather(a)[m, k] b, or a[m, k] b before "
            "it\nis scattered.  all_gather and reduce_scatter have no k: [m, n] is the whole "
            "matrix.\nA figure is the median over rounds of the slowest rank; \"host us\" is what "
            "the call\nof imbrex_plan_run takes.\n\n"
            "exit code: 0; 1 if something failed; 2 for wrong usage.",
        .most = 1,
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    int wrong = check_request(&page, given ? argv[1] : NULL, &w, &request);
    int code = wrong < 0 ? options_exit(wrong) : start(&request, w.ranks);
    free(w.algorithms);
    return code;
}
