/* sm90_epilogue_reduce_pull.cuh - tiles have rows of several ranks, and stay in this
 * rank's data.  Once a chunk of columns stands on all ranks each reads its own rows of it, in rank
 * order, and makes c of them: all chunks but the last beneath the products of the next one.
 *
 *     consumers    | tiles of chunk 0 | tiles of chunk 1      | read chunk 1, add |
 *     idle warps                      | read chunk 0, add |   | the same          |
 *
 * One warp a block looks for the others' signals, and credits: all of them would hold them up.
 */
#ifndef IMX_SM90_EPILOGUE_REDUCE_PULL_CUH
#define IMX_SM90_EPILOGUE_REDUCE_PULL_CUH

#include "sm90_credits.cuh"
#include "sm90_policy.cuh"
#include "sm90_store.cuh"

enum {
    COLLECT_BESIDE = 96, /* threads of the idle warps, and with the consumers */
    COLLECT_ALL = COLLECT_BESIDE + CONSUMERS * 128,
    /* What holds a sum up is the way to the peers, so many loads are under way: of so many parts,
     * of so many units. */
    COLLECT_LOADS = 8,
    COLLECT_PARTS = IMX_PARTS < COLLECT_LOADS ? IMX_PARTS : COLLECT_LOADS,
    COLLECT_UNITS = COLLECT_LOADS / COLLECT_PARTS,
};

/* ---- what stands ----------------------------------------------------------------------------- */

IMX_FN uint32_t collect_stored(void)
{
    return shared_at(&words().stored[0]);
}

/* Before thread 0 meets the others. */
IMX_FN void collect_init(void)
{
    words().stored[0] = 0;
}

/* The number of the last chunk. */
IMX_FN int collect_last_chunk(const imx_gemm_args &args)
{
    return (int)(((unsigned)args.schedule.n - 1) / (unsigned)args.schedule.chunk_cols);
}

/* Columns up to chunk q's end. */
IMX_FN unsigned collect_end(const imx_gemm_args &args, int q)
{
    unsigned n = (unsigned)args.schedule.n;
    unsigned end = (unsigned)(q + 1) * (unsigned)args.schedule.chunk_cols;
    return end < n ? end : n;
}

/* What collect_stored comes to once this block's tiles up to chunk q's end are stored. */
IMX_FN uint32_t collect_shares(const imx_gemm_args &args, int q)
{
    unsigned down = ((unsigned)args.schedule.m + TILE_ROWS - 1) / TILE_ROWS;
    unsigned tiles = down * ((collect_end(args, q) + TILE_COLS - 1) / TILE_COLS);
    unsigned first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;
    unsigned mine = tiles > first ? (tiles - first + stride - 1) / stride : 0;
    return mine * (CONSUMERS / TURNS * 4);
}

/* One warp: until chunk q stands on all ranks.  This block's own tiles first, which nothing holds
 * up but other blocks' loads.  0: give up. */
IMX_FN int collect_wait(const imx_gemm_args &args, const imbrexd_watch *watch, int q)
{
    uint32_t shares = collect_shares(args, q);
    while (!__all_sync(0xffffffffu, shared_counted(collect_stored()) >= shares)) {
        if (__any_sync(0xffffffffu, gave_up_here()))
            return 0;
        __nanosleep(200);
    }
    return team_columns(args, watch, q);
}

