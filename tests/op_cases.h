/* op_cases.h - the table of cases that every device must get right. */
#ifndef OP_CASES_H
#define OP_CASES_H

#include <stdbool.h>

#include "reference.h"

/* Algorithm i of the case's operator; NULL: it has no more. */
const char *op_cases_algorithm(const op_case *c, int i);

/* Case number 0, 1, ...; false: there are no more.  c->algorithm is left NULL.
 * large: products of whole numbers that take many tiles of every kind, so many that a loop in
 * float64 would take too long: results of two devices are to be equal. */
bool op_cases_get(int number, op_case *c);
bool op_cases_get_large(int number, op_case *c);

/* For ranks_run; ctx is not used.  Matrices are host memory. */
int op_cases_all(imbrex_group *group, void *ctx);
int op_cases_collectives(imbrex_group *group, void *ctx); /* those without a product */

/* op_cases_all with matrices in memory of the group's device. */
int op_cases_device(imbrex_group *group, void *ctx);

#endif /* OP_CASES_H */
