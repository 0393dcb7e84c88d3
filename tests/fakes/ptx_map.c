/* ptx_map.c - tensor maps, and the copy engine's boxes between global and shared memory. */
#include <inttypes.h>

#include "ptx_inside.h"

enum { RANK_MOST = 5, BOX_MOST = 256, MAP_BYTES = 128 };
static const uint64_t mark = 0x70616d2d78747021;

typedef struct tensor_map {
    uint64_t mark, address;
    uint64_t strides[RANK_MOST]; /* bytes; of the first the element's own */
    uint32_t last[RANK_MOST];    /* index of each dimension */
    uint16_t box[RANK_MOST];
    uint8_t rank, swizzle;
} tensor_map;

_Static_assert(sizeof(tensor_map) <= MAP_BYTES, "a map is what the driver's is");

/* Bytes of an element, by the driver's number; 0: none, or a packed one. */
static uint32_t element_bytes(int dtype)
{
    static const uint8_t bytes[] = { 1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4 };
    return dtype >= 0 && (size_t)dtype < sizeof bytes ? bytes[dtype] : 0;
}

bool ptx_map_encode(void *map, int dtype, uint32_t rank, const void *address, const uint64_t *sizes,
                    const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                    int interleave, int swizzle, int promotion, int fill, ptx_why *why)
{
    uint32_t element = element_bytes(dtype);
    if ((uintptr_t)map % 64)
        return ptx_refuse(why, "a map is at a multiple of 64, not at %p", map);
    if (!element)
        return ptx_refuse(why, "no type of a map's elements is %d", dtype);
    if (rank < 1 || rank > RANK_MOST)
        return ptx_refuse(why, "a map has 1 to %d dimensions, not %u", RANK_MOST, (unsigned)rank);
    if ((uintptr_t)address % 16)
        return ptx_refuse(why, "a tensor begins at a multiple of 16, not at %p", address);
    if (interleave || fill || promotion < 0 || promotion > 3 || swizzle < 0 || swizzle > 3)
        return ptx_refuse(why, "no map of interleave %d, swizzle %d, promotion %d, fill %d",
                          interleave, swizzle, promotion, fill);
    tensor_map m = { .mark = mark,
                     .address = (uintptr_t)address,
                     .strides = { element },
                     .rank = (uint8_t)rank,
                     .swizzle = (uint8_t)swizzle };
    for (uint32_t i = 0; i < rank; i++) {
        if (!sizes[i] || sizes[i] > (uint64_t)1 << 32)
            return ptx_refuse(why, "dimension %u has %" PRIu64 " elements, not 1 to 2^32",
                              (unsigned)i, sizes[i]);
        if (!box[i] || box[i] > BOX_MOST)
            return ptx_refuse(why, "a box has 1 to %d elements of dimension %u, not %u", BOX_MOST,
                              (unsigned)i, (unsigned)box[i]);
        if (steps[i] != 1)
            return ptx_refuse(why, "dimension %u goes by steps of %u", (unsigned)i,
                              (unsigned)steps[i]);
        if (i + 1 < rank && (strides[i] % 16 || strides[i] >> 40))
            return ptx_refuse(why, "stride %u is %" PRIu64 " bytes, no multiple of 16 below 2^40",
                              (unsigned)i, strides[i]);
        if (i + 1 < rank)
            m.strides[i + 1] = strides[i];
        m.last[i] = (uint32_t)(sizes[i] - 1);
        m.box[i] = (uint16_t)box[i];
    }
    uint32_t row = box[0] * element, span = 16u << swizzle;
    if (row % 16)
        return ptx_refuse(why, "a box's row is a multiple of 16 bytes, not %u", (unsigned)row);
    if (swizzle && row != span)
        return ptx_refuse(why, "a box's row is %u bytes, and the swizzle's %u", (unsigned)row,
                          (unsigned)span);
    memset(map, 0, MAP_BYTES);
    memcpy(map, &m, sizeof m);
    return true;
}

static bool read_map(const void *map, uint32_t rank, tensor_map *m, ptx_why *why)
{
    memcpy(m, map, sizeof *m);
    if (m->mark != mark)
        return ptx_refuse(why, "cp.async.bulk.tensor: at %p is no tensor map", map);
    if (m->rank != rank)
        return ptx_refuse(why, "cp.async.bulk.tensor.%ud by a map of %d dimensions", (unsigned)rank,
                          m->rank);
    return true;
}

