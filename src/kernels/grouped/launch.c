/* launch.c - the grouped kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/dtype.h"
#include "kernels/kernels.h"

void imx_grouped_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_grouped_cpu_scratch(const void *args);

/* A tile, of warps that make warp_rows x 32 of it, out of stages of tile_k columns of a. */
typedef struct shape {
    int rows, cols, warp_rows, tile_k, stages;
} shape;

/* Where experts have few rows reading b takes the time, and half a tile would be for nothing.  Sums
 * of f32 take twice the shared memory. */
static shape shape_of(const imx_grouped_args *args)
{
    static const shape few = { 64, 128, 32, 64, 3 }, many = { 128, 128, 64, 32, 4 },
                       f32 = { 64, 64, 32, 32, 3 };
    enum { FEW = 128 };
    if (args->dtype == IMBREX_F32)
        return f32;
    return args->expected <= FEW ? few : many;
}

static bool is_anywhere(const imx_grouped_args *args)
{
    int64_t element = (int64_t)imx_dtype_size(args->dtype);
    return args->k * element % 16 || (args->layout == IMBREX_KN && args->n * element % 16);
}

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_grouped_args *args = largest;
    shape s = shape_of(args);
    size_t row = (size_t)s.tile_k * imx_dtype_size(args->dtype);
    *config = (imx_cuda_config){
        .source = "kernels/grouped/sm80.cu",
        .entry = "imx_grouped",
        .blocks = blocks,
        .cluster = 1,
        .threads = s.rows / s.warp_rows * (s.cols / 32) * 32,
        .early = target->arch >= 90,
        .shared_bytes = (size_t)(s.stages * (s.rows + s.cols)) * row,
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_DTYPE=%d -DIMX_TILE_M=%d -DIMX_TILE_N=%d -DIMX_WARP_M=%d -DIMX_WARP_N=32 "
             "-DIMX_TILE_K=%d -DIMX_STAGES=%d -DIMX_SHARED_BYTES=%zu -DIMX_ALIGNED%s%s",
             args->dtype, s.rows, s.cols, s.warp_rows, s.tile_k, s.stages, config->shared_bytes,
             is_anywhere(args) ? " -DIMX_ANYWHERE" : "",
             args->layout == IMBREX_KN ? " -DIMX_B_KN" : "");
}

/* How many tiles there are, only the device knows. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    (void)untyped;
    launch->blocks = config->blocks;
    launch->map_count = 0;
}

const imx_kernel imx_kernel_grouped = {
    .name = "grouped",
    .cpu = imx_grouped_cpu,
    .cpu_scratch = imx_grouped_cpu_scratch,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
