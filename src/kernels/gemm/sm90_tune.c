/* sm90_tune.c - tile shape, stages, cluster and order from the shape alone.
 *
 * Large products run at the card's power limit, so that the choice is between waves (what the last,
 * partly filled one wastes) and energy (wide tiles read less).  Small m is bound by reading b once:
 * narrow tiles, or tiles split between two blocks, so that every block has as much of it to bring.
 * Where tiles are few and k is long, more blocks share one.
 */
#include "sm90_tune.h"

#include <stdbool.h>
#include <stdio.h>

#include "sm90_tile.h"

enum {
    SHARED_MOST = 231424, /* 1 KB less than a block may have: for records of times */
    LIST = IMX_SM90_LISTED * 36 + IMX_SM90_WORDS, /* the block's next tiles, and its words */
    TILE_K_BYTES = 128,                           /* of a row of a stage */
    ATOM = 64,                                    /* columns of b [k, n] that lie together */
    GROUP_ROWS = 2048, /* of c: a's rows of a group stay in the L2 cache */
    ROWS_SMALL = 64,
    COLS_SMALL = 64,
    COLS_SMALL_MOST = 128,
    EXCHANGE = 9 * 4 * 128, /* what two blocks lose by it: a fit, as 9 columns of 8192 */
    ROWS_FEW = 128,         /* a large tile would waste the half that they do not fill */
    /* In columns of a tile x steps of k: what peers take to read a column of the last wave's tiles
     * (66 x 256 x 2 bytes, 3/4 of them by 380 GB/s), or a kernel to add it up; what it takes more,
     * 1 and 3 us, that blocks below each other begin and end together, and that two make a tile. */
    READ_COLUMN = 1500,
    MEET_CLUSTER = 24000,
    MEET_SPLIT = 72000,
    /* Percent of the time of several waves: what peers read beneath one of them stands in the way
     * of its loads, the more where blocks read b each for itself.  What is sent and added up by
     * warps that take turns does not. */
    BESIDE = 6,
    BESIDE_ALONE = 14,
    /* Warps that take turns lose where k is long and waves are many: by what it is beyond the
     * first, 1 % for each of the second.  A fit to eight shapes; of 5 waves it is less. */
    LONG_K = 8192,
    LONG_K_PERCENT = 1024,
    /* Bytes of a that arrive, by 350 GB/s, while a block makes a column of a tile, of k = 1000. */
    ARRIVE_BYTES = 14600,
    ARRIVE_ROWS = 1024,  /* up to so many came slice by slice of k, or had tiles chosen by what was
                          * measured: tune/tune.c's SPANNING_ROWS_CUDA */
    ARRIVE_CHUNK = 2048, /* more of a rank in chunks: its CHUNK_ROWS_CUDA */
    ARRIVE_COLS = 96,    /* of narrower tiles what arrives stands in the way, */
    ARRIVE_TURNS = 128,  /* or of those in turns */
    STAGES_MOST = 13,
    STAGES_BULK = 5,
    EIGHT_SUMMED = 128,
    /* Columns whose sums have two parts where nothing travels beside, and what these then take. */
    EIGHT_TWO_PARTS = 128,
    EIGHT_TWO_PERCENT = 95,
    EIGHT_TWO_PERCENT_PAIR = 91, /* of clusters of two */
    EIGHT_FEW = 192,             /* columns, where rows are few */
    EIGHT_ALONE = 224,           /* columns, where nothing travels and no blocks have scales */
    EIGHT_STAGES = 4,            /* before there is room for all of a tile */
    EIGHT_STORED = 160, /* columns, where ordinary stores want registers, too, or what leaves wants
                         * the bandwidth that blocks take which read b each for itself */
    TALL_ROWS = 192,
    TALL_STORED = 128, /* columns, where ordinary stores want registers, too */
    TURNED_PIECE = 16, /* rows that leave at a time */
    TURNED_COLS = 64,  /* of a warpgroup */
    TURNED_COLS_MOST = 192,
    TURNED_COLS_MANY = 128, /* whose tiles may be many waves */
    TURNED_LEAST = 136,     /* rows: fewer are bound by reading b */
    TURNED_MOST = 224,
    TURNED_ODD_MOST = 200,     /* of multiples of 8 that are none of 16, */
    TURNED_TALL_MOST = 160,    /* and beside three warpgroups' other registers */
    TURNED_END = 240,          /* columns of k in whose time such a tile ends: a fit to 40 shapes */
    TURNED_NARROW_ROWS = 1024, /* of all ranks, that those of 64 columns were measured with */
    TURNED_K_LEAST = 256,      /* of more than so many; shorter ones nobody has measured */
    PROMISED = 2,              /* percent that turned and tall tiles must promise to save, */
    TALL_SHARD = 1024,         /* and rows of a rank for which they are there */
    TURNED_SHARD = 4096,
    WAVES_FEW = 3,
    WAVES_MANY = 8,
    /* Tiles that four or eight blocks make, where others leave half of the GPU idle.  A step of k
     * takes so long for each row of a and of b, or for a product of so many elements a ns; memory
     * has so many bytes a ns; an exchange takes so long, and for its bytes.  Guesses, by which 25
     * shapes take 3 % more than by the best of ten such tiles (an H200). */
    DEEP_ROW_PS = 1230,
    DEEP_ELEMENTS = 56,
    DEEP_MEMORY = 4000,
    DEEP_MEET_NS = 1500,
    DEEP_SENT = 30,
    DEEP_STAGES = 4,
    DEEP_COLS = 64, /* and twice as many */
    DEEP_TURNED_LEAST = 160,
    DEEP_TURNED = 32,
    DEEP_MOST = 8,
    DEEP_STEPS = 4, /* of k, at least, of a block */
    /* Percent that it must promise to save.  Of more rows 220 x 1024 x 4096 and 2000 x 128 x 4096
     * promised 15 and 28, and took 5 and 7 more. */
    DEEP_PROMISED = 10,
    DEEP_PROMISED_MORE = 30,
    /* Clusters of four and of eight lie within parts of a GPU: on an H200, of so many SMs, there
     * were 28 and 12 at once, and 32 and 16 were not.  Where there are fewer, which chips differ
     * in, it takes longer. */
    CLUSTER_SMS = 132,
    CLUSTERS_FOUR = 28,
    CLUSTERS_EIGHT = 12,
    CLUSTERS_FEW_SMS = 16, /* fewer are of one part */
};

