/* sm90_epilogue_reduce_push.cuh - the warp that has made 16 rows of a tile sends them
 * to their owners out of its registers, own rows to this rank's own slot, and adds up its share of
 * what comes of own rows.
 *
 *     warp     | products | rows, each to its owner | own rows: all ranks' parts, in order | c
 *     beside   | epoch, credits |
 *
 * A tile has own rows or none, as it happens, so a wave's are shared out among all warps, whoever
 * made them.  They are those of the columns of which the wave has the last tiles.
 *
 * Data tells by itself that it has come.  A word of two elements travels with its bits inverted,
 * and as 1 if that is 0, which is a pair of NaN; its place is 0 until it comes, and whoever has
 * read it makes it 0 again.  So there is no fence and no signal, nothing but data travels, it does
 * not matter what of it comes together.  A slot is in the order of registers, of 16 rows of a tile
 * after the other: a lane's words are for the same lane of whoever adds them up.
 *
 * With IMX_REDUCE_ALL every rank is the owner of all rows: they go to all ranks, each of which adds
 * all of them.
 *
 * With IMX_REDUCE_FAN it is the owners' sums that go to all ranks, in the same form, behind the
 * slots of parts; behind its share of own rows a warp takes one of the others'.
 *
 * Warps that take turns send a tile beneath the other's products, at a pace that leaves room for
 * their loads, and add up there, too; the last one goes at once, and they add up together.
 */
#ifndef IMX_SM90_EPILOGUE_REDUCE_PUSH_CUH
#define IMX_SM90_EPILOGUE_REDUCE_PUSH_CUH

#include "sm90_credits.cuh"
#include "sm90_policy.cuh"
#include "sm90_store.cuh"
#include "sum.h"

enum {
    SUM_ALL = IMX_HAS(IMX_REDUCE_ALL),
    SUM_FAN = IMX_HAS(IMX_REDUCE_FAN),
    SUM_WORDS = IMX_TILE_N / 8 / SPLIT,    /* a lane's, of a row, of this block's columns */
    SUM_UNITS = (SUM_WORDS + 3) / 4,       /* of 16 bytes */
    SUM_BOTH = 2 * SUM_UNITS,              /* of a lane's two rows, the upper one's first */
    SUM_UNIT_BYTES = 32 * 16,              /* of a warp */
    SUM_BYTES = SUM_BOTH * SUM_UNIT_BYTES, /* of a warp's 16 rows */
    /* What holds a sum up is the way to memory, so many loads are under way: of so many parts, of
     * so many units. */
    SUM_LOADS = 8,
    SUM_PARTS = IMX_PARTS < SUM_LOADS ? IMX_PARTS : SUM_LOADS,
    SUM_AT_ONCE = SUM_LOADS / SUM_PARTS < SUM_BOTH ? SUM_LOADS / SUM_PARTS : SUM_BOTH,
    SUM_MORE = HALVES * IMX_ACC <= 64 ? SUM_AT_ONCE : 1, /* of the residual: tiles have registers */
    SUM_ROUNDS = (SUM_BOTH + SUM_AT_ONCE - 1) / SUM_AT_ONCE,
    SUM_TAKES = SUM_BOTH < 4 ? SUM_BOTH : 4, /* units of a sum */
    SUM_TAKE_ROUNDS = (SUM_BOTH + SUM_TAKES - 1) / SUM_TAKES,
    /* Clock cycles from one unit to the next, for each of a tile's steps, which takes 2 N of them
     * for each 64 rows: in all half of what the other consumer's tile takes. */
    SUM_PACE = IMX_TILE_N / SUM_BOTH,
    /* Between looks, as long as there are products to make: for each of a tile's steps; at most. */
    SUM_NAP_NS = 25,
    SUM_NAP_MOST_NS = 3000,
};
static_assert(SPLIT <= 2, "a tile's groups are one block's, or the other's");
static_assert(SPLIT * SUM_UNITS * 32 <=
                  (IMX_TILE_N + IMX_SUM_COLS - 1) / IMX_SUM_COLS * IMX_SUM_COLS,
              "a group has its place");

/* ---- the books ------------------------------------------------------------------------------- */

/* One warp a block, beneath the products.  The run before has ended, so the peers get this rank's
 * credit for it; when all blocks know the epoch, it is advanced.  0: gave up. */
