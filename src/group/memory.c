/* memory.c - symmetric memory: each rank makes its own piece, the transports map all others'. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#include "agree.h"
#include "call.h"
#include "fault.h"
#include "net.h"

const imx_transport_kind *const imx_memory_transports[IMX_TRANSPORTS] = {
    [IMX_LOCAL_THREADS] = &imx_transport_local_threads,
    [IMX_LOCAL_FDS] = &imx_transport_local_fds,
};

static void release(imbrex_group *group, imx_symmetric *memory)
{
    if (!memory)
        return;
    for (int r = 0; r < memory->size; r++) {
        if (r != group->rank || !imx_net_stuck(group))
            group->backend->memory_release(memory->memory[r]);
    }
    free(memory);
}

static imbrex_status create_own(imbrex_group *group, bool host, size_t bytes, imx_symmetric **out)
{
    const imx_backend *backend = group->backend;
    imx_symmetric *memory = NULL;
    size_t table = (size_t)group->size * sizeof memory->memory[0];
    IMX_TRY(imx_sys_alloc(1, sizeof *memory + table, &memory));
    memory->bytes = bytes;
    memory->size = group->size;
    imbrex_status status = (host && backend->memory_create_host ? backend->memory_create_host
                                                                : backend->memory_create)(
        group->device, bytes, &memory->memory[group->rank]);
    if (status != IMBREX_OK) {
        release(group, memory);
        return status;
    }
    *out = memory;
    return IMBREX_OK;
}

/* Meets all ranks once more behind the swaps: only then is memory there to stay, on all or none. */
static imbrex_status swap_all(imbrex_group *group, const char *call, imx_symmetric *memory)
{
    const imx_transport_kind *const *kinds = imx_memory_transports;
    imbrex_status status = IMBREX_OK;
    for (int t = 0; t < IMX_TRANSPORTS; t++) {
        if (!group->transport[t])
            continue;
        imbrex_status swapped =
            kinds[t]->swap(group->transport[t], memory->memory[group->rank], memory->memory);
        status = status == IMBREX_OK ? swapped : status;
    }
    status = imx_agree(group, call, status, NULL, 0);
    for (int t = 0; t < IMX_TRANSPORTS; t++) {
        if (group->transport[t] && kinds[t]->withdraw)
            kinds[t]->withdraw(group->transport[t]);
    }
    return status;
}

static imbrex_status alloc(imbrex_group *group, const char *call, imbrex_status mine, bool host,
                           size_t bytes, const imx_words *words, int count, imx_symmetric **out)
{
    imx_symmetric *memory = NULL;
    if (mine == IMBREX_OK)
        mine = create_own(group, host, bytes, &memory);
    if (mine == IMBREX_OK && count)
        imx_memory_own(group, memory->memory[group->rank], words, count);
    imx_field field = { .name = "bytes", .value = (int64_t)bytes };
    imbrex_status status = imx_agree(group, call, mine, &field, 1);

    /* From here on every rank goes through the same meetings, whatever happens to it. */
    if (status == IMBREX_OK)
        status = swap_all(group, call, memory);
    if (status != IMBREX_OK) {
        release(group, memory);
        return status;
    }
    memory->next = group->memories;
    group->memories = memory;
    *out = memory;
    return IMBREX_OK;
}

imbrex_status imx_memory_alloc(imbrex_group *group, const char *call, imbrex_status mine,
                               size_t bytes, const imx_words *words, int count,
                               imx_symmetric **memory)
{
    return alloc(group, call, mine, false, bytes, words, count, memory);
}

imbrex_status imx_memory_alloc_host(imbrex_group *group, const char *call, size_t bytes,
                                    imx_symmetric **memory)
{
    return alloc(group, call, IMBREX_OK, true, bytes, NULL, 0, memory);
}

