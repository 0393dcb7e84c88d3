/* compile.c - `imbrex compile`: fills the kernel cache for plans that a GPU will run later, and
 * tries kernels of the caller's. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "cli.h"
#include "text.h"

typedef struct request {
    bench_words words;
    const char *arch, *algorithm;
    const char *kernel, *options; /* FILE:NAME, its options */
    options_list algorithms;
    bench_shapes shapes;
    bool gemm;
} request;

/* One thread stands for all ranks: a kernel depends on how many they are, not on which one asks. */
static int echo(void *ctx, const void *send, void *recv, size_t bytes)
{
    const int *size = ctx;
    for (int r = 0; r < *size; r++)
        memcpy((char *)recv + (size_t)r * bytes, send, bytes);
    return 0;
}

/* For --kernel alone. */
static bool is_cpu(const request *q)
{
    return strcmp(q->arch, "cpu") == 0;
}

static int failed(imbrex_status status)
{
    text_say(stderr, "imbrex compile: %s\n", imbrex_error());
    return cli_exit_code(status);
}

/* Everything is tried; the code is the first failure's. */
static int make_plans(imbrex_group *group, const char *algorithm, const bench_shapes *shapes)
{
    int code = CLI_OK;
    for (int i = 0; i < shapes->count; i++) {
        imbrex_plan *plan;
        imbrex_status status = bench_op_plan(group, &shapes->list[true][i], algorithm, &plan);
        if (status != IMBREX_OK) {
            int this_code = failed(status);
            code = code ? code : this_code;
            continue;
        }
        char line[1024];
        imbrex_plan_describe(plan, line, sizeof line);
        text_wrap(stdout, 2, "%s\n", line);
        (void)cli_flush(); /* lines come one by one; what is lost fails the command at its end */
        imbrex_plan_destroy(plan);
    }
    return code;
}

/* Of every algorithm that was named, or of the chosen one. */
static int make_each(imbrex_group *group, const request *q)
{
    int code = q->algorithms.count ? CLI_OK : make_plans(group, NULL, &q->shapes);
    for (int i = 0; i < q->algorithms.count; i++) {
        int this_code = make_plans(group, q->algorithms.words[i], &q->shapes);
        code = code ? code : this_code;
    }
    return code;
}

/* A kernel of the caller's. */
static int make_kernel(imbrex_group *group, const request *q)
{
    char file[4096];
    const char *name = strrchr(q->kernel, ':') + 1;
    snprintf(file, sizeof file, "%.*s", (int)(name - 1 - q->kernel), q->kernel);
    const bench_shape shape = bench_words_shape(&q->words, !is_cpu(q));
    const imbrex_gemm_desc gemm = bench_op_desc(&shape, NULL);
    imbrex_kernel *kernel;
    imbrex_status status = imbrex_kernel_create(
        group,
        &(imbrex_kernel_desc){
            .name = name, .file = file, .options = q->options, .gemm = q->gemm ? &gemm : NULL },
        &kernel);
    if (status != IMBREX_OK) {
        int code = failed(status);
        return status == IMBREX_INVALID ? CLI_FAILED : code; /* the usage was right */
    }
    text_say(stdout, "%s: kernel %s compiles for %s\n", file, name, q->arch);
    imbrex_kernel_destroy(kernel);
    return CLI_OK;
}

static int compile(const request *q)
{
    int size = (int)q->words.ranks;
    char device[32];
    const char *number = strncmp(q->arch, "sm_", 3) == 0 ? q->arch + 3 : q->arch;
    snprintf(device, sizeof device, "compile:%.*s", (int)strspn(number, "0123456789"), number);
    if (is_cpu(q)) {
        snprintf(device, sizeof device, "cpu");
        size = 1; /* others would be waited for */
    }
    imbrex_bootstrap bootstrap = { .rank = 0, .size = size, .allgather = echo, .ctx = &size };
    imbrex_group *group;
    imbrex_status status = imbrex_group_create(
        &(imbrex_group_desc){ .bootstrap = &bootstrap, .device = device }, &group);
    if (status != IMBREX_OK)
        return failed(status);
    int code = q->kernel ? make_kernel(group, q) : make_each(group, q);
    imbrex_group_destroy(group);
    return code;
}

/* "90" or "sm_90", which "sm_90a" is, too: kernels for it are always of that kind, and for no other
 * GPU. */
static bool is_arch(const char *arch)
{
    const char *number = strncmp(arch, "sm_", 3) == 0 ? arch + 3 : arch;
    size_t digits = strspn(number, "0123456789");
    return strcmp(number, "90a") == 0 || (digits >= 2 && digits <= 3 && !number[digits]);
}