/* All who read a chunk, when it stands: barrier 1 is free, as nobody pushes. */
IMX_FN void collect_meet(bool last)
{
    __syncwarp();
    if (last)
        asm volatile("bar.sync 5, %0;" : : "r"(COLLECT_ALL) : "memory");
    else
        asm volatile("bar.sync 1, %0;" : : "r"(COLLECT_BESIDE) : "memory");
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* One of own rows' units: where it lies among them, and its first column. */
typedef struct collect_unit {
    uint32_t at, col;
} collect_unit;

/* So many of own rows' units: all ranks' parts, in rank order, and bias.  first: of own rows, among
 * all units. */
template <int units>
IMX_FN void collect_units(const imx_gemm_args &args, uint32_t first,
                          const collect_unit (&unit)[units])
{
    float sum[units][UNIT_COLS];
    sum_parts<IMX_PARTS, COLLECT_PARTS>(
        sum,
        [&](int r, int u) {
            const uint4 *from = (const uint4 *)imx_team_data(&args.team, r) + first;
            return imx_vector_load(from + unit[u].at);
        },
        [](int) {});
#pragma unroll
    for (int u = 0; u < units; u++)
        sum_put(args, unit[u].at, unit[u].col, sum[u]);
}

/* Thread number `thread` of all blocks' `threads`: its share of chunk q of own rows. */
IMX_FN void collect_whole(const imx_gemm_args &args, int q, uint32_t thread, uint32_t threads)
{
    uint32_t row_units = (uint32_t)args.schedule.n / UNIT_COLS;
    uint32_t first_row = (uint32_t)team_row(args, args.team.rank);
    uint32_t rows = (uint32_t)team_row(args, args.team.rank + 1) - first_row;
    uint32_t left = (uint32_t)q * (uint32_t)args.schedule.chunk_cols / UNIT_COLS;
    uint32_t across = collect_end(args, q) / UNIT_COLS - left;
    uint32_t units = rows * across, first = first_row * row_units;
    auto unit_of = [&](uint32_t i) {
        uint32_t row = i / across, col = left + (i - row * across);
        collect_unit unit = { row * row_units + col, col * UNIT_COLS };
        return unit;
    };
#pragma unroll 1
    for (; thread + (COLLECT_UNITS - 1) * threads < units; thread += COLLECT_UNITS * threads) {
        collect_unit unit[COLLECT_UNITS];
#pragma unroll
        for (int u = 0; u < COLLECT_UNITS; u++)
            unit[u] = unit_of(thread + u * threads);
        collect_units(args, first, unit);
    }
#pragma unroll 1
    for (; thread < units; thread += threads) {
        const collect_unit unit[1] = { unit_of(thread) };
        collect_units(args, first, unit);
    }
}

enum { COLLECT_PLAIN = IMX_PARTS < 4 ? IMX_PARTS : 4 }; /* parts that are under way together */

/* Up to eight elements, of which `count` are there. */
IMX_FN uint4 collect_load(const char *at, int count)
{
    uint64_t low = imx_vector_load_word(at, 2 * count);
    uint64_t high = imx_vector_load_word(at + 8, 2 * count - 8);
    return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32));
}

/* The same where rows are not whole units, which end where the chunk does. */
IMX_FN void collect_plain(const imx_gemm_args &args, int q, uint32_t thread, uint32_t threads)
{
    uint32_t n = (uint32_t)args.schedule.n, first_row = (uint32_t)team_row(args, args.team.rank);
    uint32_t rows = (uint32_t)team_row(args, args.team.rank + 1) - first_row;
    uint32_t left = (uint32_t)q * (uint32_t)args.schedule.chunk_cols;
    uint32_t end = collect_end(args, q);
    uint32_t across = (end - left + UNIT_COLS - 1) / UNIT_COLS;
#pragma unroll 1
    for (; thread < rows * across; thread += threads) {
        uint32_t row = thread / across, col = left + (thread - row * across) * UNIT_COLS;
        int count = end - col < UNIT_COLS ? (int)(end - col) : UNIT_COLS;
        int64_t at = (int64_t)(first_row + row) * n + col, to = (int64_t)row * n + col;
        float sum[UNIT_COLS];
#pragma unroll 1
        for (int r = 0; r < IMX_PARTS; r += COLLECT_PLAIN) {
            uint4 part[COLLECT_PLAIN];
#pragma unroll
            for (int p = 0; p < COLLECT_PLAIN; p++) {
                if (r + p < IMX_PARTS)
                    part[p] = collect_load(imx_team_data(&args.team, r + p) + at * 2, count);
            }
#pragma unroll
            for (int p = 0; p < COLLECT_PLAIN; p++) {
                if (r + p < IMX_PARTS)
                    imx_vector_add(DTYPE, sum, part[p], r + p == 0);
            }
        }
#pragma unroll
        for (int e = 0; e < UNIT_COLS; e++) {
            if (e >= count)
                continue;
            if (args.bias)
                sum[e] += bias_at((const uint16_t *)args.bias, (int)col + e, (int)n);
            if (args.residual)
                sum[e] += bias_at((const uint16_t *)args.residual + to + e, 0, 1);
            imx_vector_put(DTYPE, args.c, to + e, sum[e]);
        }
    }
}

