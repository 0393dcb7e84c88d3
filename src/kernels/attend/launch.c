/* launch.c - the attend kernel's table row. */
#include "args.h"
#include "kernels/kernels.h"

void imx_attend_cpu(const void *args, const imbrexd_block *block); /* cpu.c */

const imx_kernel imx_kernel_attend = {
    .name = "attend",
    .cpu = imx_attend_cpu,
};
