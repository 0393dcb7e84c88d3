/* sm90_fold.cuh - with scatter_push: tiles of a rank's own rows become c, once all parts of them
 * lie in its slots.
 *
 *     consumers     | products of own tile 0 | of own tile 1       | of own tile 2       | fold 2
 *                                            | store 0 to own slot | store 1             |
 *     idle warps of the producer                                   | fold 0 | ...        | fold 1
 *
 * A block folds the tiles that it made, so that nobody else need know of them.  Its last one is
 * folded by those who made it: every warp its own rows, at once (sm90_last.cuh).
 */
#ifndef IMX_SM90_FOLD_CUH
#define IMX_SM90_FOLD_CUH

#include "sm90_credits.cuh"
#include "sm90_layout.cuh"
#include "sm90_store.cuh"
#include "team.cuh"

enum {
    /* What a lane of the idle warps has under way.  Where b is [k, n], or of 8 bits, wide tiles'
     * consumers leave it no registers for more. */
    FOLD_LOADS = (B_KN && IMX_TILE_N > 224) || (EIGHT && IMX_TILE_N > 160) ? 4 : 8,
    UNITS = IMX_TILE_N / UNIT_COLS,
    /* What holds a fold up is the way to memory, so many loads are under way: of so many parts, of
     * so many units. */
    PARTS_AT_ONCE = IMX_RANKS < FOLD_LOADS ? IMX_RANKS : FOLD_LOADS,
    UNITS_AT_ONCE = FOLD_LOADS / PARTS_AT_ONCE,
};

/* ---- who may read an own tile ---------------------------------------------------------------- */

/* How many own tiles a consumer warp has stored.  Each warp counts for itself: where tiles are
 * short one may be tiles ahead of another, and a common count could not tell. */
IMX_FN uint32_t stored_of(int warp)
{
    return shared_at(&words().stored[warp]);
}

/* One lane of a warp: its share of an own tile lies in this rank's slot.  Release: the slot's data
 * comes first. */
IMX_FN void count_own(void)
{
    shared_count(stored_of((int)thread_here() / 32 - 4), 1);
}

/* Until all consumers have stored `tiles` own tiles, which nothing holds up but other blocks'
 * loads; 0: they gave up.  Every lane looks for itself: votes take registers that there are not. */
