/* sm80.cu - the GEMM kernel of every NVIDIA GPU from sm_80 on, for all types, sizes and alignments.
 *
 * All warps of a block load and multiply.  A ring of stages, each TILE_K columns of a and of b,
 * runs ahead of the products; in a stage, fragments of the next product are loaded during this one:
 *
 *     copies     | 0 | 1 | 2 | 3 | 4 | 5 |           | tile 1: 0 | 1 | 2 | ...
 *     products           | 0 | 1 | 2 | 3 | 4 | 5 |   | tile 1: 0 | ...
 *     c                                          | store tile 0 |
 *
 *     shared: | stages x (a [TILE_M, TILE_K] | b [TILE_N, TILE_K] or [TILE_K, TILE_N]) |
 *
 * Where rows may begin anywhere, copies go to a ring of their own, and each thread puts what it
 * copied in order, into a ring of two stages, one stage before it is needed.
 *
 * The first copies of the next tile are under way while a tile is stored, unless they have to wait
 * for a signal: that comes after the post.  Blocks are persistent: block i takes tiles i,
 * i + blocks, ...  A tile is made in one order of additions whichever block makes it.
 *
 * f32 is made of three products of tf32 numbers: high and low halves of both factors, without the
 * product of the low halves.  Tensor cores cut what they add, so each stage is added up by itself
 * and then to the sum by ordinary, rounding additions.  The error is about 1e-6 of the sum of
 * |a| |b|.  Factors below 1e-34 count with 11 bits; where a factor is not finite, or a product is
 * too large, the sum is a NaN or infinite.
 *
 * 8-bit numbers come as they are and are widened to float16 between shared memory and the tensor
 * cores, which is exact, and so are their products.  A stage is 128 of k: it is added up by itself,
 * scaled where it has scales, and added to the sum.
 */
#include "args.h"
#include "sm80_product.cuh"
#include "team.cuh"

/* What this thread loads next. */
typedef struct worker {
    source a, b;
    places at;
#ifndef IMX_ALIGNED
    int raw; /* stage that comes next out of the ring of copies, */
    int k;   /* and how many elements of k are left from it on */
#endif
#ifdef IMX_EIGHT
    const imx_gemm_args *args; /* what has the scales of a tile, */
    const imx_tile *tile;      /* the one that is multiplied */
#endif
} worker;

/* ---- loads ----------------------------------------------------------------------------------- */

/* The rows of a and b that a tile is made of. */
IMX_FN void set_sources(worker *w, const imx_gemm_args &args, const imx_tile &tile)
{
    const imx_schedule *s = &args.schedule;
    const void *a = args.a;
    int64_t row = tile.row;
    if (GATHERS && tile.rank == args.own)
        row = tile.rank_row;
    else if (GATHERS)
        a = args.gathered;
    w->a = source_of(a, row + tile.rows, args.k, row, 0, A_ROW / 16);
#ifdef IMX_B_KN
    w->b = source_of(args.b, args.k, s->n, 0, tile.col, B_ROW / 16);
#else
    w->b = source_of(args.b, s->n, args.k, tile.col, 0, B_ROW / 16);
#endif
#ifndef IMX_ALIGNED
    w->k = (int)args.k;
#endif
}

IMX_FN void step_sources(worker *w)
{
    step_along(&w->a);
#ifdef IMX_B_KN
    step_down(&w->b);
#else
    step_along(&w->b);
#endif
}

#ifdef IMX_ALIGNED

/* The copies of the next stage, if there is one more, become a group. */
IMX_FN void load_ahead(worker *w, int stage, bool more)
{
    uint32_t to = stage_at(stage);
    if (more) {
        copy_box(to + w->at.a_to, A_APART * A_ROW, &w->a, A_UNITS, A_APART);
        copy_box(to + w->at.b_to, B_APART * B_ROW, &w->b, B_UNITS, B_APART);
        step_sources(w);
    }
    copy_commit();
}

/* The first of a tile's stages: all of the ring but one. */
IMX_FN void load_first(worker *w, int stages)
{
#pragma unroll 1
    for (int stage = 0; stage < IMX_STAGES - 1; stage++)
        load_ahead(w, stage, stage < stages);
}

/* Until the next stage's copies by this thread have come. */
IMX_FN void wait_ahead(void)
{
    copy_wait();
}

#else

IMX_FN uint32_t raw_at(int stage)
{
    return stage_at(RING) + stage * RAW_BYTES;
}

IMX_FN void copy_raw(worker *w, int stage, bool more)
{
    uint32_t to = raw_at(stage);
    if (more) {
        copy_windows(to, &w->a, A_UNITS, A_APART, A_ROW / 16);
        copy_windows(to + A_BYTES + IMX_TILE_M * 16, &w->b, B_UNITS, B_APART, B_ROW / 16);
        step_sources(w);
    }
    copy_commit();
}

/* Puts the next stage in order; copies another, if there is one more.  Windows of a row come from
 * threads of one warp: these meet where their copies have come and, which is the same place, where
 * all have read the stage before, whose room is free then. */
