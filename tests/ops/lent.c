/* lent.c - rooms with guards, and their copies on a device. */
#include "lent.h"

#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, EVERY = 0xff };

void *lent_room(int64_t elements, size_t element)
{
    size_t bytes = (size_t)elements * element + GUARD;
    void *room = malloc(bytes);
    if (!room)
        abort();
    return memset(room, EVERY, bytes);
}

bool lent_is_intact(const void *room, int64_t elements, size_t element)
{
    const unsigned char *guard = (const unsigned char *)room + (size_t)elements * element;
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != EVERY)
            return false;
    return true;
}

/* ---- a routing ------------------------------------------------------------------------------- */

imbrex_routing lent_routing(const lent_sizes *sizes)
{
    return (imbrex_routing){ .expert_begin = lent_room(sizes->here + 1, 4),
                             .expert_rows = lent_room(sizes->here, 4),
                             .row_pair = lent_room(sizes->capacity, 4),
                             .pair_row = lent_room(sizes->pairs, 4),
                             .pair_expert = lent_room(sizes->pairs, 4),
                             .weights = lent_room(sizes->pairs, 4) };
}

void lent_routing_free(const imbrex_routing *r)
{
    free(r->expert_begin);
    free(r->expert_rows);
    free(r->row_pair);
    free(r->pair_row);
    free(r->pair_expert);
    free(r->weights);
}

bool lent_routing_is_intact(const imbrex_routing *r, const lent_sizes *sizes)
{
    return lent_is_intact(r->expert_begin, sizes->here + 1, 4) &&
           lent_is_intact(r->expert_rows, sizes->here, 4) &&
           lent_is_intact(r->row_pair, sizes->capacity, 4) &&
           lent_is_intact(r->pair_row, sizes->pairs, 4) &&
           lent_is_intact(r->pair_expert, sizes->pairs, 4) &&
           lent_is_intact(r->weights, sizes->pairs, 4);
}

/* ---- copies ---------------------------------------------------------------------------------- */

void *lent_in(lent *l, const void *room, int64_t elements, size_t element)
{
    size_t bytes = (size_t)elements * element + GUARD;
    char *copy = l->base + l->used;
    if (!l->base)
        return (void *)(uintptr_t)room;
    if (l->used + bytes > LENT_ARENA)
        abort();
    l->used += (bytes + 255) / 256 * 256;
    if (l->failed == IMBREX_OK)
        l->failed = imbrex_copy(l->group, copy, room, bytes, NULL);
    return copy;
}

void *lent_out(lent *l, void *room, int64_t elements, size_t element)
{
    if (!l->base)
        return room;
    if (l->count == LENT_OUTPUTS)
        abort();
    void *copy = lent_in(l, room, elements, element);
    l->outputs[l->count].room = room;
    l->outputs[l->count].copy = copy;
    l->outputs[l->count++].bytes = (size_t)elements * element + GUARD;
    return copy;
}

static void *lent_input(lent *l, void *room, int64_t elements, size_t element)
{
    return lent_in(l, room, elements, element);
}

static imbrex_routing lend_routing(lent *l, const imbrex_routing *r, const lent_sizes *sizes,
                                   void *(*give)(lent *, void *, int64_t, size_t))
{
    return (imbrex_routing){ .expert_begin = give(l, r->expert_begin, sizes->here + 1, 4),
                             .expert_rows = give(l, r->expert_rows, sizes->here, 4),
                             .row_pair = give(l, r->row_pair, sizes->capacity, 4),
                             .pair_row = give(l, r->pair_row, sizes->pairs, 4),
                             .pair_expert = give(l, r->pair_expert, sizes->pairs, 4),
                             .weights = give(l, r->weights, sizes->pairs, 4) };
}

imbrex_routing lent_routing_in(lent *l, const imbrex_routing *rooms, const lent_sizes *sizes)
{
    return lend_routing(l, rooms, sizes, lent_input);
}

imbrex_routing lent_routing_out(lent *l, const imbrex_routing *rooms, const lent_sizes *sizes)
{
    return lend_routing(l, rooms, sizes, lent_out);
}

imbrex_status lent_settle(lent *l)
{
    for (int i = 0; i < l->count && l->failed == IMBREX_OK; i++)
        l->failed = imbrex_copy(l->group, l->outputs[i].room, l->outputs[i].copy,
                                l->outputs[i].bytes, NULL);
    if (l->failed == IMBREX_OK)
        l->failed = imbrex_stream_sync(l->group, NULL);
    l->count = 0;
    l->used = 0;
    return l->failed;
}
