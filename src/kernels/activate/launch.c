/* launch.c - the activate kernel's table row, and how it is launched on GPUs. */
#include "args.h"
#include "kernels/dtype.h"
#include "kernels/kernels.h"
#include "kernels/scale.h"

void imx_activate_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { THREADS = 512, BLOCKS_A_UNIT = 2 };

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    (void)largest;
    *config = (imx_cuda_config){
        .source = "kernels/activate/sm80.cu",
        .entry = "imx_activate",
        .blocks = blocks * BLOCKS_A_UNIT,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
    };
}

/* Blocks only as long as each thread finds 16 bytes to do, or its part of what 16 threads scale; a
 * row's scale is one block's. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_activate_args *args = untyped;
    int64_t bytes = args->rows * args->cols * imx_dtype_size(args->dtype);
    int64_t wanted = (bytes + 16 * THREADS - 1) / (16 * THREADS);
    int64_t scaled = args->rows * ((args->cols + IMX_SCALE_BLOCK - 1) / IMX_SCALE_BLOCK);
    if (args->quant)
        wanted = args->quant == IMBREX_PER_ROW ? args->rows
                                               : (scaled + THREADS / 16 - 1) / (THREADS / 16);
    launch->blocks = imx_cuda_blocks(config, wanted);
}

const imx_kernel imx_kernel_activate = {
    .name = "activate",
    .cpu = imx_activate_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