IMX_FN int sum_books(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    const imx_team &team = args.team;
    int lane = lane_here(), there = 1;
    uint64_t epoch = team_use(args);
    __syncwarp(); /* all lanes have it */
    if (lane == 0 && imbrexd_counter_last(args.ended, gridDim.x))
        *(volatile uint64_t *)args.epoch = epoch;
    if (lane < team.size && lane != team.rank) {
        if (blockIdx.x == 0)
            imbrexd_signal_post(imx_team_credit(&team, lane, team.rank), epoch - 1);
        imbrexd_wait_point point = { args.plan, IMX_POINT_PART, lane,
                                     -1 }; /* it has not begun to send */
        there =
            imbrexd_signal_wait(watch, imx_team_credit(&team, team.rank, lane), epoch - 1, point);
    }
    there = __all_sync(0xffffffffu, there);
    if (there)
        let_store();
    return there;
}

/* ---- where rows go --------------------------------------------------------------------------- */

/* A rank's own rows: from this one on. */
IMX_FN int sum_row(const imx_gemm_args &args, int rank)
{
    return SUM_ALL ? 0 : team_row(args, rank);
}

/* And below this one. */
IMX_FN int sum_row_end(const imx_gemm_args &args, int rank)
{
    return SUM_ALL ? (int)args.schedule.m : team_row(args, rank + 1);
}

IMX_FN int sum_groups(const imx_gemm_args &args)
{
    return imx_sum_groups((int)args.schedule.m, SUM_ALL ? 1 : IMX_PARTS);
}

/* The place of a warp's rows, from `row` of the whole matrix on, in the holder's slot for this
 * rank. */
IMX_FN char *sum_place(const imx_gemm_args &args, const tile_info *note, int row, int holder)
{
    int group = row / IMX_SUM_ROWS - sum_row(args, holder) / IMX_SUM_ROWS;
    int column = note->col / IMX_TILE_N * SPLIT + split_block();
    return imx_team_data(&args.team, holder) + args.team.rank * args.slot_bytes +
           (int64_t)(column * sum_groups(args) + group) * SUM_BYTES;
}

/* Word i of a row's that this block has: packed's, of one half of the warp's rows.  Beyond them:
 * anything but 0. */
IMX_FN uint32_t sum_word(const uint32_t (&packed)[IMX_ACC / 2], int half, int i)
{
    if (i >= SUM_WORDS)
        return 1;
    return SPLIT == 1 || split_block() == 0 ? packed[2 * i + half]
                                            : packed[2 * (i + (SPLIT - 1) * SUM_WORDS) + half];
}

/* A unit whose place here is `at`: each rank begins with another peer. */
IMX_FN void sum_to_peers(const imx_gemm_args &args, char *at, uint4 unit)
{
#pragma unroll 1
    for (int j = 1; j < IMX_PARTS; j++) {
        int r = args.team.rank + j;
        const char *there = args.team.base[r < IMX_PARTS ? r : r - IMX_PARTS];
        imx_vector_store_whole(at + (there - args.team.base[args.team.rank]), unit);
    }
}

