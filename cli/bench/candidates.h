/* candidates.h - what is timed, here and by a program of bench/peers: operators, the operands of a
 * rank, calls of a plan, and the yardsticks, one whole product by the BLAS or by cuBLASLt.  Each
 * call takes the next set of operands. */
#ifndef CLI_CANDIDATES_H
#define CLI_CANDIDATES_H

#include <stdbool.h>
#include <stdio.h>

#include "cuda.h"
#include "imbrex.h"

/* ---- op.c: operators as their rows say, and what follows from a shape ------------------------ */

/* An operator with a plan, of sizes m, n and maybe k, or one of this tool's own. */
typedef struct bench_op {
    const char *name;
    const imbrex_op_info *info; /* NULL: it has no plan */
    bool product;               /* it multiplies by a b */
    bool a_is_shard;            /* a rank's a holds its own rows only */
    bool alone;   /* nothing travels: only the product of one rank, as its own group */
    bool meets;   /* ranks meet and no more: there is no shape, and no plan */
    bool experts; /* rows of a are tokens, each of which goes to several experts' b */
    bool states;  /* of attention: m sequences, a run takes imbrex_decode_args */
    bool cache;   /* and attends to n tokens of each on every rank: there is no merging alone */
    int moves;    /* how often a matrix must travel: its bytes, but for a rank's own share */
} bench_op;

/* Whether ranks have tokens of their own, as many each, for each other's whole experts. */
static inline bool bench_op_exchanges(const bench_op *op)
{
    return op->experts && !op->product;
}

/* NULL if there is none of that name. */
const bench_op *bench_op_find(const char *name);

typedef enum bench_ops {
    BENCH_OPS_ALL,
    BENCH_OPS_PLANS,   /* that have plans */
    BENCH_OPS_PRODUCTS /* and multiply */
} bench_ops;

/* Their names, with `between` between them. */
void bench_op_names(bench_ops which, const char *between, char *text, size_t size);

/* What is run: one rank's product as in imbrex_gemm_desc, or the whole matrix and k = 0. */
typedef struct bench_shape {
    const bench_op *op;
    int64_t m, n, k;
    imbrex_dtype dtype;
    imbrex_layout layout;
    imbrex_scaling scaling; /* of e4m3 */
    int chunk_rows, sms;    /* 0: chosen */
    int64_t m_least;        /* as in imbrex_gemm_desc */
    int64_t plan_m;         /* the chosen plan is for so many rows, and has variants; 0: for m */
    bool bias;
    bool norm;                           /* rows of c are normed, with a residual */
    int experts, top_k;                  /* where the operator has some */
    bool whole;                          /* ranks have whole experts */
    double skew;                         /* of the choice of experts; 0: all alike */
    int heads, kv_heads, head_dim, page; /* where the operator has states */
} bench_shape;

extern const char *const bench_layout_names[2];  /* by imbrex_layout */
extern const char *const bench_scaling_names[4]; /* by imbrex_scaling; nobody asks for the first */

/* Whether it has a norm. */
bool bench_op_norms(const bench_op *op);

/* The type of c and bias. */
imbrex_dtype bench_op_out(const bench_shape *shape);

/* How many scales there are of so many rows of a, and of a rank's b. */
int64_t bench_op_scales_of_a(const bench_shape *shape, int64_t rows);
int64_t bench_op_scales_of_b(const bench_shape *shape, int ranks);

/* What a product's plan, imbrex_tune and hooks for a product are told of a shape. */
imbrex_gemm_desc bench_op_desc(const bench_shape *shape, const char *algorithm);

/* Collective.  algorithm NULL: chosen. */
IMBREX_TRY bench_op_plan(imbrex_group *group, const bench_shape *shape, const char *algorithm,
                         imbrex_plan **plan);

/* Collective. */
IMBREX_TRY bench_op_tune(imbrex_group *group, const bench_shape *shape, imbrex_tune_progress report,
                         void *ctx);

/* Collective.  The product of one rank of `ranks` alone: for a group of one rank. */
IMBREX_TRY bench_op_product(imbrex_group *alone, const bench_shape *shape, int ranks,
                            imbrex_plan **plan);

/* As so many ranks can have it. */
bench_shape bench_op_shape(const bench_shape *shape, int ranks);

/* Of an operator with experts: those of one rank, the most that one has; and rows that its products
 * have room for, in a group of that many ranks. */
int bench_op_experts(const bench_shape *shape, int ranks);
int64_t bench_op_rows(const bench_shape *shape);

/* Collective.  A plan that says where tokens go, and multiplies next to nothing: the operator that
 * gathers, of n = k = 1.  ranks: as above where the group is of one rank alone, else 0. */
IMBREX_TRY bench_op_router(imbrex_group *group, const bench_shape *shape, int ranks,
                           imbrex_plan **plan);

/* Work of one rank's product, on average, and bytes that a rank receives from its peers. */
double bench_op_flop(const bench_shape *shape, int ranks);
double bench_op_bytes(const bench_shape *shape, int ranks);

/* Of a cache, what a rank reads of it; and numbers of v: fewer than of k in MLA. */
double bench_op_cache_bytes(const bench_shape *shape);
int bench_op_value_dim(const bench_shape *shape);

enum { BENCH_OPS_TEXT = 512 }; /* room for all names */

/* ---- operands.c: those of one rank ----------------------------------------------------------- */

/* A set is a[m, k] (without a product [m, n]), b, bias[n], gamma[n], residual, h and c[m, n], one
 * after another.  A rank's share of a is its rows of it, and its share of c lies at the start of
 * c. */
typedef struct bench_data {
    imbrex_group *group;
    char *sets; /* [count][set_bytes], symmetric */
    int count;
    size_t set_bytes;
    size_t own, b, bias, scales_a, own_scales, scales_b, c; /* offsets in a set; own: of this rank's
                                                               rows of a */
    size_t gamma, residual, h;                              /* with a norm; as c */
    struct bench_experts *experts;                          /* NULL: the operator has none */
    struct bench_states *states; /* of attention; NULL likewise, else sets are its own */
} bench_data;

/* Collective: takes the memory and fills it with values as from N(0, 1): several sets, so that
 * calls in a row do not find theirs in a cache.  alone: this rank's group of one. */
IMBREX_TRY bench_data_open(imbrex_group *group, imbrex_group *alone, const bench_shape *shape,
                           bench_data *out);
void bench_data_close(bench_data *data);

/* Of set number i, modulo their count: what the operator takes.  whole: all of a instead of the
 * rank's share, and no bias, for the product alone. */
imbrex_args bench_data_args(const bench_data *data, const bench_shape *shape, int64_t i,
                            bool whole);

/* The same of attention: queries and a cache, or states of this rank's tokens. */
imbrex_decode_args bench_data_states(const bench_data *data, const bench_shape *shape, int64_t i);

/* ---- candidates.c: calls of a plan ----------------------------------------------------------- */

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

/* Of what imbrex_plan_facts says of a plan. */
typedef struct bench_facts {
    char algorithm[32]; /* "": there is no plan */
    bool measured;
    double sent_inside, sent_between; /* bytes of the latest run; NAN: there is one node */
} bench_facts;

bench_facts bench_plan_facts(const imbrex_plan *plan);

/* ---- candidates.c: the BLAS that this tool was built with ------------------------------------ */

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

/* ---- candidates.c: NVIDIA's cuBLASLt, loaded when asked for ---------------------------------- */

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

/* ---- candidates.c: the fastest of the ways that it proposes ---------------------------------- */

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
