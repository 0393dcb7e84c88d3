/* candidates.h - what is timed: calls of a plan, and the yardsticks, one whole product by the BLAS
 * or by cuBLASLt; each call takes the next set of operands. */
#ifndef CLI_CANDIDATES_H
#define CLI_CANDIDATES_H

#include "cuda.h"
#include "data.h"

/* ---- Operands of one rank, several sets, so that calls in a row do not find theirs in a cache  */

/* Collective: takes the memory and fills it with values as from N(0, 1).  alone: this rank's group
 * of one. */
IMBREX_TRY bench_data_open(imbrex_group *group, imbrex_group *alone, const bench_shape *shape,
                           bench_data *out);
void bench_data_close(bench_data *data);

/* Of set number i, modulo their count: what the operator takes.  whole: all of a instead of the
 * rank's share, and no bias, for the product alone. */
imbrex_args bench_data_args(const bench_data *data, const bench_shape *shape, int64_t i,
                            bool whole);

/* ---- Calls of a plan ------------------------------------------------------------------------- */

typedef struct bench_call {
    const bench_data *data;
    const bench_shape *shape;
    imbrex_plan *plan;
    imbrex_stream stream; /* NULL: the default one of the plan's group */
    bool whole;           /* the product alone */
    int64_t calls;
    int inner;       /* calls in a round, or 0: note nothing */
    double *host_us; /* [rounds]: of one call each, the stream being idle before it */
} bench_call;

/* Enqueues one run; ctx is the bench_call. */
IMBREX_TRY bench_call_run(void *ctx);

/* Forgets all calls and starts to note rounds, `rounds` of them at most; false: out of memory. */
bool bench_call_note(bench_call *call, int inner, int rounds);

/* The median host time of the rounds after the first `warm`, and no more notes; NAN if none were
 * taken. */
double bench_call_host_us(bench_call *call, int warm, int rounds);

/* Destroys the plan too. */
void bench_call_close(bench_call *call);

/* ---- The BLAS that this tool was built with -------------------------------------------------- */

/* Whether this build has one, and it can compute what this plan does: float32, in host memory. */
bool bench_blas_can(const bench_shape *shape, const imbrex_plan *plan);

typedef struct bench_blas {
    const bench_data *data;
    const bench_shape *shape;
    int threads;
    int64_t calls;
} bench_blas;

/* Threads as the operators have them: what was asked for, else IMBREX_CPU_THREADS, else one. */
int bench_blas_threads(const bench_shape *shape);

/* c[m, n] = a[m, k] b, on the calling thread and threads - 1 others.  Only where bench_blas_can. */
void bench_blas_product(const bench_shape *shape, int threads, const float *a, const float *b,
                        float *c);

/* One product of the next operands; ctx is the bench_blas. */
IMBREX_TRY bench_blas_run(void *ctx);

/* ---- NVIDIA's cuBLASLt, loaded when asked for ------------------------------------------------ */

enum { CUDA_BLAS_WAYS = 8, CUDA_BLAS_WORKSPACE_BYTES = 64 << 20 };

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublas_desc *cublasLtMatmulDesc_t;
typedef struct cublas_layout *cublasLtMatrixLayout_t;
typedef struct cublas_preference *cublasLtMatmulPreference_t;

typedef struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