/* A warp's 16 rows from `row` on leave; pace: clock cycles from one unit to the next, or 0. */
IMX_FN void sum_leave(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                      const tile_info *note, int row, uint32_t pace)
{
    uint32_t due = clock_here();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int lane = lane_here(), mine = row + lane / 4 + half * 8;
        if (mine >= (int)args.schedule.m)
            continue;
        int owner = SUM_ALL ? args.team.rank : team_owner(args, mine);
        char *to = sum_place(args, note, row, owner);
#pragma unroll
        for (int u = 0; u < SUM_UNITS; u++) {
            while (TURNS == 2 && pace && (int32_t)(due - clock_here()) > 0)
                continue;
            due += pace;
            char *at = to + (half * SUM_UNITS + u) * SUM_UNIT_BYTES + lane * 16;
            uint4 unit =
                make_uint4(sum_word(packed, half, 4 * u), sum_word(packed, half, 4 * u + 1),
                           sum_word(packed, half, 4 * u + 2), sum_word(packed, half, 4 * u + 3));
            if (SUM_ALL)
                sum_to_peers(args, at, unit);
            imx_vector_store_whole(at, unit);
        }
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* 16 rows of a tile, some of them own, as a lane adds them up. */
typedef struct sum_share {
    char *from;     /* its unit 0 in slot 0 */
    int row;        /* its upper one */
    int first, end; /* own rows */
    int col;        /* of its word 0 */
} sum_share;

/* Whether unit q is of an own row. */
IMX_FN bool sum_has(const sum_share &share, int q)
{
    int row = share.row + (q < SUM_UNITS ? 0 : 8);
    return q < SUM_BOTH && row >= share.first && row < share.end;
}

IMX_FN char *sum_unit(const imx_gemm_args &args, const sum_share &share, int q, int part)
{
    return share.from + part * args.slot_bytes + q * SUM_UNIT_BYTES;
}

/* Units from q on, of parts r and on; 0: not all are there. */
IMX_FN int sum_look(const imx_gemm_args &args, const sum_share &share, int q, int r,
                    uint4 (&unit)[SUM_PARTS][SUM_AT_ONCE])
{
    int there = 1;
#pragma unroll
    for (int p = 0; p < SUM_PARTS && r + p < IMX_PARTS; p++) {
#pragma unroll
        for (int i = 0; i < SUM_AT_ONCE; i++) {
            if (sum_has(share, q + i))
                unit[p][i] = imx_vector_load_whole(sum_unit(args, share, q + i, r + p));
        }
    }
#pragma unroll
    for (int p = 0; p < SUM_PARTS && r + p < IMX_PARTS; p++) {
#pragma unroll
        for (int i = 0; i < SUM_AT_ONCE; i++) {
            if (sum_has(share, q + i))
                there &= imx_vector_has_come(unit[p][i]);
        }
    }
    return there;
}

/* Until they are, the peers' first, with an eye on the clock; 0: give up. */
IMX_FN int sum_wait(const imx_gemm_args &args, const imbrexd_watch *watch, const sum_share &share,
                    int q, int r)
{
#pragma unroll 1
    for (int j = 1; j <= IMX_PARTS; j++) {
        int p = (args.team.rank + j) % IMX_PARTS;
        if (p < r)
            continue; /* it has been read */
        imbrexd_wait_point point = { args.plan, IMX_POINT_PART, p, -1 };
#pragma unroll 1
        for (int i = 0; i < SUM_AT_ONCE; i++) {
            if (sum_has(share, q + i) && !team_unit(watch, sum_unit(args, share, q + i, p), point))
                return 0;
        }
    }
    return 1;
}

/* They are there: their places are free again, and they are added, in rank order. */
IMX_FN void sum_add(const imx_gemm_args &args, const sum_share &share, int q, int r,
                    const uint4 (&unit)[SUM_PARTS][SUM_AT_ONCE], float (&sum)[SUM_AT_ONCE][8])
{
#pragma unroll
    for (int p = 0; p < SUM_PARTS && r + p < IMX_PARTS; p++) {
#pragma unroll
        for (int i = 0; i < SUM_AT_ONCE; i++) {
            if (!sum_has(share, q + i))
                continue;
            imx_vector_store_whole(sum_unit(args, share, q + i, r + p), make_uint4(0, 0, 0, 0));
            imx_vector_add(DTYPE, sum[i], imx_vector_came(unit[p][i]), r + p == 0);
        }
    }
}

/* A word of c, at an even column; row: of c. */
IMX_FN void sum_put(const imx_gemm_args &args, int64_t row, int col, uint32_t word)
{
    int n = (int)args.schedule.n;
    uint16_t *c = (uint16_t *)args.c + row * n + col;
    if (col >= n)
        return;
    if (C_PLAIN && n % 2) {
        c[0] = (uint16_t)word;
        if (col + 1 < n)
            c[1] = (uint16_t)(word >> 16);
        return;
    }
    *(uint32_t *)c = word;
}

/* Of a unit: the row of c. */
IMX_FN int64_t sum_home(const sum_share &share, int q)
{
    return share.row + (q < SUM_UNITS ? 0 : 8) - (SUM_FAN ? 0 : share.first);
}

/* A unit's first word, of a row's. */
IMX_FN int sum_first_word(int q)
{
    return 4 * (q < SUM_UNITS ? q : q - SUM_UNITS);
}

/* Two elements of a row of n, of which those behind it are 0. */
IMX_FN uint32_t sum_load(const uint16_t *row, int col, int n)
{
    uint32_t word = 0;
    if (C_PLAIN && n % 2)
        return bits_at(row, col, n) | (uint32_t)bits_at(row, col + 1, n) << 16;
    if (col < n)
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(word) : "l"(row + col) : "memory");
    return word;
}

