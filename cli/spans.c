/* spans.c - an all-gather of spans. */
#include "spans.h"

#include <stdlib.h>

#include "try.h"

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
