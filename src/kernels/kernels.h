/* kernels.h - the table row of a kernel.  A kernel is a folder: args.h (its contract: plain sizes
 * and pointers), one implementation for each target, and nothing that knows an operator or a
 * backend. */
#ifndef IMX_KERNELS_H
#define IMX_KERNELS_H

#include "imbrex_device.h"

typedef struct imx_kernel {
    const char *name;

    /* CPU: the block runs to its end, or returns early when a wait gives up.  Blocks of one launch
     * run at once. */
    void (*cpu)(const void *args, const imbrexd_block *block);
    size_t (*cpu_scratch)(const void *args); /* bytes one block needs; NULL: none */
    const char *(*cpu_info)(void);           /* what it is built on; NULL: nothing to say */
} imx_kernel;

extern const imx_kernel imx_kernel_gemm;     /* gemm/args.h */
extern const imx_kernel imx_kernel_reduce;   /* reduce/args.h */
extern const imx_kernel imx_kernel_silu_mul; /* silu_mul/args.h */

#endif /* IMX_KERNELS_H */
