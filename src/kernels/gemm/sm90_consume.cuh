/* sm90_consume.cuh - what the consumers of sm90.cu and sm90_eight.cu have in common: notes of
 * tiles, their rows, and when what they have made leaves. */
#ifndef IMX_SM90_CONSUME_CUH
#define IMX_SM90_CONSUME_CUH

#include "sm90_credits.cuh"
#include "sm90_last.cuh"
#include "sm90_produce.cuh"
#include "sm90_reduce_pull.cuh"
#include "sm90_reduce_push.cuh"
#include "sm90_split.cuh"
#include "sm90_store.cuh"
#include "sm90_turned.cuh"

#ifdef IMX_ENDS_EARLY
/* The producer's four warps.  What they have read, peers may write again when the block has counted
 * as ended: beneath its last products, or the sum of its last tile, which is 2 us sooner than
 * behind them. */
IMX_FN void producers_meet(void)
{
    asm volatile("bar.sync 4, 128;" : : : "memory");
}
#endif

/* Whether a block has ended when its last loads have come: nothing is read from peers, and nothing
 * posted, after that.  A last tile of own rows posts nothing; the one before it does beneath that
 * one's steps, in the first half of them or, where they are few, POST_AFTER behind its last piece
 * (pieces_apart): before the last loads can have found room, if that is some stages later. */
IMX_FN bool ends_with_loads(const imx_gemm_args &args)
{
#if defined(IMX_READS)
    return true;
#elif defined(IMX_LAST_PARTS)
    unsigned first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    unsigned last = (tiles_of() - 1 - first) / stride;
    int steps = steps_of(args), room = steps - IMX_STAGES;
    return first < tiles_of() && listed(last % LISTED)->owner == args.team.rank &&
           room > steps / 2 + 2 && room > PIECES + POST_AFTER;
#else
    return false;
#endif
}

/* Two elements of a tile, as they leave. */
IMX_FN uint32_t rounded(float low, float high)
{
#ifdef IMX_REDUCE_PUSH
    return imx_vector_go_word(pack(low, high));
#else
    return pack(low, high);
#endif
}

IMX_FN void pack_half(uint32_t (&packed)[IMX_ACC / 2], const float (&d)[IMX_ACC])
{
#pragma unroll
    for (int j = 0; j < IMX_ACC / 2; j++)
        packed[j] = rounded(d[2 * j], d[2 * j + 1]);
}

/* The first of this warp's rows of a tile, or columns of a turned one, worked out where it stands
 * (thread_here). */
IMX_FN int warp_row(void)
{
    int warp = (int)thread_here() / 32 - 4;
    return (TURNS == 1 ? warp / 4 * IMX_WG_M : 0) + warp % 4 * 16;
}

/* Whose rows the tile has; -1: many ranks'. */
IMX_FN int rank_of(const imx_gemm_args &args, const tile_info *note)
{
#if defined(IMX_STORE)
    return note->owner;
#elif defined(IMX_SLICES)
    return -1;
#else
    return args.schedule.ranks > 1 ? note->chunk / args.schedule.chunks : -1;
#endif
}

/* What goes where peers write or read is not stored any more once a wait gave up. */
IMX_FN void heed_giving_up(tile_info *note)
{
#if defined(IMX_STORE) || defined(IMX_REDUCE_PULL)
    if (gave_up_here()) {
        note->rows = 0;
        note->chunk = GAVE_UP;
    }
    __syncwarp();
#endif
}

/* This warp's own note of the tile that a stage begins. */
IMX_FN void take_note(tile_info *note, uint32_t stage)
{
    if (threadIdx.x % 32 < INFO_BYTES / 4)
        ((int *)note)[threadIdx.x % 32] = ((int *)info_of(stage))[threadIdx.x % 32];
    __syncwarp();
    heed_giving_up(note);
}

#ifndef IMX_PINGPONG

enum { ALL_GONE = PIECES + 1, NEVER = 0 };

/* The step at which piece q of the tile before is stored; every block has its own places. */
IMX_FN int piece_step(const tile_info *note, int consumer, int q)
{
#ifdef IMX_STORE
    int apart = note->apart;
    return 1 + q * apart + apart * (int)((blockIdx.x * CONSUMERS + consumer) % 16) / 16;
#else
    return 1 + q * PIECES_APART;
#endif
}

#endif

#endif /* IMX_SM90_CONSUME_CUH */
