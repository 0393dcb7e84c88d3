/* launch.c - the merge kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"

void imx_merge_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_merge_cpu_scratch(const void *args);

enum { THREADS = 256, WARPS = THREADS / 32 }; /* sm80.cu */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_merge_args *args = largest;
    *config = (imx_cuda_config){
        .source = "kernels/merge/sm80.cu",
        .entry = "imx_merge",
        .blocks = blocks,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
    snprintf(config->options, sizeof config->options, "-DIMX_HOW=%d -DIMX_DTYPE=%d -DIMX_TO=%d",
             args->how, args->dtype, args->dtype_to);
}

/* A warp a state, or a block a unit; of what counts its epoch in each block, all. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_merge_args *args = untyped;
    int64_t states = args->rows * args->heads, wanted = (states + WARPS - 1) / WARPS;
    if (args->how == IMX_MERGE_STORES)
        wanted = (args->rows + args->unit_rows - 1) / args->unit_rows;
    if (args->how == IMX_MERGE_LL)
        wanted = config->blocks;
    launch->blocks = imx_cuda_blocks(config, wanted > 0 ? wanted : 1);
}

const imx_kernel imx_kernel_merge = {
    .name = "merge",
    .cpu = imx_merge_cpu,
    .cpu_scratch = imx_merge_cpu_scratch,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
