/* sm90_tma.cuh - Hopper's copy engine for boxes of matrices (TMA), one function each.
 *
 * Shared addresses are 32-bit numbers of the .shared window throughout.
 */
#ifndef IMX_SM90_TMA_CUH
#define IMX_SM90_TMA_CUH

#include "sm90_bulk.cuh"

/* A CUtensorMap, which only the driver and the copy engine look into. */
typedef struct __attribute__((aligned(64))) imx_tma_map {
    unsigned char opaque[128];
} imx_tma_map;

BULK_FN void tma_prefetch_map(const imx_tma_map *map)
{
    asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}

BULK_FN void tma_load(uint32_t to, const imx_tma_map *map, int x, int y, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 :
                 : "r"(to), "l"(map), "r"(x), "r"(y), "r"(bar)
                 : "memory");
}

/* The same of what nobody reads again: the cache gives it up first, and keeps what was fetched
 * ahead. */
BULK_FN void tma_load_once(uint32_t to, const imx_tma_map *map, int x, int y, uint32_t bar)
{
    asm volatile("{\n\t.reg .b64 first;\n\t"
                 "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n\t"
                 "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], first;\n\t}"
                 :
                 : "r"(to), "l"(map), "r"(x), "r"(y), "r"(bar)
                 : "memory");
}

/* The same of plane z of several. */
BULK_FN void tma_load_plane(uint32_t to, const imx_tma_map *map, int x, int y, int z, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];"
                 :
                 : "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar)
                 : "memory");
}

/* And from column block `block` on, of those that a box has one after the other; of what nobody
 * reads again. */
BULK_FN void tma_load_blocks_once(uint32_t to, const imx_tma_map *map, int y, int block, int z,
                                  uint32_t bar)
{
    asm volatile("{\n\t.reg .b64 first;\n\t"
                 "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n\t"
                 "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], first;\n\t}"
                 :
                 : "r"(to), "l"(map), "r"(0), "r"(y), "r"(block), "r"(z), "r"(bar)
                 : "memory");
}

/* Into the L2 cache only: changes nothing that anybody could see. */
BULK_FN void tma_prefetch(const imx_tma_map *map, int x, int y)
{
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];"
                 :
                 : "l"(map), "r"(x), "r"(y)
                 : "memory");
}

/* To the same place, and counted at the same barrier, in every block of the cluster in mask. */
BULK_FN void tma_load_multicast(uint32_t to, const imx_tma_map *map, int x, int y, uint32_t bar,
                                uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 :
                 : "r"(to), "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask)
                 : "memory");
}

BULK_FN void tma_store(const imx_tma_map *map, int x, int y, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 :
                 : "l"(map), "r"(x), "r"(y), "r"(from)
                 : "memory");
}

/* Ordinary writes to shared memory before the copy engine's reads of it. */
BULK_FN void tma_fence_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

#endif /* IMX_SM90_TMA_CUH */
