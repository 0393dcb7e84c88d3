/* launch.c - the dispatch kernel's table row, and how it is launched on GPUs. */
#include "args.h"
#include "kernels/kernels.h"

void imx_dispatch_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { THREADS = 256, BLOCKS_A_UNIT = 4 }; /* sm80.cu: a block a token, or a row */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    (void)largest;
    *config = (imx_cuda_config){
        .source = "kernels/dispatch/sm80.cu",
        .entry = "imx_dispatch",
        .blocks = blocks * BLOCKS_A_UNIT,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
}

/* How many rows there are to take is only known on the device. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_dispatch_args *args = untyped;
    int64_t wanted = args->step == IMX_DISPATCH_SENDS ? args->most : config->blocks;
    launch->blocks = imx_cuda_blocks(config, wanted > 0 ? wanted : 1);
}

const imx_kernel imx_kernel_dispatch = {
    .name = "dispatch",
    .cpu = imx_dispatch_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
