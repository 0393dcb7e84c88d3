/* launch.c - the combine_ll kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"

void imx_combine_ll_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { THREADS = 512 }; /* sm80.cu: a warp a piece of a token */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_combine_ll_args *args = largest;
    *config = (imx_cuda_config){
        .source = "kernels/combine_ll/sm80.cu",
        .entry = "imx_combine_ll",
        .blocks = blocks,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
    snprintf(config->options, sizeof config->options, "-DIMX_DTYPE=%d", args->combine.dtype);
}

const imx_kernel imx_kernel_combine_ll = {
    .name = "combine_ll",
    .cpu = imx_combine_ll_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = imx_cuda_launch_all,
};
