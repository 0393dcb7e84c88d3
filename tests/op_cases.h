/* op_cases.h - the table of cases that every device must get right. */
#ifndef OP_CASES_H
#define OP_CASES_H

#include "imbrex.h"

/* For ranks_run; ctx is not used.  Buffers are host memory. */
int op_cases_all(imbrex_group *group, void *ctx);
int op_cases_collectives(imbrex_group *group, void *ctx); /* those without a product */

#endif /* OP_CASES_H */
