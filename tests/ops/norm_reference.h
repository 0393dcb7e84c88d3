/* norm_reference.h - what a norm and a quantisation of a row give, to the bit. */
#ifndef NORM_REFERENCE_H
#define NORM_REFERENCE_H

#include <stdint.h>

#include "imbrex.h"

/* 1 / sqrt(mean of squares + eps) of x[n], bit for bit. */
float norm_inverse(const float *x, int64_t n, float eps);

/* The scale of elements of which `largest` is the largest that is finite. */
float norm_scale(float largest, int power_of_two);

/* What the norm makes of h[n], of dtype: c before it is quantised, to the bit. */
void norm_row_of(const imbrex_norm *norm, imbrex_dtype dtype, int64_t n, const void *h,
                 const void *gamma, float *y);

/* -1, or the first of c[n], E4M3, that is not y by its scales, which are right, too; scales: this
 * row's, or the one of all. */
int64_t norm_quant_differs(const imbrex_norm *norm, int64_t n, const float *y, const float *scales,
                           const uint8_t *c);

#endif /* NORM_REFERENCE_H */
