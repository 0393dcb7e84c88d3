/* launch.c - the attend kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"

void imx_attend_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { THREADS = 256, WARPS = THREADS / 32 }; /* sm80.cu */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_attend_args *args = largest;
    *config = (imx_cuda_config){
        .source = "kernels/attend/sm80.cu",
        .entry = "imx_attend",
        .blocks = blocks,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_DTYPE=%d -DIMX_CACHE=%d -DIMX_DIM=%d -DIMX_VALUES=%d", args->dtype, args->cache,
             args->head_dim, args->value_dim);
}

/* A block a split of a head of the cache, or a warp a state. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_attend_args *args = untyped;
    int64_t states = args->sequences * args->queries * args->heads;
    int64_t wanted = args->combines ? (states + WARPS - 1) / WARPS
                                    : args->sequences * args->kv_heads * args->splits;
    launch->blocks = wanted < config->blocks ? (int)wanted : config->blocks;
    launch->map_count = 0;
}

const imx_kernel imx_kernel_attend = {
    .name = "attend",
    .cpu = imx_attend_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
