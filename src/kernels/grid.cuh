/* grid.cuh - how a kernel meets those before and after it on its stream where it is launched early
 * (imx_cuda_config.early): its blocks may start while the last ones of the kernel before run. */
#ifndef IMX_GRID_CUH
#define IMX_GRID_CUH

/* All threads, before they touch memory that other kernels write or read: until the kernel before
 * has ended.  Nothing where the launch was an ordinary one. */
static __device__ __forceinline__ void imx_grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

/* The kernel after may start its blocks where there is room; it waits for this one's end itself. */
static __device__ __forceinline__ void imx_grid_let_go(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

#endif /* IMX_GRID_CUH */
