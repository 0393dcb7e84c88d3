/* candidates.c - runs a plan, cblas_sgemm or the fastest of cuBLASLt's ways on the next set of
 * operands. */
#include "candidates.h"

#include <dlfcn.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "matrix.h"
#include "measure.h"

/* ---- Plans ----------------------------------------------------------------------------------- */

imbrex_status bench_call_run(void *ctx)
{
    bench_call *call = ctx;
    const bench_data *data = call->data;
    imbrex_args args;
    imbrex_decode_args states;
    if (data->states)
        states = bench_data_states(data, call->shape, call->calls);
    else
        args = bench_data_args(data, call->shape, call->calls, call->whole);
    double begin = now_us();
    imbrex_status status = data->states ? imbrex_plan_run_decode(call->plan, &states, call->stream)
                                        : imbrex_plan_run(call->plan, &args, call->stream);
    if (call->inner && call->calls % call->inner == 0)
        call->host_us[call->calls / call->inner] = now_us() - begin;
    call->calls++;
    return status;
}

bool bench_call_note(bench_call *call, int inner, int rounds)
{
    free(call->host_us);
    call->host_us = calloc((size_t)rounds, sizeof *call->host_us);
    call->calls = 0;
    call->inner = inner;
    return call->host_us != NULL;
}

double bench_call_host_us(bench_call *call, int warm, int rounds)
{
    call->inner = 0;
    if (!call->host_us)
        return (double)NAN;
    return measure_median(call->host_us + warm, rounds);
}

void bench_call_close(bench_call *call)
{
    imbrex_plan_destroy(call->plan);
    free(call->host_us);
    *call = (bench_call){ 0 };
}

/* What is behind a key; "": it is not there. */
static const char *value_of(const char *facts, const char *key)
{
    const char *at = strstr(facts, key);
    return at ? at + strlen(key) : "";
}

bench_facts bench_plan_facts(const imbrex_plan *plan)
{
    char text[4096];
    bench_facts facts = { .sent_inside = (double)NAN, .sent_between = (double)NAN };
    imbrex_plan_facts(plan, text, sizeof text);
    const char *algorithm = value_of(text, "\"algorithm\": \"");
    snprintf(facts.algorithm, sizeof facts.algorithm, "%.*s", (int)strcspn(algorithm, "\""),
             algorithm);
    facts.measured = strncmp(value_of(text, "\"measured\": "), "true", 4) == 0;
    if (*value_of(text, "\"net\": \"")) {
        facts.sent_inside = strtod(value_of(text, "\"sent_inside\": "), NULL);
        facts.sent_between = strtod(value_of(text, "\"sent_between\": "), NULL);
    }
    return facts;
}

/* ---- The BLAS -------------------------------------------------------------------------------- */

int bench_blas_threads(const bench_shape *shape)
{
    const char *threads = getenv("IMBREX_CPU_THREADS");
    int wanted = shape->sms ? shape->sms : threads ? atoi(threads) : 1;
    return wanted > 0 ? wanted : 1;
}

#ifdef IMX_HAVE_CBLAS
#include <cblas.h>

/* OpenBLAS has it; weak, so that any other CBLAS links too. */
extern void openblas_set_num_threads(int threads) __attribute__((weak));

/* Where a group computes, if it was not told, only the description of its plans says. */
bool bench_blas_can(const bench_shape *shape, const imbrex_plan *plan)
{
    char text[400];
    imbrex_plan_describe(plan, text, sizeof text);
    return shape->dtype == IMBREX_F32 && strstr(text, " on cpu:");
}

void bench_blas_product(const bench_shape *s, int threads, const float *a, const float *b, float *c)
{
    bool nk = s->layout == IMBREX_NK;
    if (openblas_set_num_threads)
        openblas_set_num_threads(threads); /* the operators set their own */
    cblas_sgemm(CblasRowMajor, CblasNoTrans, nk ? CblasTrans : CblasNoTrans, (int)s->m, (int)s->n,
                (int)s->k, 1, a, (int)s->k, b, (int)(nk ? s->k : s->n), 0, c, (int)s->n);
}

#else

bool bench_blas_can(const bench_shape *shape, const imbrex_plan *plan)
{
    (void)shape;
    (void)plan;
    return false;
}

void bench_blas_product(const bench_shape *shape, int threads, const float *a, const float *b,
                        float *c)
{
    (void)shape;
    (void)threads;
    (void)a;
    (void)b;
    (void)c;
}

#endif

imbrex_status bench_blas_run(void *ctx)
{
    bench_blas *blas = ctx;
    imbrex_args args = bench_data_args(blas->data, blas->shape, blas->calls++, true);
    bench_blas_product(blas->shape, blas->threads, args.a, args.b, args.c);
    return IMBREX_OK;
}

