/* sm90_entry.cuh - the kernel itself, behind the consume() of sm90.cu or sm90_eight.cu: makes the
 * barriers, lists the first tiles, and sends each warp to its work. */
#ifndef IMX_SM90_ENTRY_CUH
#define IMX_SM90_ENTRY_CUH

#ifdef IMX_HOOKS
#define IMX_PARAMS imx_gemm_user_args
#else
#define IMX_PARAMS imx_gemm_args
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if defined(IMX_SPLIT) || IMX_CLUSTER_M > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
        imx_gemm(const __grid_constant__ IMX_PARAMS params,
                 const __grid_constant__ imbrexd_watch watch,
                 const __grid_constant__ imx_gemm_maps maps)
{
    const imx_gemm_args &args = (const imx_gemm_args &)params; /* which come first */
    uint32_t base = shared_base();
    if (threadIdx.x == 0) {
        gave_up_here() = 0;
#ifdef IMX_CREDITS
        credits_init();
#endif
#ifdef IMX_PASS
        slices_init();
#endif
#ifdef IMX_BULK
        push_init();
#endif
#ifdef IMX_REDUCE_PULL
        collect_init();
#endif
#ifdef IMX_EPILOGUE_REDUCE
        for (int i = 0; i < CONSUMERS * 4; i++)
            words().stored[i] = 0;
#endif
        tma_prefetch_map(&maps.a);
        tma_prefetch_map(&maps.b);
        if (!REDUCE_PUSH && !TURNED)
            tma_prefetch_map(&maps.c[SCATTER_PUSH ? args.schedule.first : 0]);
        for (uint32_t i = 0; i < IMX_STAGES; i++) {
            mbar_init(full_of(base, i), 1);
            mbar_init(empty_of(base, i), CONSUMERS / TURNS * IMX_CLUSTER_M + FORWARDERS);
        }
#ifdef IMX_RING
        ring_init();
#endif
#ifdef IMX_SPLIT
        for (uint32_t i = 0; i < 2 * CONSUMERS * 4; i++)
            mbar_init(halves_of(base, i), 1);
#endif
        for (uint32_t i = 0; i < TURNS && TURNS == 2; i++)
            mbar_init(turn_of(base, i), 1);
        mbar_init_fence();
    } else if (threadIdx.x / 32 == 1 && !HOOKS) {
        list_first(args);
    }
    if (CLUSTER > 1)
        cluster_barrier();
    else
        __syncthreads();
    if (!HOOKS && threadIdx.x == 0)
        prefetch_b(args, maps);
    imx_grid_wait();
    imx_grid_let_go();
    imx_trace_open();
    if (HOOKS) { /* the caller's order may depend on what the kernel ahead wrote */
        if (threadIdx.x / 32 == 1)
            list_first(args);
        __syncthreads();
    }

    if (threadIdx.x < 128) {
#if IMX_CONSUMERS > 1
        reg_less(PRODUCER_REGISTERS);
#endif
        if (threadIdx.x < PRODUCERS)
            produce(args, &watch, maps);
#ifdef IMX_RING
        else if (threadIdx.x == 32)
            forward(args, &watch, maps.pass);
        else if (threadIdx.x == 64)
            scout(args, &watch);
#endif
#ifdef IMX_HOOK_BESIDE
        else if (threadIdx.x >= 32 && !hook_beside(args, &watch))
            gave_up_here() = 1;
#endif
#ifdef IMX_ENDS_EARLY
        producers_meet();
        if (threadIdx.x < 32 && ends_with_loads(args) && !gave_up_here())
            hook_end(args);
#endif
    } else {
#if IMX_CONSUMERS > 1
        reg_more(CONSUMER_REGISTERS);
#endif
        consume(args, &watch, maps, (int)threadIdx.x / 128 - 1);
    }
    if (CLUSTER > 1)
        cluster_barrier(); /* the other block still arrives at barriers here */
#if defined(IMX_TEAM) && !defined(IMX_READS)
    else
        __syncthreads();
    if (threadIdx.x < 32 && !ends_with_loads(args) && !gave_up_here())
        hook_end(args);
#endif
    imx_trace_close();
}

#endif /* IMX_SM90_ENTRY_CUH */
