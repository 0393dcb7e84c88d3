/* launch.c - the combine kernel's table row.  It has no form for GPUs yet. */
#include "args.h"
#include "kernels/kernels.h"

void imx_combine_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

const imx_kernel imx_kernel_combine = { .name = "combine", .cpu = imx_combine_cpu };
