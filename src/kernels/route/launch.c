/* launch.c - the route kernel's table row, and how it is launched on GPUs. */
#include "args.h"
#include "kernels/kernels.h"

void imx_route_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { THREADS = 1024 }; /* sm80.cu */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    (void)largest;
    *config = (imx_cuda_config){
        .source = "kernels/route/sm80.cu",
        .entry = "imx_route",
        .blocks = blocks,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
}

/* A block an expert, or as many as own pairs keep busy. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_route_args *args = untyped;
    int64_t pairs = (int64_t)args->tokens * args->top_k;
    int64_t wanted = args->step == IMX_ROUTE_PACKS ? (pairs + THREADS - 1) / THREADS : args->here;
    launch->blocks = imx_cuda_blocks(config, wanted > 0 ? wanted : 1);
}

const imx_kernel imx_kernel_route = {
    .name = "route",
    .cpu = imx_route_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
