/* sm90_mla_end.cuh - the end of MLA on Hopper: what all splits come to, added up by all blocks.
 *
 * Splits leave so much that one block would add long.  So blocks meet, and each has its share of
 * numbers of o.  The last to come tells the others, each by a word of its own.  A block does not
 * wait for much longer than its latest split took, since one that has not begun may want its place:
 * it says that it has gone, and the last one has its share, too.
 *
 *     counts   | how many blocks have come | a word of block 0 | of block 1 | ...
 *     a word   0, but while blocks meet   IS_OVER, by the last   HAS_GONE, by its block */
#ifndef IMX_ATTEND_SM90_MLA_END_CUH
#define IMX_ATTEND_SM90_MLA_END_CUH

#include "sm90_mla_load.cuh"

static_assert(CHUNK >= IMX_ATTEND_BLOCKS, "upto has room for blocks that have gone");

enum { IS_OVER = 1, HAS_GONE = 2 };
enum { WAIT_LEAST = 1 << 16 /* cycles */ };
/* What a block does at its end. */
enum { LEAVES, ADDS, ADDS_LAST };

enum { COLUMN = 2 * LANES * PAIRS, ROW_COLUMNS = IMX_VALUES / COLUMN }; /* of a row: a warp's */

ATTEND_FN void both_barrier(void)
{
    asm volatile("bar.sync 1, %0;" : : "n"(IMX_THREADS) : "memory");
}

ATTEND_FN uint32_t clock_now(void)
{
    uint32_t now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now) : : "memory");
    return now;
}

/* One thread, when all parts of the block happen before: until all blocks have come, or it has
 * waited for long enough.  took: the latest split, in cycles. */
ATTEND_FN int meet(const imx_attend_args &x, uint32_t took)
{
    const uint32_t most = WAIT_LEAST + 2 * (took < 1u << 30 ? took : 1u << 30);
    uint32_t *word = x.counts + 1 + blockIdx.x, before, said = 0, begin = clock_now();
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(x.counts)
                 : "memory");
    if (before == gridDim.x - 1) {
        *x.counts = 0;
        return ADDS_LAST;
    }
    while (!said && clock_now() - begin < most)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(said) : "l"(word) : "memory");
    if (!said)
        asm volatile("atom.cas.acq_rel.gpu.global.b32 %0, [%1], 0, %2;"
                     : "=r"(said)
                     : "l"(word), "r"((uint32_t)HAS_GONE)
                     : "memory");
    if (said)
        *word = 0;
    return said ? ADDS : LEAVES;
}

/* The last block: tells the others, and writes down those that have gone. */
ATTEND_FN void call_all(const imx_attend_args &x, mla_room *room)
{
    for (uint32_t block = threadIdx.x; block < gridDim.x; block += IMX_THREADS) {
        uint32_t *word = x.counts + 1 + block, said;
        if (block == blockIdx.x)
            continue;
        asm volatile("atom.exch.acq_rel.gpu.global.b32 %0, [%1], %2;"
                     : "=r"(said)
                     : "l"(word), "r"((uint32_t)IS_OVER)
                     : "memory");
        if (said == HAS_GONE) {
            *word = 0;
            room->upto[atomicAdd(&room->gone, 1)] = (int)block;
        }
    }
}

/* Parts of a row whose numbers from `first` on are added up at once, COLUMN of each of so many
 * columns; and their largest score, and sum of weights. */
template <int columns> struct node {
    float2 own, of[columns];
};

/* Nodes of two numbers of a lane: a left one becomes what it comes to with the right one. */
template <int columns> ATTEND_FN void join_right(const node<columns> &right, node<columns> *left)
{
    float upto = fmaxf(left->own.x, right.own.x);
    share by = share_between(left->own.x, upto, right.own);
    left->own.x = upto;
    add_share(by, right.own.y, &left->own.y);
#pragma unroll
    for (int i = 0; i < columns; i++) {
        add_share(by, right.of[i].x, &left->of[i].x);
        add_share(by, right.of[i].y, &left->of[i].y);
    }
}

/* The node of runs from `from` on, of `count` in all: so many at most, a power of two.  A run's
 * part is that of its first split. */
