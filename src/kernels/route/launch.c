/* launch.c - the route kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"
#include "sm90_shape.h"

void imx_route_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { THREADS = 1024 }; /* sm80.cu */

static int64_t pairs_of(const imx_route_args *args)
{
    return (int64_t)args->tokens * args->top_k;
}

/* ---- Hopper, of many pairs ------------------------------------------------------------------- */

enum { PAIRS_LEAST = 8192, CLUSTERS_MOST = 4, EXPERTS_LEAST = 32 };

/* More than half of a GPU's, so that no other rank is on it: the kernel of one that waits for this
 * rank's routing may hold so many SMs of each GPC that there is no room for a cluster. */
enum { SMS_LEAST = 96 };

/* Few forms are to be compiled. */
static int experts_of_form(const imx_route_args *args)
{
    int experts = EXPERTS_LEAST;
    while (experts < args->here)
        experts *= 2;
    return experts;
}

static bool is_for_cluster(const imx_route_args *args, const imx_cuda_target *target, int blocks)
{
    return target->arch >= 90 && pairs_of(args) >= PAIRS_LEAST && blocks >= SMS_LEAST &&
           (size_t)IMX_ROUTE_SHARED(experts_of_form(args)) <= target->shared_bytes_most;
}

static void config_cluster(const imx_route_args *args, imx_cuda_config *config)
{
    int experts = experts_of_form(args);
    *config = (imx_cuda_config){
        .source = "kernels/route/sm90.cu",
        .entry = "imx_route",
        .blocks = CLUSTERS_MOST * IMX_ROUTE_CLUSTER,
        .cluster = IMX_ROUTE_CLUSTER,
        .threads = IMX_ROUTE_WARPS * 32,
        .early = true,
        .shared_bytes = (size_t)IMX_ROUTE_SHARED(experts),
    };
    snprintf(config->options, sizeof config->options, "-DIMX_EXPERTS=%d", experts);
}

/* ---- the row --------------------------------------------------------------------------------- */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    if (is_for_cluster(largest, target, blocks)) {
        config_cluster(largest, config);
        return;
    }
    *config = (imx_cuda_config){
        .source = "kernels/route/sm80.cu",
        .entry = "imx_route",
        .blocks = blocks,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
}

/* A block an expert, or as many as own pairs keep busy; or all. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_route_args *args = untyped;
    int64_t packing = (pairs_of(args) + THREADS - 1) / THREADS;
    int64_t wanted = args->step == IMX_ROUTE_PACKS ? packing : args->here;
    launch->blocks =
        config->cluster > 1 ? config->blocks : imx_cuda_blocks(config, wanted > 0 ? wanted : 1);
}

const imx_kernel imx_kernel_route = {
    .name = "route",
    .cpu = imx_route_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
