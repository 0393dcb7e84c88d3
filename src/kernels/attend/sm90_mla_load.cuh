/* sm90_mla_load.cuh - the warp that brings MLA's tokens, and rows of q, by the copy engine.
 *
 *     a ring of IMX_SLOTS   | a tile of 64 tokens: numbers 0 to 191 | 192 to 383 | 384 to 575 | ...
 *     a slot                | 128 bytes of each token's row | the next 128 | the next 128 | */
#ifndef IMX_ATTEND_SM90_MLA_LOAD_CUH
#define IMX_ATTEND_SM90_MLA_LOAD_CUH

#include "../sm90_tma.cuh"
#include "sm90_deal.cuh"

enum {
    TILE = IMX_ATTEND_TILE,
    BLOCK_BYTES = TILE * 128, /* 128 bytes of each row */
    V_BLOCKS = IMX_VALUES / 64,
    SLOT_BLOCKS = 3,
    TILE_SLOTS = IMX_DIM / 64 / SLOT_BLOCKS,
    SLOT_BYTES = SLOT_BLOCKS * BLOCK_BYTES,
    BOXES = TILE / IMX_BOX,
    BOX_BLOCKS = IMX_BOX == TILE ? SLOT_BLOCKS : 1,
    GROUP_WARPS = WARPS / 2, /* of a warpgroup */
    GROUP_THREADS = GROUP_WARPS * LANES,
    Q_BLOCK_BYTES = IMX_ROWS * 128,
    Q_BYTES = IMX_ROWS * ROW_BYTES,
    Q_AT = IMX_SLOTS * SLOT_BYTES,
    ROOM_AT = Q_AT + Q_BYTES
};
static_assert(TILE == 64 && IMX_DIM == 576 && IMX_VALUES == 512 && WARPS == 8 && IMX_ROWS <= 32 &&
                  IMX_SLOTS >= 2 * TILE_SLOTS && !EIGHT,
              "a tile is three slots, and two are there at once");

/* k: boxes of BOX_BLOCKS; q: of all rows. */
typedef struct attend_maps {
    imx_tma_map k, q;
} attend_maps;

struct mla_room {
    uint64_t full[IMX_SLOTS], empty[IMX_SLOTS];
    uint64_t q_full, q_empty;
    uint64_t weighed[2];                 /* tile i: of i % 2 */
    work runs[2];                        /* run i: of i % 2; sequence -1: there is no further one */
    int level, parts_most;               /* as dealer has them */
    float most[4][IMX_ROWS];             /* the largest score up to tile i: of i % 4 */
    float by[2][IMX_ROWS];               /* what sums are to be multiplied by before tile i */
    float own[2][GROUP_WARPS][IMX_ROWS]; /* a warp's largest score */
    float sums[2][WARPS][IMX_ROWS];      /* and, as split i of the block ends, of i % 2, its sum */
    float2 kept[LEVELS + 1][IMX_ROWS];   /* the largest score, and sum, of what threads keep */
    int from[IMX_ROWS], to[IMX_ROWS];    /* tokens that a row sees */
    int end, gone;                       /* add_all */
    int upto[CHUNK];
};
static_assert(ROOM_AT + sizeof(mla_room) <= IMX_SHARED_BYTES, "launch.c has room for it");

ATTEND_FN uint32_t at_shared(const void *of)
{
    return (uint32_t)__cvta_generic_to_shared(of);
}

/* Without tokens that no row of the piece sees. */
ATTEND_FN work narrowed(const imx_attend_args &x, const work &w)
{
    int from = w.end, to = w.first;
    if (!x.hidden && !x.visible)
        return w;
    for (int row = (int)threadIdx.x % LANES; row < rows_of(x, w); row += LANES) {
        int begin, end;
        look(x, w, row, &begin, &end);
        from = begin < end && begin < from ? begin : from;
        to = begin < end && end > to ? end : to;
    }
    join<LANES>(&from, &to);
    return narrow(w, from, to, TILE);
}

/* ---- slots ----------------------------------------------------------------------------------- */

struct place {
    int slot;
    uint32_t parity;
};

ATTEND_FN place after(place p, int count)
{
    p.slot += count;
    if (p.slot >= IMX_SLOTS)
        p.slot -= IMX_SLOTS, p.parity ^= 1;
    return p;
}

ATTEND_FN place after_tiles(const place &p, int tiles)
{
    unsigned slot = (unsigned)(p.slot + tiles * TILE_SLOTS);
    return { (int)(slot % IMX_SLOTS), p.parity ^ (slot / IMX_SLOTS & 1) };
}

ATTEND_FN int tiles_of(const work &w)
{
    return w.end > w.first ? (w.end - w.first + TILE - 1) / TILE : 1;
}

/* ---- loads ----------------------------------------------------------------------------------- */

/* What the warp that loads has. */
struct loads {
    const attend_maps *maps;
    uint32_t shared;
    place next;
    bool by_maps; /* k is aligned as the copy engine wants it */
    int y, z;     /* where box `lane` of the group is in the map */
};

/* Boxes that lanes look up together, in tokens. */
enum { GROUP = LANES * IMX_BOX };

ATTEND_FN void find(const imx_attend_args &x, const imbrexd_watch &watch, const work &w, int first,
                    loads *l)
{
    int t = first + (int)threadIdx.x % LANES * IMX_BOX;
    l->y = t;
    l->z = w.sequence;
    if (x.page) {
        l->y = t % x.page;
        l->z = t < w.end ? page_there(x, watch, w, page_of(x, w, t)) : 0;
    }
}