/* f(i, w, row, col): for word w of unit q + i, of those of `units` that are there, where it is in
 * the residual. */
template <int units, class what>
IMX_FN void sum_each_word(const imx_gemm_args &args, const sum_share &share, int q, what f)
{
#pragma unroll
    for (int i = 0; i < units; i++) {
        const uint16_t *row =
            (const uint16_t *)args.residual + sum_home(share, q + i) * args.schedule.n;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            int word = sum_first_word(q + i) + w, col = share.col + 8 * word;
            if (word < SUM_WORDS && sum_has(share, q + i) && col < (int)args.schedule.n)
                f(i, w, row, col);
        }
    }
}

/* The residual comes near while parts are looked for; behind them there are registers for it. */
IMX_FN void sum_fetch_residual(const imx_gemm_args &args, const sum_share &share, int q)
{
    if (args.residual)
        sum_each_word<SUM_AT_ONCE>(args, share, q, [&](int, int, const uint16_t *row, int col) {
            asm volatile("prefetch.global.L2 [%0];" : : "l"(row + col));
        });
}

IMX_FN void sum_load_residual(const imx_gemm_args &args, const sum_share &share, int q,
                              uint32_t (&words)[SUM_MORE][4])
{
    if (args.residual)
        sum_each_word<SUM_MORE>(args, share, q, [&](int i, int w, const uint16_t *row, int col) {
            words[i][w] = sum_load(row, col, (int)args.schedule.n);
        });
}

/* Unit q's sum becomes c, and with IMX_REDUCE_FAN goes to all. */
IMX_FN void sum_settle(const imx_gemm_args &args, const sum_share &share, int q,
                       const uint32_t (&residual)[4], float (&sum)[8])
{
    uint32_t words[4] = { 1, 1, 1, 1 }; /* where there is none: anything but 0 */
    int64_t row = sum_home(share, q);
#pragma unroll
    for (int w = 0; w < 4; w++) {
        int word = sum_first_word(q) + w, col = share.col + 8 * word;
        if (word >= SUM_WORDS)
            continue;
        if (args.bias) {
            sum[2 * w] += bias_at((const uint16_t *)args.bias, col, (int)args.schedule.n);
            sum[2 * w + 1] += bias_at((const uint16_t *)args.bias, col + 1, (int)args.schedule.n);
        }
        if (args.residual) {
            sum[2 * w] += unpack((uint16_t)residual[w]);
            sum[2 * w + 1] += unpack((uint16_t)(residual[w] >> 16));
        }
        words[w] = pack(sum[2 * w], sum[2 * w + 1]);
        if (SUM_FAN) {
            words[w] = imx_vector_go_word(words[w]);
            sum_put(args, row, col, ~words[w]);
        } else {
            sum_put(args, row, col, words[w]);
        }
    }
    if (SUM_FAN)
        sum_to_peers(args, sum_unit(args, share, q, IMX_PARTS + args.team.rank),
                     make_uint4(words[0], words[1], words[2], words[3]));
}

/* Its units from q on, in one round; nap_ns: between looks, or 0.  0: gave up. */
IMX_FN int sum_round(const imx_gemm_args &args, const imbrexd_watch *watch, const sum_share &share,
                     int q, unsigned nap_ns)
{
    float sum[SUM_AT_ONCE][8];
    uint32_t residual[SUM_MORE][4];
    sum_fetch_residual(args, share, q);
#pragma unroll
    for (int r = 0; r < IMX_PARTS; r += SUM_PARTS) {
        uint4 unit[SUM_PARTS][SUM_AT_ONCE];
#pragma unroll 1
        for (int looks = 0; !sum_look(args, share, q, r, unit); looks++) {
            if (looks >= IMX_TEAM_LOOKS && !sum_wait(args, watch, share, q, r))
                return 0;
            if (TURNS == 2 && nap_ns)
                __nanosleep(nap_ns);
        }
        sum_add(args, share, q, r, unit, sum);
    }
#pragma unroll
    for (int i = 0; i < SUM_AT_ONCE; i++) {
        if (i % SUM_MORE == 0)
            sum_load_residual(args, share, q + i, residual);
        if (sum_has(share, q + i))
            sum_settle(args, share, q + i, residual[i % SUM_MORE], sum[i]);
    }
    return 1;
}

