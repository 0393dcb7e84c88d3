/* mlp_check.h - the MLP in float64, for one rank's rows. */
#ifndef CLI_MLP_CHECK_H
#define CLI_MLP_CHECK_H

#include <stdbool.h>

#include "progress.h"
#include "shard.h"

typedef struct mlp_error {
    double largest; /* |y - reference| */
    double scale;   /* largest |reference| */
    double squares; /* sum of (y - reference)^2 */
    double norm;    /* sum of reference^2 */
} mlp_error;

/* Compares y[rows, hidden], rows row0 and on of the whole, with the reference from the whole
 * weights as dtype rounds them.  False if memory runs out. */
bool mlp_check(const mlp_weights *weights, const matrix *x, imbrex_dtype dtype, int64_t row0,
               int64_t rows, const void *y, progress *bar, mlp_error *out);

/* How large sqrt(squares / norm) may be: three roundings to dtype, and float32 sums. */
double mlp_check_allowed(imbrex_dtype dtype);

#endif /* CLI_MLP_CHECK_H */
