/* sm90_policies.cuh - this kernel's prologue and epilogue, and what their needs come to. */
#ifndef IMX_SM90_POLICIES_CUH
#define IMX_SM90_POLICIES_CUH

#include "policies.h"
#include "sm90_credits.cuh"
#include "sm90_owners.cuh"
#include "sm90_prologue_push.cuh"
#include "sm90_store.cuh"

#if IMX_EPILOGUE == IMX_EPILOGUE_SCATTER_PUSH || IMX_EPILOGUE == IMX_EPILOGUE_HOOKS
#include "sm90_fold.cuh" /* of both */
#endif

#if IMX_PROLOGUE == IMX_PROLOGUE_NONE
typedef prologue_none prologue;
#elif IMX_PROLOGUE == IMX_PROLOGUE_WAIT
typedef prologue_wait prologue;
#elif IMX_PROLOGUE == IMX_PROLOGUE_WAIT_ALL
typedef prologue_wait_all prologue;
#elif IMX_PROLOGUE == IMX_PROLOGUE_PUSH
typedef prologue_push prologue;
#elif IMX_PROLOGUE == IMX_PROLOGUE_PUSH_ALL
typedef prologue_push_all prologue;
#elif IMX_PROLOGUE == IMX_PROLOGUE_SLICES
#include "sm90_prologue_slices.cuh"
typedef prologue_slices prologue;
#elif IMX_PROLOGUE == IMX_PROLOGUE_RING
#include "sm90_prologue_ring.cuh"
typedef prologue_ring prologue;
#elif IMX_PROLOGUE == IMX_PROLOGUE_HOOKS
#include "sm90_hooks.cuh"
typedef prologue_hooks prologue;
#endif

#if IMX_EPILOGUE == IMX_EPILOGUE_STORE
typedef epilogue_store epilogue;
#elif IMX_EPILOGUE == IMX_EPILOGUE_POST
#include "sm90_epilogue_post.cuh"
typedef epilogue_post epilogue;
#elif IMX_EPILOGUE == IMX_EPILOGUE_SCATTER_PUSH
#include "sm90_epilogue_scatter_push.cuh"
typedef epilogue_scatter_push epilogue;
#elif IMX_EPILOGUE == IMX_EPILOGUE_REDUCE_PUSH
#include "sm90_epilogue_reduce_push.cuh"
typedef epilogue_reduce_push epilogue;
#elif IMX_EPILOGUE == IMX_EPILOGUE_REDUCE_PULL
#include "sm90_epilogue_reduce_pull.cuh"
typedef epilogue_reduce_pull epilogue;
#elif IMX_EPILOGUE == IMX_EPILOGUE_HOOKS
typedef epilogue_hooks epilogue; /* beside the prologue */
#endif

static constexpr int larger(int a, int b)
{
    return a > b ? a : b;
}

enum {
    /* A run of one that pushes ends with the last load: nobody reads or writes what this one
     * stores. */
    ENDS_EARLY = prologue::ENDS_RUN || epilogue::ENDS_EARLY,
    ENDS_LATE = epilogue::ENDS_RUN,
    /* Of a thread; together what the launch gives all warpgroups.  A third consumer leaves each of
     * them less, and what they cannot share evenly to the producer's. */
    REGISTERS_OF_TILE =
        IMX_HAS(IMX_NODES) || CONSUMERS > 2 || IMX_SUMS_N <= 64 ? REGISTERS_FEW : REGISTERS_LEAST,
    REGISTERS_WANTED = larger(larger(prologue::REGISTERS, epilogue::REGISTERS), REGISTERS_OF_TILE),
    PRODUCER_REGISTERS = CONSUMERS < 3                        ? REGISTERS_WANTED
                         : REGISTERS_WANTED == REGISTERS_MOST ? 104
                         : REGISTERS_WANTED == REGISTERS_MORE ? 80
                                                              : REGISTERS_WANTED,
    CONSUMER_REGISTERS =
        CONSUMERS > 2 ? (4 * 128 - PRODUCER_REGISTERS) / 3 : (3 * 168 - PRODUCER_REGISTERS) / 2,
};

static_assert(!SPANS || prologue::WAITS, "tiles of several ranks' rows wait for chunks of them");
static_assert(!prologue::READERS || (SPLIT == 1 && !TURNED && !EIGHT),
              "whole tiles of one rank's rows go on");
static_assert(!epilogue::HAS_OWNERS || (TURNS == 1 && SPLIT == 1 && !TURNED),
              "the way to a peer takes no tile in one burst, nor parts of one");
static_assert(!TURNED || (!epilogue::POSTS && !epilogue::SENDS),
              "a turned tile goes to c, and nobody waits for it");
static_assert(!BULK || ((int)prologue::ENDS_RUN && !prologue::ALL_RANKS && !prologue::READERS),
              "the copy engine pushes chunks of rows, nothing else");

/* As launch.c puts them together.  Boxes of operands are those of a whole tile or smaller, of the
 * rows and columns of the tiles at the edges: the copy engine takes longer over what lies outside
 * of a matrix than over what is there.  more: the epilogue's, then the prologue's. */
typedef struct imx_gemm_maps {
    imx_tma_map a, gathered, b, a_edge, gathered_edge, b_edge;
    imx_tma_map more[(int)epilogue::MAPS + (int)prologue::MAPS];
} imx_gemm_maps;

#endif /* IMX_SM90_POLICIES_CUH */
