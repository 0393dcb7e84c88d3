/* args.h - the contract of the silu_mul kernel: out[rows, cols] = silu(in[:, :cols]) * in[:,
 * cols:], in[rows, 2*cols], computed in float32 and rounded once. */
#ifndef IMX_SILU_MUL_ARGS_H
#define IMX_SILU_MUL_ARGS_H

#include <stdint.h>

typedef struct imx_silu_mul_args {
    int64_t rows, cols;
    int dtype; /* imbrex_dtype */
    const void *in;
    void *out;
} imx_silu_mul_args;

#endif /* IMX_SILU_MUL_ARGS_H */
