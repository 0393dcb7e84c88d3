/* sm90_bulk.cuh - Hopper's barriers in shared memory (mbarrier), counters there, and its copy
 * engine for bytes in a row, one function each.
 *
 * Shared addresses are 32-bit numbers of the .shared window throughout.
 */
#ifndef IMX_SM90_BULK_CUH
#define IMX_SM90_BULK_CUH

#include "imbrex_device.h"

#define BULK_FN static __device__ __forceinline__

/* ---- barriers in shared memory -------------------------------------------------------------- */

BULK_FN void mbar_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(bar), "r"(arrivals) : "memory");
}

/* Makes this thread's mbar_init visible to the cluster and to the copy engine. */
BULK_FN void mbar_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

BULK_FN void mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(bar), "r"(bytes)
                 : "memory");
}

BULK_FN void mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(bar) : "memory");
}

/* Arrives once this thread's copies so far (copy_async) have come. */
BULK_FN void mbar_arrive_behind_copies(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(bar) : "memory");
}

/* Until the phase of that parity is over.  Who fills the barrier is in this cluster, or the copy
 * engine, and never gives up, so there is no deadline.  All lanes that are here alike.
 * order: .acquire.cluster after what a thread of another block released, else nothing. */
#define MBAR_WAIT(order)                                                              \
    asm volatile("{\n\t.reg .pred p;\n\t"                                             \
                 "AGAIN:\n\t"                                                         \
                 "mbarrier.try_wait.parity" order ".shared::cta.b64 p, [%0], %1;\n\t" \
                 "@p bra.uni DONE;\n\t"                                               \
                 "bra.uni AGAIN;\n\t"                                                 \
                 "DONE:\n\t}"                                                         \
                 :                                                                    \
                 : "r"(bar), "r"(parity)                                              \
                 : "memory")

BULK_FN void mbar_wait(uint32_t bar, uint32_t parity)
{
    MBAR_WAIT("");
}

/* ---- counters in shared memory -------------------------------------------------------------- */

/* A counter between threads of a block: what was known to those who added, whoever loads their sum
 * knows. */
BULK_FN void shared_count(uint32_t counter, uint32_t more)
{
    asm volatile("red.release.cta.shared.add.u32 [%0], %1;" : : "r"(counter), "r"(more) : "memory");
}

BULK_FN uint32_t shared_counted(uint32_t counter)
{
    uint32_t sum;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(sum) : "r"(counter) : "memory");
    return sum;
}

/* ---- the copy engine ------------------------------------------------------------------------ */

/* Bytes in a row, a multiple of 16, without a map: from memory to shared memory, */
BULK_FN void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];"
                 :
                 : "r"(to), "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

/* and from there to memory, also a peer's. */
BULK_FN void bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :
                 : "l"(to), "r"(from), "r"(bytes)
                 : "memory");
}

BULK_FN void bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}

/* Until all but `left` of this thread's groups have read shared memory. */
#define bulk_wait_read(left) asm volatile("cp.async.bulk.wait_group.read " #left ";" : : : "memory")

/* Until all of this thread's groups are written. */
BULK_FN void bulk_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
}

#endif /* IMX_SM90_BULK_CUH */
