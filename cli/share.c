/* share.c - an all-gather of a few bytes with puts and barriers. */
#include "share.h"

#include <stdlib.h>
#include <string.h>

#define TRY(call)                          \
    do {                                   \
        imbrex_status try_status = (call); \
        if (try_status != IMBREX_OK)       \
            return try_status;             \
    } while (0)

imbrex_status share_open(imbrex_group *group, size_t bytes, share *out)
{
    void *room;
    TRY(imbrex_mem_alloc(group, (size_t)imbrex_group_size(group) * bytes, &room));
    *out = (share){ .group = group, .bytes = bytes, .room = room };
    return IMBREX_OK;
}

void share_close(share *s)
{
    if (s->group)
        imbrex_mem_free(s->group, s->room);
}

imbrex_status share_barrier(imbrex_group *group)
{
    TRY(imbrex_barrier(group, NULL));
    return imbrex_stream_sync(group, NULL);
}

imbrex_status share_all(share *s, const void *mine, size_t bytes, void *all)
{
    int size = imbrex_group_size(s->group), rank = imbrex_group_rank(s->group);
    char *slot = s->room + (size_t)rank * s->bytes;
    for (int r = 0; r < size; r++)
        TRY(imbrex_put(s->group, slot, mine, bytes, r, NULL));
    TRY(imbrex_barrier(s->group, NULL));
    for (int r = 0; r < size; r++)
        TRY(imbrex_copy(s->group, (char *)all + (size_t)r * bytes, s->room + (size_t)r * s->bytes,
                        bytes, NULL));
    return share_barrier(s->group); /* nobody writes again before all have read */
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
