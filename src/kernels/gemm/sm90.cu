/* sm90.cu - the GEMM kernel for Hopper: copy engine, barriers and warpgroup products.
 *
 * A block has one producer thread and one to three consumer warpgroups.  A ring of stages lies
 * between them; a stage holds TILE_K columns of a and of b.  full[stage]: its bytes came;
 * empty[stage]: all have read it.  Together the consumers share a tile's rows:
 *
 *     producer    | load 0 | load 1 | load 2 | load 3 | tile 1: load 0 | ...
 *     consumer 0           | mul 0  | mul 1  | mul 2  | mul 3 | tile 1: mul 0 | mul 1 | mul 2 | ...
 *     consumer 1           | mul 0  | mul 1  | mul 2  | mul 3 | tile 1: mul 0 | mul 1 | mul 2 | ...
 *                                                       store a piece of tile 0 | another | ...
 *
 * or they take turns (IMX_PINGPONG), one storing its tile while the other multiplies:
 *
 *     consumer 0           | mul 0  | mul 1  | mul 2  | mul 3 | store tile 0 |    | tile 2 ...
 *     consumer 1                                              | tile 1: mul 0 | ...
 *
 *     shared: | stages x (a [TILE_M, 64] | b [TILE_N, 64] or [64, TILE_N]) | pieces of c |
 *             | halves of sums (IMX_SPLIT) | pieces of a for peers (IMX_BULK) |
 *             | notes, the next tiles, the block's words | barriers |
 *
 * The blocks of a cluster, IMX_CLUSTER_M below each other, make one tile of the schedule.  They
 * need the same columns of b: each loads its share and sends it to both.  Blocks are persistent:
 * cluster i takes tiles i, i + clusters, ...  A warp works them out, and the producer hands each on
 * in info[stage] of the tile's first stage.
 *
 * Options of the tile (sm90_tune.c):
 *   IMX_TILE_M  64 | 128 | 192, of a block's rows
 *                                              IMX_TILE_N    multiple of 16, at most 256
 *   IMX_WG_M    64 | 128, of a warpgroup       IMX_PINGPONG  consumers take turns
 *   IMX_STAGES                                 IMX_CLUSTER_M 1 | 2
 *   IMX_BUFFERS 1 | 2, pieces of c that a consumer warp has room for
 *   IMX_TURNED  the tile is made as its transpose (sm90_turned.cuh): IMX_TILE_M is a multiple of 8,
 *               IMX_TILE_N 64 | 128 | 192
 *   IMX_SPLIT   the cluster is two blocks that make a tile together (sm90_split.cuh)
 *   IMX_BULK    what IMX_PUSH sends goes by the copy engine: there is room for it (sm90_push.cuh)
 * Of operands and order (launch.c):
 *   IMX_F16     else bf16                      IMX_B_KN      b is [k, n], else [n, k]
 *   IMX_C_PLAIN c by ordinary stores: any stride
 *   IMX_NODES   the order over several nodes   IMX_RANKS     how many ranks' rows are apart, where
 *                                                            that is known
 *   IMX_LISTED_ONCE   no block has more tiles than a list holds
 *   IMX_SHARED_BYTES  of dynamic shared memory
 *   IMX_TRACE   blocks write down what they do
 * Of the features (launch.c):
 *   IMX_GATHER  rows of args.own from map a, others from map gathered, behind args.ready
 *   IMX_SLICES  all rows are one chunk; with IMX_PUSH of slices of k, which are waited for one
 *               by one (sm90_slices.cuh)
 *   IMX_PUSH    args.a to the peers, by the producer's idle warps, or with IMX_BULK one of them
 *   IMX_RING    rows of a go on to the rank before, by threads beside the producer
 *   IMX_POST    args.done
 *   IMX_STORE   tiles to their rows' owners
 *   IMX_REDUCE_PUSH     rows to their owners, by who made them; own ones are added up
 *   (sm90_reduce_push.cuh)  IMX_REDUCE_ALL  all rows are everybody's
 *                           IMX_REDUCE_FAN  sums go to all
 *   IMX_REDUCE_PULL tiles stay; own rows of all ranks' are read and added up
 *   (sm90_reduce_pull.cuh) IMX_PARTS   with these two: ranks
 *   IMX_TEAM    args.team, args.ended
 *   IMX_HOOKS   hooks of the caller's, instead of what the features do (sm90_hooks.cuh)
 * which make these kinds of kernel:
 *   one rank; all of a is here              (none)
 *   a gathers   copy, pull, over nodes      GATHER
 *               store                       GATHER PUSH TEAM
 *               ring                        GATHER RING TEAM
 *               few rows, by store          GATHER SLICES PUSH TEAM; else without PUSH TEAM
 *   c scatters  copy, ll, over nodes        POST
 *               scatter_push                STORE TEAM
 *               reduce_push                 SUM
 *               reduce_pull                 COLLECT TEAM
 *   a kernel of the caller's                GATHER STORE TEAM HOOKS
 */
