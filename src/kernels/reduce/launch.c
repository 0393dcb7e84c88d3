/* launch.c - the reduce kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/dtype.h"
#include "kernels/kernels.h"

void imx_reduce_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { THREADS = 512 };

/* One block a unit, though two would fit: it may run beside a product.  It must not start early:
 * its blocks would take the room of what starts the copies that it waits for. */
static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_reduce_args *args = largest;
    (void)target;
    *config = (imx_cuda_config){
        .source = "kernels/reduce/sm80.cu",
        .entry = "imx_reduce",
        .blocks = blocks,
        .cluster = 1,
        .threads = THREADS,
        .traces = true,
    };
    snprintf(config->options, sizeof config->options, "-DIMX_DTYPE=%d -DIMX_RANKS=%d", args->dtype,
             args->ranks);
}

/* Blocks only as long as each thread finds 16 bytes of a chunk to do. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_reduce_args *args = untyped;
    int64_t rows = args->rows < args->chunk_rows ? args->rows : args->chunk_rows;
    int64_t bytes = rows * args->n * imx_dtype_size(args->dtype);
    int64_t wanted = (bytes + 16 * THREADS - 1) / (16 * THREADS);
    launch->blocks = imx_cuda_blocks(config, wanted > 0 ? wanted : 1);
}

const imx_kernel imx_kernel_reduce = {
    .name = "reduce",
    .cpu = imx_reduce_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
