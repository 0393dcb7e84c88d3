/* launch.c - the attend kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"

void imx_attend_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { PLAIN_THREADS = 256, TENSOR_WARPS = 4, TOKENS = 16 }; /* sm80_tensor.cuh */
enum { STAGES_LEAST = 2, STAGES_MOST = 6, STAGES_WANTED = 3 };
enum { OWN_BYTES = 3 << 10, BLOCK_BYTES = 1 << 10 }; /* declared; and of a block, the driver's */

/* How many tiles of each warp a block's memory has room for. */
static int stages_of(const imx_attend_args *args, size_t bytes)
{
    size_t row = (size_t)args->head_dim * 2, q = IMX_ATTEND_ROWS * row;
    size_t sums = IMX_ATTEND_ROWS * ((size_t)args->head_dim + 8) * sizeof(float);
    size_t fixed = q + sums + OWN_BYTES, stage = TENSOR_WARPS * 2 * TOKENS * row;
    size_t stages = bytes > fixed ? (bytes - fixed) / stage : 0;
    return stages < STAGES_MOST ? (int)stages : STAGES_MOST;
}

static size_t tensor_bytes(const imx_attend_args *args, int stages)
{
    size_t row = (size_t)args->head_dim * 2;
    return (size_t)stages * TENSOR_WARPS * 2 * TOKENS * row + IMX_ATTEND_ROWS * row +
           IMX_ATTEND_ROWS * ((size_t)args->head_dim + 8) * sizeof(float);
}

/* Tiles under way, and blocks of an SM; 0: by plain arithmetic. */
static int choose(const imx_attend_args *args, const imx_cuda_target *target, int *beside)
{
    bool takes = args->dtype != IMBREX_F32 && args->cache == args->dtype &&
                 args->head_dim == args->value_dim;
    size_t all = target->shared_bytes_most + BLOCK_BYTES;
    int stages = takes ? stages_of(args, all / 2 - BLOCK_BYTES) : 0;
    *beside = 2;
    if (stages >= STAGES_WANTED)
        return stages;
    *beside = 1;
    stages = takes ? stages_of(args, target->shared_bytes_most) : 0;
    return stages >= STAGES_LEAST ? stages : 0;
}

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_attend_args *args = largest;
    int beside, stages = choose(args, target, &beside);
    *config = (imx_cuda_config){
        .source = "kernels/attend/sm80.cu",
        .entry = "imx_attend",
        .blocks = blocks,
        .cluster = 1,
        .threads = stages ? TENSOR_WARPS * 32 : PLAIN_THREADS,
        .early = target->arch >= 90,
        .shared_bytes = stages ? tensor_bytes(args, stages) : 0,
        .kept = { beside },
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_DTYPE=%d -DIMX_CACHE=%d -DIMX_DIM=%d -DIMX_VALUES=%d -DIMX_THREADS=%d "
             "-DIMX_STAGES=%d -DIMX_BESIDE=%d",
             args->dtype, args->cache, args->head_dim, args->value_dim, config->threads, stages,
             beside);
}

/* A block a split of a head of the cache: blocks do not wait for each other. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_attend_args *args = untyped;
    int64_t wanted = imx_attend_counts(args) * args->splits;
    int64_t most = (int64_t)config->blocks * config->kept[0];
    launch->blocks = (int)(wanted < most ? wanted : most);
    launch->map_count = 0;
}

const imx_kernel imx_kernel_attend = {
    .name = "attend",
    .cpu = imx_attend_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
