/* launch.c - the combine kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/dtype.h"
#include "kernels/kernels.h"

void imx_combine_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { THREADS = 512 }; /* sm80.cu */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_combine_args *args = largest;
    *config = (imx_cuda_config){
        .source = "kernels/combine/sm80.cu",
        .entry = "imx_combine",
        .blocks = blocks,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
    snprintf(config->options, sizeof config->options, "-DIMX_DTYPE=%d", args->dtype);
}

/* Blocks only as long as each thread finds 16 bytes to do. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_combine_args *args = untyped;
    int64_t vector = 16 / (int64_t)imx_dtype_size(args->dtype);
    int64_t units = args->tokens * ((args->n + vector - 1) / vector);
    int64_t wanted = (units + THREADS - 1) / THREADS;
    launch->blocks = wanted < config->blocks ? (int)(wanted > 0 ? wanted : 1) : config->blocks;
    launch->map_count = 0;
}

const imx_kernel imx_kernel_combine = {
    .name = "combine",
    .cpu = imx_combine_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