/* Units from q on of sums that rank `from` has made, as they come; 0: gave up. */
IMX_FN int sum_take(const imx_gemm_args &args, const imbrexd_watch *watch, const sum_share &share,
                    int q, int from)
{
    uint4 unit[SUM_TAKES];
    imbrexd_wait_point point = { args.plan, IMX_POINT_CHUNK, from, -1 };
    int there = 0;
#pragma unroll 1
    for (int looks = 0; !there; looks++) {
        there = 1;
#pragma unroll
        for (int i = 0; i < SUM_TAKES; i++) {
            if (sum_has(share, q + i))
                unit[i] = imx_vector_load_whole(sum_unit(args, share, q + i, IMX_PARTS + from));
        }
#pragma unroll
        for (int i = 0; i < SUM_TAKES; i++) {
            if (sum_has(share, q + i))
                there &= imx_vector_has_come(unit[i]);
        }
#pragma unroll 1
        for (int i = 0; i < SUM_TAKES && !there && looks >= IMX_TEAM_LOOKS; i++) {
            if (sum_has(share, q + i) &&
                !team_unit(watch, sum_unit(args, share, q + i, IMX_PARTS + from), point))
                return 0;
        }
    }
#pragma unroll
    for (int i = 0; i < SUM_TAKES; i++) {
        if (!sum_has(share, q + i))
            continue;
        imx_vector_store_whole(sum_unit(args, share, q + i, IMX_PARTS + from),
                               make_uint4(0, 0, 0, 0));
        uint4 came = imx_vector_came(unit[i]);
        const uint32_t words[] = { came.x, came.y, came.z, came.w };
#pragma unroll
        for (int w = 0; w < 4; w++) {
            int word = sum_first_word(q + i) + w;
            if (word < SUM_WORDS)
                sum_put(args, sum_home(share, q + i), share.col + 8 * word, words[w]);
        }
    }
    return 1;
}

/* ---- who adds up what ------------------------------------------------------------------------ */

/* Columns of tiles of which all are in waves up to this one, -1: none; as blocks have them. */
IMX_FN unsigned sum_columns(const imx_gemm_args &args, int wave)
{
    unsigned made = index_of((unsigned)wave + 1) - index_of(0), tiles = tiles_of();
    unsigned down = ((unsigned)args.schedule.m + TILE_ROWS - 1) / TILE_ROWS;
    return (made < tiles ? made : tiles) / down * SPLIT;
}

/* The number of the last wave; -1: there is none. */
IMX_FN int sum_last_wave(void)
{
    return (int)((tiles_of() + gridDim.x / CLUSTER - 1) / (gridDim.x / CLUSTER)) - 1;
}

/* A rank's rows of a column of tiles, group by group. */
IMX_FN sum_share sum_share_of(const imx_gemm_args &args, int rank, int column, int group)
{
    int lane = lane_here(), first = sum_row(args, rank);
    sum_share share = { imx_team_data(&args.team, args.team.rank) +
                            (int64_t)(column * sum_groups(args) + group) * SUM_BYTES + lane * 16,
                        (first / IMX_SUM_ROWS + group) * IMX_SUM_ROWS + lane / 4, first,
                        sum_row_end(args, rank), column * (IMX_TILE_N / SPLIT) + lane % 4 * 2 };
    return share;
}

/* How many groups they are in. */
IMX_FN unsigned sum_groups_of(const imx_gemm_args &args, int rank)
{
    int first = sum_row(args, rank), end = sum_row_end(args, rank);
    return end > first ? (end + IMX_SUM_ROWS - 1) / IMX_SUM_ROWS - first / IMX_SUM_ROWS : 0;
}

/* Warp number `warp` of `warps`: its share of the own rows of a wave's columns, round by round.
 * 0: gave up. */
IMX_FN int sum_rows(const imx_gemm_args &args, const imbrexd_watch *watch, int wave, unsigned warp,
                    unsigned warps, unsigned nap_ns)
{
    unsigned here = sum_groups_of(args, args.team.rank);
    unsigned column = TURNS == 2 ? sum_columns(args, wave - 1) : 0, rounds = here * SUM_ROUNDS;
    unsigned left = (sum_columns(args, wave) - column) * rounds;
#pragma unroll 1
    for (; warp < left; warp += warps) {
        unsigned across = warp / rounds, round = warp - across * rounds;
        sum_share share = sum_share_of(args, args.team.rank, column + across, round / SUM_ROUNDS);
        if (!sum_round(args, watch, share, round % SUM_ROUNDS * SUM_AT_ONCE, nap_ns))
            return 0;
    }
    return 1;
}

