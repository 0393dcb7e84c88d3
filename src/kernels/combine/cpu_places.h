/* cpu_places.h - the sum over a token's places, in their order, of all CPU kernels that make it. */
#ifndef IMX_COMBINE_CPU_PLACES_H
#define IMX_COMBINE_CPU_PLACES_H

#include <stdbool.h>

#include "args.h"
#include "imbrex_device.h"
#include "kernels/dtype.h"

enum { IMX_COMBINE_STRIP = 1024 }; /* columns at a time, at most */

/* Columns [col, col + cols) of the rows that the token has here; false: it has none, and sum stays
 * as it is. */
static inline bool imx_combine_add_places(const imx_combine_args *args, int64_t token, int64_t col,
                                          int64_t cols, float *sum)
{
    bool first = true;
    for (int64_t pair = token * args->top_k; pair < (token + 1) * args->top_k; pair++) {
        float room[IMX_COMBINE_STRIP], weight = args->weights[pair];
        int64_t row = args->pair_row[pair];
        if (row < 0 || row >= args->rows)
            continue;
        const void *from = imx_dtype_at(args->dtype, args->from, row * args->n + col);
        imbrexd_check_read(from, (size_t)(cols * imx_dtype_size(args->dtype)), 0, 1);
        const float *x = imx_dtype_floats(args->dtype, from, room, cols);
        for (int64_t i = 0; i < cols; i++) { /* two roundings, also where one could do */
            volatile float term = weight * x[i];
            sum[i] = first ? term : sum[i] + term;
        }
        first = false;
    }
    return !first;
}

#endif /* IMX_COMBINE_CPU_PLACES_H */
