/* experts.h - a small layer of experts, ag_moe and moe_rs or dispatch and combine, for tests of
 * what happens around its runs: the second operator takes what the first one gives.
 *
 * All that a run has lies in one room, of the host or of the device: what it reads comes first, so
 * that other tokens, which choose other experts, come in by one copy. */
#ifndef EXPERTS_H
#define EXPERTS_H

#include <stdbool.h>
#include <stddef.h>

#include "imbrex.h"

/* Sets of tokens and ids: of any expert, skewed, all to one, to none, any number, each twice; and
 * bytes that every rank's room fits in. */
enum { EXPERTS_SETS = 6, EXPERTS_ROOM = 1 << 20 };

typedef struct experts {
    imbrex_group *group;
    bool dispatches;
    imbrex_plan *plans[2]; /* in their order */
    int64_t k;             /* columns of tokens */
    int64_t own, here, capacity, pairs;
    size_t in_bytes, room_bytes; /* of a room, what is read and all */
    size_t out_at, out_bytes;    /* the layer's result */
} experts;

/* Collective.  algorithms of the two; NULL: chosen. */
int experts_begin(imbrex_group *group, bool dispatches, const char *const algorithms[2],
                  experts *e);
void experts_end(experts *e);

/* What a run reads, by the host: in[in_bytes]. */
void experts_fill(const experts *e, int set, char *in);

/* Operator i, 0 or 1, in a room; fewer: tokens less on each rank, or so. */
imbrex_status experts_run(const experts *e, int i, char *room, int fewer, imbrex_stream stream);

#endif /* EXPERTS_H */
