/* sm90_prologue_wait.cuh - others bring rows of a, chunk by chunk, or all of a rank's as one. */
#ifndef IMX_SM90_PROLOGUE_WAIT_CUH
#define IMX_SM90_PROLOGUE_WAIT_CUH

#include "sm90_policy.cuh"

/* One thread: until all chunks that a tile has rows of are here; 0: give up.  Of own rows, those at
 * the edges. */
IMX_FN int wait_spanning(const imx_gemm_args &args, const imbrexd_watch *watch,
                         const tile_info *info)
{
    const imx_schedule &s = args.schedule;
    if (info->rows <= 0)
        return 1;
    IMX_SCHEDULE_ROLLED
    for (int chunk = info->chunk; chunk <= info->last;) {
        int own = args.own * s.chunks, is_own = chunk >= own && chunk < own + s.chunks;
        if (!team_chunk(args, watch, is_own ? own : chunk))
            return 0;
        if (chunk == info->last)
            break;
        chunk = imx_sm90_next_chunk(&s, chunk);
    }
    return 1;
}

/* Chunks of rows. */
struct prologue_wait : prologue_none {
    enum { REGISTERS = REGISTERS_FEW, GATHERS = 1, WAITS = 1 };

    IMX_FN bool waits(const imx_gemm_args &args) { return args.ready != NULL; }

    IMX_FN int wait(const imx_gemm_args &args, const imbrexd_watch *watch, const tile_info *info)
    {
        return SPANS ? wait_spanning(args, watch, info) : team_chunk(args, watch, info->chunk);
    }
};

/* Each rank's rows are one chunk, and a tile has rows of all. */
struct prologue_wait_all : prologue_none {
    enum { REGISTERS = REGISTERS_FEW, GATHERS = 1, B_FIRST = 1, ALL_RANKS = 1 };

    /* The columns that are here. */
    IMX_FN int begin(const imx_gemm_args &args) { return args.ready ? 0 : ALL_COLUMNS; }

    IMX_FN int begin_step(const imx_gemm_args &args, const imbrexd_watch *watch, int k, int here)
    {
        if (k >= here) {
            if (!team_chunks(args, watch))
                gave_up_here() = 1;
            imbrexd_fence_tma();
            here = ALL_COLUMNS;
        }
        return here;
    }
};

#endif /* IMX_SM90_PROLOGUE_WAIT_CUH */
