/* sm90.cu - the attend kernel on Hopper, for caches that its copy engine can read: as sm80.cu, and
 *
 *     IMX_THREADS of a block that weigh, four warps, of MLA eight; one more loads, and one counts
 *                 splits, but of MLA
 *     IMX_SLOTS   of the ring         IMX_BOX      tokens in a row of one page: 16 or 64
 *     IMX_RUNS    of MLA: blocks may take runs of splits
 *     IMX_SHARED_BYTES
 *
 * A block takes a split of a sequence, for one head of the cache and a piece of its rows of q, then
 * the next. */
#include "sm80_where.cuh"

#if IMX_DIM != IMX_VALUES
#include "sm90_mla.cuh"
#else
#include "sm90_tensor.cuh"

extern "C" __global__ void __launch_bounds__(IMX_THREADS + 2 * LANES, IMX_BESIDE)
    imx_attend(const __grid_constant__ imx_attend_args args,
               const __grid_constant__ imbrexd_watch watch,
               const __grid_constant__ attend_maps maps)
{
    heads &h = *(heads *)((char *)imx_attend_shared + HEADS_AT);
    int warp = (int)threadIdx.x / LANES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < IMX_SLOTS; i++) {
            mbar_init(at_shared(&h.slots.full[i]), 1 + LANES);
            mbar_init(at_shared(&h.slots.empty[i]), WARPS);
        }
        h.end.ended = h.end.counted = h.end.all = 0;
        h.end.added_to = h.end.taken = h.end.is_over = 0;
        mbar_init(at_shared(&h.end.read), WARPS);
        mbar_init_fence();
    }
    if (warp == WARPS && threadIdx.x % LANES < 2)
        tma_prefetch_map(threadIdx.x % LANES ? &maps.v : &maps.k);
    __syncthreads();
    imx_grid_wait();
    imx_grid_let_go();
    if (warp == WARPS)
        load_all(args, watch, maps, &h);
    else if (warp > WARPS)
        count_all(args, &h);
    else
        attend_all(args, &h);
}
#endif
