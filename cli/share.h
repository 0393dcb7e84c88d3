/* share.h - what the ranks of a command tell each other, through symmetric memory or, over nodes,
 * by a gathering plan: small things, and what was traced on each of them. */
#ifndef CLI_SHARE_H
#define CLI_SHARE_H

#include "imbrex.h"
#include "timeline.h"

typedef struct share {
    imbrex_group *group;
    size_t bytes;      /* room for one rank */
    char *room;        /* [size + 1][bytes], symmetric: the ranks', and what this one sends */
    imbrex_plan *plan; /* over nodes; NULL: all ranks reach the room */
} share;

/* Collective: room for `bytes` of each rank. */
IMBREX_TRY share_open(imbrex_group *group, size_t bytes, share *out);
void share_close(share *s);

/* Collective, blocks: all[size * bytes] gets every rank's mine[bytes], at most the room's. */
IMBREX_TRY share_all(share *s, const void *mine, size_t bytes, void *all);

/* Collective, blocks: the largest of all ranks' values. */
IMBREX_TRY share_max(share *s, double mine, double *most);

/* Collective, blocks until all ranks are here. */
IMBREX_TRY share_barrier(imbrex_group *group);

/* ---- Spans ----------------------------------------------------------------------------------- */

typedef struct spans {
    imbrex_span *list; /* [ranks][most] */
    size_t most, *counts;
} spans;

/* Collective: every rank gets all ranks' spans. */
IMBREX_TRY spans_share(imbrex_group *group, const imbrex_span *own, size_t count, spans *out);
void spans_free(spans *s);

/* The ranks of a panel, [ranks]. */
void spans_ranks(const spans *s, int ranks, timeline_rank *out);

#endif /* CLI_SHARE_H */