/* A slot's part of tokens from `first` on, by all lanes: from anywhere. */
ATTEND_SELDOM void load_apart(const imx_attend_args &x, const imbrexd_watch &watch, int sequence,
                              int end, int first, int part, uint32_t to)
{
    enum { SLOT_UNITS = SLOT_BLOCKS * 8 };
    const work w = { sequence };
    for (int i = (int)threadIdx.x % LANES; i < TILE * SLOT_UNITS; i += LANES) {
        int row = i / SLOT_UNITS, unit = i % SLOT_UNITS, t = first + row;
        if (t >= end)
            break;
        int64_t at = token_in(x, watch, w, page_of(x, w, t), x.page ? t % x.page : t);
        uint32_t there = (uint32_t)(unit / 8 * BLOCK_BYTES + row * 128 + (unit % 8 ^ row % 8) * 16);
        shared_store(to + there,
                     load_any((const uint16_t *)x.k + at + (part * SLOT_UNITS + unit) * 8));
    }
    tma_fence_shared();
}

/* The tile of tokens from `first` on. */
ATTEND_FN void load_tile(const imx_attend_args &x, const imbrexd_watch &watch, mla_room *room,
                         loads *l, const work &w, int first)
{
    enum { COPIES = BOXES * SLOT_BLOCKS / BOX_BLOCKS };
    int lane = (int)threadIdx.x % LANES, left = w.end - first;
    int boxes = !l->by_maps || left <= 0 ? 0
                : left >= TILE           ? BOXES
                                         : (left + IMX_BOX - 1) / IMX_BOX;
    int box = lane % BOXES, block = lane / BOXES, from = (first - w.first) / IMX_BOX % LANES + box;
    int y = __shfl_sync(ALL, l->y, from), z = __shfl_sync(ALL, l->z, from);
#pragma unroll 1
    for (int part = 0; part < TILE_SLOTS; part++) {
        uint32_t full = at_shared(&room->full[l->next.slot]);
        uint32_t to = l->shared + (uint32_t)(l->next.slot * SLOT_BYTES);
        mbar_wait(at_shared(&room->empty[l->next.slot]), l->next.parity ^ 1);
        if (!l->by_maps)
            load_apart(x, watch, w.sequence, w.end, first, part, to);
        __syncwarp();
        if (lane == 0)
            mbar_expect(full, (uint32_t)(boxes * IMX_BOX * 128 * SLOT_BLOCKS));
        __syncwarp();
        if (lane < COPIES && box < boxes)
            tma_load_blocks_once(to + (uint32_t)(block * BLOCK_BYTES + box * IMX_BOX * 128),
                                 &l->maps->k, y, part * SLOT_BLOCKS + block, z, full);
        __syncwarp();
        l->next = after(l->next, 1);
    }
}

/* A run, or none, and its rows of q; others are zeros, or another sequence's. */
ATTEND_FN void load_q(const imx_attend_args &x, mla_room *room, const loads &l, const work &w,
                      int i)
{
    int lane = (int)threadIdx.x % LANES;
    bool is_one = w.sequence >= 0, direct = ((uintptr_t)x.q & 15) == 0;
    uint32_t full = at_shared(&room->q_full), to = l.shared + Q_AT;
    mbar_wait(at_shared(&room->q_empty), (uint32_t)(i & 1) ^ 1);
    if (is_one && !direct) {
        for (int at = lane; at < IMX_ROWS * UNITS; at += LANES) {
            int row = at / UNITS, unit = at % UNITS;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (row < rows_of(x, w))
                v = load_any((const uint16_t *)x.q + state_of(x, w, row) * IMX_DIM + unit * 8);
            shared_store(
                to + (uint32_t)(unit / 8 * Q_BLOCK_BYTES + row * 128 + (unit % 8 ^ row % 8) * 16),
                v);
        }
        tma_fence_shared();
    }
    __syncwarp();
    if (lane == 0) {
        room->runs[i % 2] = w;
        mbar_expect(full, is_one && direct ? Q_BYTES : 0);
        if (is_one && direct)
            tma_load_blocks_once(to, &l.maps->q, (int)state_of(x, w, 0), 0, 0, full);
    }
    __syncwarp();
}

/* The warp that loads: all of the block's runs, of each whatever its rows see, and one tile at
 * least.  The first tile comes ahead of q, which has to wait for the run before.  The next run is
 * looked up meanwhile. */
ATTEND_FN void load_all(const imx_attend_args &x, const imbrexd_watch &watch,
                        const attend_maps &maps, mla_room *room)
{
    bool aligned = (((uintptr_t)x.k | (uintptr_t)(x.cache_stride * ELEMENT)) & 15) == 0;
    loads l = { &maps, at_shared(imx_attend_shared), { 0, 0 }, aligned };
    dealer d = new_dealer();
    work w = {}, next = {};
    bool more = deal(x, watch, room->upto, &d, &next);
    int i = 0;
    room->level = d.level;
    for (; more; i++) {
        w = next;
        int tiles = tiles_of(w);
        for (int tile = 0; tile < tiles; tile++) {
            int first = w.first + tile * TILE;
            if (tile * TILE % GROUP == 0 && w.end > w.first && l.by_maps)
                find(x, watch, w, first, &l);
            load_tile(x, watch, room, &l, w, first);
            if (tile == 0) {
                load_q(x, room, l, w, i);
                more = deal(x, watch, room->upto, &d, &next);
            }
        }
    }
    w.sequence = -1;
    room->parts_most = d.most;
    load_q(x, room, l, w, i);
}

#endif /* IMX_ATTEND_SM90_MLA_LOAD_CUH */