/* With IMX_REDUCE_FAN: its share of all other ranks' rows.  0: gave up. */
IMX_FN int sum_others(const imx_gemm_args &args, const imbrexd_watch *watch, unsigned warp,
                      unsigned warps)
{
    unsigned columns = sum_columns(args, sum_last_wave());
#pragma unroll 1
    for (int j = 1; j < IMX_PARTS; j++) {
        int from = (args.team.rank + j) % IMX_PARTS;
        unsigned rounds = sum_groups_of(args, from) * SUM_TAKE_ROUNDS, left = columns * rounds;
#pragma unroll 1
        for (; warp < left; warp += warps) {
            unsigned across = warp / rounds, round = warp - across * rounds;
            sum_share share = sum_share_of(args, from, across, round / SUM_TAKE_ROUNDS);
            if (!sum_take(args, watch, share, round % SUM_TAKE_ROUNDS * SUM_TAKES, from))
                return 0;
        }
        warp -= left; /* who had none of these is the first to have some of the next */
    }
    return 1;
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* 16 of a warp's rows of a tile, from first_row on; last: there are no products to make beside. */
IMX_FN void sum_send(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                     const tile_info *note, int first_row, bool last)
{
    imx_trace_begin(IMX_TRACE_STORE);
    sum_leave(packed, args, note, note->row + first_row,
              last ? 0 : steps_of(args, note) * SUM_PACE);
    imx_trace_end(IMX_TRACE_STORE, -1, -1);
}

/* One warp of a consumer, before its tile number `next`, if there is one: what is to be added up.
 * Beneath the other consumer's products that is, by as many of all blocks, of the wave of this
 * one's last tile; of the last wave, behind all products, by all.  One loop, so that the code is
 * there when it is wanted most.  0: gave up. */
IMX_FN int sum_due(const imx_gemm_args &args, const imbrexd_watch *watch, uint32_t next)
{
    int wave = (int)next - TURNS, last = sum_last_wave(), there = 1;
    bool beneath = TURNS == 2 && wave >= 0 && wave < last, ends = index_of(next) >= tiles_of();
#pragma unroll 1
    for (int round = !beneath; round <= ends; round++) {
        unsigned warps = round ? CONSUMERS * 4 : 4, nap_ns = 0;
        __syncwarp();
        if (round) {
            wave = last;
            all_consumers_meet();
        } else if (index_of(next - 1) < tiles_of()) {
            unsigned steps = (unsigned)steps_of(args, note_of(next & 1));
            nap_ns = min(steps * SUM_NAP_NS, SUM_NAP_MOST_NS);
        }
        if (!there || wave < 0 || __any_sync(0xffffffffu, gave_up_here()))
            continue;
        imx_trace_begin(IMX_TRACE_FOLD);
        there = sum_rows(args, watch, wave, blockIdx.x * warps + (thread_here() / 32 - 4) % warps,
                         gridDim.x * warps, nap_ns);
        if (SUM_FAN && round && there)
            there = sum_others(args, watch, blockIdx.x * warps + (thread_here() / 32 - 4) % warps,
                               gridDim.x * warps);
        there = __all_sync(0xffffffffu, there);
        imx_trace_end(IMX_TRACE_FOLD, args.team.rank, wave);
    }
    return there;
}

/* ---- the epilogue ---------------------------------------------------------------------------- */

/* Its run ends when the next one begins: sum_books. */
struct epilogue_reduce_push : epilogue_store {
    enum { REGISTERS = REGISTERS_FEW, ADDS_BIAS = 0, SENDS = 1 };

    IMX_FN void init(void) { credits_init(); }

    IMX_FN void due(const imx_gemm_args &args, const imbrexd_watch *watch, uint32_t next)
    {
        if (!sum_due(args, watch, next))
            gave_up_here() = 1;
    }

    IMX_FN uint32_t word(float low, float high) { return imx_vector_go_word(pack(low, high)); }

    IMX_FN int may_send(void) { return may_store(); }

    IMX_FN void send(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                     const tile_info *note, int first_row, bool last)
    {
        sum_send(packed, args, note, first_row, last);
    }

    IMX_FN int beside(const imx_gemm_args &args, const imbrexd_watch *watch)
    {
        return thread_here() >= 64 || sum_books(args, watch);
    }
};

#endif /* IMX_SM90_EPILOGUE_REDUCE_PUSH_CUH */
