/* launch.c - the ll kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"

void imx_ll_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_ll_cpu_scratch(const void *args);

/* At most, of a form of many registers; and else. */
enum { WARP = 32, THREADS_MOST = 512, THREADS_MOST_ROWS = 576 };

/* The fewest with which each has one of a block's units, or some, as many as any other. */
static int even_threads(int64_t units, int most)
{
    int64_t rounds = (units + most - 1) / most;
    return (int)(((units + rounds - 1) / rounds + WARP - 1) / WARP) * WARP;
}

static void rows_config(const imx_ll_args *args, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    int element = args->dtype == IMBREX_F32 ? 4 : 2;
    int64_t piece = (int64_t)args->piece_cols * element;
    bool cluster = target->arch >= 90 && args->pieces > 1 && args->pieces <= blocks;
    int rooms = args->how == IMX_LL_FANS ? 3 : 2; /* rows, and gamma */
    int together = cluster ? args->pieces : 1, rows = blocks / together;
    int64_t units = imx_ll_units(args->lines, piece < args->row_bytes ? piece : args->row_bytes);
    int most = args->ranks > 4 ? THREADS_MOST : THREADS_MOST_ROWS;
    if (args->m < rows)
        rows = args->m > 1 ? (int)args->m : 1;
    *config = (imx_cuda_config){
        .source = "kernels/ll/sm80_rows.cu",
        .entry = "imx_ll_rows",
        .blocks = rows * together,
        .cluster = together,
        .threads = even_threads(units, most),
        .early = target->arch >= 90,
        .traces = true,
        .shared_bytes = (size_t)(rooms * (args->pieces / together) * piece),
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_RANKS=%d -DIMX_LINES=%d -DIMX_THREADS=%d -DIMX_REDUCES=1 -DIMX_DTYPE=%d "
             "-DIMX_CLUSTER=%d%s",
             args->ranks, args->lines, most, args->dtype, cluster,
             args->how == IMX_LL_FANS ? " -DIMX_FANS" : "");
}

/* Small blocks, so that shards of some KB are on many multiprocessors: each can send but a part of
 * what the links take.  Larger ones where there are no more multiprocessors, all of one size. */
static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_ll_args *args = largest;
    if (args->norm.n) {
        rows_config(args, target, blocks, config);
        return;
    }
    static const int least = 128;
    int64_t units = imx_ll_units(args->lines, args->most);
    int even = even_threads((units + blocks - 1) / blocks, THREADS_MOST);
    int threads = even > least ? even : least;
    int64_t wanted = (units + threads - 1) / threads;
    *config = (imx_cuda_config){
        .source = "kernels/ll/sm80.cu",
        .entry = "imx_ll",
        .blocks = wanted < blocks ? (int)wanted : blocks,
        .cluster = 1,
        .threads = threads,
        .early = target->arch >= 90,
        .traces = true,
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_RANKS=%d -DIMX_LINES=%d -DIMX_THREADS=%d -DIMX_REDUCES=%d -DIMX_DTYPE=%d%s",
             args->ranks, args->lines, THREADS_MOST, args->how != IMX_LL_GATHERS,
             args->how != IMX_LL_GATHERS ? args->dtype : IMBREX_BF16,
             args->how == IMX_LL_FANS ? " -DIMX_FANS" : "");
}

const imx_kernel imx_kernel_ll = {
    .name = "ll",
    .cpu = imx_ll_cpu,
    .cpu_scratch = imx_ll_cpu_scratch,
    .cuda_config = cuda_config,
    .cuda_launch = imx_cuda_launch_all,
};
