/* sm90_entry.cuh - the kernel itself, behind the consume() of sm90.cu or sm90_eight.cu: makes the
 * barriers, lists the first tiles, and sends each warp to its work. */
#ifndef IMX_SM90_ENTRY_CUH
#define IMX_SM90_ENTRY_CUH

/* The producer's four warps.  What they have read, peers may write again when the block has counted
 * as ended: beneath its last products, or the sum of its last tile, which is 2 us sooner than
 * behind them. */
IMX_FN void producers_meet(void)
{
    asm volatile("bar.sync 4, 128;" : : : "memory");
}

/* Whether a block has ended when its last loads have come. */
IMX_FN bool ends_with_loads(const imx_gemm_args &args)
{
    return prologue::ENDS_RUN || epilogue::ends_with_loads(args);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if IMX_SPLIT > 1 || IMX_CLUSTER_M > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
        imx_gemm(const __grid_constant__ prologue::params params,
                 const __grid_constant__ imbrexd_watch watch,
                 const __grid_constant__ imx_gemm_maps maps)
{
    const imx_gemm_args &args = (const imx_gemm_args &)params; /* which come first */
    uint32_t base = shared_base();
    if (threadIdx.x == 0) {
        gave_up_here() = 0;
        epilogue::init();
        prologue::init();
        tma_prefetch_map(&maps.a);
        tma_prefetch_map(&maps.b);
        if (!epilogue::SENDS && !TURNED)
            tma_prefetch_map(epilogue::first_map(args, maps.more));
        for (uint32_t i = 0; i < IMX_STAGES; i++) {
            mbar_init(full_of(base, i), 1);
            mbar_init(empty_of(base, i), CONSUMERS / TURNS * IMX_CLUSTER_M + prologue::READERS);
        }
        for (uint32_t i = 0; i < CONSUMERS * 4 && SPLIT > 1; i++) {
            mbar_init(sums_of(base, i), 1);
            mbar_init(room_of(base, i), SPLIT - 1);
        }
        for (uint32_t i = 0; i < TURNS && TURNS == 2; i++)
            mbar_init(turn_of(base, i), 1);
        mbar_init_fence();
    } else if (threadIdx.x / 32 == 1 && !prologue::lists_late()) {
        list_first(args);
    }
    if (CLUSTER > 1)
        cluster_barrier();
    else
        __syncthreads();
    if (!prologue::lists_late() && threadIdx.x == 0)
        prefetch_b(args, maps);
    imx_grid_wait();
    imx_grid_let_go();
    imx_trace_open();
    if (prologue::lists_late()) {
        if (threadIdx.x / 32 == 1)
            list_first(args);
        __syncthreads();
    }

    if (threadIdx.x < 128) {
        if (CONSUMERS > 1)
            reg_less(PRODUCER_REGISTERS);
        if (threadIdx.x < PRODUCERS)
            produce(args, &watch, maps);
        else if (threadIdx.x >= 32 &&
                 !(prologue::beside(args, &watch, maps.more + epilogue::MAPS) &&
                   epilogue::beside(args, &watch)))
            gave_up_here() = 1;
        if (ENDS_EARLY) {
            producers_meet();
            if (threadIdx.x < 32 && ends_with_loads(args) && !gave_up_here())
                epilogue::end(args);
        }
    } else {
        if (CONSUMERS > 1)
            reg_more(CONSUMER_REGISTERS);
        consume(args, &watch, maps, (int)threadIdx.x / 128 - 1);
    }
    if (CLUSTER > 1)
        cluster_barrier(); /* other blocks still arrive at barriers here */
    if (ENDS_LATE) {
        if (CLUSTER == 1)
            __syncthreads();
        if (threadIdx.x < 32 && !ends_with_loads(args) && !gave_up_here())
            epilogue::end(args);
    }
    imx_trace_close();
}

#endif /* IMX_SM90_ENTRY_CUH */
