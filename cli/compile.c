/* compile.c - `imbrex compile`: fills the kernel cache for plans that a GPU will run later, and
 * tries kernels of the caller's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_shapes.h"
#include "cli.h"
#include "options.h"

typedef struct request {
    const char *arch, *dtype, *layout, *algorithm, *sizes;
    const char *kernel, *words; /* FILE:NAME, its options */
    options_list algorithms;
    int64_t m, n, k, ranks, chunk_rows, sms;
    bool total, gemm;
} request;

/* One thread stands for all ranks: a kernel depends on how many they are, not on which one asks. */
static int echo(void *ctx, const void *send, void *recv, size_t bytes)
{
    const int *size = ctx;
    for (int r = 0; r < *size; r++)
        memcpy((char *)recv + (size_t)r * bytes, send, bytes);
    return 0;
}

static int failed(imbrex_status status)
{
    fprintf(stderr, "imbrex compile: %s\n", imbrex_error());
    return cli_exit_code(status);
}

/* Everything is tried; the code is the first failure's. */
static int make_plans(imbrex_group *group, const char *algorithm, const bench_shapes *shapes)
{
    int code = CLI_OK;
    for (int i = 0; i < shapes->count; i++) {
        const bench_shape *shape = &shapes->list[i];
        imbrex_plan *plan;
        imbrex_status status = bench_op_plan(group, shape, algorithm, &plan);
        if (status != IMBREX_OK) {
            int this_code = failed(status);
            code = code ? code : this_code;
            continue;
        }
        char line[1024];
        imbrex_plan_describe(plan, line, sizeof line);
        printf("%s\n", line);
        (void)cli_flush(); /* lines come one by one; what is lost fails the command at its end */
        imbrex_plan_destroy(plan);
    }
    return code;
}