/* In the place of plans. */
static int check_kernel(const options_page *page, const request *q, bool plans)
{
    const char *name = strrchr(q->kernel, ':');
    if (!name || name == q->kernel || !name[1])
        return options_wrong(page, "--kernel is '%s': want FILE:NAME, pass.cu:pass say", q->kernel);
    if (plans || q->words.sizes || q->algorithm || q->words.total)
        return options_wrong(page, "--kernel is no plan: want neither OPERATORS nor --shapes, "
                                   "--algorithm or --total with it");
    if (!is_cpu(q) && !is_arch(q->arch))
        return options_wrong(page, "--device is '%s': want sm_90 or the like, or cpu", q->arch);
    return 0;
}

static int read_request(const options_page *page, const char *ops, request *q)
{
    if (q->options || q->gemm)
        return options_wrong(page, "--options and --gemm are for --kernel");
    if (!is_arch(q->arch))
        return options_wrong(page, "--device is '%s': want sm_90 or the like", q->arch);
    if (q->algorithm &&
        options_split(page, "algorithm", q->algorithm, OPTIONS_WORDS, &q->algorithms) < 0)
        return OPTIONS_WRONG;
    int wrong = bench_shapes_read(page, &q->words, ops, &q->shapes);
    for (int i = 0; i < q->shapes.count && !wrong; i++) {
        const bench_op *op = q->shapes.list[true][i].op;
        if (op->meets)
            wrong = options_wrong(page, "%s is no plan: there is nothing to compile", op->name);
    }
    return wrong;
}

int cli_compile(int argc, char **argv)
{
    static request q; /* its shapes are too many for a small stack */
    memset(&q, 0, sizeof q);
    q.arch = "sm_90";
    q.words.ranks = BENCH_WORDS_RANKS;
    q.words.plans = true;
    const option options[] = {
        { "device", 0, .text = &q.arch, .metavar = "SM",
          .help = "what is to compute: a GPU, sm_80, sm_90, ... (sm_90); for --kernel\n"
                  "also cpu" },
        { "kernel", 0, .text = &q.kernel, .metavar = "FILE:NAME",
          .help = "no plans, but a kernel of your own: imbrex_kernel_desc's\n"
                  "file and name" },
        { "options", 0, .text = &q.options, .metavar = "WORDS",
          .help = "for its compiler: imbrex_kernel_desc's options" },
        { "gemm", 0, .flag = &q.gemm,
          .help = "it is hooks for the library's product: imbrex_kernel_desc's\n"
                  "gemm, of --m, --n, --k and so on" },
        { "ranks", 'n', .integer = &q.words.ranks, .metavar = "R", .min = 1, .max = 64,
          .help = "ranks of the group that will run it (2)" },
        { "algorithm", 0, .text = &q.algorithm, .metavar = "LIST",
          .help = "of each of these, such as copy,ll, which every operator\n"
                  "must have (the one that is chosen)" },
        { 0 },
    };
    char names[BENCH_OPS_TEXT], about[1200];
    bench_op_names(BENCH_OPS_PLANS, ", ", names, sizeof names);
    snprintf(about, sizeof about,
             "Compiles the kernels of plans into the kernel cache (IMBREX_CACHE_DIR), where the\n"
             "same plans on a GPU find them.  Needs NVIDIA's compiler library, and no GPU.\n"
             "OPERATORS: %s;\n"
             "those that multiply if nothing is said.\n"
             "With --kernel: says whether that compiles, also for CPU ranks.\n\n"
             "Sizes, type and ranks that are not given are those of imbrex bench on GPUs.  A GPU\n"
             "with fewer SMs than the largest of its kind, or one that ranks share, wants --sms.",
             names);
    const options_page page = {
        .command = "compile",
        .synopsis = "[OPERATORS] [options]",
        .about = about,
        .options = bench_words_options(&q.words, options),
        .notes = "Prints a paragraph a plan, with its kernels: compiled now, or in the cache; or "
                 "what the\n"
                 "compiler says of a kernel.  Without --algorithm those of the plan's variants\n"
                 "for few rows are compiled, too.\n"
                 "Exit codes: 0 all are there, 1 something failed, 2 wrong usage or no such form.",
        .gone = (const option_gone[]){ { "arch", "say --device sm_90" },
                                       { "parallel", "say --expert-parallel tensor or whole" },
                                       { 0 } },
        .most = 1,
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    int wrong = q.kernel ? check_kernel(&page, &q, given > 0)
                         : read_request(&page, given ? argv[1] : NULL, &q);
    int code = wrong < 0 ? options_exit(wrong) : compile(&q);
    options_list_free(&q.algorithms);
    return code;
}
