/* share.c - an all-gather of a few bytes: with puts and barriers, or by a plan over nodes. */
#include "share.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "try.h"

enum { WORD = sizeof(float) };

/* Whether this rank reaches all ranks' memory: so do all then, or none. */
static imbrex_status is_one_node(const share *s, bool *one)
{
    *one = true;
    for (int r = 0; r < imbrex_group_size(s->group) && *one; r++) {
        void *peer;
        TRY(imbrex_mem_peer(s->group, s->room, r, &peer));
        *one = peer != NULL;
    }
    return IMBREX_OK;
}

imbrex_status share_open(imbrex_group *group, size_t bytes, share *out)
{
    int size = imbrex_group_size(group);
    share s = { .group = group, .bytes = (bytes + WORD - 1) / WORD * WORD };
    imbrex_coll_desc desc = {
        .m = size, .n = (int64_t)(s.bytes / WORD), .dtype = IMBREX_F32, .algorithm = "hierarchical"
    };
    void *room;
    bool one;
    TRY(imbrex_mem_alloc(group, ((size_t)size + 1) * s.bytes, &room));
    s.room = room;
    imbrex_status status = is_one_node(&s, &one);
    if (status == IMBREX_OK && !one)
        status = imbrex_plan_all_gather(group, &desc, &s.plan);
    if (status == IMBREX_OK)
        *out = s;
    else
        imbrex_mem_free(group, room);
    return status;
}

void share_close(share *s)
{
    imbrex_plan_destroy(s->plan);
    if (s->group)
        imbrex_mem_free(s->group, s->room);
}

imbrex_status share_barrier(imbrex_group *group)
{
    TRY(imbrex_barrier(group, NULL));
    return imbrex_stream_sync(group, NULL);
}

/* The last barrier: nobody writes again before all have read. */
static imbrex_status enqueue_all(share *s, const void *mine, size_t bytes, void *all)
{
    int size = imbrex_group_size(s->group), rank = imbrex_group_rank(s->group);
    char *slot = s->room + (size_t)(s->plan ? size : rank) * s->bytes;
    imbrex_args args = { .a = slot, .c = s->room };
    if (s->plan) {
        TRY(imbrex_copy(s->group, slot, mine, bytes, NULL));
        TRY(imbrex_plan_run(s->plan, &args, NULL));
    }
    for (int r = 0; r < size && !s->plan; r++)
        TRY(imbrex_put(s->group, slot, mine, bytes, r, NULL));
    TRY(imbrex_barrier(s->group, NULL));
    for (int r = 0; r < size; r++)
        TRY(imbrex_copy(s->group, (char *)all + (size_t)r * bytes, s->room + (size_t)r * s->bytes,
                        bytes, NULL));
    return imbrex_barrier(s->group, NULL);
}

imbrex_status share_all(share *s, const void *mine, size_t bytes, void *all)
{
    return failure_drain(enqueue_all(s, mine, bytes, all), s->group, NULL);
}

imbrex_status share_max(share *s, double mine, double *most)
{
    int size = imbrex_group_size(s->group);
    double *all = calloc((size_t)size, sizeof *all);
    if (!all)
        return IMBREX_NO_MEMORY;
    imbrex_status status = share_all(s, &mine, sizeof mine, all);
    *most = mine;
    for (int r = 0; r < size && status == IMBREX_OK; r++)
        *most = all[r] > *most ? all[r] : *most;
    free(all);
    return status;
}
