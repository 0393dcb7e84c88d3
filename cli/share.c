/* share.c - an all-gather of a few bytes: with puts and barriers, or by a plan over nodes. */
#include "share.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

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

/* ---- Spans ----------------------------------------------------------------------------------- */

static imbrex_status gather(share *room, const void *mine, size_t bytes, void *all)
{
    return all ? share_all(room, mine, bytes, all) : IMBREX_NO_MEMORY;
}

static imbrex_status share_counts(imbrex_group *group, size_t count, spans *out)
{
    share room = { 0 };
    imbrex_status status = share_open(group, sizeof count, &room);
    if (status == IMBREX_OK)
        status = gather(&room, &count, sizeof count, out->counts);
    share_close(&room);
    return status;
}

imbrex_status spans_share(imbrex_group *group, const imbrex_span *own, size_t count, spans *out)
{
    int ranks = imbrex_group_size(group);
    share room = { 0 };
    *out = (spans){ .most = 1, .counts = calloc((size_t)ranks, sizeof *out->counts) };
    TRY(share_counts(group, count, out));
    for (int r = 0; r < ranks; r++)
        out->most = out->counts[r] > out->most ? out->counts[r] : out->most;
    size_t bytes = out->most * sizeof *out->list;
    out->list = calloc((size_t)ranks, bytes);
    imbrex_status status = share_open(group, bytes, &room);
    if (status == IMBREX_OK) /* also where there is less: own has room for what others may have */
        status = gather(&room, own, bytes, out->list);
    share_close(&room);
    return status;
}

void spans_free(spans *s)
{
    free(s->list);
    free(s->counts);
    *s = (spans){ 0 };
}

void spans_ranks(const spans *s, int ranks, timeline_rank *out)
{
    for (int r = 0; r < ranks; r++)
        out[r] = (timeline_rank){ r, s->list + (size_t)r * s->most, s->counts[r] };
}
