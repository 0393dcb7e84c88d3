/* sm90_sum.cuh - with IMX_SUM: the warp that has made 16 rows of a tile sends them to their owners
 * out of its registers, and adds to those of its own rank what the same warps of the peers send.
 *
 *     warp     | products | rows of peers, to them | own += peers', as they come, in rank order | c
 *     beside   | use, credits |
 *
 * Data carries its flag and lies in the order of registers: a lane's words go to the same lane of
 * the same warp.  So it needs no fence and no signal, and no block waits for another one of its own
 * GPU.  A unit of 16 bytes is three words of two elements each, and the low half of the run's use,
 * which stands in the last unit's free words, too.
 * Where a flag lies there never was data, and a word that no run has written for exactly 2^32 uses
 * of its half would pass for a new one (ll/args.h).
 */
#ifndef IMX_SM90_SUM_CUH
#define IMX_SM90_SUM_CUH

#ifdef IMX_SUM

#include "sm90_fold.cuh"
#include "sm90_layout.cuh"
#include "sm90_tile.h"
#include "sum.h"
#include "team.cuh"

enum {
    SUM_WORDS = IMX_TILE_N / 8 / SPLIT, /* a lane's, of a row, of this block's columns */
    SUM_UNITS = (SUM_WORDS + 2) / 3,
    SUM_BYTES = 2 * 32 * 16 * SUM_UNITS, /* of a warp's 16 rows */
    SUM_AT_ONCE = SUM_UNITS < 3 ? SUM_UNITS : 3, /* units of a lane, of... */
    SUM_PARTS = 4, /* ...so many ranks, that are under way together */
};
static_assert(SPLIT * SUM_BYTES <= IMX_SUM_ROWS * IMX_TILE_N * 2 * IMX_SUM_SHARE,
              "a group has its place");

/* ---- the books ------------------------------------------------------------------------------- */

/* Of the run, in shared memory, once sum_ready is counted up. */
IMX_FN volatile uint64_t &sum_use(void)
{
    return words().use;
}

IMX_FN uint32_t sum_ready(void)
{
    return shared_at(&words().ready);
}

/* Before thread 0 meets the others. */
IMX_FN void sum_init(void)
{
    words().ready = 0;
}

/* One warp a block, beneath the products.  The run before has ended, so the peers get this rank's
 * credit for it; when all blocks know the use, it is advanced.  0: gave up. */
IMX_FN int sum_books(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    const imx_team &team = args.team;
    int lane = lane_here(), there = 1;
    uint64_t use = team_use(args);
    __syncwarp(); /* all lanes have it */
    if (lane == 0) {
        sum_use() = use;
        if (imbrexd_counter_last(args.ended, gridDim.x))
            *(volatile uint64_t *)args.use = use;
    }
    if (lane < team.size && lane != team.rank) {
        if (blockIdx.x == 0)
            imbrexd_signal_post(imx_team_credit(&team, lane, team.rank), use - 1);
        imbrexd_site site = { args.plan, IMX_SITE_PART, lane, -1 }; /* it has not begun to send */
        there = imbrexd_signal_wait(watch, imx_team_credit(&team, team.rank, lane), use - 1, site);
    }
    there = __all_sync(0xffffffffu, there);
    __syncwarp(); /* what a lane saw comes before what others do from here on */
    if (lane == 0 && there)
        shared_count(sum_ready(), 1);
    return there;
}

/* ---- where rows go --------------------------------------------------------------------------- */

/* Whose row it is, of the whole matrix: of few rows. */
IMX_FN int sum_owner(const imx_gemm_args &args, int row)
{
    unsigned m = (unsigned)args.schedule.m, ranks = (unsigned)args.team.size;
    return (int)((((unsigned)row + 1) * ranks - 1) / m);
}

/* The place of a warp's rows, from `row` of the whole matrix on, in the holder's slot `of`. */
IMX_FN char *sum_place(const imx_gemm_args &args, const tile_info *note, int row, int holder,
                       int of)
{
    int groups = imx_sum_groups(args.schedule.m, args.team.size);
    int group = row / IMX_SUM_ROWS - team_row(args, holder) / IMX_SUM_ROWS;
    int column = note->col / IMX_TILE_N * SPLIT + split_block();
    return imx_team_data(&args.team, holder) + of * args.slot_bytes +
           (int64_t)(column * groups + group) * SUM_BYTES;
}

