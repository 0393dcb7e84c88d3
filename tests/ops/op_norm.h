/* op_norm.h - cases of operators whose sum is added to, normed and quantised. */
#ifndef OP_NORM_H
#define OP_NORM_H

#include "op_image.h"

/* Sets what happens to the sum, by the number of the shape; of other operators nothing. */
void op_norm_set(op_case *c, int shape);

/* c, to the bit, from h, which was compared with float64; where a rank has only its own rows of h,
 * those of c.  0, or 1: it was said what is wrong. */
int op_norm_check(imbrex_group *group, const op_case *c, int64_t m, const op_image *x);

#endif /* OP_NORM_H */
