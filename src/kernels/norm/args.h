/* args.h - the contract of the norm kernel: what happens to rows after their sum.
 *
 *     h = in + bias + residual, in float32, rounded once to dtype
 *     y = rms ? h / sqrt(mean of h's squares + eps) * (gamma + gamma_offset), rounded to dtype : h
 *     c = y, or, with quant, y / scale as E4M3
 *
 * in may be residual, h, normed or c itself, and so may each be another of these that has elements
 * of the same size.
 *
 * The order in which squares are added follows from n alone, and is the same on every device: a
 * segment is 1024 columns; lane l of 32 adds its squares of columns 256 * j + 8 * l + i in the
 * order of j and i; then lanes l and l ^ 16 are added, l ^ 8, and so on; then segments in their
 * order.
 */
#ifndef IMX_NORM_ARGS_H
#define IMX_NORM_ARGS_H

#include <math.h>

#include "../scale.h"
#include "../team.h"
#include "imbrex_device.h"

typedef struct imx_norm_args {
    int64_t rows, n; /* n: 1 to IMX_NORM_COLUMNS */
    int dtype;       /* imbrex_dtype of all but scale, and of c with quant */
    int rms;
    float eps, gamma_offset;
    int quant, power_of_two; /* imbrex_scaling, as in imbrex_norm */
    const void *in;
    const void *bias, *residual; /* [n], [rows, n]; NULL: none */
    const void *gamma;           /* [n] with rms */
    void *h, *normed;            /* [rows, n]; NULL: not wanted */
    void *c;
    float *scale; /* one that is read; [rows] or [rows, n / IMX_SCALE_BLOCK rounded up], written */
} imx_norm_args;

enum {
    IMX_NORM_COLUMNS = 32768,
    IMX_NORM_SEGMENT = 1024,
    IMX_NORM_LANES = 32,
    IMX_NORM_TOGETHER = 8 /* columns of a lane that follow each other */
};

/* 1 / rms.  Square root and quotients are rounded to nearest everywhere. */
IMX_TEAM_FN float imx_norm_inverse(float squares, int64_t n, float eps)
{
    float mean = squares / (float)n;
    return 1.0f / sqrtf(mean + eps);
}

#ifndef __CUDACC__
void imx_norm_cpu(const void *args, const imbrexd_block *block); /* cpu.c */
size_t imx_norm_cpu_scratch(const void *args);
#endif

#endif /* IMX_NORM_ARGS_H */