template <int columns, int parts>
ATTEND_FN node<columns> node_of(const imx_attend_args &x, int64_t state, int first, int level,
                                int from, int count)
{
    enum { STEPS = parts == LANES ? 5 : 2 };
    static_assert(parts == 1 << STEPS, "a step halves them");
    int lane = (int)threadIdx.x % LANES, each = IMX_VALUES << level;
    const float *at = part_of(x, state, from << level) + lane * 2 + first;
    float2 v[parts][columns], own = make_float2(NONE, 0);
    share by[STEPS];
    if (from + lane < count)
        own = load_pair(weight_of(x, state, (from + lane) << level));
    count -= from;
#pragma unroll
    for (int j = 0; j < parts; j++) {
#pragma unroll
        for (int i = 0; i < columns; i++)
            v[j][i] = j < count ? load_pair(at + j * each + i * COLUMN) : make_float2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) { /* ahead of numbers, which come meanwhile */
        float2 right =
            make_float2(__shfl_down_sync(ALL, own.x, 1 << i), __shfl_down_sync(ALL, own.y, 1 << i));
        float upto = fmaxf(own.x, right.x);
        by[i] = share_between(own.x, upto, right);
        own.x = upto;
        add_share(by[i], right.y, &own.y);
    }
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        const int step = 1 << k;
        if (step >= count)
            continue;
#pragma unroll
        for (int j = 0; j < parts; j += 2 * step) {
            share s = { __shfl_sync(ALL, by[k].keep, j), __shfl_sync(ALL, by[k].by, j) };
#pragma unroll
            for (int i = 0; i < columns; i++) {
                add_share(s, v[j + step][i].x, &v[j][i].x);
                add_share(s, v[j + step][i].y, &v[j][i].y);
            }
        }
    }
    node<columns> all = { make_float2(__shfl_sync(ALL, own.x, 0), __shfl_sync(ALL, own.y, 0)) };
#pragma unroll
    for (int i = 0; i < columns; i++)
        all.of[i] = v[0][i];
    return all;
}

template <int columns>
ATTEND_FN void put_node(const imx_attend_args &x, int64_t state, int first,
                        const node<columns> &all)
{
#pragma unroll
    for (int i = 0; i < columns; i++) {
        float2 of[PAIRS] = { all.of[i] };
        put_columns(x, state, first + i * COLUMN, all.own.x, all.own.y, of);
    }
}

/* A column of a row. */
ATTEND_FN void add_column(const imx_attend_args &x, int64_t state, int first, int level, int count)
{
    static_assert(IMX_ATTEND_SPLITS <= 4 * LANES, "four nodes at most");
    node<1> kept[2] = {}, all;
#pragma unroll 1
    for (int i = 0;; i++) {
        bool is_done = (i + 1) * LANES >= count;
        all = node_of<1, LANES>(x, state, first, level, i * LANES, count);
        if (i & 1) {
            join_right(all, &kept[0]);
            all = kept[0];
        } else if (!is_done) {
            kept[0] = all;
            continue;
        }
        if (i & 2) {
            join_right(all, &kept[1]);
            all = kept[1];
        } else if (!is_done) {
            kept[1] = all;
            continue;
        }
        break;
    }
    put_node(x, state, first, all);
}

/* The share of a block: columns of rows, a warp each; of few runs whole rows, where columns are
 * more than warps.  32 bits count all columns, as flash_decode has few enough rows. */
ATTEND_FN void add_share_of(const imx_attend_args &x, const mla_room *room, int block)
{
    enum { FEW = LANES / ROW_COLUMNS /* so a warp loads as much */ };
    int rows = x.queries * x.heads, warp = (int)threadIdx.x / LANES;
    unsigned all = (unsigned)(x.sequences * rows * ROW_COLUMNS), warps = WARPS * gridDim.x;
    unsigned columns = LEVELS && room->parts_most <= FEW && all > warps ? ROW_COLUMNS : 1;
    for (unsigned i = (block + warp * gridDim.x) * columns; i < all; i += warps * columns) {
        unsigned state = i / ROW_COLUMNS, sequence = state / (unsigned)rows;
        int first = (int)(i % ROW_COLUMNS) * COLUMN;
        int splits = imx_attend_splits(length_of(x, x.lengths[sequence]), 1);
        int level = LEVELS ? room->level : 0, parts = runs_of(splits, level);
        if (columns == 1)
            add_column(x, state, first, level, parts);
        else
            put_node(x, state, 0, node_of<ROW_COLUMNS, FEW>(x, state, 0, level, 0, parts));
    }
}

/* The two warpgroups, when the block has no further split. */
ATTEND_FN void add_all(const imx_attend_args &x, mla_room *room, uint32_t took)
{
    both_barrier();
    if (threadIdx.x == 0) {
        room->gone = 0;
        room->end = meet(x, took);
    }
    both_barrier();
    int end = room->end;
    if (end == LEAVES)
        return;
    if (end == ADDS_LAST)
        call_all(x, room);
    add_share_of(x, room, (int)blockIdx.x);
    if (end == ADDS_LAST) {
        both_barrier();
        for (int i = 0; i < room->gone; i++)
            add_share_of(x, room, room->upto[i]);
    }
}

#endif /* IMX_ATTEND_SM90_MLA_END_CUH */
