/* batch_cases.h - flash_decode of MLA on any device: a sequence has the same bits alone and among
 * others, whatever a block takes of it at once. */
#ifndef BATCH_CASES_H
#define BATCH_CASES_H

#include "imbrex.h"

/* As the only rank: 0 if all is right, else it was said what is not. */
int batch_cases(imbrex_group *group, void *ctx);

#endif /* BATCH_CASES_H */