/* cost: of an element of the tile, in thousandths of a wide one's. */
typedef struct candidate {
    int tile_m, tile_n, how, cluster_m, split, cost;
} candidate;

/* How: its warpgroups share its rows, take turns, or share its columns, as it is turned. */
enum { SHARED, IN_TURNS, TURNED };

/* Tiles of 128 rows of a block.  Those in clusters of two below each other, which read b once for
 * both, fit nine large shapes, short regions and long bursts alike; the last two what 256 and 512
 * rows take that are summed over ranks, the sum included; the rest 110 shapes of 130 to 1024 rows,
 * whose tiles are a wave or a few. */
static const candidate candidates[] = {
    { 128, 224, 0, 2, 1, 1002 }, { 128, 256, 0, 2, 1, 1003 }, { 128, 176, 1, 2, 1, 998 },
    { 128, 160, 1, 2, 1, 1008 }, { 128, 144, 1, 2, 1, 1025 }, { 128, 128, 1, 2, 1, 1035 },
    { 128, 112, 1, 2, 1, 1100 }, { 128, 80, 1, 2, 1, 1240 },  { 128, 192, 0, 2, 1, 1020 },
    { 128, 192, 0, 1, 1, 1060 }, { 128, 160, 0, 1, 1, 1015 }, { 128, 128, 0, 1, 1, 1071 },
    { 128, 112, 0, 1, 1, 1160 }, { 128, 96, 0, 1, 1, 1088 },  { 128, 64, 0, 1, 1, 1386 },
    { 128, 128, 0, 1, 2, 1116 }, { 128, 80, 0, 1, 2, 1400 },  { 128, 64, 0, 1, 2, 1500 },
    { 128, 128, 0, 2, 1, 960 },  { 128, 64, 0, 2, 1, 1290 },
};