/* Word i of a row's that this block has: packed's, of one half of the warp's rows. */
IMX_FN uint32_t sum_word(const uint32_t (&packed)[IMX_ACC / 2], int half, int i)
{
    return SPLIT == 1 || split_block() == 0 ? packed[2 * i + half]
                                     : packed[2 * (i + (SPLIT - 1) * SUM_WORDS) + half];
}

/* A warp's 16 rows from `row` on: those of peers leave. */
IMX_FN void sum_leave(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                      const tile_info *note, int row, uint32_t flag)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int lane = lane_here(), mine = row + lane / 4 + half * 8;
        auto word = [&](int i) { return i < SUM_WORDS ? sum_word(packed, half, i) : flag; };
        if (mine >= (int)args.schedule.m)
            continue;
        int owner = sum_owner(args, mine);
        if (owner == args.team.rank)
            continue;
        char *to = sum_place(args, note, row, owner, args.team.rank) + half * (SUM_BYTES / 2);
#pragma unroll
        for (int u = 0; u < SUM_UNITS; u++)
            imx_vector_store_whole(to + (u * 32 + lane) * 16,
                                   make_uint4(word(3 * u), word(3 * u + 1), word(3 * u + 2), flag));
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Whether unit number u has come.  All of its words are looked at or added up: one that nobody
 * needed the compiler would not load, but the others then one after the other, data before flag. */
IMX_FN int sum_is_here(uint4 unit, int u, uint32_t flag)
{
    int there = unit.w == flag;
    if (3 * u + 1 >= SUM_WORDS)
        there &= unit.y == flag;
    if (3 * u + 2 >= SUM_WORDS)
        there &= unit.z == flag;
    return there;
}

/* Units from number `at` on, of parts r and on; 0: not all are there. */
IMX_FN int sum_look(const imx_gemm_args &args, int at, int r, uint32_t flag, const char *from,
                    uint4 (&unit)[SUM_PARTS][SUM_AT_ONCE])
{
    int lane = lane_here(), there = 1;
#pragma unroll
    for (int p = 0; p < SUM_PARTS; p++) {
#pragma unroll
        for (int i = 0; i < SUM_AT_ONCE && at + i < SUM_UNITS; i++) {
            if (r + p < args.team.size && r + p != args.team.rank)
                unit[p][i] = imx_vector_load_whole(from + p * args.slot_bytes +
                                                   ((at + i) * 32 + lane) * 16);
        }
    }
#pragma unroll
    for (int p = 0; p < SUM_PARTS; p++) {
#pragma unroll
        for (int i = 0; i < SUM_AT_ONCE && at + i < SUM_UNITS; i++) {
            if (r + p < args.team.size && r + p != args.team.rank)
                there &= sum_is_here(unit[p][i], at + i, flag);
        }
    }
    return there;
}

/* Until they are, with an eye on the clock; 0: give up. */
IMX_FN int sum_wait(const imx_gemm_args &args, const imbrexd_watch *watch, int at, int r,
                    uint32_t flag, const char *from)
{
#pragma unroll 1
    for (int p = r; p < r + SUM_PARTS && p < args.team.size; p++, from += args.slot_bytes) {
        imbrexd_site site = { args.plan, IMX_SITE_PART, p, -1 };
        uint32_t data;
#pragma unroll 1
        for (int i = at; i < at + SUM_AT_ONCE && i < SUM_UNITS && p != args.team.rank; i++) {
            const uint64_t *word = (const uint64_t *)(from + (i * 32 + lane_here()) * 16) + 1;
            if (!imbrexd_ll_wait(watch, word, flag, site, &data))
                return 0;
        }
    }
    return 1;
}

/* A word of c, at an even column. */
IMX_FN void sum_put(const imx_gemm_args &args, int64_t row, int col, float low, float high)
{
    int n = (int)args.schedule.n;
    uint16_t *c = (uint16_t *)args.c + row * n + col;
    if (col >= n)
        return;
    if (args.bias) {
        low += bias_at((const uint16_t *)args.bias, col, n);
        high += bias_at((const uint16_t *)args.bias, col + 1, n);
    }
    uint32_t word = pack(low, high);
    if (n % 2 == 0) {
        *(uint32_t *)c = word;
        return;
    }
    c[0] = (uint16_t)word;
    if (col + 1 < n)
        c[1] = (uint16_t)(word >> 16);
}

