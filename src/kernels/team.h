/* team.h - what a kernel must know of a plan's ranks to reach their memory itself. */
#ifndef IMX_TEAM_H
#define IMX_TEAM_H

#include "imbrex_device.h"

enum {
    IMX_TEAM_MOST = 16,    /* ranks whose memory a kernel's args have room for */
    IMX_TEAM_LOOKS = 2000, /* of a GPU's thread at what comes, before the abort word, which is far
                            * away */
};

/* base[r]: the run's buffer of the plan's shared memory on rank r, as this rank maps it:
 *
 *     | credits [size] | signals, from byte `signals` on | data, from byte `data` on |
 *
 * credits[r]: the last epoch of this buffer that rank r has read. */
typedef struct imx_team {
    int32_t rank, size; /* size 0: the kernel needs nobody */
    int64_t signals, data;
    char *base[IMX_TEAM_MOST];
} imx_team;

#ifdef __CUDACC__
#define IMX_TEAM_FN static __device__ __forceinline__
#else
#define IMX_TEAM_FN static inline
#endif

/* The first of a rank's rows, of m that so many ranks share: how rows are cut everywhere. */
IMX_TEAM_FN int64_t imx_team_row(int64_t m, int ranks, int rank)
{
    return rank * m / ranks;
}

/* The rank that has such a row. */
IMX_TEAM_FN int imx_team_owner(int64_t m, int ranks, int64_t row)
{
    return (int)(((row + 1) * ranks - 1) / m);
}

/* Where `holder` keeps what `giver` has read. */
IMX_TEAM_FN uint64_t *imx_team_credit(const imx_team *team, int holder, int giver)
{
    return (uint64_t *)team->base[holder] + giver;
}

IMX_TEAM_FN uint64_t *imx_team_signal(const imx_team *team, int holder, int64_t index)
{
    return (uint64_t *)(team->base[holder] + team->signals) + index;
}

IMX_TEAM_FN char *imx_team_data(const imx_team *team, int holder)
{
    return team->base[holder] + team->data;
}

#ifndef __CUDACC__
/* A block of a CPU kernel is through; the last of `blocks` ends the run: *at becomes its epoch, and
 * every peer gets this rank's credit for it.  GPUs: end.cuh. */
static inline void imx_team_end(const imx_team *team, uint64_t *at, uint64_t epoch, uint32_t *ended,
                                int32_t blocks)
{
    if (!imbrexd_counter_last(ended, (uint32_t)blocks))
        return;
    *at = epoch;
    for (int r = 0; r < team->size; r++) {
        if (r != team->rank)
            imbrexd_signal_post(imx_team_credit(team, r, team->rank), epoch);
    }
}
#endif

#endif /* IMX_TEAM_H */
