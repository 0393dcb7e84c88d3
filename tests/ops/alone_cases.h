/* alone_cases.h - all_reduce with a residual and RMSNorm: by every algorithm the same bits, of rows
 * alone, in place, those that they have among others; -0, NaN and infinities are kept in the sum.
 */
#ifndef ALONE_CASES_H
#define ALONE_CASES_H

#include <imbrex.h>

int alone_cases(imbrex_group *group, void *ctx); /* a rank_main */

#endif /* ALONE_CASES_H */