/* Units of one's own row, from number `at` on: all ranks' parts, added in rank order.  from: where
 * they lie in slot 0.  0: gave up. */
IMX_FN int sum_units(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                     const imbrexd_watch *watch, int half, int at, uint32_t flag, const char *from,
                     int64_t row, int col)
{
    enum { LOOKS = 2000 }; /* the abort word is far away */
    int rank = args.team.rank, size = args.team.size;
    float sum[6 * SUM_AT_ONCE];
#pragma unroll 1
    for (int r = 0; r < size; r += SUM_PARTS, from += SUM_PARTS * args.slot_bytes) {
        uint4 unit[SUM_PARTS][SUM_AT_ONCE];
#pragma unroll 1
        for (int looks = 0; !sum_look(args, at, r, flag, from, unit); looks++) {
            if (looks >= LOOKS && !sum_wait(args, watch, at, r, flag, from))
                return 0;
        }
#pragma unroll
        for (int p = 0; p < SUM_PARTS; p++) {
            if (r + p >= size)
                continue;
#pragma unroll
            for (int i = 0; i < 3 * SUM_AT_ONCE && 3 * at + i < SUM_WORDS; i++) {
                uint4 u = unit[p][i / 3];
                uint32_t x = i % 3 == 0 ? u.x : i % 3 == 1 ? u.y : u.z;
                x = r + p == rank ? sum_word(packed, half, 3 * at + i) : x;
                float low = unpack((uint16_t)x), high = unpack((uint16_t)(x >> 16));
                sum[2 * i] = r + p == 0 ? low : sum[2 * i] + low;
                sum[2 * i + 1] = r + p == 0 ? high : sum[2 * i + 1] + high;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 3 * SUM_AT_ONCE && 3 * at + i < SUM_WORDS; i++)
        sum_put(args, row, col + 8 * (3 * at + i), sum[2 * i], sum[2 * i + 1]);
    return 1;
}

/* This lane's own rows among the 16 from `row` on.  0: gave up. */
IMX_FN int sum_own(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                   const imbrexd_watch *watch, const tile_info *note, int row, uint32_t flag)
{
    int rank = args.team.rank, there = 1;
    int first = team_row(args, rank), end = team_row(args, rank + 1);
    int col = note->col + split_block() * (IMX_TILE_N / 2) + lane_here() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int mine = row + lane_here() / 4 + half * 8;
        if (mine < first || mine >= end)
            continue;
        const char *from = sum_place(args, note, row, rank, 0) + half * (SUM_BYTES / 2);
#pragma unroll
        for (int at = 0; at < SUM_UNITS; at += SUM_AT_ONCE)
            there = there &&
                    sum_units(packed, args, watch, half, at, flag, from, mine - first, col);
    }
    return there;
}

/* One warp, whose rows of the tile begin at first_row.  0: gave up. */
IMX_FN int sum_tile(const uint32_t (&packed)[HALVES][IMX_ACC / 2], const imx_gemm_args &args,
                    const imbrexd_watch *watch, const tile_info *note, int first_row)
{
    int row = note->row + first_row, there;
    while (!__all_sync(0xffffffffu, shared_counted(sum_ready()))) {
        if (__any_sync(0xffffffffu, gave_up_here()))
            return 0;
    }
    uint32_t flag = (uint32_t)sum_use();
    imx_trace_begin(IMX_TRACE_STORE);
    sum_leave(packed[0], args, note, row, flag);
    imx_trace_end(IMX_TRACE_STORE, -1, -1);
    imx_trace_begin(IMX_TRACE_FOLD);
    there = __all_sync(0xffffffffu, sum_own(packed[0], args, watch, note, row, flag));
    imx_trace_end(IMX_TRACE_FOLD, args.team.rank, -1);
    return there;
}

#endif /* IMX_SUM */

#endif /* IMX_SM90_SUM_CUH */
