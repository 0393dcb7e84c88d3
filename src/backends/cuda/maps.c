/* maps.c - tensor maps, encoded once.  Encoding takes the host about as long as a launch, and runs
 * repeat their buffers: a step of a model has the weights of all its layers, by a plan for many.
 *
 * A map is kept in one of the few places that follow from its address, where it takes the place of
 * the one that came first.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

enum { SETS_LOG2 = 7, SETS = 1 << SETS_LOG2, PLACES = 8 };

/* An encoded map and what it was made from. */
typedef struct kept {
    CUtensorMap encoded;
    imx_tensor_map from; /* address NULL: free */
} kept;

struct imx_cuda_maps {
    kept at[SETS][PLACES];
    unsigned char next[SETS]; /* place to be taken */
};

imbrex_status imx_cuda_maps_create(imx_cuda_maps **maps)
{
    size_t bytes = imx_align(sizeof **maps, _Alignof(imx_cuda_maps));
    *maps = imx_sys.aligned_alloc(_Alignof(imx_cuda_maps), bytes);
    if (!*maps)
        return imx_fail(IMBREX_NO_MEMORY, "no host memory for tensor maps");
    memset(*maps, 0, bytes);
    return IMBREX_OK;
}

void imx_cuda_maps_destroy(imx_cuda_maps *maps)
{
    free(maps);
}

bool imx_cuda_maps_same(const imx_tensor_map *x, const imx_tensor_map *y)
{
    return x->address == y->address && x->rows == y->rows && x->cols == y->cols &&
           x->stride_bytes == y->stride_bytes && x->planes == y->planes &&
           x->plane_bytes == y->plane_bytes && x->box_rows == y->box_rows &&
           x->box_cols == y->box_cols && x->box_blocks == y->box_blocks && x->dtype == y->dtype &&
           x->swizzle_bytes == y->swizzle_bytes;
}

static imbrex_status encode(const imx_tensor_map *from, CUtensorMap *map)
{
    static const int dtypes[] = {
        [IMBREX_BF16] = CU_TENSOR_BF16, [IMBREX_F16] = CU_TENSOR_F16, [IMBREX_F32] = CU_TENSOR_F32,
        [IMBREX_E4M3] = CU_TENSOR_U8,   [IMBREX_E5M2] = CU_TENSOR_U8,
    };
    int swizzle = from->swizzle_bytes == 128  ? CU_TENSOR_SWIZZLE_128
                  : from->swizzle_bytes == 64 ? CU_TENSOR_SWIZZLE_64
                  : from->swizzle_bytes == 32 ? CU_TENSOR_SWIZZLE_32
                                              : CU_TENSOR_SWIZZLE_NONE;
    bool blocks = from->box_blocks, planes = from->planes;
    int cols = from->box_cols;
    /* Innermost first: columns of a block, rows, blocks, planes. */
    uint64_t sizes[4] = { (uint64_t)(blocks ? cols : from->cols), (uint64_t)from->rows };
    uint64_t strides[3] = { (uint64_t)from->stride_bytes };
    uint32_t box[4] = { (uint32_t)cols, (uint32_t)from->box_rows }, steps[] = { 1, 1, 1, 1 };
    uint32_t rank = 2;
    if (blocks) {
        strides[rank - 1] = (uint64_t)from->swizzle_bytes;
        box[rank] = (uint32_t)from->box_blocks;
        sizes[rank++] = (uint64_t)(from->cols / cols);
    }
    if (planes) {
        strides[rank - 1] = (uint64_t)from->plane_bytes;
        box[rank] = 1;
        sizes[rank++] = (uint64_t)from->planes;
    }
    return imx_driver_check(
        imx_driver->cuTensorMapEncodeTiled(map, dtypes[from->dtype], rank, (void *)from->address,
                                           sizes, strides, box, steps, 0, swizzle, CU_TENSOR_L2_128,
                                           0),
        "cuTensorMapEncodeTiled", "no tensor map for %p[%lld, %lld], stride %lld, box %dx%d",
        from->address, (long long)from->rows, (long long)from->cols, (long long)from->stride_bytes,
        from->box_rows, from->box_cols);
}

/* By the address and the box: others of a matrix, at its edges say, have other sets.  Weights of a
 * model's layers lie at equal distances, which one product would leave equal.  The mixing is that
 * which ends MurmurHash3, by Austin Appleby, public domain. */
static size_t set_of(const imx_tensor_map *from)
{
    uint64_t key = (uint64_t)(uintptr_t)from->address / 16 + (uint64_t)from->box_rows;
    key = (key ^ key >> 33) * 0xff51afd7ed558ccd;
    key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53;
    return (size_t)((key ^ key >> 33) % SETS);
}

imbrex_status imx_cuda_maps_find(imx_cuda_maps *maps, const imx_tensor_map *from, CUtensorMap *map)
{
    size_t set = set_of(from);
    for (int i = 0; i < PLACES; i++) {
        if (imx_cuda_maps_same(&maps->at[set][i].from, from)) {
            *map = maps->at[set][i].encoded;
            return IMBREX_OK;
        }
    }
    kept *oldest = &maps->at[set][maps->next[set]];
    oldest->from.address = NULL;
    IMX_TRY(encode(from, &oldest->encoded));
    oldest->from = *from;
    maps->next[set] = (unsigned char)((maps->next[set] + 1) % PLACES);
    *map = oldest->encoded;
    return IMBREX_OK;
}
