/* norm_cases.h - imbrex_rms_norm and imbrex_quantize on any device: against float64, against the
 * order of sums that docs/numerics.md gives, a row alone and among others, in place, NaN and
 * infinities. */
#ifndef NORM_CASES_H
#define NORM_CASES_H

#include "imbrex.h"

/* As a rank: 0 if all is right, else it was said what is not. */
int norm_cases(imbrex_group *group, void *ctx);

/* 1 / sqrt(mean of squares + eps) of x[n], bit for bit. */
float norm_inverse(const float *x, int64_t n, float eps);

/* The scale of elements of which `largest` is the largest that is finite. */
float norm_scale(float largest, int power_of_two);

#endif /* NORM_CASES_H */
