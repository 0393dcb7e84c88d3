/* sm80_shape.cuh - the options of the GEMM for sm_80 and newer, and what follows from them.
 *
 *   IMX_DTYPE    imbrex_dtype of c        IMX_B_KN     b is [k, n], else [n, k]
 *   IMX_EIGHT    imbrex_dtype of a, where that has 8 bits; else a and b are as c
 *   IMX_SCALING  imbrex_scaling of such
 *   IMX_TILE_M   64 | 128                 IMX_TILE_N   64 | 128 | 224 | 256: the schedule's tile
 *   IMX_WARP_M   32 | 64                  IMX_WARP_N   32 | 56 | 64: what one warp makes of it
 *   IMX_TILE_K   32 | 64 | 128            IMX_STAGES   2 to 4: how far copies run ahead
 *   IMX_ALIGNED  all rows of a, gathered and b begin at multiples of 16 bytes
 *   IMX_SHARED_BYTES   of dynamic shared memory
 *   IMX_PROLOGUE none, wait, push; IMX_EPILOGUE store, post, scatter_push, reduce_pull (policies.h)
 *   IMX_NODES, IMX_TRACE: as sm90.cu has them
 *
 * A block is (TILE_M / WARP_M) x (TILE_N / WARP_N) warps.
 */
#ifndef IMX_SM80_SHAPE_CUH
#define IMX_SM80_SHAPE_CUH

#include "policies.h"

#define IMX_FN static __device__ __forceinline__

enum {
    EPILOGUE = IMX_EPILOGUE,
    SCATTER_PUSH = EPILOGUE == IMX_EPILOGUE_SCATTER_PUSH,
    REDUCE_PULL = EPILOGUE == IMX_EPILOGUE_REDUCE_PULL,
    POSTS = EPILOGUE == IMX_EPILOGUE_POST,
    PEERS_SEE = SCATTER_PUSH || REDUCE_PULL, /* tiles go where peers read or write */
    GATHERS = IMX_PROLOGUE != IMX_PROLOGUE_NONE,
    PUSHES = IMX_PROLOGUE == IMX_PROLOGUE_PUSH,
};

#ifdef IMX_EIGHT
#define IMX_TF32 0
static_assert(IMX_EIGHT == IMBREX_E4M3 || IMX_EIGHT == IMBREX_E5M2, "an imbrex_dtype of 8 bits");
static_assert(IMX_TILE_K == 128, "a stage is what is added up under one scale");
static_assert(IMX_TILE_N <= 128 && 128 % IMX_TILE_N == 0, "and has one of b");
#else
#define IMX_TF32 IMX_IS_F32
#endif

enum {
    ELEMENT = IMX_IS_F32 ? 4 : 2, /* bytes, of c */
    PER_UNIT = 16 / ELEMENT,
#ifdef IMX_EIGHT
    FROM_BYTES = 1, /* of a and b */
#else
    FROM_BYTES = ELEMENT,
#endif
    FROM_UNIT = 16 / FROM_BYTES,

    WARPS_N = IMX_TILE_N / IMX_WARP_N,
    THREADS = IMX_TILE_M / IMX_WARP_M * WARPS_N * 32,
    PARTS_M = IMX_WARP_M / 16, /* fragments of a warp */
    PARTS_N = IMX_WARP_N / 8,
    STEPS = IMX_TILE_K * FROM_BYTES / 32, /* products along k in a stage */

    /* Rows of a box in shared memory, and what one thread loads of it. */
    A_ROW = IMX_TILE_K * FROM_BYTES,
    A_APART = THREADS / (A_ROW / 16), /* rows from one of its units to the next */
    A_UNITS = IMX_TILE_M / A_APART,
    A_BYTES = IMX_TILE_M * A_ROW,
#ifdef IMX_B_KN
    B_ROW = IMX_TILE_N * FROM_BYTES,
    B_ROWS = IMX_TILE_K,
#else
    B_ROW = A_ROW,
    B_ROWS = IMX_TILE_N,
#endif
    B_APART = THREADS / (B_ROW / 16),
    B_UNITS = B_ROWS / B_APART,
    B_BYTES = B_ROWS * B_ROW,
    STAGE_BYTES = A_BYTES + B_BYTES,

#ifdef IMX_ALIGNED
    RING = IMX_STAGES,
    AHEAD = IMX_STAGES - 1, /* stages from a product to the copies beside it */
    SHARED_BYTES = RING * STAGE_BYTES,
#else
    RING = 2, /* what was copied is put in order one stage ahead */
    AHEAD = IMX_STAGES,
    UNITS_MOST = A_UNITS > B_UNITS ? A_UNITS : B_UNITS,
    RAW_BYTES = STAGE_BYTES + (IMX_TILE_M + B_ROWS) * 16, /* a unit more in each row */
    SHARED_BYTES = RING * STAGE_BYTES + IMX_STAGES * RAW_BYTES,
#endif
};

static_assert(SHARED_BYTES == IMX_SHARED_BYTES, "the launch and the kernel agree");
static_assert(A_ROW == 64 || A_ROW == 128, "a row of a is 64 or 128 bytes");
static_assert(STEPS % 2 == 0, "fragments alternate between two sets of registers");
static_assert(A_UNITS * A_APART == IMX_TILE_M && B_UNITS * B_APART == B_ROWS,
              "threads share the rows evenly");
static_assert(A_APART % 8 == 0 && B_APART % (FROM_BYTES < 4 ? 8 : 4) == 0,
              "a thread's rows have one swizzle and one shift");
static_assert(A_ROW <= 512 && B_ROW <= 512, "a row is loaded by threads of one warp");
#if defined(IMX_B_KN) || IMX_IS_F32
static_assert(PARTS_N % 4 == 0, "fragments are loaded by fours");
#endif
static_assert(!SCATTER_PUSH || PARTS_N % 4 == 0, "and folded");

/* Where a row's 16-byte unit lies in a box, so that no two rows of a matrix that a warp loads meet
 * in a bank. */
IMX_FN int place_along(int row, int unit)
{
    return row * A_ROW + ((unit ^ (A_ROW == 128 ? row & 7 : row >> 1 & 3)) << 4);
}

#ifdef IMX_B_KN
/* The words of f32 are loaded one by one, four rows and eight columns at once. */
IMX_FN int place_across(int row, int unit)
{
    return row * B_ROW + ((unit ^ (ELEMENT == 2 ? row & 7 : (row & 3) << 1)) << 4);
}
#endif

#endif /* IMX_SM80_SHAPE_CUH */
