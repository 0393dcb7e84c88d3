/* cuda_blas.c - describes a row-major product to a library that thinks in columns. */
#include "cuda_blas.h"

#include "cli.h"
#include "cuda_find.h"

enum { COMPUTE_F32 = 68, TYPE_F32 = 0, TYPE_F16 = 2, TYPE_BF16 = 14 };
enum { DESC_TRANSPOSE_A = 3, TRANSPOSED = 1, PREFERENCE_WORKSPACE_BYTES = 1 };

const cuda_blas_calls *cublas;

static cuda_blas_calls loaded;

static imbrex_status load(void)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12", NULL };
    void *library = cuda_find_library("IMBREX_CUBLASLT", names);
    if (!library)
        return failure_note(IMBREX_UNSUPPORTED,
                            "cuBLASLt is not found: set IMBREX_CUBLASLT to the file of "
                            "libcublasLt.so.13 or .12, or time with --peer none");
#define LOAD(name, gives, symbol, takes)                               \
    if (!(*(void **)&loaded.name = cuda_find_symbol(library, symbol))) \
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
