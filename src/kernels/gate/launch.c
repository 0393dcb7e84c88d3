/* launch.c - the gate kernel's table row, and how it is launched on GPUs. */
#include "args.h"
#include "kernels/kernels.h"

void imx_gate_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

enum { WARPS = 4, BLOCKS_A_UNIT = 4 }; /* sm80.cu: a warp a token */

static void cuda_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    (void)largest;
    *config = (imx_cuda_config){
        .source = "kernels/gate/sm80.cu",
        .entry = "imx_gate",
        .blocks = blocks * BLOCKS_A_UNIT,
        .cluster = 1,
        .threads = 32 * WARPS,
        .early = target->arch >= 90,
    };
}

static void cuda_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_gate_args *args = untyped;
    int64_t wanted = (args->tokens + WARPS - 1) / WARPS;
    launch->blocks = imx_cuda_blocks(config, wanted);
}

const imx_kernel imx_kernel_gate = {
    .name = "gate",
    .cpu = imx_gate_cpu,
    .cuda_config = cuda_config,
    .cuda_launch = cuda_launch,
};
