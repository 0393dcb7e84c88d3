/* bench.c - `imbrex bench`: one operator, timed against itself without overlap and against its
 * product alone. */
#include <stdlib.h>
#include <string.h>

#include "bench_rank.h"
#include "bench_shapes.h"
#include "cli.h"
#include "launch.h"
#include "options.h"
#include "timeline.h"

/* What the options say, before it is checked. */
typedef struct bench_words {
    const char *dtype, *layout, *algorithm, *sizes, *peer; /* NULL: not given */
    int64_t m, n, k, ranks, chunk_rows, sms;               /* 0: not given */
    options_list algorithms;
    bool bias, total;
    bench_shapes shapes;
} bench_words;

enum { SIZE = 1024, RANKS = 2 };

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

/* Those beside sequential, which is always timed. */
static int read_algorithms(const options_page *page, bench_words *w, bench_request *request)
{
    if (!w->algorithm) {
        request->algorithm_count = 1; /* the chosen one */
        return 0;
    }
    int wrong = options_split(page, "algorithm", w->algorithm, BENCH_ALGORITHMS, &w->algorithms);
    for (int i = 0; i < w->algorithms.count; i++)
        if (strcmp(w->algorithms.words[i], "sequential") != 0)
            request->algorithms[request->algorithm_count++] = w->algorithms.words[i];
    return wrong;
}

/* What an option says must mean something for every operator. */
static int check_ops(const options_page *page, const bench_words *w, const bench_request *q)
{
    for (int i = 0; i < q->count; i++) {
        const bench_op *op = q->shapes[i].op;
        if (op->meets && (w->m || w->n || w->k || w->sizes || w->total || w->dtype))
            return options_wrong(page,
                                 "%s has no operands: --m, --n, --k, --shapes, --total and --dtype "
                                 "say nothing",
                                 op->name);
        if (!op->product && (w->bias || w->layout || w->k))
            return options_wrong(page, "%s has no product: --k, --layout and --bias say nothing",
                                 op->name);
        if (op->meets && (q->tune || w->algorithm || w->chunk_rows || w->sms))
            return options_wrong(page,
                                 "%s has no plan: --tune, --algorithm, --chunk-rows and --sms say "
                                 "nothing",
                                 op->name);
        if (op->alone && q->tune)
            return options_wrong(page, "%s is one product: --tune has nothing to choose", op->name);
        if (op->alone && (w->bias || w->algorithm || w->chunk_rows))
            return options_wrong(page,
                                 "%s is one product: --algorithm, --chunk-rows and --bias say "
                                 "nothing",
                                 op->name);
    }
    return 0;
}

static int check_shapes(const options_page *page, const char *ops, bench_words *w,
                        bench_request *request)
{
    char names[128], wrong[256];
    bench_op_names(false, names, sizeof names);
    if (!ops && !w->sizes)
        return options_wrong(page, "which operator? One of %s", names);
    w->ranks = cli_ranks(page, w->ranks, ops && strcmp(ops, "gemm") == 0 ? 1 : RANKS);
    if (w->ranks < 0)
        return OPTIONS_WRONG;
    const bench_shape like = {
        .m = w->m ? w->m : SIZE,
        .n = w->n ? w->n : SIZE,
        .k = w->k ? w->k : SIZE,
        .dtype = (imbrex_dtype)options_index(bench_dtype_names, 3, w->dtype ? w->dtype : "f32"),
        .layout = (imbrex_layout)(w->layout ? options_index(bench_layout_names, 2, w->layout) : 0),
        .chunk_rows = (int)w->chunk_rows,
        .sms = (int)w->sms,
        .bias = w->bias,
    };
    if (!bench_shapes_read(ops, w->sizes, &like, w->total && w->ranks ? (int)w->ranks : 1, false,
                           &w->shapes, wrong, sizeof wrong))
        return options_wrong(page, "%s", wrong);
    request->shapes = w->shapes.list;
    request->count = w->shapes.count;
    return check_ops(page, w, request);
}

static int check_request(const options_page *page, const char *ops, bench_words *w,
                         bench_request *request)
{
    static const char *const peers[] = { "auto", "cublas", "none" };
    int wrong = check_shapes(page, ops, w, request);
    if (wrong < 0)
        return wrong;
    char error[300];
    const bench_op *first = request->shapes[0].op;
    if (request->timeline && (request->count > 1 || first->alone || first->meets))
        return options_wrong(page, "--timeline shows one shape of one operator, and not %s",
                             first->meets ? "barrier" : "gemm");
    /* The file is rank 0's to write: the other ranks' hosts need not have the folder. */
    if (request->timeline && launch_is_first() &&
        !timeline_check(request->timeline, error, sizeof error))
        return options_wrong(page, "%s", error);
    request->peer = (bench_peer)options_index(peers, 3, w->peer);
    return read_algorithms(page, w, request);
}