/* Rows: name in the table, name in the library, what it takes. */
#define CUDA_BLAS_TABLE(ROW)                                                                   \
    ROW(version, size_t, "cublasLtGetVersion", (void))                                         \
    ROW(create, int, "cublasLtCreate", (cublasLtHandle_t * handle))                            \
    ROW(destroy, int, "cublasLtDestroy", (cublasLtHandle_t handle))                            \
    ROW(desc_create, int, "cublasLtMatmulDescCreate",                                          \
        (cublasLtMatmulDesc_t * desc, int compute, int scale))                                 \
    ROW(desc_destroy, int, "cublasLtMatmulDescDestroy", (cublasLtMatmulDesc_t desc))           \
    ROW(desc_set, int, "cublasLtMatmulDescSetAttribute",                                       \
        (cublasLtMatmulDesc_t desc, int which, const void *value, size_t bytes))               \
    ROW(layout_create, int, "cublasLtMatrixLayoutCreate",                                      \
        (cublasLtMatrixLayout_t * layout, int type, uint64_t rows, uint64_t cols, int64_t ld)) \
    ROW(layout_destroy, int, "cublasLtMatrixLayoutDestroy", (cublasLtMatrixLayout_t layout))   \
    ROW(preference_create, int, "cublasLtMatmulPreferenceCreate",                              \
        (cublasLtMatmulPreference_t * preference))                                             \
    ROW(preference_destroy, int, "cublasLtMatmulPreferenceDestroy",                            \
        (cublasLtMatmulPreference_t preference))                                               \
    ROW(preference_set, int, "cublasLtMatmulPreferenceSetAttribute",                           \
        (cublasLtMatmulPreference_t preference, int which, const void *value, size_t bytes))   \
    ROW(heuristic, int, "cublasLtMatmulAlgoGetHeuristic",                                      \
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,         \
         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,         \
         cublasLtMatmulPreference_t preference, int wanted,                                    \
         cublasLtMatmulHeuristicResult_t *results, int *found))                                \
    ROW(matmul, int, "cublasLtMatmul",                                                         \
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a, \
         cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,      \
         const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,            \
         cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,   \
         size_t workspace_bytes, imbrex_stream stream))

typedef struct cuda_blas_calls {
#define CUDA_BLAS_FIELD(name, gives, symbol, takes) gives(*name) takes;
    CUDA_BLAS_TABLE(CUDA_BLAS_FIELD)
#undef CUDA_BLAS_FIELD
} cuda_blas_calls;

/* NULL until cuda_blas_open.  A test puts its own table here first. */
extern const cuda_blas_calls *cublas;

/* Looks for the library in IMBREX_CUBLASLT, else where the loader, toolkits and wheels have it.
 * UNSUPPORTED: there is none. */
IMBREX_TRY cuda_blas_open(cublasLtHandle_t *handle);
void cuda_blas_close(cublasLtHandle_t handle); /* NULL is fine */

/* c[m, n] = a[m, k] b, and the ways in which cuBLASLt would compute it, likeliest first. */
typedef struct cuda_blas_product {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulHeuristicResult_t ways[CUDA_BLAS_WAYS];
    int count;
    void *workspace; /* CUDA_BLAS_WORKSPACE_BYTES, of the GPU, the caller's */
} cuda_blas_product;

/* The context of the group must be current.  On failure *product can be closed, too. */
IMBREX_TRY cuda_blas_prepare(cublasLtHandle_t handle, const bench_shape *shape, void *workspace,
                             cuda_blas_product *product);
void cuda_blas_finish(cuda_blas_product *product);

/* Enqueues one product, computed in ways[way]. */
IMBREX_TRY cuda_blas_run(const cuda_blas_product *product, int way, const imbrex_args *args,
                         imbrex_stream stream);

/* ---- The fastest of the ways that it proposes ------------------------------------------------ */

typedef struct bench_cublas {
    const bench_data *data;
    const bench_shape *shape;
    imbrex_group *alone;
    cuda_timer *timer;
    cuda_blas_product product;
    int way;
    int64_t calls;
} bench_cublas;

/* Tries every way a few times and keeps the fastest.  data, shape, alone and timer are set.
 * Local; to be closed also after a failure. */
IMBREX_TRY bench_cublas_open(bench_cublas *b, cublasLtHandle_t handle, void *workspace);
void bench_cublas_close(bench_cublas *b);

/* One product of the next operands; ctx is the bench_cublas. */
IMBREX_TRY bench_cublas_run(void *ctx);

#endif /* CLI_CANDIDATES_H */
