/* launch.c - the grouped kernel's table row.  It has no form for GPUs yet. */
#include "args.h"
#include "kernels/kernels.h"

void imx_grouped_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_grouped_cpu_scratch(const void *args);

const imx_kernel imx_kernel_grouped = {
    .name = "grouped",
    .cpu = imx_grouped_cpu,
    .cpu_scratch = imx_grouped_cpu_scratch,
};