/* Of 192 rows, by three warpgroups, whose registers hold no more columns.  Guesses, but for those
 * of clusters: 272 x 57344 x 8192 in tiles of 384 x 128 took 6 % more than was guessed before. */
static const candidate candidates_tall[] = {
    { 192, 160, 0, 2, 1, 1070 }, { 192, 160, 0, 1, 1, 1040 }, { 192, 128, 0, 2, 1, 1080 },
    { 192, 128, 0, 1, 1, 1050 }, { 192, 96, 0, 1, 1, 1080 },  { 192, 64, 0, 1, 1, 1110 },
};

/* Of a turned tile, by one block or by two, between these.  Of up to 16384 elements it is guessed
 * to take what another tile of as many does; above, of one block, a fit to 40 shapes of 272 to 3096
 * rows; of two a guess. */
typedef struct turned_cost {
    int elements, cost;
} turned_cost;

static const turned_cost costs_turned[2][5] = {
    { { 8192, 1386 }, { 12288, 1088 }, { 16384, 1045 }, { 20480, 1010 }, { 26624, 1050 } },
    { { 8192, 1500 }, { 10240, 1400 }, { 16384, 1116 }, { 20480, 1060 }, { 32768, 1045 } },
};

/* Columns of the products, of which a thread has half as many sums. */
static int sums_n(const imx_sm90_config *c)
{
    return c->turned ? c->tile_m : c->tile_n;
}

int imx_sm90_tune_piece_cols(const imx_sm90_config *c)
{
    if (c->split > 1)
        return sums_n(c) / c->split;
    if (c->turned)
        return TURNED_PIECE;
    return c->tile_n % 64 == 0 ? 64 : c->tile_n % 32 == 0 ? 32 : c->tile_n / 2;
}

static int consumers(const imx_sm90_config *c)
{
    return c->pingpong ? 2 : (c->turned ? c->tile_n : c->tile_m) / c->wg_m;
}

size_t imx_sm90_tune_shared_bytes(const imx_sm90_config *c, int b_kn)
{
    size_t b_cols = b_kn ? (size_t)imx_schedule_ceil(c->tile_n, ATOM) * ATOM : (size_t)c->tile_n;
    size_t stage = ((size_t)c->tile_m + b_cols) * TILE_K_BYTES;
    size_t warps = (size_t)consumers(c) * 4;
    size_t pieces = warps * (size_t)c->buffers * 16 * 2 * (size_t)imx_sm90_tune_piece_cols(c);
    size_t sums = warps * (size_t)(c->split - 1) * 64 * (size_t)(sums_n(c) / c->split);
    size_t notes = (size_t)c->stages * 32 + LIST + warps * 2 * 32;
    size_t barriers =
        (size_t)c->stages * 16 + (c->pingpong ? 16 : 0) + (c->split > 1 ? warps * 16 : 0);
    size_t bulk = c->bulk ? IMX_SM90_BULK_ROOM : 0;
    return (size_t)c->stages * stage + pieces + sums + notes + barriers + bulk;
}

static int64_t tiles(const imx_sm90_input *in, int tile_rows, int tile_cols)
{
    int64_t cuts = in->spans ? 1 : in->ranks;
    return cuts * imx_schedule_ceil(imx_schedule_ceil(in->m, cuts), tile_rows) *
           imx_schedule_ceil(in->n, tile_cols);
}

/* Blocks of so many consumers that may be there at once.  Three take all registers of a
 * multiprocessor: one stays free for a kernel that waits beside them for what they wait for. */
static int room(const imx_sm90_input *in, int consumers)
{
    return consumers > 2 && in->sms > 1 ? in->sms - 1 : in->sms;
}

/* Tiles that a cluster of so many blocks makes, if it has as many as any. */
static int64_t waves(const imx_sm90_input *in, int tile_rows, int tile_cols, int cluster, int most)
{
    int64_t clusters = most / cluster;
    return imx_schedule_ceil(tiles(in, tile_rows, tile_cols), clusters > 0 ? clusters : 1);
}

