/* launch.c - the reduce kernel's table row. */
#include "args.h"
#include "kernels/kernels.h"

void imx_reduce_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

const imx_kernel imx_kernel_reduce = { .name = "reduce", .cpu = imx_reduce_cpu };
