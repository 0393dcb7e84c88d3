/* launch.c - the norm kernel's table row, and how it is launched on GPUs. */
#include "args.h"
#include "kernels/kernels.h"

/* Two segments a warp, so that the longest row is in the registers of one block. */
enum { THREADS = IMX_NORM_COLUMNS / IMX_NORM_SEGMENT / 2 * IMX_NORM_LANES };

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    (void)largest;
    *config = (imx_cuda_config){
        .source = "kernels/norm/sm80.cu",
        .entry = "imx_norm",
        .blocks = blocks,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
}

static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_norm_args *args = untyped;
    launch->blocks = imx_cuda_blocks(config, args->rows);
}

const imx_kernel imx_kernel_norm = {
    .name = "norm",
    .cpu = imx_norm_cpu,
    .cpu_scratch = imx_norm_cpu_scratch,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