#include "sm90_consume.cuh"

/* ---- the consumers -------------------------------------------------------------------------- */

/* d (+)= a stage's a and b; first: of this warpgroup's rows of a, or of a turned tile's columns of
 * b; add: whether the first product adds.  An atom of b [k, n] has 64 columns in 8192 bytes. */
IMX_FN void multiply(float (&d)[HALVES][IMX_ACC], uint32_t stage_address, int first, int add)
{
    uint64_t a = wgmma_tile(stage_address + (TURNED ? 0 : first * 128), 16);
    uint32_t b_address = stage_address + A_BYTES + (TURNED ? first * 128 : 0);
#ifdef IMX_B_KN
    uint64_t b = wgmma_tile(b_address, 8192);
    const uint32_t b_step = 16 * 128 >> 4;
#else
    uint64_t b = wgmma_tile(b_address, 16);
    const uint32_t b_step = 32 >> 4;
#endif
    const uint32_t a_step = 32 >> 4;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++)
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            if (TURNED)
                wgmma(d[h], b + i * b_step, a + i * a_step, i > 0 || add);
            else
                wgmma(d[h], a + h * (64 * 128 >> 4) + i * a_step, b + i * b_step, i > 0 || add);
        }
    wgmma_commit();
}

/* The other consumer may begin: all products of this one's tile are on their way. */
IMX_FN void pass_turn(uint32_t base, int consumer)
{
    if (threadIdx.x % 128 == 0)
        mbar_arrive(turn_of(base, (uint32_t)consumer ^ 1));
}

/* One more step of a tile, in two halves: what stands between them runs beneath its products. */
IMX_FN void begin_step(float (&d)[HALVES][IMX_ACC], const place *at, uint32_t base, int first_row)
{
    mbar_wait(full_of(base, at->stage), at->phase);
    multiply(d, base + at->stage * STAGE_BYTES, first_row, 1);
}

/* before: the stage of the step before, whose products are done. */
IMX_FN void end_step(place *at, uint32_t *before, uint32_t base)
{
    wgmma_wait(1);
    release(base, *before);
    *before = at->stage;
    step(at);
}

#ifndef IMX_PINGPONG

/* Pieces of packed from `from` on, below `to`; ALL_GONE: and behind the last of them, a post.
 * ends: the stages are no longer wanted. */
IMX_FN void store_pieces(const uint32_t (&packed)[HALVES][IMX_ACC / 2], const imx_gemm_args &args,
                         const imx_tma_map *c, const tile_info *note, uint32_t base, int from,
                         int to, bool ends = false)
{
    if (SCATTER_PUSH && from == 0)
        imx_trace_begin(IMX_TRACE_STORE);
#pragma unroll
    for (int q = 0; q < PIECES; q++) {
        if (q >= from && q < to && (SPLIT == 1 || q == split_block())) {
#ifdef IMX_TURNED
            store_turned(packed[0], args, note, base, q);
#else
            store_piece(packed[0], args, c, note, warp_row(),
                        ends ? take_stages(base, q) : take_buffer(base, q), q);
#endif
        }
    }
#ifdef IMX_POSTS
    if (to == ALL_GONE)
        post(args, note);
#endif
#ifdef IMX_STORE
    if (to == ALL_GONE)
        imx_trace_end(IMX_TRACE_STORE, note->owner, note->chunk);
#endif
}

/* A tile's steps but the first.  waiting: the tile before is in packed, and leaves beneath their
 * products, piece by piece, since shared memory has no bandwidth for all of it at once: piece 0 at
 * step `next`, each of the others some steps later, and POST_AFTER steps behind the last its post.
 * `piece` is that which leaves next, PIECES where the post is due, or ALL_GONE. */
IMX_FN void go_on(float (&d)[HALVES][IMX_ACC], const uint32_t (&packed)[HALVES][IMX_ACC / 2],
                  const imx_gemm_args &args, const imx_tma_map *c, uint32_t now, bool waiting,
                  place *at, uint32_t *before, uint32_t base, int consumer)
{
    int steps = note_of(now)->steps, first_row = consumer * IMX_WG_M;
    int piece = 0, next = waiting ? piece_step(note_of(now), consumer, 0) : NEVER;
    for (int i = 1; i < steps; i++) {
        begin_step(d, at, base, first_row);
        if (!REDUCE_PUSH && i == next) {
            store_pieces(packed, args, c, note_of(now ^ 1), base, piece, piece + 1);
            piece++;
            next = piece < PIECES    ? piece_step(note_of(now), consumer, piece)
                   : piece == PIECES ? i + POST_AFTER
                                     : NEVER;
        }
        end_step(at, before, base);
    }
    /* A short tile: before it takes over packed. */
    if (waiting && piece != ALL_GONE)
        store_pieces(packed, args, c, note_of(now ^ 1), base, piece, ALL_GONE);
}

#endif

