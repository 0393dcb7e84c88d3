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

/* The share of a block: columns of rows, a warp each. */
ATTEND_FN void add_share_of(const imx_attend_args &x, int block)
{
    int rows = x.queries * x.heads, warp = (int)threadIdx.x / LANES;
    int64_t all = x.sequences * rows * ROW_COLUMNS;
    for (int64_t i = block + (int64_t)warp * gridDim.x; i < all; i += (int64_t)WARPS * gridDim.x) {
        int64_t state = i / ROW_COLUMNS;
        work w = { (int)(state / rows) };
        w.splits = imx_attend_splits(length_of(x, x.lengths[w.sequence]), 1);
        add_columns(x, w, state, (int)(i % ROW_COLUMNS) * COLUMN);
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
    add_share_of(x, (int)blockIdx.x);
    if (end == ADDS_LAST) {
        both_barrier();
        for (int i = 0; i < room->gone; i++)
            add_share_of(x, room->upto[i]);
    }
}

#endif /* IMX_ATTEND_SM90_MLA_END_CUH */
