/* lent.h - operands of runs that are looked at to the last byte: rooms on the host, each with a
 * guard behind it, and their copies where a device does not read the host's memory. */
#ifndef LENT_H
#define LENT_H

#include <stdbool.h>
#include <stddef.h>

#include "imbrex.h"

/* Of so many elements, all bits set, which is no number; the guard behind them, too. */
void *lent_room(int64_t elements, size_t element);
bool lent_is_intact(const void *room, int64_t elements, size_t element); /* the guard */

/* Rooms of a routing; of a rank's experts, rows and all ranks' pairs. */
typedef struct lent_sizes {
    int64_t here, capacity, pairs;
} lent_sizes;
imbrex_routing lent_routing(const lent_sizes *sizes);
void lent_routing_free(const imbrex_routing *routing);
bool lent_routing_is_intact(const imbrex_routing *routing, const lent_sizes *sizes);

/* Device memory that copies are taken from, one after the other.  base NULL: operands are the
 * host's own. */
enum { LENT_ARENA = 16 << 20, LENT_OUTPUTS = 48 };
typedef struct lent {
    imbrex_group *group;
    char *base;
    size_t used;
    int count;
    imbrex_status failed; /* the first that did */
    struct {
        void *room;
        const void *copy;
        size_t bytes;
    } outputs[LENT_OUTPUTS];
} lent;

/* A room as a run is given it, with what is in it. */
void *lent_in(lent *l, const void *room, int64_t elements, size_t element);
void *lent_out(lent *l, void *room, int64_t elements, size_t element);
imbrex_routing lent_routing_in(lent *l, const imbrex_routing *rooms, const lent_sizes *sizes);
imbrex_routing lent_routing_out(lent *l, const imbrex_routing *rooms, const lent_sizes *sizes);

/* Waits until all runs on the default stream are done, and has their outputs back. */
IMBREX_TRY lent_settle(lent *l);

#endif /* LENT_H */
