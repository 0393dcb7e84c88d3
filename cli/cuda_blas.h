/* cuda_blas.h - NVIDIA's cuBLASLt, loaded when asked for: the yardstick of products on a GPU. */
#ifndef CLI_CUDA_BLAS_H
#define CLI_CUDA_BLAS_H

#include "bench_op.h"

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

#endif /* CLI_CUDA_BLAS_H */