IMX_FN void load_ahead(worker *w, int stage, bool more)
{
    copy_wait();
    __syncwarp();
    copy_raw(w, w->raw > 0 ? w->raw - 1 : IMX_STAGES - 1, more);
    uint32_t to = stage_at(stage), raw = raw_at(w->raw), raw_b = raw + A_BYTES + IMX_TILE_M * 16;
    int a_left = w->k - (int)threadIdx.x % (A_ROW / 16) * FROM_UNIT;
#ifdef IMX_B_KN
    int b_left = w->b.left;
#else
    int b_left = w->k - (int)threadIdx.x % (B_ROW / 16) * FROM_UNIT;
#endif
    put_box(to + w->at.a_to, A_APART * A_ROW, raw, shift_of(&w->a), a_left, A_UNITS, A_APART,
            A_ROW / 16);
    put_box(to + w->at.b_to, B_APART * B_ROW, raw_b, shift_of(&w->b), b_left, B_UNITS, B_APART,
            B_ROW / 16);
    w->k -= IMX_TILE_K;
    w->raw = w->raw + 1 < IMX_STAGES ? w->raw + 1 : 0;
}

IMX_FN void load_first(worker *w, int stages)
{
#pragma unroll 1
    for (int stage = 0; stage < IMX_STAGES - 1; stage++)
        copy_raw(w, stage, stage < stages);
    w->raw = 0;
    load_ahead(w, 0, IMX_STAGES - 1 < stages);
}

/* It was put there by load_ahead. */
IMX_FN void wait_ahead(void) {}

#endif /* IMX_ALIGNED */

#ifdef IMX_EIGHT

#if IMX_SCALING >= 2
/* Scale `at` of each of this thread's rows of a.  Those that are not there do not matter. */
IMX_FN void find_row_scales(float (&s)[ROWS_HERE], const imx_gemm_args &args, const imx_tile &tile,
                            int at)
{
    const float *scales = args.scale_a;
    int64_t first = tile.row;
    if (GATHERS && tile.rank == args.own)
        first = tile.rank_row;
    else if (GATHERS)
        scales = args.gathered_scales;
#pragma unroll
    for (int i = 0; i < ROWS_HERE; i++)
        s[i] = row_of(i) < tile.rows ? scale_at(scales, (first + row_of(i)) * args.row_scales + at)
                                     : 0;
}
#endif

IMX_FN void end_stage(const worker *w, sums &sum, sums &part, int stage)
{
    float s[ROWS_HERE] = {};
#if IMX_SCALING == 3
    const imx_gemm_args &args = *w->args;
    if (stage >= args.row_scales) /* k is 0: nothing was multiplied, and there are none */
        return;
    float of_b = scale_at(args.scale_b, w->tile->col / 128 * args.row_scales + stage);
    find_row_scales(s, args, *w->tile, stage);
#pragma unroll
    for (int i = 0; i < ROWS_HERE; i++)
        s[i] *= of_b;
#endif
    add_stage(sum, part, s);
}

/* Of a whole tile. */
IMX_FN void scale_tile(sums &c, const imx_gemm_args &args, const imx_tile &tile)
{
    float s[ROWS_HERE];
    const float *cols = NULL;
#if IMX_SCALING == 2
    find_row_scales(s, args, tile, 0);
    cols = args.scale_b + tile.col;
#else
    float of_all = 1;
#if IMX_SCALING == 1
    of_all = scale_at(args.scale_a, 0) * scale_at(args.scale_b, 0);
#endif
#pragma unroll
    for (int i = 0; i < ROWS_HERE; i++)
        s[i] = of_all;
#endif
    scale_sums(c, s, cols, tile.cols);
}

#endif

/* ---- what it may do, and tiles --------------------------------------------------------------- */

/* Whether the tile's first load comes after a signal that this block has not seen yet. */
IMX_FN bool must_wait(const imx_gemm_args &args, const imx_tile &tile, int waited)
{
    return GATHERS && args.ready && tile.rank != args.own && tile.chunk != waited;
}

/* One thread looks; the barrier orders the others' loads after what it saw.  0: give up. */
IMX_FN int wait_chunk(const imx_gemm_args &args, const imbrexd_watch *watch, const imx_tile &tile)
{
    int there = 1;
    if (threadIdx.x == 0)
        there = args.own < 0 ? team_chunks(args, watch) : team_chunk(args, watch, tile.chunk);
    return __syncthreads_and(there);
}

