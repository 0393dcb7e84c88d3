/* launch.c - the dispatch_ll kernel's table row, and how it is launched on GPUs. */
#include "args.h"
#include "kernels/kernels.h"

void imx_dispatch_ll_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_dispatch_ll_cpu_scratch(const void *args);

enum { THREADS = 512 }; /* sm80.cu */

/* Two bytes a pair. */
static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    const imx_dispatch_ll_args *args = largest;
    size_t pairs =
        (size_t)args->dispatch.ranks * (size_t)args->dispatch.most * (size_t)args->dispatch.top_k;
    *config = (imx_cuda_config){
        .source = "kernels/dispatch_ll/sm80.cu",
        .entry = "imx_dispatch_ll",
        .blocks = blocks,
        .cluster = 1,
        .threads = THREADS,
        .early = target->arch >= 90,
        .shared_bytes = (2 * pairs + 15) / 16 * 16,
    };
}

const imx_kernel imx_kernel_dispatch_ll = {
    .name = "dispatch_ll",
    .cpu = imx_dispatch_ll_cpu,
    .cpu_scratch = imx_dispatch_ll_cpu_scratch,
    .cuda_config = cuda_config,
    .cuda_launch = imx_cuda_launch_all,
};
