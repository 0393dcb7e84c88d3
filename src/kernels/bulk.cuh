/* bulk.cuh - what the copy engine of a Hopper GPU, or a later one, is told: barriers in shared
 * memory (mbarrier), groups of bulk copies, and memory to memory by way of shared memory, in
 * pieces, by one thread:
 *
 *     memory | bulk_load | one of two buffers | bulk_arrived | bulk_store | memory, also a peer's
 *
 * A warp's loads and stores do the same, but are more in the way of a product beside them.
 *
 * Shared addresses are 32-bit numbers of the .shared window throughout.
 */
#ifndef IMX_BULK_CUH
#define IMX_BULK_CUH

#include "imbrex_device.h"

#define IMX_FN static __device__ __forceinline__

/* ---- barriers in shared memory -------------------------------------------------------------- */

IMX_FN void mbar_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(bar), "r"(arrivals) : "memory");
}

/* Makes this thread's mbar_init visible to the cluster and to the copy engine. */
IMX_FN void mbar_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}

IMX_FN void mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(bar), "r"(bytes)
                 : "memory");
}

IMX_FN void mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(bar) : "memory");
}

/* Arrives at the same barrier of block `cta` of the cluster.  Deliberately not .release.cluster:
 * that form costs a full memory barrier a stage, and what it would order, reads by wgmma, is over
 * once the warpgroup has waited for its products. */
IMX_FN void mbar_arrive_at(uint32_t bar, uint32_t cta)
{
    asm volatile("{\n\t.reg .b32 remote;\n\t"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n\t}"
                 :
                 : "r"(bar), "r"(cta)
                 : "memory");
}

/* The same with what it says: what this thread did before comes before what a thread of that block
 * does after mbar_wait_cluster. */
IMX_FN void mbar_release_at(uint32_t bar, uint32_t cta)
{
    asm volatile("{\n\t.reg .b32 remote;\n\t"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n\t"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n\t}"
                 :
                 : "r"(bar), "r"(cta)
                 : "memory");
}

/* Until the phase of that parity is over.  Who fills the barrier is in this cluster, or the copy
 * engine, and never gives up, so there is no deadline; IMX_SPIN_LIMIT (a debugging option) traps
 * after so many tries.
 * order: .acquire.cluster after mbar_release_at, else nothing. */
#ifdef IMX_SPIN_LIMIT
#define MBAR_WAIT(order)                                                              \
    asm volatile("{\n\t.reg .pred p, q;\n\t.reg .u32 left;\n\tmov.u32 left, %2;\n\t"  \
                 "AGAIN:\n\t"                                                         \
                 "mbarrier.try_wait.parity" order ".shared::cta.b64 p, [%0], %1;\n\t" \
                 "@p bra.uni DONE;\n\t"                                               \
                 "sub.u32 left, left, 1;\n\tsetp.ne.u32 q, left, 0;\n\t"              \
                 "@q bra.uni AGAIN;\n\t"                                              \
                 "trap;\n\t"                                                          \
                 "DONE:\n\t}"                                                         \
                 :                                                                    \
                 : "r"(bar), "r"(parity), "n"(IMX_SPIN_LIMIT)                         \
                 : "memory")
#else
#define MBAR_WAIT(order)                                                              \
    asm volatile("{\n\t.reg .pred p;\n\t"                                            \
                 "AGAIN:\n\t"                                                         \
                 "mbarrier.try_wait.parity" order ".shared::cta.b64 p, [%0], %1;\n\t" \
                 "@p bra.uni DONE;\n\t"                                               \
                 "bra.uni AGAIN;\n\t"                                                 \
                 "DONE:\n\t}"                                                         \
                 :                                                                    \
                 : "r"(bar), "r"(parity)                                              \
                 : "memory")
#endif

IMX_FN void mbar_wait(uint32_t bar, uint32_t parity)
{
    MBAR_WAIT("");
}

IMX_FN void mbar_wait_cluster(uint32_t bar, uint32_t parity)
{
    MBAR_WAIT(".acquire.cluster");
}

/* ---- groups of copies that a thread has begun ------------------------------------------------ */

IMX_FN void tma_store_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}

/* Until all but `left` of this thread's groups have read shared memory. */
#define tma_store_wait_read(left) \
    asm volatile("cp.async.bulk.wait_group.read " #left ";" : : : "memory")

/* Until all of this thread's groups are written. */
IMX_FN void tma_store_wait(void)
{
    asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Where a thread's pieces are on their way: two buffers of so many bytes each, at multiples of 128
 * (of 16 is enough, but much slower), and two barriers, of one arrival each. */
typedef struct bulk_way {
    uint32_t buffers, bytes, barriers;
    uint32_t loads, stores; /* pieces so far */
} bulk_way;

enum { BULK_BUFFERS = 2, BULK_BARRIERS_BYTES = BULK_BUFFERS * 8 };

IMX_FN bulk_way bulk_begin(uint32_t buffers, uint32_t bytes, uint32_t barriers)
{
    bulk_way way = { buffers, bytes, barriers, 0, 0 };
    return way;
}

IMX_FN uint32_t bulk_barrier(const bulk_way *way, uint32_t number)
{
    return way->barriers + number % BULK_BUFFERS * 8;
}

/* One thread, before a barrier of the block and mbar_init_fence. */
IMX_FN void bulk_init(const bulk_way *way)
{
    for (uint32_t i = 0; i < BULK_BUFFERS; i++)
        mbar_init(bulk_barrier(way, i), 1);
}

/* Begins to bring the next piece, of as many bytes, a multiple of 16.  All pieces before it have
 * been told to leave; that of the one before last has been read. */
IMX_FN void bulk_load(bulk_way *way, const void *from, uint32_t bytes)
{
    uint32_t number = way->loads++, bar = bulk_barrier(way, number);
    tma_store_wait_read(1);
    mbar_expect(bar, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];"
                 :
                 : "r"(way->buffers + number % BULK_BUFFERS * way->bytes), "l"(from), "r"(bytes),
                   "r"(bar)
                 : "memory");
}

/* Until the oldest piece that is to leave has come: where it is. */
IMX_FN uint32_t bulk_arrived(bulk_way *way)
{
    uint32_t number = way->stores++;
    mbar_wait(bulk_barrier(way, number), number / BULK_BUFFERS & 1);
    return way->buffers + number % BULK_BUFFERS * way->bytes;
}

/* It goes there; when it is on its way everywhere, tma_store_commit.  Before a post that says so,
 * tma_store_wait. */
IMX_FN void bulk_store(void *to, uint32_t piece, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :
                 : "l"(to), "r"(piece), "r"(bytes)
                 : "memory");
}

#endif /* IMX_BULK_CUH */
