/* launch.c - the combine_parts kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"

void imx_combine_parts_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { THREADS = 1024 }; /* sm80.cu: a warp a token */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_combine_parts_args *args = largest;
    *config = (imx_cuda_config){
        .source = "kernels/combine_parts/sm80.cu",
        .entry = "imx_combine_parts",
        .blocks = args->blocks && args->blocks < blocks ? args->blocks : blocks,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
    snprintf(config->options, sizeof config->options, "-DIMX_DTYPE=%d", args->combine.dtype);
}

const imx_kernel imx_kernel_combine_parts = {
    .name = "combine_parts",
    .cpu = imx_combine_parts_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = imx_cuda_launch_all,
};