IMX_FN void consume(const imx_gemm_args &args, const imbrexd_watch *watch,
                    const imx_gemm_maps &maps, int consumer)
{
    const imx_tma_map *c = maps.c;
    uint32_t base = shared_base();
    int first_row = TURNS == 1 ? consumer * IMX_WG_M : 0;
    uint32_t tile = 0; /* of this block's */
    float d[HALVES][IMX_ACC];
    uint32_t packed[HALVES][IMX_ACC / 2];
    place at = { 0, 0 };
    uint32_t turn = consumer == 0; /* the first may begin at once */
#ifdef IMX_SPLIT
    uint32_t exchanged = 0; /* tiles, their parity */
#endif
    if (TURNS == 2 && consumer == 1) {
        tile = 1;
        skip(&at, (uint32_t)steps_of(args));
    }

#ifdef IMX_HOOKS
    /* While the first loads are on their way: beneath products there are no registers for it. */
    if (!hook_begin(args, watch))
        gave_up_here() = 1;
    imbrexd_fence_tma();
#endif
    for (;; tile += TURNS) {
#ifdef IMX_REDUCE_PUSH
        if (!sum_due(args, watch, tile))
            gave_up_here() = 1;
#endif
        if (index_of(tile) >= tiles_of())
            break;
        uint32_t now = tile & 1; /* parity of its note */
        if (TURNS == 2) {
            mbar_wait(turn_of(base, consumer), turn);
            turn ^= 1;
        }
        mbar_wait(full_of(base, at.stage), at.phase);
        imx_trace_begin(IMX_TRACE_TILE);
#ifdef IMX_PINGPONG
        int steps = info_of(at.stage)->steps;
#endif
        multiply(d, base + at.stage * STAGE_BYTES, first_row, 0);
        take_note(note_of(now), at.stage);
        uint32_t before = at.stage;
        step(&at);
#ifdef IMX_PINGPONG
        if (steps == 1)
            pass_turn(base, consumer);
        for (int i = 1; i < steps; i++) {
            begin_step(d, &at, base, first_row);
            if (i == steps - 1)
                pass_turn(base, consumer);
            end_step(&at, &before, base);
        }
#else
        go_on(d, packed, args, c, now, !REDUCE_PUSH && tile > 0, &at, &before, base, consumer);
#endif
        wgmma_wait(0);
        if (TURNS == 2 || consumer == 0)
            imx_trace_end(IMX_TRACE_TILE, rank_of(args, note_of(now)), (int)index_of(tile));
        /* No step has made the warps meet since each took its note there. */
        if (args.k <= SPLIT * TILE_K)
            consumers_meet(consumer);
        release(base, before);
#ifdef IMX_SPLIT
        exchange(d[0], base, &exchanged);
#endif
#if defined(IMX_TURNED)
        add_bias_turned(d[0], args, note_of(now)->col + warp_row());
#elif !defined(IMX_STORE) && !defined(IMX_REDUCE_PUSH) && !defined(IMX_REDUCE_PULL)
        add_bias(d, args, note_of(now)->col);
#endif
#if defined(IMX_CREDITS) && !defined(IMX_REDUCE_PUSH)
        if (tile < TURNS) { /* its first */
            if (!may_store())
                heed_giving_up(note_of(now));
            imbrexd_fence_tma();
        }
#endif
#ifdef IMX_REDUCE_PUSH
        bool last = index_of(tile + 1) >= tiles_of();
        int goes_on = may_store();
#endif
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            pack_half(packed[h], d[h]);
#ifdef IMX_REDUCE_PUSH
            if (goes_on)
                sum_send(packed[h], args, note_of(now), warp_row() + h * 64, last);
#else
            if (TURNS == 2)
                store(packed[h], args, c, note_of(now), warp_row() + h * 64, base);
#endif
        }
#ifdef IMX_PINGPONG
#ifdef IMX_POSTS
        post(args, note_of(now));
#endif
        skip(&at, (uint32_t)steps_of(args));
#endif
    }
    imx_trace_begin(IMX_TRACE_LAST);
#ifndef IMX_PINGPONG
    bool waiting = !REDUCE_PUSH && tile > 0; /* the last tile, in packed */
    const tile_info *last = note_of(tile & 1 ^ 1);
#ifdef IMX_EPILOGUE_REDUCE
    if (waiting && (LAST_STORED || last->owner != args.team.rank))
        store_pieces(packed, args, c, last, base, 0, ALL_GONE);
    if (waiting && last->owner == args.team.rank &&
        !last_tile(packed, args, watch, &maps.own, last, warp_row(), base, &at, consumer))
        gave_up_here() = 1;
#else
    if (ONE_BUFFER)
        all_consumers_meet(); /* none reads a stage any more */
    if (waiting)
        store_pieces(packed, args, c, last, base, 0, ALL_GONE, ONE_BUFFER);
#endif
#endif
    bulk_wait_read(0); /* shared memory goes when the block ends */
    imx_trace_end(IMX_TRACE_LAST, -1, -1);
#ifdef IMX_REDUCE_PULL
    collect_last(args);
#endif
}

#include "sm90_entry.cuh"
