/* args.h - the contract of the activate kernel: out[rows, cols] = f(in[:, :cols]) * in[:, cols:] if
 * gated, in[rows, 2*cols]; else f(in), in[rows, cols].  Computed in float32 and rounded once to
 * dtype; with quant, divided by its scale and rounded to E4M3 then. */
#ifndef IMX_ACTIVATE_ARGS_H
#define IMX_ACTIVATE_ARGS_H

#include <stdint.h>

typedef struct imx_activate_args {
    int64_t rows, cols;
    int kind, gated; /* imbrex_activation_kind */
    int dtype;       /* imbrex_dtype */
    const void *in;
    void *out;
    int quant, power_of_two;  /* imbrex_scaling, as in imbrex_activation */
    float *scales;            /* one that is read, or [rows] or [rows, cols / 128 rounded up] */
    const int32_t *rows_here; /* how many rows there are when the kernel runs; NULL: all */
} imx_activate_args;

#endif /* IMX_ACTIVATE_ARGS_H */
