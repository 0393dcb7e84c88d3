/* traced.h - the picture of a command's run: a few are traced, one of them is kept. */
#ifndef CLI_TRACED_H
#define CLI_TRACED_H

#include "share.h"

enum { TRACED_GROUPS = 2, TRACED_SPANS = 20000 }; /* spans of a rank */

/* What is traced: the groups that its calls are made of, the one that all ranks are in first, and
 * one run, which returns when it is over. */
typedef struct traced {
    imbrex_group *groups[TRACED_GROUPS];
    int count;
    share *share;
    imbrex_status (*run)(void *ctx);
    void *ctx;
} traced;

/* Starts to trace; what is made from here on is compiled to tell. */
IMBREX_TRY traced_begin(const traced *t);

/* Collective, blocks: traces a few runs and keeps the one that took most nearly the median time, so
 * that the picture shows what the figures say and not an accident.  *out: all ranks' spans. */
IMBREX_TRY traced_take(const traced *t, double median_us, spans *out);

#endif /* CLI_TRACED_H */
