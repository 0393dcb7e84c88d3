/* fragment.cuh - how a warp of sm_80 and newer brings 16-byte units into shared memory, and from
 * there into the registers that its products take.  Shared addresses are 32-bit numbers of the
 * .shared window. */
#ifndef IMX_FRAGMENT_CUH
#define IMX_FRAGMENT_CUH

#include "imbrex_device.h"

/* 16 bytes to and from aligned addresses; if bytes is 0 instead, nothing is read and they become
 * zeros.  Around the first-level cache (.cg), which might still hold what another agent has
 * overwritten. */
static __device__ __forceinline__ void copy_async(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* Four 8 x 16-byte matrices; lane i gives the address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/* Four, each matrix of 16-bit elements turned about. */
static __device__ __forceinline__ void load_matrices_turned(uint32_t (&to)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

static __device__ __forceinline__ void shared_store(uint32_t to, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

#endif /* IMX_FRAGMENT_CUH */
