/* moe_scaled_cases.h - ag_moe and moe_rs of 8-bit elements and scales on any device: bit for bit
 * what docs/numerics.md says. */
#ifndef MOE_SCALED_CASES_H
#define MOE_SCALED_CASES_H

#include <stdbool.h>
#include <stdint.h>

#include "imbrex.h"

typedef struct moe_scaled_case {
    imbrex_dtype dtype, out;
    imbrex_scaling scaling;
    imbrex_experts parallel;
    int64_t tokens, n, k;
    int experts, top_k, sms;
    int replicate;
    bool odd;   /* some scales are 0, huge, tiny or NaN */
    bool whole; /* whole numbers, and scales that are powers of two: what tensor cores cut off is
                 * 0, and sums are the same in any order */
    const char *gathers, *scatters;
} moe_scaled_case;

int moe_scaled_check(imbrex_group *group, const moe_scaled_case *c, char *arena);

/* Every so-many-th of the table. */
typedef struct moe_scaled_walk {
    int step;
} moe_scaled_walk;

/* As a rank: 0 if all is right, else it was said what is not. */
int moe_scaled_cases(imbrex_group *group, void *walk);

/* The same, of whole numbers, on a device that does not read the host's memory; and there what only
 * kernels for GPUs tell apart: tiles of all sizes, several of them a block. */
int moe_scaled_cases_device(imbrex_group *group, void *walk);
int moe_scaled_cases_wide(imbrex_group *group, void *walk);

#endif /* MOE_SCALED_CASES_H */
