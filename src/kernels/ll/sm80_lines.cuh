/* sm80_lines.cuh - lines (args.h) that whole warps send and take, on NVIDIA GPUs, for kernels whose
 * units are not those of one shard. */
#ifndef IMX_LL_SM80_LINES_CUH
#define IMX_LL_SM80_LINES_CUH

#define IMX_LINES 1
#include "sm80_units.cuh"

/* Lines lie at multiples of 128 bytes. */
LL_FN bool ends_line(const imx_ll_unit *at)
{
    return ((uintptr_t)at & 127) == 112;
}

/* A lane's units, looked at together; NULL: none. */
template <int COUNT> struct imx_ll_units_of {
    const imx_ll_unit *at[COUNT];
    imx_ll_unit unit[COUNT];
};

/* By a warp, of which 8 lanes have a line's units: one instruction reads them all, so that what one
 * of them saw of the epoch is true of the line. */
template <int COUNT> LL_FN int look_lines(imx_ll_units_of<COUNT> &u, uint64_t epoch)
{
    int there = 1;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        if (u.at[j])
            u.unit[j] = load_unit(u.at[j]);
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        if (u.at[j] && ends_line(u.at[j]))
            there &= u.unit[j].second == epoch;
    }
    return __all_sync(0xffffffffu, there);
}

/* The same until all are there, with an eye on the clock; 0: give up.  point(at): what a wait for
 * that unit waits for. */
template <int COUNT, typename point_of>
LL_FN int take_lines(imx_ll_units_of<COUNT> &u, uint64_t epoch, const imbrexd_watch &watch,
                     const point_of &point)
{
#pragma unroll 1
    for (int looks = 0; !look_lines(u, epoch); looks++) {
        int there = 1;
        if (looks < IMX_TEAM_LOOKS)
            continue;
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            if (there && u.at[j] && ends_line(u.at[j]))
                there = imbrexd_signal_wait(&watch, &u.at[j]->second, epoch, point(u.at[j]));
        }
        if (!__all_sync(0xffffffffu, there))
            return 0;
    }
    return 1;
}

#endif /* IMX_LL_SM80_LINES_CUH */
