/* bench.c - `imbrex bench`: one operator, timed against itself without overlap and against its
 * product alone. */
#include <string.h>

#include "bench.h"
#include "cli.h"
#include "launch.h"
#include "timeline.h"

/* What the options say, before it is checked. */
typedef struct asked {
    bench_words words;
    const char *algorithm, *peer; /* NULL: not given */
    options_list algorithms;
    bench_shapes shapes;
} asked;

static int rank_main(int rank, void *ctx)
{
    (void)rank;
    return bench_rank(ctx);
}

/* Those beside sequential, which is always timed. */
static int read_algorithms(const options_page *page, asked *a, bench_request *request)
{
    if (!a->algorithm) {
        request->algorithm_count = 1; /* the chosen one */
        return 0;
    }
    int wrong = options_split(page, "algorithm", a->algorithm, BENCH_ALGORITHMS, &a->algorithms);
    for (int i = 0; i < a->algorithms.count; i++) {
        const char *word = a->algorithms.words[i];
        if (strcmp(word, "sequential") != 0)
            request->algorithms[request->algorithm_count++] =
                strcmp(word, "chosen") == 0 ? NULL : word;
    }
    return wrong;
}

/* What an option says must mean something for every operator. */
static int check_ops(const options_page *page, const asked *a, const bench_request *q)
{
    const bench_words *w = &a->words;
    if (w->plan_m && (a->algorithm || w->chunk_rows || q->tune))
        return options_wrong(page, "--plan-m is of the plan that is chosen: --algorithm, "
                                   "--chunk-rows and --tune do not go with it");
    for (int i = 0; i < q->count; i++) {
        const bench_op *op = a->shapes.list[0][i].op;
        if (op->meets && (w->m || w->n || w->k || w->sizes || w->total || w->dtype))
            return options_wrong(page,
                                 "%s has no operands: --m, --n, --k, --shapes, --total and --dtype "
                                 "say nothing",
                                 op->name);
        if (!op->product && (w->bias || w->layout || w->k))
            return options_wrong(page, "%s has no product: --k, --layout and --bias say nothing",
                                 op->name);
        if (!op->experts && (w->experts || w->top_k || w->parallel || w->skew > 0))
            return options_wrong(
                page,
                "%s has no experts: --experts, --top-k, --expert-parallel and --skew "
                "say nothing",
                op->name);
        if (bench_op_exchanges(op) && w->parallel)
            return options_wrong(page, "%s has whole experts: --expert-parallel says nothing",
                                 op->name);
        if (op->experts && (w->plan_m || w->bias))
            return options_wrong(page, "%s has no --plan-m or --bias", op->name);
        if (op->experts && a->shapes.list[0][i].top_k > a->shapes.list[0][i].experts)
            return options_wrong(page, "%s wants --top-k up to --experts", op->name);
        if (!op->states && (w->heads || w->kv_heads || w->head_dim || w->page))
            return options_wrong(page,
                                 "%s is no attention: --heads, --kv-heads, --head-dim and --page "
                                 "say nothing",
                                 op->name);
        if (op->states && w->chunk_rows)
            return options_wrong(page, "%s has no --chunk-rows", op->name);
        if (op->meets && (q->tune || a->algorithm || w->chunk_rows || w->sms || w->plan_m))
            return options_wrong(page,
                                 "%s has no plan: --tune, --algorithm, --chunk-rows, --sms and "
                                 "--plan-m say nothing",
                                 op->name);
        if (op->alone && q->tune)
            return options_wrong(page, "%s is one product: --tune has nothing to choose", op->name);
        if (op->alone && (w->bias || a->algorithm || w->chunk_rows || w->plan_m))
            return options_wrong(page,
                                 "%s is one product: --algorithm, --chunk-rows, --plan-m and "
                                 "--bias say nothing",
                                 op->name);
    }
    return 0;
}

static int check_shapes(const options_page *page, const char *ops, asked *a, bench_request *request)
{
    char names[BENCH_OPS_TEXT];
    bench_words *w = &a->words;
    bench_op_names(BENCH_OPS_ALL, ", ", names, sizeof names);
    if (!ops && !w->sizes)
        return options_wrong(page, "which operator? One of %s", names);
    bool alone = ops && strcmp(ops, "gemm") == 0;
    w->ranks = launch_count(page, w->ranks, alone ? 1 : BENCH_WORDS_RANKS);
    int wrong = w->ranks < 0 ? OPTIONS_WRONG : bench_shapes_read(page, w, ops, &a->shapes);
    if (wrong < 0)
        return wrong;
    request->shapes[false] = a->shapes.list[false];
    request->shapes[true] = a->shapes.list[true];
    request->count = a->shapes.count;
    return check_ops(page, a, request);
}

