/* mlp_check.h - the MLP in float64, for one rank's rows. */
#ifndef CLI_MLP_CHECK_H
#define CLI_MLP_CHECK_H

#include <stdbool.h>

#include "cli.h"
#include "mlp_reference.h"

/* An element's spread is what its sum over the features comes to if signs fall at random,
 * sqrt(sum of (act down)^2 + bias^2): rounding errors grow with it and not with the element itself,
 * and a token or a feature that stands out does not hide the errors of the others.
 *
 * Where x or a weight is infinite or NaN, so may the reference be, and no such y is an error. */
typedef struct mlp_error {
    double largest;  /* |y - reference| */
    double scale;    /* largest |reference| */
    double worst;    /* largest |y - reference| / spread */
    double squares;  /* sum of (y - reference)^2 */
    double norm;     /* sum of reference^2 */
    double odd_rows; /* rows of x with NaN or infinities */
    int odd_weights; /* 1: a weight or a bias is NaN or infinite */
    int lost;        /* 1: x or a weight holds a number that the dtype makes infinite */
} mlp_error;

/* Compares y[rows, hidden], rows row0 and on of the whole, with the reference from the whole
 * weights as dtype rounds them.  False if memory runs out. */
bool mlp_check(const mlp_reference *reference, const matrix *x, imbrex_dtype dtype, int64_t row0,
               int64_t rows, const void *y, progress *bar, mlp_error *out);

/* Adds the error of other rows to sum. */
void mlp_check_add(mlp_error *sum, const mlp_error *more);

/* ||y - reference|| / ||reference||. */
double mlp_check_relative(const mlp_error *error);

/* How large that, and error.worst, may be: three roundings to dtype, and float32 sums. */
double mlp_check_allowed(imbrex_dtype dtype);
double mlp_check_worst_allowed(imbrex_dtype dtype);

bool mlp_check_passed(const mlp_error *error, imbrex_dtype dtype); /* false for NaN, too */

#endif /* CLI_MLP_CHECK_H */