/* ---- A library wherever it is found ---------------------------------------------------------- */

static void *open_file(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_matching(const char *pattern)
{
    glob_t found;
    void *library = NULL;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = found.gl_pathc; i-- > 0 && !library;) /* the highest version first */
            library = open_file(found.gl_pathv[i]);
    globfree(&found);
    return library;
}

static void *open_below(const char *folder, const char *below, const char *name)
{
    char pattern[1024];
    int length = snprintf(pattern, sizeof pattern, "%s%s/%s", folder, below, name);
    return length < (int)sizeof pattern ? open_matching(pattern) : NULL;
}

/* The folder that holds bin/python3, for the first python3 in PATH. */
static const char *python_home(char *home, size_t size)
{
    const char *path = secure_getenv("PATH");
    while (path && *path) {
        int length = (int)strcspn(path, ":");
        snprintf(home, size, "%.*s/python3", length, path);
        if (access(home, X_OK) == 0) {
            snprintf(home, size, "%.*s/..", length, path);
            return home;
        }
        path += length + (path[length] == ':');
    }
    return NULL;
}

static void *open_name(const char *name)
{
    static const char wheels[] = "/lib/python3*/site-packages/nvidia/*/lib";
    char home[512];
    const char *folders[] = { secure_getenv("CUDA_HOME"), secure_getenv("CUDA_PATH"),
                              "/usr/local/cuda*" };
    void *library = open_file(name);
    for (int i = 0; i < 3 && !library; i++)
        if (folders[i] && *folders[i])
            library = open_below(folders[i], "/lib64", name);
    if (!library && python_home(home, sizeof home))
        library = open_below(home, wheels, name);
    return library;
}

/* The file that the environment variable names, and no other, if it is set; else the first of
 * names, which NULL ends, that is found by the loader, in a toolkit or in a Python wheel.  NULL:
 * none. */
static void *find_library(const char *variable, const char *const *names)
{
    const char *file = secure_getenv(variable);
    void *library = NULL;
    if (file && *file)
        return open_file(file);
    for (int i = 0; names[i] && !library; i++)
        library = open_name(names[i]);
    return library;
}

/* ---- cuBLASLt, to which a row-major product is described by columns -------------------------- */

enum { COMPUTE_F32 = 68, TYPE_F32 = 0, TYPE_F16 = 2, TYPE_BF16 = 14 };
enum { DESC_TRANSPOSE_A = 3, TRANSPOSED = 1, PREFERENCE_WORKSPACE_BYTES = 1 };

const cuda_blas_calls *cublas;

static cuda_blas_calls loaded;

static imbrex_status load(void)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12", NULL };
    void *library = find_library("IMBREX_CUBLASLT", names);
    if (!library)
        return failure_note(IMBREX_UNSUPPORTED,
                            "cuBLASLt is not found: set IMBREX_CUBLASLT to the file of "
                            "libcublasLt.so.13 or .12, or time with --peer none");
#define LOAD(name, gives, symbol, takes)                    \
    if (!(*(void **)&loaded.name = dlsym(library, symbol))) \
        return failure_note(IMBREX_UNSUPPORTED, "this cuBLASLt lacks %s", symbol);
    CUDA_BLAS_TABLE(LOAD)
#undef LOAD
    return IMBREX_OK;
}

static imbrex_status check(int result, const char *call)
{
    return result ? failure_note(IMBREX_DEVICE, "cuBLASLt: %s gives %d", call, result) : IMBREX_OK;
}

imbrex_status cuda_blas_open(cublasLtHandle_t *handle)
{
    if (!cublas) {
        TRY(load());
        cublas = &loaded;
    }
    return check(cublas->create(handle), "cublasLtCreate");
}

void cuda_blas_close(cublasLtHandle_t handle)
{
    if (handle)
        cublas->destroy(handle);
}

imbrex_status cuda_blas_check(const char *device)
{
    cuda_timer *timer;
    cublasLtHandle_t handle;
    TRY(cuda_timer_open(device, &timer));
    imbrex_status status = cuda_blas_open(&handle);
    if (status == IMBREX_OK)
        cuda_blas_close(handle);
    cuda_timer_close(timer);
    return status;
}