/* Of every algorithm that was named, or of the chosen one. */
static int make_each(imbrex_group *group, const request *q, const bench_shapes *shapes)
{
    int code = q->algorithms.count ? CLI_OK : make_plans(group, NULL, shapes);
    for (int i = 0; i < q->algorithms.count; i++) {
        int this_code = make_plans(group, q->algorithms.words[i], shapes);
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
    const imbrex_gemm_desc gemm = {
        .m = q->m,
        .n = q->n,
        .k = q->k,
        .dtype = (imbrex_dtype)options_index(bench_dtype_names, 3, q->dtype),
        .layout = (imbrex_layout)options_index(bench_layout_names, 2, q->layout),
        .chunk_rows = (int)q->chunk_rows,
        .sms = (int)q->sms,
    };
    imbrex_kernel *kernel;
    imbrex_status status = imbrex_kernel_create(
        group,
        &(imbrex_kernel_desc){
            .name = name, .file = file, .options = q->words, .gemm = q->gemm ? &gemm : NULL },
        &kernel);
    if (status != IMBREX_OK) {
        int code = failed(status);
        return status == IMBREX_INVALID ? CLI_FAILED : code; /* the usage was right */
    }
    printf("%s: kernel %s compiles for %s\n", file, name, q->arch);
    imbrex_kernel_destroy(kernel);
    return CLI_OK;
}

static int compile(const request *q, const bench_shapes *shapes)
{
    int size = (int)q->ranks;
    char device[32];
    const char *number = strncmp(q->arch, "sm_", 3) == 0 ? q->arch + 3 : q->arch;
    snprintf(device, sizeof device, "compile:%.*s", (int)strspn(number, "0123456789"), number);
    if (strcmp(q->arch, "cpu") == 0) {
        snprintf(device, sizeof device, "cpu");
        size = 1; /* others would be waited for */
    }
    imbrex_bootstrap bootstrap = { .rank = 0, .size = size, .allgather = echo, .ctx = &size };
    imbrex_group *group;
    imbrex_status status = imbrex_group_create(
        &(imbrex_group_desc){ .bootstrap = &bootstrap, .device = device }, &group);
    if (status != IMBREX_OK)
        return failed(status);
    int code = q->kernel ? make_kernel(group, q) : make_each(group, q, shapes);
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
    if (plans || q->sizes || q->algorithm || q->total)
        return options_wrong(page, "--kernel is no plan: want neither OPERATORS nor --shapes, "
                                   "--algorithm or --total with it");
    if (strcmp(q->arch, "cpu") != 0 && !is_arch(q->arch))
        return options_wrong(page, "--arch is '%s': want sm_90 or the like, or cpu", q->arch);
    return 0;
}

static int read_request(const options_page *page, const char *ops, request *q, bench_shapes *shapes)
{
    char wrong[256];
    const bench_shape like = {
        .m = q->m,
        .n = q->n,
        .k = q->k,
        .dtype = (imbrex_dtype)options_index(bench_dtype_names, 3, q->dtype),
        .layout = (imbrex_layout)options_index(bench_layout_names, 2, q->layout),
        .chunk_rows = (int)q->chunk_rows,
        .sms = (int)q->sms,
    };
    if (!is_arch(q->arch))
        return options_wrong(page, "--arch is '%s': want sm_90 or the like", q->arch);
    if (q->algorithm &&
        options_split(page, "algorithm", q->algorithm, OPTIONS_WORDS, &q->algorithms) < 0)
        return OPTIONS_WRONG;
    if (!bench_shapes_read(ops, q->sizes, &like, q->total ? (int)q->ranks : 1, true, shapes, wrong,
                           sizeof wrong))
        return options_wrong(page, "%s", wrong);
    for (int i = 0; i < shapes->count; i++) {
        if (shapes->list[i].op->meets)
            return options_wrong(page, "%s is no plan: there is nothing to compile",
                                 shapes->list[i].op->name);
        if (shapes->list[i].op->alone)
            return options_wrong(page,
                                 "%s is no plan of its own: ag_gemm with --ranks 1 has the "
                                 "same kernel",
                                 shapes->list[i].op->name);
    }
    return 0;
}

int cli_compile(int argc, char **argv)
{
    const double largest = 1 << 24;
    request q = { .arch = "sm_90",
                  .dtype = "bf16",
                  .layout = "nk",
                  .ranks = 8,
                  .m = 4096,
                  .n = 4096,
                  .k = 4096 };
    const option options[] = {
        { "arch", 0, .text = &q.arch, .metavar = "SM",
          .help = "the GPU: sm_80, sm_90, ... (sm_90); for --kernel also cpu" },
        { "kernel", 0, .text = &q.kernel, .metavar = "FILE:NAME",
          .help = "no plans, but a kernel of your own: imbrex_kernel_desc's\n"
                  "file and name" },
        { "options", 0, .text = &q.words, .metavar = "WORDS",
          .help = "for its compiler: imbrex_kernel_desc's options" },
        { "gemm", 0, .flag = &q.gemm,
          .help = "it is hooks for the library's product: imbrex_kernel_desc's\n"
                  "gemm, of --m, --n, --k and so on" },
        { "ranks", 0, .integer = &q.ranks, .metavar = "R", .min = 1, .max = 64,
          .help = "ranks of the group that will run it (8)" },
        { "m", 0, .integer = &q.m, .metavar = "M", .min = 1, .max = largest,
          .help = "rows, of all ranks together (4096)" },
        { "n", 0, .integer = &q.n, .metavar = "N", .min = 1, .max = largest,
          .help = "columns of one rank's c (4096)" },
        { "k", 0, .integer = &q.k, .metavar = "K", .min = 1, .max = largest,
          .help = "inner size of one rank's product (4096)" },
        { "dtype", 0, .text = &q.dtype, .metavar = "TYPE", .choices = "bf16|f16|f32",
          .help = "bf16, f16 or f32 (bf16)" },
        { "layout", 0, .text = &q.layout, .metavar = "ORDER", .choices = "nk|kn",
          .help = "how b lies: nk or kn (nk)" },
        { "shapes", 0, .text = &q.sizes, .metavar = "LIST",
          .help = "several: m,n,k;m,n,k;... or a file with one m,n,k a line;\n"
                  "op:m,n,k is for one operator alone" },
        { "total", 0, .flag = &q.total,
          .help = "n of ag_gemm and k of gemm_rs are of all ranks together" },
        { "algorithm", 0, .text = &q.algorithm, .metavar = "LIST",
          .help = "of each of these, such as copy,store, which every operator\n"
                  "must have (the one that is chosen)" },
        { "chunk-rows", 0, .integer = &q.chunk_rows, .metavar = "N", .min = 0, .max = largest,
          .help = "rows that travel under one signal (0: chosen)" },
        { "sms", 0, .integer = &q.sms, .metavar = "N", .min = 0, .max = 1024,
          .help = "SMs that a run may hold, where that is not all: of the\n"
                  "GPU's, as the plan's desc says, or its share if ranks\n"
                  "share one (0: all)" },
        { 0 },
    };
    const options_page page = {
        .command = "compile",
        .synopsis = "[OPERATORS] [options]",
        .about =
            "Compiles the kernels of plans into the kernel cache (IMBREX_CACHE_DIR), where the\n"
            "same plans on a GPU find them.  Needs NVIDIA's compiler library, and no GPU.\n"
            "OPERATORS: ag_gemm,gemm_rs (both if nothing is said), all_gather, reduce_scatter.\n"
            "With --kernel: says whether that compiles, also for CPU ranks.",
        .options = options,
        .notes =
            "Prints a line a plan, which ends with its kernels: compiled now, or in the cache;\n"
            "or what the compiler says of a kernel.\n"
            "Exit codes: 0 all are there, 1 something failed, 2 wrong usage or no such form.",
        .most = 1,
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    bench_shapes shapes = { 0 };
    const char *ops = given ? argv[1] : NULL;
    int wrong =
        q.kernel ? check_kernel(&page, &q, given > 0) : read_request(&page, ops, &q, &shapes);
    if (!wrong && !q.kernel && (q.words || q.gemm))
        wrong = options_wrong(&page, "--options and --gemm are for --kernel");
    int code = wrong < 0 ? options_exit(wrong) : compile(&q, &shapes);
    options_list_free(&q.algorithms);
    free(shapes.list);
    return code;
}