/* ---- who reads ------------------------------------------------------------------------------- */

/* One of the block's `threads` that read chunk q. */
IMX_FN void collect_chunk(const imx_gemm_args &args, int q, uint32_t thread, uint32_t threads)
{
    if (gave_up_here())
        return;
    imx_trace_begin(IMX_TRACE_FOLD);
    thread += blockIdx.x * threads;
    threads *= gridDim.x;
    if constexpr (C_PLAIN)
        collect_plain(args, q, thread, threads);
    else
        collect_whole(args, q, thread, threads);
    imx_trace_end(IMX_TRACE_FOLD, args.team.rank, q);
}

/* One of the consumers, behind its products: its share of the last chunk. */
IMX_FN void collect_last(const imx_gemm_args &args)
{
    collect_meet(true);
    collect_chunk(args, collect_last_chunk(args), thread_here() - 128 + COLLECT_BESIDE,
                  COLLECT_ALL);
}

/* One of the idle warps, which are those of the producer but its first.  Also where it gives up it
 * meets the others.  0: gave up. */
IMX_FN int collect(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    int last = collect_last_chunk(args);
    int there = thread_here() >= 64 || look_for_credits(args, watch);
#pragma unroll 1
    for (int q = 0; q <= last; q++) {
        there = there && (thread_here() >= 64 || collect_wait(args, watch, q));
        if (!there)
            gave_up_here() = 1;
        collect_meet(q == last);
        collect_chunk(args, q, thread_here() - 32, q == last ? COLLECT_ALL : COLLECT_BESIDE);
    }
    return there;
}

/* ---- the epilogue ---------------------------------------------------------------------------- */

struct epilogue_reduce_pull : epilogue_store {
    enum {
        REGISTERS = REGISTERS_MOST,
        ADDS_BIAS = 0,
        PEERS_SEE = 1,
        WANTS_CREDITS = 1,
        POSTS = 1,
        ENDS_RUN = 1,
    };

    IMX_FN void init(void)
    {
        credits_init();
        collect_init();
    }

    IMX_FN void note(const imx_gemm_args &, unsigned, const imx_sm90_tile &t, int, int, int,
                     tile_info *info)
    {
        info->tiles = t.chunk_tiles;
    }

    IMX_FN uint16_t *home(const imx_gemm_args &args, const tile_info *)
    {
        return (uint16_t *)imx_team_data(&args.team, args.team.rank);
    }

    IMX_FN bool stored(const imx_gemm_args &, const tile_info *)
    {
        shared_count(collect_stored(), 1);
        return true;
    }

    IMX_FN void tell(const imx_gemm_args &args, const tile_info *, int chunk)
    {
        team_post_all(args, chunk);
    }

    IMX_FN void finish(const imx_gemm_args &args) { collect_last(args); }

    IMX_FN int beside(const imx_gemm_args &args, const imbrexd_watch *watch)
    {
        return collect(args, watch);
    }
};

#endif /* IMX_SM90_EPILOGUE_REDUCE_PULL_CUH */