static int64_t waves_of(const imx_sm90_input *in, const candidate *c)
{
    int most = room(in, c->how == IN_TURNS ? 2 : (c->how == TURNED ? c->tile_n : c->tile_m) / 64);
    return waves(in, c->tile_m * c->cluster_m, c->tile_n, c->cluster_m * c->split, most);
}

/* The same of the rows that arrive last. */
static int64_t last_waves(const imx_sm90_input *in, const candidate *c)
{
    int64_t rows = imx_schedule_ceil(in->m, in->ranks);
    imx_sm90_input last = *in;
    last.m = imx_schedule_ceil(rows, imx_schedule_ceil(rows, ARRIVE_CHUNK));
    last.ranks = 1;
    return waves_of(&last, c);
}

/* Two blocks may make a tile whose rows do not come or go rank by rank: who folds a tile, or passes
 * its rows on, has all of it. */
static bool may_split(const imx_sm90_input *in)
{
    return in->ranks == 1 && !in->hooks && !in->invariant && in->sms > 1;
}

/* Whether the kernel adds up what peers send, by tiles that are all in one wave. */
static bool sums_at_once(const imx_sm90_input *in, const candidate *c)
{
    return in->summable && waves_of(in, c) == 1;
}

/* The same by warps that take turns, in as many waves as it takes. */
static bool sums_in_turns(const imx_sm90_input *in, const candidate *c)
{
    return in->summable && c->how == IN_TURNS && c->tile_n <= IMX_SM90_SUM_TURNS;
}

/* Whether rows come from peers, rank by rank, beneath the product, or would if the algorithm were
 * one that overlaps: tiles do not depend on it. */
static bool waits_for_rows(const imx_sm90_input *in)
{
    return in->ranks > 1 && !in->scatters && !in->hooks && in->m > ARRIVE_ROWS;
}

/* What a block takes, if the last wave is as long as the others, and what then is left to read or
 * to add up, of which two blocks that make a tile have half each.  Where rows arrive beneath it, no
 * less than until all are here and the tiles of the last ones are made: of a wave of tiles that
 * half of the blocks wait for from the beginning it is worth making two. */
static int64_t cost(const imx_sm90_input *in, const candidate *c)
{
    int64_t count = waves_of(in, c), column = c->cost;
    int64_t end = MEET_CLUSTER * (c->cluster_m - 1) + MEET_SPLIT * (c->split - 1);
    if (c->how == IN_TURNS && in->k > LONG_K && count > WAVES_MANY)
        column += column * (in->k - LONG_K) / LONG_K_PERCENT / 100;
    if (in->spanning) {
        end += READ_COLUMN * c->tile_n / (sums_at_once(in, c) ? c->split : 1);
        if (count > 1 && !sums_in_turns(in, c))
            column += column * (c->cluster_m == 1 ? BESIDE_ALONE : BESIDE) / 100;
    }
    int64_t wave = c->tile_n * column / c->split * c->tile_m / 128, all = count * wave;
    if (waits_for_rows(in)) {
        int64_t arrived = 1000 * (in->m - in->m / in->ranks) * 2 * 1000 / ARRIVE_BYTES;
        int64_t behind = arrived + last_waves(in, c) * wave;
        all = all > behind ? all : behind;
    }
    return all + end * 1000 / in->k;
}

/* Blocks that read b each for itself take more power where waves are many.  But turned tiles of 128
 * columns save more than that, as long as a block lists all of its tiles at once. */
static int64_t waves_most(const candidate *c)
{
    if (c->how == TURNED && c->tile_n == TURNED_COLS_MANY && c->split == 1)
        return IMX_SM90_LISTED;
    return c->cluster_m > 1 ? INT64_MAX : WAVES_FEW;
}

/* Tiles of other numbers of rows go to c.
 * Taking turns, a tile leaves in one burst, which the way to a peer does not take; ordinary stores
 * to peers, and warps that read theirs, leave no registers for the widest tile; and what is folded
 * comes in pieces of 32 or 64 columns.  Narrow tiles that the warps of a cluster share are there to
 * be added up by the kernel (tune.c), all in one wave, which wide ones in turns would spill.
 * Turned tiles of 64 columns are for what is bound by reading b: one warpgroup multiplies too
 * slowly (2141 x 384 x 18944 took 1.26 times what tiles of 128 x 128 do).
 * A narrow tile of b [k, n] would bring a third more columns than it has. */
