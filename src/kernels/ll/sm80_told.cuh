/* sm80_told.cuh - what the blocks of a row that is normed tell each other of it, on NVIDIA GPUs.
 * With IMX_CLUSTER they are a cluster's; else a row is one block's.  ../norm/sm80_steps.cuh comes
 * before it.
 */
#ifndef IMX_LL_SM80_TOLD_CUH
#define IMX_LL_SM80_TOLD_CUH

#include "sm80_units.cuh"
#if IMX_CLUSTER
#include "../sm90_bulk.cuh"
#endif

enum {
    ELEMENT = IMX_IS_F32 ? 4 : 2,
    SEGMENTS = IMX_LL_ROW_BYTES / (IMX_NORM_SEGMENT * ELEMENT),
};

/* Barriers count what comes from other blocks.  Squares: x a segment's sum; y 1 if the block gave
 * up. */
typedef struct told {
    uint64_t squares_here, largest_here;
    uint2 squares[SEGMENTS];
    float largest[SEGMENTS * GROUPS];
} told;
static_assert(SEGMENTS <= LANES, "a lane has a segment's");

static __shared__ told all_told[2]; /* of rows in turns: one is read while the next one comes */

#if IMX_CLUSTER
/* Where *own is of the row's block that this lane's number names. */
LL_FN uint32_t at_block_of_lane(const void *own)
{
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"((uint32_t)__cvta_generic_to_shared(own)), "r"(lane_of()));
    return there;
}
#endif

/* A warp, to all blocks of the row: *to becomes x.  bar counts it.  An ordinary store to another
 * block's shared memory comes a microsecond later (experiments.md). */
LL_FN void tell(const imx_ll_args &args, float *to, uint64_t *bar, float x)
{
#if IMX_CLUSTER
    if (lane_of() < args.pieces)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32"
                     " [%0], %1, [%2];"
                     :
                     : "r"(at_block_of_lane(to)), "f"(x), "r"(at_block_of_lane(bar))
                     : "memory");
#else
    if (lane_of() == 0)
        *to = x;
#endif
}

/* The same of two words. */
LL_FN void tell(const imx_ll_args &args, uint2 *to, uint64_t *bar, float x, unsigned y)
{
#if IMX_CLUSTER
    if (lane_of() < args.pieces)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32"
                     " [%0], {%1, %2}, [%3];"
                     :
                     : "r"(at_block_of_lane(to)), "f"(x), "f"(__uint_as_float(y)),
                       "r"(at_block_of_lane(bar))
                     : "memory");
#else
    if (lane_of() == 0)
        *to = make_uint2(__float_as_uint(x), y);
#endif
}

/* Ahead of a row: so many bytes of it will come to bar. */
LL_FN void expect(uint64_t *bar, int bytes)
{
#if IMX_CLUSTER
    if (threadIdx.x == 0)
        mbar_expect((uint32_t)__cvta_generic_to_shared(bar), (uint32_t)bytes);
#endif
}

/* All threads, until they are here; parity: of this use of the barrier. */
LL_FN void await(const uint64_t *at, uint32_t parity)
{
#if IMX_CLUSTER
    uint32_t bar = (uint32_t)__cvta_generic_to_shared(at);
    MBAR_WAIT(".acquire.cluster");
#else
    __syncthreads();
#endif
}

/* All threads of the row's blocks, once. */
LL_FN void meet(void)
{
#if IMX_CLUSTER
    if (threadIdx.x == 0) {
#pragma unroll
        for (int turn = 0; turn < 2; turn++) {
            mbar_init((uint32_t)__cvta_generic_to_shared(&all_told[turn].squares_here), 1);
            mbar_init((uint32_t)__cvta_generic_to_shared(&all_told[turn].largest_here), 1);
        }
        mbar_init_fence();
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;"
                 :
                 :
                 : "memory");
#else
    __syncthreads();
#endif
}

#endif /* IMX_LL_SM80_TOLD_CUH */
