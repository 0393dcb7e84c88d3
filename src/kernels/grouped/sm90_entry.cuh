/* sm90_entry.cuh - the grouped kernels for Hopper, as they are launched; who includes it defines
 * consume, what a consumer does. */
#ifndef IMX_GROUPED_SM90_ENTRY_CUH
#define IMX_GROUPED_SM90_ENTRY_CUH

#include "sm90_ring.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imx_grouped(const __grid_constant__ imx_grouped_args args,
                const __grid_constant__ imbrexd_watch watch,
                const __grid_constant__ imx_grouped_maps maps)
{
    uint32_t base = shared_base();
    note *notes = (note *)(shared + NOTES_AT);
    int32_t *before = (int32_t *)(shared + BEFORE_AT);
    int64_t columns = (args.n + IMX_TILE_N - 1) / IMX_TILE_N;
    if (threadIdx.x == 0) {
        tma_prefetch_map(&maps.b);
        for (uint32_t i = 0; i < IMX_STAGES; i++) {
            mbar_init(full_of(base, i), PRODUCERS + 1);
            mbar_init(empty_of(base, i), CONSUMERS * 4);
        }
        mbar_init_fence();
    }
    imx_grid_wait();
    imx_grid_let_go();
    count_tiles(args, before);
    uint32_t tiles = (uint32_t)(before[segments_of(args)] * columns);
    if (threadIdx.x < 2 && blockIdx.x + threadIdx.x * gridDim.x < tiles)
        notes[threadIdx.x] = tile_at(args, before, columns, blockIdx.x + threadIdx.x * gridDim.x);
    __syncthreads();

    if (threadIdx.x < PRODUCERS) {
#if IMX_TILE_M > 64
        reg_less(PRODUCER_REGISTERS);
#endif
        produce(args, &watch, maps, notes, before, columns, tiles);
    } else {
#if IMX_TILE_M > 64
        reg_more(CONSUMER_REGISTERS);
#endif
        consume(args, tiles);
    }
}

#endif /* IMX_GROUPED_SM90_ENTRY_CUH */