/* By columns c is c^T[n, m] = op(b)[n, k] a^T[k, m]: the library's first operand is our b. */
static imbrex_status describe(const bench_shape *s, cuda_blas_product *p)
{
    static const int types[] = {
        [IMBREX_BF16] = TYPE_BF16, [IMBREX_F16] = TYPE_F16, [IMBREX_F32] = TYPE_F32
    };
    int type = types[s->dtype], transposed = TRANSPOSED;
    bool nk = s->layout == IMBREX_NK;
    uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k;
    TRY(check(cublas->desc_create(&p->desc, COMPUTE_F32, TYPE_F32), "cublasLtMatmulDescCreate"));
    if (nk)
        TRY(check(cublas->desc_set(p->desc, DESC_TRANSPOSE_A, &transposed, sizeof transposed),
                  "cublasLtMatmulDescSetAttribute"));
    TRY(check(cublas->layout_create(&p->b, type, nk ? k : n, nk ? n : k, nk ? s->k : s->n),
              "cublasLtMatrixLayoutCreate"));
    TRY(check(cublas->layout_create(&p->a, type, k, m, s->k), "cublasLtMatrixLayoutCreate"));
    return check(cublas->layout_create(&p->c, type, n, m, s->n), "cublasLtMatrixLayoutCreate");
}

static imbrex_status ask(cuda_blas_product *p)
{
    cublasLtMatmulPreference_t preference = NULL;
    size_t most = CUDA_BLAS_WORKSPACE_BYTES;
    TRY(check(cublas->preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
    imbrex_status status =
        check(cublas->preference_set(preference, PREFERENCE_WORKSPACE_BYTES, &most, sizeof most),
              "cublasLtMatmulPreferenceSetAttribute");
    if (status == IMBREX_OK)
        status = check(cublas->heuristic(p->handle, p->desc, p->b, p->a, p->c, p->c, preference,
                                         CUDA_BLAS_WAYS, p->ways, &p->count),
                       "cublasLtMatmulAlgoGetHeuristic");
    cublas->preference_destroy(preference);
    int able = 0;
    for (int i = 0; i < p->count; i++)
        if (p->ways[i].state == 0)
            p->ways[able++] = p->ways[i];
    p->count = able;
    if (status == IMBREX_OK && p->count < 1)
        status = failure_note(IMBREX_UNSUPPORTED, "cuBLASLt knows no way to compute this product");
    return status;
}

imbrex_status cuda_blas_prepare(cublasLtHandle_t handle, const bench_shape *shape, void *workspace,
                                cuda_blas_product *product)
{
    *product = (cuda_blas_product){ .handle = handle, .workspace = workspace };
    TRY(describe(shape, product));
    return ask(product);
}

void cuda_blas_finish(cuda_blas_product *p)
{
    cublasLtMatrixLayout_t layouts[] = { p->a, p->b, p->c };
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            cublas->layout_destroy(layouts[i]);
    if (p->desc)
        cublas->desc_destroy(p->desc);
    *p = (cuda_blas_product){ 0 };
}

imbrex_status cuda_blas_run(const cuda_blas_product *p, int way, const imbrex_args *args,
                            imbrex_stream stream)
{
    const float one = 1, zero = 0;
    return check(cublas->matmul(p->handle, p->desc, &one, args->b, p->b, args->a, p->a, &zero,
                                args->c, p->c, args->c, p->c, &p->ways[way].algo, p->workspace,
                                CUDA_BLAS_WORKSPACE_BYTES, stream),
                 "cublasLtMatmul");
}

/* ---- cuBLASLt: the fastest of its ways ------------------------------------------------------- */

enum { TRIES = 4 };

imbrex_status bench_cublas_run(void *ctx)
{
    bench_cublas *b = ctx;
    imbrex_args args = bench_data_args(b->data, b->shape, b->calls++, true);
    return cuda_blas_run(&b->product, b->way, &args, cuda_timer_stream(b->timer));
}

static imbrex_status time_way(bench_cublas *b, double *us)
{
    TRY(bench_cublas_run(b)); /* loads its kernel */
    TRY(cuda_timer_begin(b->timer));
    for (int i = 0; i < TRIES; i++)
        TRY(bench_cublas_run(b));
    TRY(cuda_timer_end(b->timer));
    TRY(imbrex_stream_sync(b->alone, cuda_timer_stream(b->timer)));
    return cuda_timer_us(b->timer, us);
}

imbrex_status bench_cublas_open(bench_cublas *b, cublasLtHandle_t handle, void *workspace)
{
    int best = 0;
    double least = 0;
    TRY(cuda_blas_prepare(handle, b->shape, workspace, &b->product));
    for (b->way = 0; b->way < b->product.count; b->way++) {
        double us;
        TRY(time_way(b, &us));
        if (b->way == 0 || us < least) {
            least = us;
            best = b->way;
        }
    }
    b->way = best;
    return IMBREX_OK;
}

void bench_cublas_close(bench_cublas *b)
{
    cuda_blas_finish(&b->product);
}
