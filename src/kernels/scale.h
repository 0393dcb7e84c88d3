/* scale.h - scales of rows that become E4M3, on every target alike. */
#ifndef IMX_SCALE_H
#define IMX_SCALE_H

#include <math.h>

#ifdef __CUDACC__
#define IMX_SCALE_FN static __device__ __forceinline__
#else
#define IMX_SCALE_FN static inline
#endif

enum {
    IMX_SCALE_BLOCK = 128,      /* columns under one scale of IMBREX_PER_BLOCK */
    IMX_SCALE_COLUMNS = 1 << 24 /* the most that a kernel scales that looks twice */
};

/* What counts for a scale: not NaN and not an infinity. */
IMX_SCALE_FN float imx_scale_size(float y)
{
    float size = fabsf(y);
    return size <= 3.40282347e38f ? size : 0.0f;
}

/* Of elements that are at most `largest`; power_of_two: the next one up. */
IMX_SCALE_FN float imx_scale_of(float largest, int power_of_two)
{
    const float most = 448.0f, least = 0.001953125f; /* E4M3's own: 2^-9 */
    float scale = (largest < least ? least : largest) / most;
    int exponent;
    float fraction = frexpf(scale, &exponent);
    return !power_of_two || fraction == 0.5f ? scale : ldexpf(1.0f, exponent);
}

#endif /* IMX_SCALE_H */
