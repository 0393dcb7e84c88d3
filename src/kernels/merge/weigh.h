/* weigh.h - how states are weighed, on every target: by their lse, in the order of their sources.
 */
#ifndef IMX_MERGE_WEIGH_H
#define IMX_MERGE_WEIGH_H

#ifndef __CUDACC__
#include <math.h>
#endif

#include "args.h"

#define IMX_MERGE_LOG2E 1.44269504088896341f
#define IMX_MERGE_LN2   0.693147180559945309f

/* base ^ x */
IMX_TEAM_FN float imx_merge_power(int natural, float x)
{
    return exp2f(natural ? x * IMX_MERGE_LOG2E : x);
}

IMX_TEAM_FN float imx_merge_logarithm(int natural, float x)
{
    return natural ? log2f(x) * IMX_MERGE_LN2 : log2f(x);
}

/* What a sink's score is as an lse. */
IMX_TEAM_FN float imx_merge_sink(int natural, float score)
{
    return natural ? score : score * IMX_MERGE_LOG2E;
}

/* Neither infinite nor NaN. */
IMX_TEAM_FN int imx_merge_counts(float lse)
{
    return lse - lse == 0;
}

/* From lse[sources] and maybe a sink to the sources' weights: 0 for those that count as nothing.
 * Returns the sum of all weights, the sink's too, 0 if there is none; *most: the largest lse, which
 * has the weight 1. */
IMX_TEAM_FN float imx_merge_weigh(int natural, const float *lse, int sources, const float *sink,
                                  float *weight, float *most)
{
    float sum = 0;
    int any = 0;
    *most = 0;
    if (sink && imx_merge_counts(imx_merge_sink(natural, *sink))) {
        *most = imx_merge_sink(natural, *sink);
        any = 1;
    }
    for (int i = 0; i < sources; i++) {
        if (imx_merge_counts(lse[i]) && (!any || lse[i] > *most)) {
            *most = lse[i];
            any = 1;
        }
    }
    for (int i = 0; i < sources; i++) {
        weight[i] = imx_merge_counts(lse[i]) ? imx_merge_power(natural, lse[i] - *most) : 0;
        sum += weight[i];
    }
    if (sink && imx_merge_counts(imx_merge_sink(natural, *sink)))
        sum += imx_merge_power(natural, imx_merge_sink(natural, *sink) - *most);
    return sum;
}

/* What weighted sums are multiplied by: 1 / sum, or 0 where there is nothing. */
IMX_TEAM_FN float imx_merge_share(float sum)
{
#ifdef __CUDACC__
    float share; /* sum is from 1 to the number of sources + 1 */
    asm("rcp.approx.f32 %0, %1;" : "=f"(share) : "f"(sum));
#else
    const float share = 1 / sum;
#endif
    return sum > 0 ? share : 0;
}

/* The lse of the whole: -infinity where nothing counts. */
IMX_TEAM_FN float imx_merge_lse(int natural, float sum, float most)
{
    return sum > 0 ? most + imx_merge_logarithm(natural, sum) : -1 / 0.0f;
}

#endif /* IMX_MERGE_WEIGH_H */
