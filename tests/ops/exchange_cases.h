/* exchange_cases.h - imbrex_exchange on any device and over any engine. */
#ifndef EXCHANGE_CASES_H
#define EXCHANGE_CASES_H

#include "ranks.h"

/* One rank of several nodes, at most five: bytes of many lengths go to every node and come from it,
 * on two streams in turn, and a third reads what its signal says is there. */
int exchange_cases(imbrex_group *group, void *ctx);

/* One rank of two nodes of two: what is refused, and harms nothing. */
int exchange_refusals(imbrex_group *group, void *ctx);

#endif /* EXCHANGE_CASES_H */
