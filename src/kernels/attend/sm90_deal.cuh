/* sm90_deal.cuh - which items a block of the attend kernel on Hopper has: splits, or whole
 * sequences while there are enough of them to keep all blocks busy, or runs of MLA's splits.  A
 * block that has all splits of a sequence adds them up without parts and counts.  One warp
 * deals. */
#ifndef IMX_ATTEND_SM90_DEAL_CUH
#define IMX_ATTEND_SM90_DEAL_CUH

#include "sm80_units.cuh"

/* Numbers that a thread adds up over warps, four at once, and over splits of one block if there are
 * registers to keep them meanwhile. */
enum { FOURS = IMX_DIM / 4, OWN = IMX_ROWS * FOURS / IMX_THREADS, KEEPS = OWN <= 2 };

/* Of each form: w without those of its tokens that no row sees. */
ATTEND_FN work narrowed(const imx_attend_args &x, const work &w);

/* Of MLA by runs: a run is 2 ^ level splits from a multiple of that on, or fewer at a sequence's
 * end. */
enum {
#if IMX_DIM != IMX_VALUES && IMX_RUNS
    LEVELS = 3 /* at most */
#else
    LEVELS = 0
#endif
};

ATTEND_FN int runs_of(int splits, int level)
{
    return (splits + (1 << level) - 1) >> level;
}

/* The warp that loads: where it is among a block's splits. */
struct dealer {
    int first, end; /* of the chunk: its first sequence; items */
    int next;       /* item, of those that are dealt out */
    int dealt;      /* how many */
    bool claims;
    int claimed; /* of lane 0, once the others are claimed */
    int level;   /* of runs, the first chunk's: all blocks choose alike */
    int most;    /* runs of a sequence, of chunks so far */
};

/* A warp: tokens of all sequences of the chunk. */
ATTEND_FN float tokens_in(const imx_attend_args &x, int first, int count)
{
    float sum = 0;
    for (int i = (int)threadIdx.x % LANES; i < count; i += LANES)
        sum += (float)length_of(x, x.lengths[first + i]);
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
        sum += __shfl_xor_sync(ALL, sum, step);
    return sum;
}

/* Whether there are enough of so many sequences to deal them to blocks whole. */
ATTEND_FN bool are_whole(const imx_attend_args &x, int count)
{
    int blocks = (int)gridDim.x;
    return KEEPS && count * beside_of(x) >= blocks - blocks / 16;
}

/* Whether a block is to have sequence i of the chunk from its first split to its last, and is done
 * no later than other blocks are.  Those before it, of so many tokens together, come in rounds. */
ATTEND_FN bool is_whole(const imx_attend_args &x, int i, int length, float before, float end)
{
    int beside = beside_of(x);
    int rounds = ((i + 1) * beside - 1) / (int)gridDim.x;
    return (i ? (float)rounds * before / (float)i : 0) + (float)length <= end;
}

/* Whether what queries of a sequence see is one range: tokens between ranges are not to be read. */
ATTEND_FN bool is_one_range(const imx_attend_args &x, int sequence, int length)
{
    int from = 0, to = length;
    for (int i = 0; x.queries > 1 && x.hidden && i < x.queries; i++) {
        int64_t query = (int64_t)sequence * x.queries + i;
        from = x.hidden[query] > from ? x.hidden[query] : from;
        to = x.visible && x.visible[query] < to ? x.visible[query] : to;
    }
    return from <= to;
}

/* A warp: entry i of upto has so many of its own; before: what entries before these LANES have. */
ATTEND_FN void put_upto(int own, int i, int count, int *upto, int *before)
{
    int scan = sum_upto(own);
    if (i < count)
        upto[i] = *before + scan;
    *before += __shfl_sync(ALL, scan, LANES - 1);
}

/* As count_chunk where sequences may be dealt out whole: one of those counts as one.  It is apart
 * so that a kernel without them begins sooner. */
ATTEND_SELDOM int count_whole(const imx_attend_args &x, int first, int count, int *upto)
{
    int lane = (int)threadIdx.x % LANES, before = 0;
    float each = tokens_in(x, first, count) * (float)beside_of(x) / (float)gridDim.x;
    float end = each * (1 + 1.0f / 16), tokens = 0; /* end: when all are to be done */
#pragma unroll 1
    for (int i = lane; i - lane < count; i += LANES) {
        int length = i < count ? length_of(x, x.lengths[first + i]) : 0, own = 0;
        float all = sum_upto((float)length);
        if (i < count)
            own = is_whole(x, i, length, tokens + all - (float)length, end) &&
                          is_one_range(x, first + i, length)
                      ? 1
                      : splits_of(x, length);
        put_upto(own, i, count, upto, &before);
        tokens += __shfl_sync(ALL, all, LANES - 1);
    }
    __syncwarp();
    return before;
}

/* A warp: as count_splits. */
ATTEND_FN int count_chunk(const imx_attend_args &x, const imbrexd_watch &watch, int first,
                          int *upto)
{
    int lane = (int)threadIdx.x % LANES, count = chunk_of(x, first), before = 0;
    int said = lane < count ? x.lengths[first + lane] : 0;
    __syncwarp(); /* all have read those of the chunk before */
#pragma unroll 1
    for (int i = lane; i - lane < count; i += LANES) {
        int length = i < count ? checked_length(x, watch, first + i, said) : 0;
        int own = i < count ? imx_attend_splits(length, x.kv_heads) : 0;
        said = i + LANES < count ? x.lengths[first + i + LANES] : 0;
        put_upto(own, i, count, upto, &before);
    }
    if (are_whole(x, count))
        before = count_whole(x, first, count, upto);
    __syncwarp();
    return before;
}

template <class number> ATTEND_FN number sum_of_all(number of)
{
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
        of += __shfl_xor_sync(ALL, of, step);
    return of;
}

