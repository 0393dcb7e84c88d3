/* seen_cases.h - flash_decode of MLA on any device: bits of a query do not depend on what other
 * queries of its sequence see. */
#ifndef SEEN_CASES_H
#define SEEN_CASES_H

#include "imbrex.h"

/* As the only rank: 0 if all is right, else it was said what is not.  ctx: heads, an int. */
int seen_cases(imbrex_group *group, void *ctx);

#endif /* SEEN_CASES_H */
