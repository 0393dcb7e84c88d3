/* op_norm.h - cases of operators whose sum is added to, normed and quantised. */
#ifndef OP_NORM_H
#define OP_NORM_H

#include "op_image.h"

/* Sets what happens to the sum, by the number of the shape; of other operators nothing. */
void op_norm_set(op_case *c, int shape);

/* Case number 0, 1, ... of rows as models have them, which one kernel adds and norms: of one piece
 * or many, alone and one after the other, of all a norm may ask for; and some that are too long.
 * false: there are no more. */
bool op_norm_get(int number, op_case *c);

/* c, to the bit, from h, which was compared with float64; where a rank has only its own rows of h,
 * those of c.  0, or 1: it was said what is wrong. */
int op_norm_check(imbrex_group *group, const op_case *c, int64_t m, const op_image *x);

#endif /* OP_NORM_H */