/* One thread, after a barrier that came after all stores of the tile. */
IMX_FN void count_tile(const imx_gemm_args &args, const imx_tile &tile)
{
    if (EPILOGUE == IMX_EPILOGUE_STORE || (SCATTER_PUSH && tile.rank == args.team.rank) ||
        (POSTS && !args.done))
        return;
    if (SCATTER_PUSH)
        imbrexd_fence_post(); /* the stores' way to a peer does not lie within this GPU */
    const imx_schedule *s = &args.schedule;
    int number = tile.chunk - tile.rank * s->chunks;
    uint32_t tiles = (uint32_t)imx_schedule_chunk_tiles(s, tile.rank, number);
    if (!imbrexd_counter_last(&args.counters[tile.chunk], tiles))
        return;
    if (SCATTER_PUSH)
        team_post_owner(args, tile.rank, tile.chunk);
    else if (REDUCE_PULL)
        team_post_all(args, tile.chunk);
    else
        imbrexd_signal_post(&args.done[tile.chunk], *args.epoch);
}

/* Before the first store to a peer, or to where peers read.  0: give up. */
IMX_FN int wait_readers(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    int there = 1;
    if (!PEERS_SEE)
        return there;
    if (threadIdx.x < 32)
        there = team_credits(args, watch);
    return __syncthreads_and(there);
}

/* Until the peers' parts of the tile's chunk have come, and this block has stored its own.  0: give
 * up. */
IMX_FN int wait_parts(const imx_gemm_args &args, const imbrexd_watch *watch, const imx_tile &tile)
{
    int there = threadIdx.x >= 32 || team_parts(args, watch, tile.chunk);
    return __syncthreads_and(there);
}

/* All threads: the block's share of own rows, once those of all ranks stand.  0: give up. */
IMX_FN int collect(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    int64_t n = args.schedule.n;
    int rows = team_row(args, args.team.rank + 1) - team_row(args, args.team.rank);
    for (int q = 0; q < imx_schedule_chunks(&args.schedule, 0); q++) {
        int there = threadIdx.x >= 32 || team_columns(args, watch, q);
        if (!__syncthreads_and(there))
            return 0;
    }
    uint32_t across = (uint32_t)((n + PER_UNIT - 1) / PER_UNIT), step = gridDim.x * THREADS;
#pragma unroll 1
    for (uint32_t i = blockIdx.x * THREADS + thread_here(); i < rows * across; i += step) {
        uint32_t row = i / across;
        fold_span(args, row, (int64_t)(i - row * across) * PER_UNIT, n);
    }
    return 1;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imx_gemm_sm80(const __grid_constant__ imx_gemm_args args,
                  const __grid_constant__ imbrexd_watch watch)
{
    /* This tile and the next.  One thread works out tiles: divisions are slow. */
    __shared__ imx_tile notes[2];
    __shared__ unsigned tiles;
    if (threadIdx.x == 0) {
        tiles = (unsigned)imx_schedule_tiles(&args.schedule);
        for (int i = 0; i < 2; i++) {
            if (blockIdx.x + i * gridDim.x < tiles)
                notes[i] = imx_schedule_tile(&args.schedule, blockIdx.x + i * gridDim.x);
        }
    }
    __syncthreads();
    imx_grid_wait();
    imx_grid_let_go();
    imx_trace_open();
    if (PUSHES && !push(args, &watch, FROM_BYTES, push_by(0, THREADS / 32)))
        return;
    if (!wait_readers(args, &watch))
        return;

    worker w;
    w.at = places_here();
    int waited = -1, parity = 0;
    bool loading = false;
#pragma unroll 1
    for (unsigned i = blockIdx.x; i < tiles; i += gridDim.x, parity ^= 1) {
        imx_tile &tile = notes[parity];
        if (must_wait(args, tile, waited)) {
            if (!wait_chunk(args, &watch, tile))
                return;
            waited = tile.chunk;
        }
        if (!loading) {
            set_sources(&w, args, tile);
            load_first(&w, stages_of(args.k));
        }
        sums c;
        imx_trace_begin(IMX_TRACE_TILE);
#ifdef IMX_EIGHT
        w.args = &args;
        w.tile = &tile;
#endif
        multiply_tile(c, &w, w.at, stages_of(args.k));
#ifdef IMX_EIGHT
        scale_tile(c, args, tile);
#endif
        if (threadIdx.x == 0)
            imx_trace_end(IMX_TRACE_TILE, tile.rank, (int)i);

        const imx_tile &next = notes[parity ^ 1];
        loading = i + gridDim.x < tiles && !must_wait(args, next, waited);
        if (loading) {
            set_sources(&w, args, next);
            load_first(&w, stages_of(args.k));
        }
        store_tile(c, args, tile);
        if (SCATTER_PUSH && tile.rank == args.team.rank) {
            if (!wait_parts(args, &watch, tile))
                return;
            fold_tile(args, tile);
        }
        __syncthreads(); /* all have stored, and read the note */
        if (threadIdx.x == 0) {
            count_tile(args, tile);
            if (i + 2 * gridDim.x < tiles)
                tile = imx_schedule_tile(&args.schedule, i + 2 * gridDim.x);
        }
    }
    if (REDUCE_PULL) {
        if (!collect(args, &watch))
            return;
        __syncthreads();
    }
    if ((PUSHES || PEERS_SEE) && threadIdx.x < 32) /* the last tile ended with a barrier */
        team_end(args);
    imx_trace_close();
}