static int check_request(const options_page *page, const char *ops, asked *a,
                         bench_request *request)
{
    static const char *const peers[] = { "auto", "cublas", "none" };
    int wrong = check_shapes(page, ops, a, request);
    if (wrong < 0)
        return wrong;
    char error[300];
    const bench_op *first = a->shapes.list[0][0].op;
    if (request->timeline && (request->count > 1 || first->alone || first->meets))
        return options_wrong(page, "--timeline shows one shape of one operator, and not %s",
                             first->meets ? "barrier" : "gemm");
    /* The file is rank 0's to write: the other ranks' hosts need not have the folder. */
    if (request->timeline && launch_is_first() &&
        !timeline_check(request->timeline, error, sizeof error))
        return options_wrong(page, "%s", error);
    if (request->chart && request->json)
        return options_wrong(page, "--chart and --json exclude each other");
    request->peer = (bench_peer)options_index(peers, 3, a->peer);
    return read_algorithms(page, a, request);
}

int cli_bench(int argc, char **argv)
{
    static asked a; /* its shapes are too many for a small stack */
    memset(&a, 0, sizeof a);
    a.peer = "auto";
    bench_words *w = &a.words;
    bench_request request = { .rounds = 15, .warm = 3 };
    const option options[] = {
        { "bias", 0, .flag = &w->bias, .help = "add a bias" },
        { "ranks", 'n', .integer = &w->ranks, .metavar = "R", .min = 1, .max = 64,
          .help = "ranks to start, outside every launcher (2; for gemm 1)" },
        { "device", 0, .text = &request.device, .metavar = "NAME",
          .help = "what to compute on (the best here)" },
        { "plan-m", 0, .integer = &w->plan_m, .metavar = "M", .min = 1, .max = 1 << 24,
          .help = "the chosen plan is for up to M rows, as a server's, and runs a\n"
                  "shape's by its variants; the other plans are for just those" },
        { "algorithm", 0, .text = &a.algorithm, .metavar = "LIST",
          .help = "time these, such as copy,ll,chosen (chosen, the one that\nimbrex chooses)" },
        { "tune", 0, .flag = &request.tune,
          .help = "first measure every algorithm and some chunk sizes, and keep the\n"
                  "best on disk for later plans" },
        { "peer", 0, .text = &a.peer, .metavar = "NAME", .choices = "auto|cublas|none",
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
        { "chart", 0, .flag = &request.chart,
          .help = "draw the times as bars, as on a terminal, also where the output is\n"
                  "none" },
        { "json", 0, .flag = &request.json,
          .help = "print a line of JSON a shape instead of tables" },
        { 0 },
    };
    char names[BENCH_OPS_TEXT], about[1200];
    bench_op_names(BENCH_OPS_ALL, ", ", names, sizeof names);
    snprintf(about, sizeof about,
             "Times an operator on R ranks, in turn with\n\n"
             "  sequential  the same without overlap: communicate, then compute, or the other way\n"
             "  products    one rank's product alone, by the same code\n"
             "  local       attention to one rank's tokens alone, by the same code\n"
             "  blas        one rank's product alone, by one call of the BLAS (f32)\n"
             "  cublas      the same on a GPU, by the fastest of 8 ways that cuBLASLt proposes\n\n"
             "gemm is one rank's product alone; barrier is imbrex_barrier, and has no sizes."
             "\nOperators: %s.",
             names);
    const options_page page = {
        .command = "bench",
        .synopsis = "OPERATOR[,...] [options]",
        .about = about,
        .options = bench_words_options(w, options),
        .notes =
            "m, n, k are one rank's product: of the rows of all ranks, or before it is summed "
            "over\n"
            "them.  The others have no k: [m, n] is the whole matrix.\nA figure is the median over "
            "rounds of the slowest rank, on a GPU by its own "
            "clock; \"host us\"\nis what the call of imbrex_plan_run takes, \"plan ms\" what "
            "making "
            "the plan takes once its\nkernels are compiled.  IMBREX_CUBLASLT may name cuBLASLt's "
            "file.\n\n"
            "exit code: 0; 1 if something failed or was left out; 2 for wrong usage\nor a device "
            "or algorithm that is not there.",
        .gone =
            (const option_gone[]){ { "parallel", "say --expert-parallel tensor or whole" }, { 0 } },
        .most = 1,
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    int wrong = check_request(&page, given ? argv[1] : NULL, &a, &request);
    int code = wrong < 0 ? options_exit(wrong) : launch_start(w->ranks, rank_main, &request);
    options_list_free(&a.algorithms);
    return code;
}
