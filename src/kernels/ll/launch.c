/* launch.c - the ll kernel's table row, and how it is launched on GPUs. */
#include <stdio.h>

#include "args.h"
#include "kernels/kernels.h"

void imx_ll_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_ll_cpu_scratch(const void *args);

/* Small blocks, so that shards of some KB are on many multiprocessors: each can send but a part of
 * what the links take.  Larger ones where there are no more multiprocessors, but for a few threads
 * that go round twice. */
enum { THREADS = 128, THREADS_MOST = 512 };

/* A thread has one unit of a piece, or some, as many as any other. */
enum { THREADS_ROWS = 576, THREADS_ROWS_LESS = 512, WARP = 32 }; /* less: of many registers */

static void rows_config(const imx_ll_args *args, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    int element = args->dtype == IMBREX_F32 ? 4 : 2;
    int64_t piece = (int64_t)imx_ll_piece_cols(args->norm.n, args->pieces) * element;
    bool cluster = target->arch >= 90 && args->pieces > 1 && args->pieces <= blocks;
    int together = cluster ? args->pieces : 1, rows = blocks / together;
    int64_t units = imx_ll_units(args->lines, piece < args->row_bytes ? piece : args->row_bytes);
    bool many = args->how == IMX_LL_FANS && args->ranks > 4;
    int64_t most = many ? THREADS_ROWS_LESS : THREADS_ROWS, rounds = (units + most - 1) / most;
    int threads = (int)(((units + rounds - 1) / rounds + WARP - 1) / WARP) * WARP;
    if (args->m < rows)
        rows = args->m > 1 ? (int)args->m : 1;
    *config = (imx_cuda_config){
        .source = "kernels/ll/sm80_rows.cu",
        .entry = "imx_ll_rows",
        .blocks = rows * together,
        .cluster = together,
        .threads = threads,
        .early = target->arch >= 90,
        .traces = true,
        .shared_bytes = (size_t)(2 * (args->pieces / together) * piece),
    };
    snprintf(config->options, sizeof config->options,
             "-DIMX_RANKS=%d -DIMX_LINES=%d -DIMX_THREADS=%d -DIMX_REDUCES=1 -DIMX_DTYPE=%d "
             "-DIMX_CLUSTER=%d%s",
             args->ranks, args->lines, threads, args->dtype, cluster,
             args->how == IMX_LL_FANS ? " -DIMX_FANS" : "");
}

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_ll_args *args = largest;
    if (args->norm.n) {
        rows_config(args, target, blocks, config);
        return;
    }
    int64_t units = imx_ll_units(args->lines, args->most);
    int threads = 2 * units > (int64_t)3 * blocks * THREADS ? THREADS_MOST : THREADS;
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
             args->ranks, args->lines, threads, args->how != IMX_LL_GATHERS,
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
