/* launch.c - the silu_mul kernel's table row. */
#include "args.h"
#include "kernels/kernels.h"

void imx_silu_mul_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

const imx_kernel imx_kernel_silu_mul = { .name = "silu_mul", .cpu = imx_silu_mul_cpu };
