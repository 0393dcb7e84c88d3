/* launch.c - the GEMM kernel's table row. */
#include "args.h"
#include "blas.h"
#include "kernels/kernels.h"

void imx_gemm_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_gemm_cpu_scratch(const void *args);

const imx_kernel imx_kernel_gemm = {
    .name = "gemm",
    .cpu = imx_gemm_cpu,
    .cpu_scratch = imx_gemm_cpu_scratch,
    .cpu_info = imx_blas_name,
};
