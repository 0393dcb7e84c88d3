/* sm90_consume.cuh - what the consumers of sm90.cu and sm90_eight.cu have in common: notes of
 * tiles, their rows, and when what they have made leaves. */
#ifndef IMX_SM90_CONSUME_CUH
#define IMX_SM90_CONSUME_CUH

#include "sm90_credits.cuh"
#include "sm90_produce.cuh"
#include "sm90_split.cuh"
#include "sm90_store.cuh"
#include "sm90_turned.cuh"

IMX_FN void pack_half(uint32_t (&packed)[IMX_ACC / 2], const float (&d)[IMX_ACC])
{
#pragma unroll
    for (int j = 0; j < IMX_ACC / 2; j++)
        packed[j] = epilogue::word(d[2 * j], d[2 * j + 1]);
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
    if (epilogue::HAS_OWNERS)
        return note->owner;
    if (prologue::ALL_RANKS)
        return -1;
    return args.schedule.ranks > 1 ? note->chunk / args.schedule.chunks : -1;
}

/* What goes where peers write or read is not stored any more once a wait gave up. */
IMX_FN void heed_giving_up(tile_info *note)
{
    if (!epilogue::PEERS_SEE)
        return;
    if (gave_up_here()) {
        note->rows = 0;
        note->chunk = GAVE_UP;
    }
    __syncwarp();
}

/* This warp's own note of the tile that a stage begins. */
IMX_FN void take_note(tile_info *note, uint32_t stage)
{
    if (threadIdx.x % 32 < INFO_BYTES / 4)
        ((int *)note)[threadIdx.x % 32] = ((int *)info_of(stage))[threadIdx.x % 32];
    __syncwarp();
    heed_giving_up(note);
}

/* ---- how a tile leaves ----------------------------------------------------------------------- */

/* Behind ordinary stores: whoever waits counts one a piece. */
IMX_FN void commit_nothing(void)
{
    __syncwarp();
    if (lane_here() == 0)
        bulk_commit();
}

/* Piece p of this warp's 16 rows, which begin at first_row of the block's tile, is in `piece`, and
 * leaves. */
IMX_FN void send_piece(const imx_gemm_args &args, const imx_tma_map *c, const tile_info *note,
                       int first_row, uint32_t piece, int p)
{
    int row = note->row + first_row, rows = note->rows - first_row;
    int col = note->col + p * PIECE_COLS;
    if constexpr (C_PLAIN) {
        __syncwarp();
        store_plain(args, epilogue::home(args, note), row, rows, col, piece);
        commit_nothing();
    } else if (epilogue::HAS_OWNERS || rows >= 16) { /* an owner's map ends where its rows do */
        send_buffer(epilogue::map(c, note), piece, col, row,
                    col < (int)args.schedule.n && (!epilogue::HAS_OWNERS || rows > 0));
    } else {
        __syncwarp();
        store_units(args, epilogue::home(args, note), row, rows, col, piece);
        commit_nothing();
    }
}

/* The same by way of `piece`; packed: the tile's rounded elements. */
IMX_FN void store_piece(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                        const imx_tma_map *c, const tile_info *note, int first_row, uint32_t piece,
                        int p)
{
    fill_buffer(piece, &packed[p * PIECE_COLS / 4]);
    send_piece(args, c, note, first_row, piece, p);
}

/* All of them. */
IMX_FN void store(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                  const imx_tma_map *c, const tile_info *note, int first_row, uint32_t base)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        store_piece(packed, args, c, note, first_row, take_buffer(base, p), p);
}

/* This warp's share of a tile is stored: counts it, and the chunk's last tells. */
IMX_FN void post(const imx_gemm_args &args, const tile_info *note)
{
    if (!epilogue::POSTS)
        return;
    int chunk = note->chunk;
    __syncwarp();
    if (threadIdx.x % 32 != 0 || chunk == GAVE_UP || !epilogue::posts(args))
        return;
    bulk_wait();
    if (!epilogue::stored(args, note))
        return;
    uint32_t last = (uint32_t)(note->tiles * CLUSTER * CONSUMERS / TURNS * 4);
    if (imbrexd_counter_last(&args.counters[chunk], last))
        epilogue::tell(args, note, chunk);
}

/* ---- when it leaves -------------------------------------------------------------------------- */

/* One warp of a consumer, behind its first tile's products: until it may be stored. */
IMX_FN void await_credits(tile_info *note)
{
    if (!may_store())
        heed_giving_up(note);
    imbrexd_fence_tma();
}

enum { ALL_GONE = PIECES + 1, NEVER = 0 };

/* The step at which piece q of the tile before is stored; every block has its own places. */
IMX_FN int piece_step(const tile_info *note, int consumer, int q)
{
    if (!epilogue::HAS_OWNERS)
        return 1 + q * PIECES_APART;
    int apart = note->apart;
    return 1 + q * apart + apart * (int)((blockIdx.x * CONSUMERS + consumer) % 16) / 16;
}

#endif /* IMX_SM90_CONSUME_CUH */