static bool suits(const imx_sm90_input *in, const candidate *c)
{
    if (c->split > 1 && !may_split(in))
        return false;
    if (c->tile_m != 128 && (in->scatters || in->hooks))
        return false;
    if (c->tile_m == TALL_ROWS && c->how == SHARED && in->n % 8 && c->tile_n > TALL_STORED)
        return false;
    if (waves_of(in, c) > waves_most(c))
        return false;
    bool narrow = c->how == TURNED && c->tile_n == TURNED_COLS;
    if (narrow && in->m > TURNED_NARROW_ROWS)
        return false;
    if (in->b_kn && c->tile_n < 112 && c->tile_n % ATOM)
        return false;
    if (waits_for_rows(in) && c->tile_n < (c->how == IN_TURNS ? ARRIVE_TURNS : ARRIVE_COLS))
        return false;
    bool sums = sums_at_once(in, c);
    if (!sums && c->how != IN_TURNS && c->cluster_m > 1 && c->tile_n <= 128 && c->tile_m == 128)
        return false;
    if (in->spanning)
        return sums ? c->how != IN_TURNS || sums_in_turns(in, c) : c->tile_n < 256;
    if (!in->hooks && (!in->scatters || in->ranks == 1))
        return true;
    return c->how != IN_TURNS && c->tile_n % 32 == 0 && (in->n % 8 == 0 || c->tile_n < 256);
}

static void take_less(const imx_sm90_input *in, const candidate *c, candidate *best)
{
    if (suits(in, c) && cost(in, c) < cost(in, best))
        *best = *c;
}

/* Who turns a tile stores it to c and nowhere else; and bits do not depend on m if nobody does. */
static bool may_turn(const imx_sm90_input *in)
{
    return in->ranks == 1 && !in->scatters && !in->hooks && !in->invariant;
}

static int cost_turned(const imx_sm90_input *in, int elements, int split)
{
    const turned_cost *at = costs_turned[split - 1], *last = at + 3;
    while (at < last && elements > at[1].elements)
        at++;
    int64_t found = at[0].cost + (at[1].cost - at[0].cost) * (elements - at[0].elements) /
                                     (at[1].elements - at[0].elements);
    return (int)(in->k > TURNED_K_LEAST ? found + found * TURNED_END / in->k : found);
}

/* Two blocks have a piece each, of a multiple of 8 rows. */
static void try_turned(const imx_sm90_input *in, int cols, int rows, candidate *best)
{
    int most = cols == TURNED_COLS_MOST ? TURNED_TALL_MOST
               : rows % 16              ? TURNED_ODD_MOST
                                        : TURNED_MOST;
    int splits = rows % 16 == 0 && cols < TURNED_COLS_MOST ? 2 : 1;
    for (int split = 1; rows <= most && split <= splits; split++) {
        candidate c = { rows, cols, TURNED, 1, split, cost_turned(in, cols * rows, split) };
        take_less(in, &c, best);
    }
}

/* Of tall and turned tiles the best, if it promises enough. */
static candidate promising(const imx_sm90_input *in, const candidate *known)
{
    candidate best = *known;
    int64_t rows = imx_schedule_ceil(in->m, in->ranks);
    for (size_t i = 0; rows <= TALL_SHARD && i < sizeof candidates_tall / sizeof *candidates_tall;
         i++)
        take_less(in, &candidates_tall[i], &best);
    bool turns = may_turn(in) && rows <= TURNED_SHARD;
    for (int cols = TURNED_COLS; turns && cols <= TURNED_COLS_MOST; cols += TURNED_COLS)
        for (int tall = TURNED_LEAST; tall <= TURNED_MOST; tall += 8)
            try_turned(in, cols, tall, &best);
    return 100 * cost(in, &best) < (100 - PROMISED) * cost(in, known) ? best : *known;
}

