/* ptx_copy.c - asynchronous copies without a map, and where memory is. */
#include <inttypes.h>

#include "ptx_inside.h"

unsigned char *ptx_shared_at(const ptx_shared *shared, uint32_t address, uint32_t bytes,
                             uint32_t align, const char *what, ptx_why *why)
{
    uint32_t offset = address - shared->base; /* below base: beyond any size */
    if (offset > shared->size || shared->size - offset < bytes)
        ptx_refuse(why, "%s: %u bytes at 0x%x are outside shared memory [0x%x, 0x%x)", what,
                   (unsigned)bytes, (unsigned)address, (unsigned)shared->base,
                   (unsigned)(shared->base + shared->size));
    else if (address % align)
        ptx_refuse(why, "%s: shared address 0x%x is no multiple of %u", what, (unsigned)address,
                   (unsigned)align);
    else
        return shared->bytes + offset;
    return NULL;
}

unsigned char *ptx_memory_at(const ptx_memory *memory, uint64_t address, uint64_t bytes,
                             uint32_t align, bool writes, const char *what, ptx_why *why)
{
    if (address % align) {
        ptx_refuse(why, "%s: address 0x%" PRIx64 " is no multiple of %u", what, address,
                   (unsigned)align);
        return NULL;
    }
    if (!memory)
        return (unsigned char *)(uintptr_t)address;
    unsigned char *at = memory->find(memory->context, address, bytes, writes);
    if (!at)
        ptx_refuse(why, "%s: nothing may %s %" PRIu64 " bytes at 0x%" PRIx64, what,
                   writes ? "write" : "read", bytes, address);
    return at;
}

bool ptx_copy_async(const ptx_shared *shared, uint32_t to, const ptx_memory *memory, uint64_t from,
                    uint32_t size, uint32_t filled, ptx_why *why)
{
    if (size != 4 && size != 8 && size != 16)
        return ptx_refuse(why, "cp.async: copies 4, 8 or 16 bytes, not %u", (unsigned)size);
    if (filled > size)
        return ptx_refuse(why, "cp.async: reads %u bytes to write %u", (unsigned)filled,
                          (unsigned)size);
    if (from % size)
        return ptx_refuse(why, "cp.async: address 0x%" PRIx64 " is no multiple of %u", from,
                          (unsigned)size);
    unsigned char *there = ptx_shared_at(shared, to, size, size, "cp.async", why);
    if (!there)
        return false;
    const unsigned char *here = NULL;
    if (filled && !(here = ptx_memory_at(memory, from, filled, size, false, "cp.async", why)))
        return false;
    if (filled)
        memcpy(there, here, filled);
    memset(there + filled, 0, size - filled);
    return true;
}

static bool whole_units(uint32_t bytes, ptx_why *why)
{
    return bytes % 16 == 0 ||
           ptx_refuse(why, "cp.async.bulk: %u bytes are no multiple of 16", (unsigned)bytes);
}

bool ptx_bulk_load(const ptx_shared *shared, uint32_t to, const ptx_memory *memory, uint64_t from,
                   uint32_t bytes, ptx_why *why)
{
    unsigned char *there, *here;
    if (!whole_units(bytes, why) ||
        !(there = ptx_shared_at(shared, to, bytes, 16, "cp.async.bulk", why)) ||
        !(here = ptx_memory_at(memory, from, bytes, 16, false, "cp.async.bulk", why)))
        return false;
    memcpy(there, here, bytes);
    return true;
}

bool ptx_bulk_store(const ptx_memory *memory, uint64_t to, const ptx_shared *shared, uint32_t from,
                    uint32_t bytes, ptx_why *why)
{
    unsigned char *there, *here;
    if (!whole_units(bytes, why) ||
        !(here = ptx_shared_at(shared, from, bytes, 16, "cp.async.bulk", why)) ||
        !(there = ptx_memory_at(memory, to, bytes, 16, true, "cp.async.bulk", why)))
        return false;
    memcpy(there, here, bytes);
    return true;
}

bool ptx_bulk_pass(const ptx_shared *there, uint32_t to, const ptx_shared *shared, uint32_t from,
                   uint32_t bytes, ptx_why *why)
{
    unsigned char *out, *in;
    if (!whole_units(bytes, why) ||
        !(out = ptx_shared_at(there, to, bytes, 16, "cp.async.bulk", why)) ||
        !(in = ptx_shared_at(shared, from, bytes, 16, "cp.async.bulk", why)))
        return false;
    memmove(out, in, bytes);
    return true;
}

bool ptx_store_async(const ptx_shared *there, uint32_t to, const uint32_t *words, int count,
                     uint32_t barrier, ptx_why *why)
{
    if (count != 1 && count != 2 && count != 4)
        return ptx_refuse(why, "st.async: stores 1, 2 or 4 words, not %d", count);
    uint32_t bytes = (uint32_t)count * 4;
    unsigned char *out = ptx_shared_at(there, to, bytes, bytes, "st.async", why);
    if (!out || !ptx_barrier_complete(there, barrier, bytes, why))
        return false;
    memcpy(out, words, bytes);
    return true;
}
