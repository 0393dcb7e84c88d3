/* launch.c - the dispatch kernel's table row, and how it is launched on GPUs. */
#include "args.h"
#include "kernels/kernels.h"

void imx_dispatch_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { THREADS = 256, BLOCKS_A_UNIT = 4 }; /* a block a token */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    (void)largest;
    *config = (imx_cuda_config){
        .source = target->arch >= 90 ? "kernels/dispatch/sm90.cu" : "kernels/dispatch/sm80.cu",
        .entry = "imx_dispatch",
        .blocks = blocks * BLOCKS_A_UNIT,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
}

static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_dispatch_args *args = untyped;
    launch->blocks =
        imx_cuda_blocks(config, imx_dispatch_tokens(args) > 0 ? imx_dispatch_tokens(args) : 1);
}

const imx_kernel imx_kernel_dispatch = {
    .name = "dispatch",
    .cpu = imx_dispatch_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