static imx_sm90_config large(const imx_sm90_input *in)
{
    candidate best = candidates[0];
    for (size_t i = 1; i < sizeof candidates / sizeof *candidates; i++)
        take_less(in, &candidates[i], &best);
    best = promising(in, &best);
    return (imx_sm90_config){ .tile_m = best.tile_m,
                              .tile_n = best.tile_n,
                              .wg_m = best.how == IN_TURNS ? 128 : 64,
                              .turned = best.how == TURNED,
                              .pingpong = best.how == IN_TURNS,
                              .stages = STAGES_MOST,
                              .cluster_m = best.cluster_m,
                              .split = best.split,
                              .column_cost = best.cost };
}

/* What the busiest block reads, in quarters of 64 elements of b: b comes from memory, a from the
 * cache. */
static int64_t reads(const imx_sm90_input *in, const imx_sm90_config *c)
{
    int64_t cols = in->b_kn ? imx_schedule_ceil(c->tile_n, ATOM) * ATOM : c->tile_n;
    int64_t rows = imx_schedule_ceil(in->m, in->ranks);
    return waves(in, c->tile_m, c->tile_n, c->split, in->sms) *
           ((4 * cols + rows) * imx_schedule_ceil(in->k, 64) / c->split +
            (c->split - 1) * EXCHANGE);
}

/* One row of tiles, narrow or split, so that all blocks have as much of b to bring.  What goes to
 * peers takes one width. */
static imx_sm90_config small(const imx_sm90_input *in, int64_t rows)
{
    imx_sm90_config best = { .tile_m = rows <= ROWS_SMALL ? 64 : 128,
                             .tile_n = COLS_SMALL,
                             .wg_m = 64,
                             .stages = STAGES_MOST,
                             .cluster_m = 1,
                             .split = 1,
                             .column_cost = 1000 };
    bool splits = may_split(in);
    int widest = in->scatters && !splits ? COLS_SMALL : COLS_SMALL_MOST;
    for (int split = 1; split <= (splits ? 2 : 1); split++) {
        for (int cols = COLS_SMALL; cols <= widest; cols += 16) {
            imx_sm90_config c = best;
            c.tile_n = cols;
            c.split = split;
            if (reads(in, &c) < reads(in, &best))
                best = c;
        }
    }
    return best;
}

/* Of 8 bits, whose sums are kept twice, of 256 columns those of one half at a time.  The first
 * eight fit 512 to 8192 rows x 7168 x 8192 with a scale a row, alone on an H200; the next two are
 * guesses.  Of 224 columns 2048 rows took 1.025 times as long as of 128 by clusters of two, which
 * makes 1068; 512 and 1000 rows, 0.85 and 0.88 times as long as of 256, would make 963 and 993.
 * With scales of blocks 512 and 1000 rows took 1.05 times as long as of 256. */
static const candidate candidates_eight[] = {
    { 128, 256, 0, 1, 1, 990 },  { 128, 256, 0, 2, 1, 1005 }, { 128, 192, 0, 1, 1, 1000 },
    { 128, 192, 0, 2, 1, 1027 }, { 128, 160, 0, 2, 1, 1063 }, { 128, 160, 0, 1, 1, 1071 },
    { 128, 128, 0, 2, 1, 1145 }, { 128, 128, 0, 1, 1, 1130 }, { 128, 96, 0, 1, 1, 1200 },
    { 128, 64, 0, 1, 1, 1400 },  { 128, 224, 0, 1, 1, 1068 },
};

/* k is added up in one order, whatever m is: no two blocks make a tile.  Where rows are few narrow
 * tiles read b by all blocks. */
