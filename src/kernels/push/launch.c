/* launch.c - the push kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"

void imx_push_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_push_cpu_scratch(const void *args);

/* Small blocks for lines, so that shards of some KB are on many multiprocessors.  And a warp that
 * keeps the books. */
enum { WORKERS_LINES = 192, WORKERS_CHUNKS = 512, BOOKS = 32 };

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_push_args *args = largest;
    int workers = args->lines ? WORKERS_LINES : WORKERS_CHUNKS;
    *config = (imx_cuda_config){
        .source = "kernels/push/sm80.cu",
        .entry = "imx_push",
        .blocks = blocks,
        .cluster = 1,
        .threads = workers + (args->norm.n ? 0 : BOOKS),
        .early = target->arch >= 90,
        .traces = true,
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_DTYPE=%d -DIMX_RANKS=%d -DIMX_HOW=%d -DIMX_WORKERS=%d%s",
             args->how == IMX_PUSH_REDUCES || args->norm.n ? args->dtype : IMBREX_BF16, args->ranks,
             args->how, workers, args->norm.n ? " -DIMX_NORMS" : "");
}

/* Blocks only as long as each thread finds a word to do, or each block a chunk. */
static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_push_args *args = untyped;
    int64_t workers = config->threads - BOOKS;
    int64_t each = args->lines ? workers * IMX_PUSH_WORD : args->chunk_bytes;
    int64_t wanted = (args->most + each - 1) / each;
    launch->blocks = imx_cuda_blocks(config, wanted > 0 ? wanted : 1);
}

const imx_kernel imx_kernel_push = {
    .name = "push",
    .cpu = imx_push_cpu,
    .cpu_scratch = imx_push_cpu_scratch,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