void imx_memory_own(const imbrex_group *group, const imx_memory *memory, const imx_words *words,
                    int count)
{
    if (group->backend->memory_own && group->nodes.count == 1)
        group->backend->memory_own(memory, words, count);
}

void imx_memory_free(imbrex_group *group, imx_symmetric *memory)
{
    for (imx_symmetric **at = &group->memories; memory && *at; at = &(*at)->next) {
        if (*at == memory) {
            *at = memory->next;
            release(group, memory);
            return;
        }
    }
}

/* Of the caller's memory only: what the library keeps for itself is nobody's to reach or free. */
static imx_symmetric *find(const imbrex_group *group, const void *ptr)
{
    for (imx_symmetric *m = group->memories; m; m = m->next) {
        const char *base = imx_memory_at(m, group->rank, 0);
        if (m->lent && (const char *)ptr >= base && (const char *)ptr < base + m->bytes)
            return m;
    }
    return NULL;
}

const imx_symmetric *imx_memory_piece(const imbrex_group *group, const void *ptr)
{
    return find(group, ptr);
}

imbrex_status imx_memory_find(imbrex_group *group, const char *what, const void *ptr, size_t bytes,
                              int rank, void **peer)
{
    if (rank < 0 || rank >= group->size)
        return imx_fail(IMBREX_INVALID, "rank is %d: the group has ranks 0 to %d", rank,
                        group->size - 1);
    const imx_symmetric *memory = find(group, ptr);
    if (!memory)
        return imx_fail(IMBREX_INVALID,
                        "%s, %p, is not symmetric memory: take it from imbrex_mem_alloc", what,
                        ptr);
    size_t offset =
        (size_t)((const char *)ptr - (const char *)imx_memory_at(memory, group->rank, 0));
    if (bytes > memory->bytes - offset)
        return imx_fail(IMBREX_INVALID,
                        "%s and %zu bytes from there run past the end of its memory, of which %zu "
                        "bytes are left",
                        what, bytes, memory->bytes - offset);
    *peer = imx_memory_at(memory, rank, offset);
    return IMBREX_OK;
}

imbrex_status imbrex_mem_alloc(imbrex_group *group, size_t bytes, void **ptr)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(imx_fault_check(group)); /* a rank that is gone would not come to the meeting */
    imbrex_status mine = imx_status_need(ptr, "ptr", "want where to put it");
    if (bytes == 0 || bytes > (size_t)INT64_MAX / 2)
        mine = imx_fail(IMBREX_INVALID, "bytes is %zu: want from 1 to 2^62 - 1", bytes);
    imx_symmetric *memory;
    IMX_TRY(imx_memory_alloc(group, __func__, mine, bytes, NULL, 0, &memory));
    memory->lent = ++group->memory_count; /* only now: a failure is one on all ranks */
    *ptr = imx_memory_at(memory, group->rank, 0);
    return IMBREX_OK;
}

void imbrex_mem_free(imbrex_group *group, void *ptr)
{
    IMX_CALL call = { 0 };
    if (!imx_call_await(&call, group))
        return;
    imx_status_mute(true);
    imx_symmetric *memory = find(group, ptr);
    if (memory && ptr == imx_memory_at(memory, group->rank, 0))
        imx_memory_free(group, memory);
    imx_status_mute(false);
}

imbrex_status imbrex_check_read(imbrex_group *group, const void *ptr, size_t bytes)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(imx_fault_check(group));
    if (bytes)
        IMX_TRY(imx_status_need(ptr, "ptr", "want what is read"));
    if (group->backend->check_read)
        group->backend->check_read(group->device, ptr, bytes);
    return imx_fault_check(group);
}

imbrex_status imbrex_mem_peer(imbrex_group *group, const void *ptr, int rank, void **peer)
{
    imx_status_enter(__func__);
    IMX_ENTER(group);
    IMX_TRY(imx_status_need(peer, "peer", "want where to put it"));
    return imx_memory_find(group, "ptr", ptr, 1, rank, peer);
}