static imx_sm90_config eight(const imx_sm90_input *in, int64_t rows)
{
    const candidate *best = NULL;
    int64_t least = 0;
    for (size_t i = 0; i < sizeof candidates_eight / sizeof *candidates_eight; i++) {
        const candidate *c = &candidates_eight[i];
        /* What travels wants memory's bandwidth, too, of which wide tiles leave enough that read b
         * each for itself, if their results stay here. */
        bool beside = in->ranks > 1 || in->scatters;
        if (rows <= ROWS_FEW ? c->cluster_m > 1
                             : beside && c->cluster_m == 1 && waves_of(in, c) > WAVES_FEW &&
                                   (in->scatters || c->tile_n <= EIGHT_FEW))
            continue;
        if (c->tile_n > EIGHT_STORED && (in->n % 8 || (in->scatters && c->cluster_m == 1)))
            continue;
        if (c->tile_n > EIGHT_FEW && rows <= ROWS_FEW)
            continue;
        if (c->tile_n == EIGHT_ALONE && (beside || in->by_block))
            continue;
        if (in->summable && c->tile_n > EIGHT_SUMMED)
            continue;
        int64_t takes = waves_of(in, c) * c->tile_n * c->cost;
        if (c->tile_n == EIGHT_TWO_PARTS && !beside)
            takes = takes * (c->cluster_m > 1 ? EIGHT_TWO_PERCENT_PAIR : EIGHT_TWO_PERCENT) / 100;
        if (!best || takes < least) {
            best = c;
            least = takes;
        }
    }
    return (imx_sm90_config){ .tile_m = rows <= ROWS_SMALL ? 64 : 128,
                              .tile_n = best->tile_n,
                              .wg_m = 64,
                              .stages = STAGES_MOST,
                              .cluster_m = best->cluster_m,
                              .split = 1,
                              .column_cost = best->cost };
}

static bool fits(const imx_sm90_config *c, int b_kn)
{
    return imx_sm90_tune_shared_bytes(c, b_kn) <= SHARED_MOST;
}

/* Clusters of so many blocks that are sure to be there at once. */
static int clusters_at_once(int blocks, int cluster)
{
    if (cluster <= 2 || blocks < CLUSTERS_FEW_SMS)
        return blocks / cluster;
    return blocks * (cluster > 4 ? CLUSTERS_EIGHT : CLUSTERS_FOUR) / CLUSTER_SMS;
}

/* Nanoseconds that a product of one wave takes. */
static int64_t deep_time(const imx_sm90_input *in, const imx_sm90_config *c)
{
    int64_t rows = c->tile_m < in->m ? c->tile_m : in->m, split = c->split;
    int64_t loads = (rows + c->tile_n) * DEEP_ROW_PS / 1000;
    int64_t products = c->tile_m * c->tile_n / DEEP_ELEMENTS;
    int64_t made = imx_schedule_ceil(in->k, 64 * split) * (loads > products ? loads : products);
    int64_t read = (in->m + in->n) * in->k * 2 / DEEP_MEMORY;
    int64_t sent = 4 * c->tile_m * c->tile_n * (split - 1) / split;
    return (made > read ? made : read) + (split > 1 ? DEEP_MEET_NS + sent / DEEP_SENT : 0);
}

static void try_deep(const imx_sm90_input *in, const imx_sm90_config *c, imx_sm90_config *best)
{
    imx_sm90_config least = *c;
    least.stages = DEEP_STAGES;
    least.buffers = 1;
    if (tiles(in, c->tile_m, c->tile_n) <= clusters_at_once(in->sms, c->split) &&
        fits(&least, in->b_kn) && deep_time(in, c) < deep_time(in, best))
        *best = *c;
}

/* Where known leaves half of the GPU idle, tiles of four or eight blocks if they promise enough. */
static imx_sm90_config deep(const imx_sm90_input *in, const imx_sm90_config *known)
{
    int cluster = known->cluster_m * known->split;
    int64_t busy = cluster * tiles(in, known->tile_m * known->cluster_m, known->tile_n);
    imx_sm90_config best = *known, c = *known;
    if (!in->deep || in->eight || in->scatters || !may_split(in) || 2 * busy > in->sms)
        return best;
    c.wg_m = 64;
    c.pingpong = 0;
    c.stages = STAGES_MOST;
    c.cluster_m = 1;
    int64_t most = imx_schedule_ceil(in->k, DEEP_STEPS * 64);
    for (c.split = 4; c.split <= most && c.split <= DEEP_MOST; c.split *= 2) {
        for (c.tile_n = DEEP_COLS; c.tile_n <= 2 * DEEP_COLS; c.tile_n += DEEP_COLS) {
            c.turned = 0;
            c.tile_m = in->m <= ROWS_SMALL ? 64 : 128;
            try_deep(in, &c, &best);
            c.turned = 1;
            for (c.tile_m = DEEP_TURNED_LEAST; in->m > ROWS_FEW && c.tile_m <= TURNED_MOST;
                 c.tile_m += DEEP_TURNED) {
                if (c.tile_m % (8 * c.split) == 0)
                    try_deep(in, &c, &best);
            }
        }
    }
    int least = in->m <= ROWS_FEW ? DEEP_PROMISED : DEEP_PROMISED_MORE;
    return 100 * deep_time(in, &best) < (100 - least) * deep_time(in, known) ? best : *known;
}