/* A warp: which runs are done with first, if a round of them takes as long as its tokens, and its
 * sums, which are written and read, take as long as so many bytes of tokens.  runs: of each level;
 * both of this lane's sequences.  Tokens between what queries see are not to be read. */
ATTEND_FN int best_level(const imx_attend_args &x, const int (&runs)[LEVELS + 1], float tokens)
{
    const float part = 2.0f * IMX_ROWS * IMX_VALUES * sizeof(float) / (IMX_DIM * 2);
    unsigned blocks = gridDim.x;
    float each = 0, least = 0;
    int level = 0;
    if (x.queries > 1 && x.hidden)
        return 0;
    tokens = sum_of_all(tokens);
#pragma unroll
    for (int i = 0; i <= LEVELS; i++) {
        unsigned all = (unsigned)sum_of_all(runs[i]);
        each = i ? 2 * each : __fdividef(tokens, (float)all);
        float takes = (float)((all + blocks - 1) / blocks) * (each + part);
        level = !i || takes < least ? i : level;
        least = !i || takes < least ? takes : least;
    }
    return level;
}

/* A warp: as count_chunk, of runs. */
ATTEND_FN int count_runs(const imx_attend_args &x, const imbrexd_watch &watch, int first, int *upto,
                         dealer *d)
{
    int lane = (int)threadIdx.x % LANES, count = chunk_of(x, first), before = 0;
    int said = lane < count ? x.lengths[first + lane] : 0, runs[LEVELS + 1] = {}, most = 0;
    float tokens = 0;
    __syncwarp(); /* all have read those of the chunk before */
#pragma unroll 1
    for (int i = lane; i < count; i += LANES) {
        int length = checked_length(x, watch, first + i, said);
        int own = imx_attend_splits(length, x.kv_heads);
        said = i + LANES < count ? x.lengths[first + i + LANES] : 0;
        upto[i] = own;
        most = own > most ? own : most;
        tokens += (float)length;
#pragma unroll
        for (int level = 0; level <= LEVELS; level++)
            runs[level] += runs_of(own, level);
    }
    __syncwarp();
    if (first == 0)
        d->level = best_level(x, runs, tokens);
    most = runs_of((int)__reduce_max_sync(ALL, (unsigned)most), d->level);
    d->most = most > d->most ? most : d->most;
#pragma unroll 1
    for (int i = lane; i - lane < count; i += LANES)
        put_upto(i < count ? runs_of(upto[i], d->level) : 0, i, count, upto, &before);
    __syncwarp();
    return before;
}

/* Run `number` of sequence first + i, which is of one head of the cache and one piece. */
ATTEND_FN work run_of(const imx_attend_args &x, int first, int i, int number, int level)
{
    work w = { first + i };
    w.length = length_of(x, x.lengths[w.sequence]);
    w.each = imx_attend_split(w.length, x.kv_heads);
    w.split = number << level;
    w.first = w.split * w.each;
    w.end = w.first + (w.each << level) < w.length ? w.first + (w.each << level) : w.length;
    return w;
}

/* A warp: as work_of. */
ATTEND_FN work find_work(const imx_attend_args &x, int first, const int *upto, int item, int level)
{
    int beside = LEVELS ? 1 : beside_of(x), split = (int)((unsigned)item / (unsigned)beside);
    int lane = (int)threadIdx.x % LANES, count = chunk_of(x, first), from = 0;
    uint32_t beyond = 0;
#pragma unroll 1
    for (;; from += LANES) {
        beyond = __ballot_sync(ALL, from + lane < count && upto[from + lane] > split);
        if (beyond)
            break;
    }
    int i = from + __ffs((int)beyond) - 1;
    if (LEVELS)
        return run_of(x, first, i, split - (i ? upto[i - 1] : 0), level);
    work w = work_in(x, first, upto, i, split, item - split * beside);
    if (KEEPS && upto[i] - (i ? upto[i - 1] : 0) == 1) { /* maybe of one split */
        w.is_whole = true;
        w.end = w.length;
    }
    return w;
}

ATTEND_FN void open_chunk(const imx_attend_args &x, const imbrexd_watch &watch, int *upto,
                          dealer *d)
{
    int items =
        LEVELS ? count_runs(x, watch, d->first, upto, d) : count_chunk(x, watch, d->first, upto);
    d->end = LEVELS ? items : items * beside_of(x);
    d->claims = are_claimed(x, d->end);
    d->dealt = 0;
}

/* Ahead of the first chunk. */
ATTEND_FN dealer new_dealer(void)
{
    return dealer{ -CHUNK, 0, (int)blockIdx.x };
}

/* The block's next item; whether there is one. */
ATTEND_FN bool deal(const imx_attend_args &x, const imbrexd_watch &watch, int *upto, dealer *d,
                    work *to)
{
    int blocks = (int)gridDim.x, lane = (int)threadIdx.x % LANES;
#pragma unroll 1
    for (;;) {
        int item = d->next;
        if (d->claims && d->dealt >= DEALT)
            item = DEALT * blocks + __shfl_sync(ALL, d->claimed, 0);
        if (item < d->end) {
            *to = narrowed(x, find_work(x, d->first, upto, item, d->level));
            d->next += blocks;
            d->dealt++;
            if (d->claims && d->dealt >= DEALT && lane == 0)
                d->claimed = claim(x);
            return true;
        }
        if (d->claims && lane == 0 && item == d->end + blocks - 1) /* the last to ask */
            *x.claims = 0;
        d->next -= d->end;
        d->first += CHUNK;
        if (d->first >= x.sequences)
            return false;
        open_chunk(x, watch, upto, d);
    }
}

#endif /* IMX_ATTEND_SM90_DEAL_CUH */
