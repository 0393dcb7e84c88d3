/* launch.c - the combine kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"

void imx_combine_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

/* sm80.cu, sm90.cu: a block a token */
enum { THREADS = 256, THREADS_SM90 = 288, BLOCKS_A_UNIT = 4 };

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_combine_args *args = largest;
    bool hopper = target->arch >= 90;
    *config = (imx_cuda_config){
        .source = hopper ? "kernels/combine/sm90.cu" : "kernels/combine/sm80.cu",
        .entry = "imx_combine",
        .blocks = blocks * BLOCKS_A_UNIT,
        .cluster = 1,
        .threads = hopper ? THREADS_SM90 : THREADS,
        .early = hopper,
    };
    snprintf(config->options, sizeof config->options, "-DIMX_DTYPE=%d", args->dtype);
}

static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_combine_args *args = untyped;
    launch->blocks = imx_cuda_blocks(config, args->tokens > 0 ? args->tokens : 1);
}

const imx_kernel imx_kernel_combine = {
    .name = "combine",
    .cpu = imx_combine_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