/* Pieces of an 8-bit tile that there is room for: all, or as many as leave enough stages. */
static void make_room_for_tile(imx_sm90_config *c)
{
    int pieces = c->tile_n / imx_sm90_tune_piece_cols(c);
    imx_sm90_config least = *c;
    least.stages = EIGHT_STAGES;
    least.buffers = pieces;
    while (!fits(&least, 0))
        least.buffers--;
    c->buffers = least.buffers;
    c->halved = 2 * c->buffers <= pieces;
}

/* At the price of large tiles' second buffer of c, if need be, or of a stage, if five are left. */
static void make_room_for_bulk(imx_sm90_config *c, int b_kn)
{
    imx_sm90_config bulk = *c;
    bulk.bulk = 1;
    if (!fits(&bulk, b_kn) && c->cluster_m > 1)
        bulk.buffers = 1;
    if (!fits(&bulk, b_kn) && c->stages > STAGES_BULK)
        bulk.stages--;
    if (fits(&bulk, b_kn))
        *c = bulk;
}

imx_sm90_config imx_sm90_tune(const imx_sm90_input *in)
{
    int64_t rows = imx_schedule_ceil(in->m, in->ranks); /* the most that a rank has */
    imx_sm90_config c = in->eight          ? eight(in, rows)
                        : rows <= ROWS_FEW ? small(in, rows)
                                           : large(in);
    c = deep(in, &c);
    c.buffers = c.pingpong || c.split > 1 ? 1 : 2; /* in turns there is time; a part is one piece */
    if (in->eight)
        make_room_for_tile(&c);
    while (!fits(&c, in->b_kn))
        c.stages--;
    if (in->pushes && !in->eight)
        make_room_for_bulk(&c, in->b_kn);
    c.tile_rows = c.tile_m * c.cluster_m;
    c.tile_cols = c.tile_n;
    c.group = c.tile_rows < GROUP_ROWS ? GROUP_ROWS / c.tile_rows : 1;
    c.threads = 128 * (1 + consumers(&c));
    c.shared_bytes = imx_sm90_tune_shared_bytes(&c, in->b_kn);

    c.cluster = c.cluster_m * c.split;
    c.room = room(in, consumers(&c));
    int64_t most = clusters_at_once(c.room, c.cluster);
    int64_t needed = tiles(in, c.tile_rows, c.tile_cols);
    int64_t clusters = needed < most ? needed : most;
    c.blocks = (int)(clusters > 0 ? clusters : 1) * c.cluster;
    return c;
}

int imx_sm90_tune_options(const imx_sm90_config *c, char *text, size_t size)
{
    char split[24] = "";
    if (c->split > 1)
        snprintf(split, sizeof split, " -DIMX_SPLIT=%d", c->split);
    return snprintf(text, size,
                    "-DIMX_TILE_M=%d -DIMX_TILE_N=%d -DIMX_WG_M=%d%s -DIMX_STAGES=%d "
                    "-DIMX_BUFFERS=%d -DIMX_CLUSTER_M=%d%s%s%s",
                    c->tile_m, c->tile_n, c->wg_m, c->pingpong ? " -DIMX_PINGPONG" : "", c->stages,
                    c->buffers, c->cluster_m, split, c->turned ? " -DIMX_TURNED" : "",
                    c->bulk ? " -DIMX_BULK" : "");
}