/* Of one that is larger than any shared memory, not all. */
static uint32_t box_bytes(const tensor_map *m)
{
    uint64_t bytes = m->strides[0];
    for (int i = 0; i < m->rank; i++)
        bytes = bytes * m->box[i] > UINT32_MAX ? UINT32_MAX : bytes * m->box[i];
    return (uint32_t)bytes;
}

/* A row of a box: what of it lies in the tensor, bytes [from, to), and where its byte 0 is or would
 * be. */
typedef struct part {
    uint32_t from, to;
    uint64_t address;
} part;

static part row_of(const tensor_map *m, const int32_t *x, uint32_t row)
{
    part p = { 0 };
    int64_t offset = x[0] * (int64_t)m->strides[0];
    for (int i = 1; i < m->rank; i++) {
        int64_t at = x[i] + (int64_t)(row % m->box[i]);
        row /= m->box[i];
        if (at < 0 || at > m->last[i])
            return p;
        offset += at * (int64_t)m->strides[i];
    }
    int64_t first = x[0] < 0 ? -(int64_t)x[0] : 0, end = (int64_t)m->last[0] + 1 - x[0];
    end = end < m->box[0] ? end : m->box[0];
    if (first < end)
        p = (part){ .from = (uint32_t)(first * (int64_t)m->strides[0]),
                    .to = (uint32_t)(end * (int64_t)m->strides[0]),
                    .address = m->address + (uint64_t)offset };
    return p;
}

/* Bytes [from, to) of a row, whose first is at address `at` of the window before swizzling, between
 * shared memory and flat. */
static void swizzled(const tensor_map *m, const ptx_shared *shared, uint32_t at, uint32_t from,
                     uint32_t to, unsigned char *flat, bool loads)
{
    uint32_t mask = (16u << m->swizzle) - 16;
    while (from < to) {
        uint32_t unit = m->swizzle ? 16 - from % 16 : to - from; /* bytes that stay together */
        uint32_t bytes = unit < to - from ? unit : to - from, place = at + from;
        place ^= place >> 3 & mask;
        unsigned char *there = shared->bytes + (place - shared->base);
        memcpy(loads ? there : flat, loads ? flat : there, bytes);
        flat += bytes;
        from += bytes;
    }
}

/* Both ways. */
static bool copy_box(const void *map, uint32_t rank, const int32_t *x, const ptx_memory *memory,
                     const ptx_shared *shared, uint32_t at, bool loads, uint32_t *bytes,
                     ptx_why *why)
{
    unsigned char zeros[BOX_MOST * 8] = { 0 };
    tensor_map m;
    if (!read_map(map, rank, &m, why))
        return false;
    uint32_t row_bytes = m.box[0] * (uint32_t)m.strides[0], all = box_bytes(&m);
    if (!ptx_shared_at(shared, at, all, 128, "cp.async.bulk.tensor", why))
        return false;
    for (uint32_t row = 0; row < all / row_bytes; row++, at += row_bytes) {
        part p = row_of(&m, x, row);
        unsigned char *flat = NULL;
        if (p.to && !(flat = ptx_memory_at(memory, p.address + p.from, p.to - p.from, 1, !loads,
                                           "cp.async.bulk.tensor", why)))
            return false;
        if (p.to)
            swizzled(&m, shared, at, p.from, p.to, flat, loads);
        if (loads && p.from)
            swizzled(&m, shared, at, 0, p.from, zeros, true);
        if (loads && p.to < row_bytes)
            swizzled(&m, shared, at, p.to, row_bytes, zeros, true);
    }
    if (bytes)
        *bytes = all;
    return true;
}

bool ptx_map_load(const void *map, uint32_t rank, const int32_t *x, const ptx_memory *memory,
                  const ptx_shared *shared, uint32_t to, uint32_t *bytes, ptx_why *why)
{
    return copy_box(map, rank, x, memory, shared, to, true, bytes, why);
}

bool ptx_map_store(const void *map, uint32_t rank, const int32_t *x, const ptx_memory *memory,
                   const ptx_shared *shared, uint32_t from, ptx_why *why)
{
    return copy_box(map, rank, x, memory, shared, from, false, NULL, why);
}

bool ptx_map_prefetch(const void *map, uint32_t rank, ptx_why *why)
{
    tensor_map m;
    return read_map(map, rank, &m, why);
}