int cli_bench(int argc, char **argv)
{
    const double largest = 1 << 24;
    bench_words w = { .peer = "auto" };
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
        { "shapes", 0, .text = &w.sizes, .metavar = "LIST",
          .help = "several: m,n,k;m,n,k;... or a file with one m,n,k a line;\n"
                  "op:m,n,k is for one operator alone" },
        { "total", 0, .flag = &w.total,
          .help = "n of ag_gemm and k of gemm_rs are of all ranks together" },
        { "bias", 0, .flag = &w.bias, .help = "add a bias" },
        { "ranks", 0, .integer = &w.ranks, .metavar = "R", .min = 1, .max = 64,
          .help = "ranks to start, outside every launcher (2; for gemm 1)" },
        { "device", 0, .text = &request.device, .metavar = "NAME",
          .help = "what to compute on (the best here)" },
        { "algorithm", 0, .text = &w.algorithm, .metavar = "LIST",
          .help = "time these, such as copy,store,ll (the one that is\nchosen)" },
        { "tune", 0, .flag = &request.tune,
          .help = "first measure every algorithm and some chunk sizes, and keep the\n"
                  "best on disk for later plans" },
        { "chunk-rows", 0, .integer = &w.chunk_rows, .metavar = "N", .min = 0, .max = largest,
          .help = "rows that travel under one signal (0: chosen)" },
        { "sms", 0, .integer = &w.sms, .metavar = "N", .min = 0, .max = 1024,
          .help = "SMs, or threads on cpu, of a rank (0: chosen)" },
        { "peer", 0, .text = &w.peer, .metavar = "NAME", .choices = "auto|cublas|none",
          .help = "what a GPU's product is measured by: cublas (cuBLASLt), none\n"
                  "(our own), auto (cuBLASLt if it is found)" },
        { "graph", 0, .flag = &request.graph,
          .help = "time replays of CUDA graphs of 10 calls each" },
        { "timeline", 0, .text = &request.timeline, .metavar = "FILE",
          .help = "draw one call of each algorithm on all ranks, of one shape, as\n.html, .svg or "
                  ".json, and print where its product's time went" },
        { "rounds", 0, .integer = &request.rounds, .metavar = "N", .min = 1, .max = 10000,
          .help = "how often each candidate is timed (15)" },
        { "warm", 0, .integer = &request.warm, .metavar = "N", .min = 0, .max = 10000,
          .help = "rounds before that (3)" },
        { "json", 0, .flag = &request.json,
          .help = "print a line of JSON a shape instead of tables" },
        { 0 },
    };
    const options_page page = {
        .command = "bench",
        .synopsis = "{ag_gemm | gemm_rs | gemm | all_gather | reduce_scatter | barrier}[,...] "
                    "[options]",
        .about =
            "Times an operator on R ranks, in turn with\n\n"
            "  sequential  the same without overlap: communicate, then compute, or the other way\n"
            "  products    one rank's product alone, by the same code\n"
            "  blas        one rank's product alone, by one call of the BLAS (f32)\n"
            "  cublas      the same on a GPU, by the fastest of 8 ways that cuBLASLt proposes\n\n"
            "gemm is one rank's product alone; barrier is imbrex_barrier, and has no sizes.",
        .options = options,
        .notes =
            "m, n, k are one rank's product: c[m, n] = all_gather(a)[m, k] b, or a[m, k] b before "
            "it\nis scattered.  all_gather and reduce_scatter have no k: [m, n] is the whole "
            "matrix.\nA figure is the median over rounds of the slowest rank, on a GPU by its own "
            "clock; \"host us\"\nis what the call of imbrex_plan_run takes, \"plan ms\" what "
            "making "
            "the plan takes once its\nkernels are compiled.  IMBREX_CUBLASLT may name cuBLASLt's "
            "file.\n\n"
            "exit code: 0; 1 if something failed or was left out; 2 for wrong usage\nor a device "
            "or algorithm that is not there.",
        .most = 1,
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    int wrong = check_request(&page, given ? argv[1] : NULL, &w, &request);
    int code = wrong < 0 ? options_exit(wrong) : start(&request, w.ranks);
    options_list_free(&w.algorithms);
    free(w.shapes.list);
    return code;
}
