/* end.cuh - the end of a run by its last kernel, where that kernel reaches the peers itself. */
#ifndef IMX_END_CUH
#define IMX_END_CUH

#include "team.h"

/* One warp a block, when all its threads that read the epoch, or what peers write, have done so:
 * the last block of the grid advances *at to `epoch` and gives every peer its credit. */
static __device__ __forceinline__ void imx_end_run(const imx_team *team, uint64_t *at,
                                                   uint64_t epoch, uint32_t *ended)
{
    int lane = (int)threadIdx.x % 32, last = 0;
    if (lane == 0)
        last = imbrexd_counter_last(ended, gridDim.x);
    last = __shfl_sync(0xffffffffu, last, 0);
    __syncwarp(); /* and the others see what lane 0 saw */
    if (!last)
        return;
    if (lane == 0)
        *(volatile uint64_t *)at = epoch;
    if (lane < team->size && lane != team->rank)
        imbrexd_signal_post(imx_team_credit(team, lane, team->rank), epoch);
}

#endif /* IMX_END_CUH */