IMX_FN int own_stored(uint32_t tiles)
{
#pragma unroll 1
    for (int warp = 0; warp < CONSUMERS * 4;) {
        __syncwarp(); /* together, all see the same */
        uint32_t stored = shared_counted(stored_of(warp));
        if (gave_up_here())
            return 0;
        if (stored >= tiles)
            warp++;
        else
            __nanosleep(500);
    }
    return 1;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Where parts of own rows lie, and what their sum becomes; a kernel of the caller's has another. */
struct own_parts {
    const imx_gemm_args &args;
    const imbrexd_watch *watch;

    /* The first of the idle warps, before all; 0: gave up. */
    IMX_FN int begin(const own_parts &of) { return look_for_credits(of.args, of.watch); }

    /* Which tile of the schedule comes as number `index`. */
    IMX_FN unsigned order(const own_parts &, unsigned index) { return index; }

    /* A warp: until all peers' parts of a chunk are here; 0: gave up. */
    IMX_FN int await(own_parts &of, int chunk) { return team_parts(of.args, of.watch, chunk); }

    /* Whether units of 16 bytes lie at multiples of 16. */
    IMX_FN bool are_whole(const own_parts &) { return true; }

    /* Rank 0's, and how far the next rank's is from there. */
    IMX_FN const char *first(const own_parts &of)
    {
        return imx_team_data(&of.args.team, of.args.team.rank);
    }

    IMX_FN int64_t apart(const own_parts &of) { return of.args.slot_bytes; }

    /* Unit `at` of c. */
    IMX_FN void put(const own_parts &of, uint32_t at, float (&sum)[UNIT_COLS])
    {
        uint32_t across = (uint32_t)of.args.schedule.n / UNIT_COLS;
        sum_put(of.args, at, of.args.bias ? at % across * UNIT_COLS : 0, sum);
    }

    /* Element `at`, of this column. */
    IMX_FN void put_element(const own_parts &of, int64_t at, int col, float sum)
    {
        if (of.args.bias)
            sum += bias_at((const uint16_t *)of.args.bias, col, (int)of.args.schedule.n);
        if (of.args.residual)
            sum += bias_at((const uint16_t *)of.args.residual + at, 0, 1);
        ((uint16_t *)of.args.c)[at] = (uint16_t)pack(sum, 0);
    }
};

/* So many units of c from `at` on, `down` from each other: their parts, in rank order, and bias. */
template <int units, class parts> IMX_FN void fold(const parts &of, uint32_t at, uint32_t down)
{
    const char *from = parts::first(of);
    float sum[units][UNIT_COLS];
    sum_parts<IMX_RANKS, PARTS_AT_ONCE>(
        sum,
        [&](int r, int u) {
            return imx_vector_load(from + r * parts::apart(of) + (int64_t)(at + u * down) * 16);
        },
        [&](int u) { parts::put(of, at + u * down, sum[u]); });
}

/* One of `threads`: its share of [rows, IMX_TILE_N] from row, col of own rows on, which is one
 * column of units, in every so-many-th row. */
template <class parts>
IMX_FN void fold_units(const parts &of, int row, int rows, int col, int thread, int threads)
{
    uint32_t across = (uint32_t)of.args.schedule.n / UNIT_COLS;
    int step = threads / UNITS, first = thread / UNITS;
    int unit = col / UNIT_COLS + thread - first * UNITS;
    if (first >= step || unit >= (int)across)
        return;
    uint32_t at = (uint32_t)(row + first) * across + (uint32_t)unit, down = step * across;
    rows -= first;
#pragma unroll 1
    for (; rows > (UNITS_AT_ONCE - 1) * step; rows -= UNITS_AT_ONCE * step) {
        fold<UNITS_AT_ONCE>(of, at, down);
        at += UNITS_AT_ONCE * down;
    }
#pragma unroll 1
    for (; rows > 0; rows -= step, at += down)
        fold<1>(of, at, 0);
}

/* The same element by element, where rows are not whole units. */
template <class parts>
IMX_FN void fold_elements(const parts &of, int row, int rows, int col, int first, int step)
{
    int n = (int)of.args.schedule.n;
    const char *from = parts::first(of);
#pragma unroll 1
    for (int i = first; i < rows * IMX_TILE_N; i += step) {
        int r = i / IMX_TILE_N, at_col = col + i - r * IMX_TILE_N;
        if (at_col >= n)
            continue;
        int64_t at = (int64_t)(row + r) * n + at_col;
        float sum = unpack(*(const volatile uint16_t *)(from + at * 2));
        for (int p = 1; p < of.args.team.size; p++)
            sum += unpack(*(const volatile uint16_t *)(from + p * parts::apart(of) + at * 2));
        parts::put_element(of, at, at_col, sum);
    }
}

template <class parts>
IMX_FN void fold_tile(const parts &of, int row, int rows, int col, int thread, int threads)
{
    if constexpr (C_PLAIN)
        fold_elements(of, row, rows, col, thread, threads);
    else if (parts::are_whole(of))
        fold_units(of, row, rows, col, thread, threads);
    else
        fold_elements(of, row, rows, col, thread, threads);
}

/* ---- who folds ------------------------------------------------------------------------------- */

/* One of the idle warps, which are those of the producer but its first: its share of this block's
 * own tiles, but for the block's last; the first of them looks for credits first.  0: gave up. */
template <class parts> IMX_FN int fold_tiles(parts of)
{
    enum { LANES = 96 };
    const imx_gemm_args &args = of.args;
    unsigned stride = gridDim.x / CLUSTER;
    uint32_t tiles = 0;
    if (thread_here() < 64 && !parts::begin(of))
        return 0;
#pragma unroll 1
    for (unsigned index = blockIdx.x / CLUSTER; index + stride < tiles_of(); index += stride) {
        imx_sm90_tile t =
            imx_sm90_tile_at(&args.schedule, TILE_ROWS, TILE_COLS, parts::order(of, index));
        if (t.rank != args.team.rank)
            continue;
        int row = t.rank_row + block_m() * IMX_TILE_M, rows = t.rows - block_m() * IMX_TILE_M;
        rows = rows < IMX_TILE_M ? rows : IMX_TILE_M;
        /* In this order: so many warps that look for the peers' signals would hold them up. */
        if (!own_stored(++tiles) || !parts::await(of, t.chunk))
            return 0;
        imx_trace_begin(IMX_TRACE_FOLD);
        fold_tile(of, row, rows, t.col, (int)thread_here() - 32, LANES);
        imx_trace_end(IMX_TRACE_FOLD, args.team.rank, -1);
    }
    return 1;
}

/* A consumer warp: its rows, from first_row on, of the block's last tile, which it has stored.
 * 0: gave up. */
template <class parts> IMX_FN int fold_last(parts of, const tile_info *note, int first_row)
{
    __syncwarp(); /* what its first lane has seen stored, the others read */
    if (note->chunk == GAVE_UP || !parts::await(of, note->chunk))
        return 0;
    imx_trace_begin(IMX_TRACE_FOLD);
    int rows = note->rows - first_row;
    fold_tile(of, note->row + first_row, rows < 16 ? rows : 16, note->col, (int)threadIdx.x % 32,
              32);
    imx_trace_end(IMX_TRACE_FOLD, of.args.team.rank, -1);
    return 1;
}

#endif /* IMX_SM90_FOLD_CUH */
