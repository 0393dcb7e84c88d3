/* sm90_owners.cuh - what epilogues have in common whose tiles go straight to their rows' owners:
 * each into this rank's slot there, at a pace that leaves room for everybody's loads. */
#ifndef IMX_SM90_OWNERS_CUH
#define IMX_SM90_OWNERS_CUH

#include "sm90_policy.cuh"

/* How far apart, beneath this block's tile number `tile`, the pieces of the one before are stored,
 * whose rows are `owner`'s.  What stays in this GPU: one a step.  What goes to peers takes the
 * whole tile, since a burst would stand in the way of everybody's loads, or half of it where it is
 * the last: then peers wait for what this block sends before they can end. */
IMX_FN int pieces_apart(const imx_gemm_args &args, unsigned tile, int steps, int owner)
{
    if (tile == 0 || owner == args.team.rank)
        return 1;
    int pieces = index_of(tile + 1) < tiles_of() ? PIECES : 2 * PIECES;
    int apart = (steps - 1 - POST_AFTER) / pieces;
    return apart > 1 ? apart : 1;
}

struct epilogue_owners : epilogue_store {
    enum {
        MAPS = IMX_TEAM_MOST,
        ADDS_BIAS = 0,
        HAS_OWNERS = 1,
        PEERS_SEE = 1,
        POSTS = 1,
        ENDS_RUN = 1
    };

    IMX_FN const imx_tma_map *first_map(const imx_gemm_args &args, const imx_tma_map *maps)
    {
        return maps + args.schedule.first;
    }

    IMX_FN void note(const imx_gemm_args &args, unsigned tile, const imx_sm90_tile &t, int below,
                     int steps, int owner, tile_info *info)
    {
        info->tiles = t.chunk_tiles;
        info->row = t.rank_row + below;
        info->owner = t.rank;
        info->apart = pieces_apart(args, tile, steps, owner);
    }

    IMX_FN uint16_t *home(const imx_gemm_args &args, const tile_info *note)
    {
        return (uint16_t *)(imx_team_data(&args.team, note->owner) +
                            args.team.rank * args.slot_bytes);
    }

    IMX_FN const imx_tma_map *map(const imx_tma_map *maps, const tile_info *note)
    {
        return maps + note->owner;
    }

    IMX_FN bool stored(const imx_gemm_args &, const tile_info *)
    {
        if (C_PLAIN)
            imbrexd_fence_post(); /* ordinary stores: their way to a peer is not within this GPU */
        return true;
    }
};

#endif /* IMX_SM90_OWNERS_CUH */
