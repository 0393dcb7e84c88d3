/* imbrex_device_kernel.h - how a kernel for imbrex_launch begins, once for CPUs and GPUs.  Include
 * imbrex_device.h, not this.
 *
 *     IMBREXD_KERNEL(name, args_type)       all threads of all blocks run what follows, with
 *     {                                         const args_type *args: what was launched with
 *         ...                                   const imbrexd_team *team: see imbrex_device.h
 *     }
 *
 *     int   imbrexd_block_index(), imbrexd_block_count()    this block, of so many
 *     void *imbrexd_shared()     the block's own desc.shared_bytes, aligned to 64; not zeroed
 *
 * Before imbrex_device.h, IMBREXD_THREADS may say how many threads a block has at most: the fewer,
 * the more registers each may have. */
#ifndef IMBREX_DEVICE_KERNEL_H
#define IMBREX_DEVICE_KERNEL_H

#ifndef IMBREXD_THREADS
#define IMBREXD_THREADS 1024
#endif

/* A block is through; the last one counts the launch (imbrexd_epoch).  The counter lies behind the
 * epoch, which says 1 before the first launch. */
IMBREXD_FN void imbrexd_kernel_end(const imbrexd_team *team, int blocks)
{
    uint64_t *epoch = (uint64_t *)team->epoch;
    imbrexd_sync_block();
    if (imbrexd_thread() == 0 && imbrexd_counter_last((uint32_t *)(epoch + 1), (uint32_t)blocks))
        *epoch += 1; /* read next by a kernel that comes after this one, in stream order */
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

IMBREXD_FN int imbrexd_block_index(void)
{
    return (int)blockIdx.x;
}

IMBREXD_FN int imbrexd_block_count(void)
{
    return (int)gridDim.x;
}

IMBREXD_FN void *imbrexd_shared(void)
{
    extern __shared__ __align__(128) char imbrexd_shared_bytes[];
    return imbrexd_shared_bytes;
}

/* The array is there for its size, which the host asks the module for. */
#define IMBREXD_KERNEL(name, args_type)                                                         \
    static __device__ __forceinline__ void name##_body(const args_type *args,                   \
                                                       const imbrexd_team *team);               \
    extern "C" {                                                                                \
    __device__ char imbrexd_args_##name[sizeof(args_type)];                                     \
    }                                                                                           \
    extern "C" __global__ void __launch_bounds__(IMBREXD_THREADS, 1)                            \
        name(const __grid_constant__ args_type args, const __grid_constant__ imbrexd_team team) \
    {                                                                                           \
        name##_body(&args, &team);                                                              \
        imbrexd_kernel_end(&team, (int)gridDim.x);                                              \
    }                                                                                           \
    static __device__ __forceinline__ void name##_body(const args_type *args,                   \
                                                       const imbrexd_team *team)

#else

/* A kernel as the CPU backend finds it. */
typedef struct imbrexd_entry {
    void (*run)(const void *args, const imbrexd_team *team, const imbrexd_block *block);
    size_t args_bytes;
    int threads_most;
    const imbrexd_checker **checker;
    const struct imbrexd_hooks *hooks; /* of a product, imbrex_gemm.h; then run is NULL */
} imbrexd_entry;

/* Where this thread is. */
static __thread const imbrexd_block *imbrexd_here;

/* A kernel begins: of ranks that are far it has not asked yet, and it is in no hook. */
IMBREXD_FN void imbrexd_enter(const imbrexd_block *block)
{
    imbrexd_here = block;
    imbrexd_far.watch.abort = NULL;
    imbrexd_hooked.team = NULL;
}

IMBREXD_FN int imbrexd_block_index(void)
{
    return imbrexd_here->index;
}

IMBREXD_FN int imbrexd_block_count(void)
{
    return imbrexd_here->count;
}

/* What a hook gets, which may have none, once the group has failed for it: as much as GPUs have. */
static char imbrexd_not_shared[232448] __attribute__((aligned(64)));

IMBREXD_FN void *imbrexd_shared(void)
{
    imbrexd_together(IMBREXD_CALLED_BY_BLOCK);
    return imbrexd_hooked.team ? imbrexd_not_shared : imbrexd_here->scratch;
}

#ifdef __cplusplus
#define IMBREXD_EXTERN extern "C"
#else
#define IMBREXD_EXTERN extern
#endif

#define IMBREXD_ENTRY(name) (&imbrexd_entry_##name)
#define IMBREXD_KERNEL(name, args_type)                                                            \
    static void name##_body(const args_type *args, const imbrexd_team *team);                      \
    static void name##_run(const void *args, const imbrexd_team *team, const imbrexd_block *block) \
    {                                                                                              \
        imbrexd_enter(block);                                                                      \
        name##_body((const args_type *)args, team);                                                \
        imbrexd_kernel_end(team, block->count);                                                    \
    }                                                                                              \
    IMBREXD_EXTERN IMBREX_API const imbrexd_entry imbrexd_entry_##name;                            \
    IMBREX_API const imbrexd_entry imbrexd_entry_##name = { name##_run, sizeof(args_type),         \
                                                            IMBREXD_THREADS, &imbrexd_own_checker, \
                                                            NULL };                                \
    static void name##_body(const args_type *args, const imbrexd_team *team)

#endif

#endif /* IMBREX_DEVICE_KERNEL_H */
