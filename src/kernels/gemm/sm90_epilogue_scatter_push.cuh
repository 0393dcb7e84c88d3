/* sm90_epilogue_scatter_push.cuh - a tile goes to its rows' owner.  Own ones are added to what
 * comes from the peers, and become c: by the idle warps (sm90_fold.cuh), the block's last one by
 * those who made it (sm90_last.cuh). */
#ifndef IMX_SM90_EPILOGUE_SCATTER_PUSH_CUH
#define IMX_SM90_EPILOGUE_SCATTER_PUSH_CUH

#include "sm90_credits.cuh"
#include "sm90_last.cuh"
#include "sm90_owners.cuh"

enum { OWN_MAP, PARTS_MAP, SLOT_MAPS }; /* c, all ranks' parts of it, and each owner's slot */

struct epilogue_scatter_push : epilogue_owners {
    enum {
        REGISTERS = !C_PLAIN && FOLD_LOADS > 4 ? REGISTERS_MORE : REGISTERS_FEW,
        MAPS = SLOT_MAPS + IMX_TEAM_MOST,
        WANTS_CREDITS = 1,
        REDUCES_LAST = 1,
        LAST_STORED = C_PLAIN,
        ENDS_EARLY = !C_PLAIN,
    };

    IMX_FN void init(void)
    {
        credits_init();
        for (int i = 0; i < CONSUMERS * 4; i++)
            words().stored[i] = 0;
    }

    IMX_FN const imx_tma_map *first_map(const imx_gemm_args &args, const imx_tma_map *maps)
    {
        return maps + SLOT_MAPS + args.schedule.first;
    }

    IMX_FN const imx_tma_map *map(const imx_tma_map *maps, const tile_info *note)
    {
        return maps + SLOT_MAPS + note->owner;
    }

    IMX_FN bool stored(const imx_gemm_args &args, const tile_info *note)
    {
        if (note->owner == args.team.rank) {
            count_own();
            return false;
        }
        return epilogue_owners::stored(args, note);
    }

    IMX_FN void tell(const imx_gemm_args &args, const tile_info *note, int chunk)
    {
        team_post_owner(args, note->owner, chunk);
    }

    IMX_FN int beside(const imx_gemm_args &args, const imbrexd_watch *watch)
    {
        return fold_tiles(own_parts{ args, watch });
    }

    IMX_FN int last_tile(uint32_t (&packed)[HALVES][IMX_ACC / 2], const imx_gemm_args &args,
                         const imbrexd_watch *watch, const imx_tma_map *maps, const tile_info *note,
                         int first_row, place *at, int consumer)
    {
        if constexpr (C_PLAIN)
            return fold_last(own_parts{ args, watch }, note, first_row);
        else
            return last_from_parts(packed, args, &maps[OWN_MAP], note, first_row, at, consumer);
    }

    IMX_FN void look(const imx_gemm_args &args, const tile_info *info, int *here)
    {
        if (!C_PLAIN && last_number(args, info) >= 0)
            *here = parts_here(args, last_number(args, info));
    }

    IMX_FN void load_parts(const imx_gemm_args &args, const imbrexd_watch *watch,
                           const imx_tma_map *maps, unsigned tiles, int here, place *at)
    {
        const tile_info *last = listed((tiles - 1) % LISTED);
        if (!C_PLAIN && tiles > 0 && last_number(args, last) >= 0)
            last_load(args, watch, &maps[PARTS_MAP], last, here, at);
    }

    /* Nothing is read from peers, and nothing posted, after the last loads.  A last tile of own
     * rows posts nothing; the one before it does beneath that one's steps, in the first half of
     * them or, where they are few, POST_AFTER behind its last piece (pieces_apart): before the last
     * loads can have found room, if that is some stages later. */
    IMX_FN bool ends_with_loads(const imx_gemm_args &args)
    {
        if (C_PLAIN)
            return false;
        unsigned first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
        unsigned last = (tiles_of() - 1 - first) / stride;
        int steps = steps_of(args), room = steps - IMX_STAGES;
        return first < tiles_of() && listed(last % LISTED)->owner == args.team.rank &&
               room > steps / 2 + 2 && room > PIECES + POST_AFTER;
    }
};

#endif /* IMX_SM90_EPILOGUE_SCATTER_PUSH_CUH */
