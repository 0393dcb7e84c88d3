/* spans.h - what was traced on every rank, brought together. */
#ifndef CLI_SPANS_H
#define CLI_SPANS_H

#include "share.h"
#include "timeline.h"

typedef struct spans {
    imbrex_span *list; /* [ranks][most] */
    size_t most, *counts;
} spans;

/* Collective: every rank gets all ranks' spans. */
IMBREX_TRY spans_share(imbrex_group *group, const imbrex_span *own, size_t count, spans *out);
void spans_free(spans *s);

/* The ranks of a panel, [ranks]. */
void spans_ranks(const spans *s, int ranks, timeline_rank *out);

#endif /* CLI_SPANS_H */
