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
 *             | other blocks' sums (IMX_SPLIT) | pieces of a for peers (IMX_BULK) |
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
 *   IMX_SPLIT   2 | 4 | 8, blocks of the cluster, which make a tile together (sm90_split.cuh)
 *   IMX_BULK    what push sends goes by the copy engine: there is room for it (sm90_push.cuh)
 * Of operands and order (launch.c):
 *   IMX_F16     else bf16                      IMX_B_KN      b is [k, n], else [n, k]
 *   IMX_C_PLAIN c by ordinary stores: any stride
 *   IMX_NODES   the order over several nodes   IMX_RANKS     how many ranks' rows are apart, where
 *                                                            that is known
 *   IMX_LISTED_ONCE   no block has more tiles than a list holds
 *   IMX_SHARED_BYTES  of dynamic shared memory
 *   IMX_TRACE   blocks write down what they do
 *
 * What it does besides is a prologue and an epilogue (sm90_policy.cuh), of which launch.c names one
 * each; IMX_SPANS, IMX_CHUNK_COLS, IMX_NODES say of which tiles the schedule is.
 *   IMX_PROLOGUE  none | wait | push | wait_all | push_all | slices | ring | hooks
 *   IMX_EPILOGUE  store | post | scatter_push | reduce_push | reduce_pull | hooks
 *                 IMX_PARTS  of reduce_push and reduce_pull: ranks
 *                 IMX_REDUCE_ALL, IMX_REDUCE_FAN  of reduce_push: all rows are everybody's; sums
 *                            go to all
 *   IMX_HOOKS     both are: for the caller's text
 * which make these kinds of kernel:
 *   one rank; all of a is here              none,     store
 *   a gathers   copy, pull, over nodes      wait,     store
 *               store                       push,     store
 *               ring                        ring,     store
 *               few rows                    wait_all, push_all (8 bits) or slices, store
 *   c scatters  copy, ll, over nodes        none,     post
 *               else by their names         none,     scatter_push, reduce_push or reduce_pull
 *   a kernel of the caller's                hooks,    hooks
 */
#include "sm90_consume.cuh"

/* ---- the consumers --------------------------------------------------------------------------- */

/* d (+)= a stage's a and b; first: of this warpgroup's rows of a, or of a turned tile's columns of
 * b; add: whether the first product adds.  An atom of b [k, n] has 64 columns in 8192 bytes. */
IMX_FN void multiply(float (&d)[HALVES][IMX_ACC], uint32_t stage_address, int first, int add)
{
    uint64_t a = wgmma_tile(stage_address + (TURNED ? 0 : first * 128), 16);
    uint32_t b_address = stage_address + A_BYTES + (TURNED ? first * 128 : 0);
    uint64_t b = wgmma_tile(b_address, B_KN ? 8192 : 16);
    const uint32_t b_step = (B_KN ? 16 * 128 : 32) >> 4;
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

/* Pieces of packed from `from` on, below `to`; ALL_GONE: and behind the last of them, a post.
 * ends: the stages are no longer wanted. */
IMX_FN void store_pieces(const uint32_t (&packed)[HALVES][IMX_ACC / 2], const imx_gemm_args &args,
                         const imx_tma_map *c, const tile_info *note, uint32_t base, int from,
                         int to, bool ends = false)
{
    if (epilogue::HAS_OWNERS && from == 0)
        imx_trace_begin(IMX_TRACE_STORE);
#pragma unroll
    for (int q = 0; q < PIECES; q++) {
        if (q >= from && q < to && (SPLIT == 1 || q == split_block())) {
            if constexpr (TURNED)
                store_turned(packed[0], args, note, base, q);
            else
                store_piece(packed[0], args, c, note, warp_row(),
                            ends ? take_stages(base, q) : take_buffer(base, q), q);
        }
    }
    if (to == ALL_GONE)
        post(args, note);
    if (epilogue::HAS_OWNERS && to == ALL_GONE)
        imx_trace_end(IMX_TRACE_STORE, note->owner, note->chunk);
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
        if (!epilogue::SENDS && i == next) {
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

IMX_FN void consume(const imx_gemm_args &args, const imbrexd_watch *watch,
                    const imx_gemm_maps &maps, int consumer)
{
    const imx_tma_map *c = maps.more;
    uint32_t base = shared_base();
    int first_row = TURNS == 1 ? consumer * IMX_WG_M : 0;
    uint32_t tile = 0; /* of this block's */
    float d[HALVES][IMX_ACC];
    uint32_t packed[HALVES][IMX_ACC / 2];
    place at = { 0, 0 };
    uint32_t turn = consumer == 0; /* the first may begin at once */
    uint32_t exchanged = 0;        /* tiles that several blocks made, their parity */
    if (TURNS == 2 && consumer == 1) {
        tile = 1;
        skip(&at, (uint32_t)steps_of(args));
    }

    for (;; tile += TURNS) {
        epilogue::due(args, watch, tile);
        if (index_of(tile) >= tiles_of())
            break;
        uint32_t now = tile & 1; /* parity of its note */
        if (TURNS == 2) {
            mbar_wait(turn_of(base, consumer), turn);
            turn ^= 1;
        }
        mbar_wait(full_of(base, at.stage), at.phase);
        imx_trace_begin(IMX_TRACE_TILE);
        int steps = TURNS == 2 ? info_of(at.stage)->steps : 0;
        multiply(d, base + at.stage * STAGE_BYTES, first_row, 0);
        take_note(note_of(now), at.stage);
        uint32_t before = at.stage;
        step(&at);
        if constexpr (TURNS == 2) {
            if (steps == 1)
                pass_turn(base, consumer);
            for (int i = 1; i < steps; i++) {
                begin_step(d, &at, base, first_row);
                if (i == steps - 1)
                    pass_turn(base, consumer);
                end_step(&at, &before, base);
            }
        } else {
            go_on(d, packed, args, c, now, !epilogue::SENDS && tile > 0, &at, &before, base,
                  consumer);
        }
        wgmma_wait(0);
        if (TURNS == 2 || consumer == 0)
            imx_trace_end(IMX_TRACE_TILE, rank_of(args, note_of(now)), (int)index_of(tile));
        /* No step has made the warps meet since each took its note there. */
        if (args.k <= SPLIT * TILE_K)
            consumers_meet(consumer);
        release(base, before);
        if constexpr (SPLIT > 1)
            exchange(d[0], base, &exchanged);
        if constexpr (TURNED)
            add_bias_turned(d[0], args, note_of(now)->col + warp_row());
        else if (epilogue::ADDS_BIAS)
            add_bias(d, args, note_of(now)->col);
        if (epilogue::WANTS_CREDITS && tile < TURNS)
            await_credits(note_of(now));
        if (epilogue::BEGINS && tile < TURNS) {
            epilogue::begin(args);
            heed_giving_up(note_of(now));
        }
        bool last = index_of(tile + 1) >= tiles_of();
        int goes_on = epilogue::may_send();
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            pack_half(packed[h], d[h]);
            if (epilogue::SENDS && goes_on)
                epilogue::send(packed[h], args, note_of(now), warp_row() + h * 64, last);
            else if (TURNS == 2 && !epilogue::SENDS)
                store(packed[h], args, c, note_of(now), warp_row() + h * 64, base);
        }
        if (TURNS == 2) {
            post(args, note_of(now));
            skip(&at, (uint32_t)steps_of(args));
        }
    }
    imx_trace_begin(IMX_TRACE_LAST);
    bool waiting = TURNS == 1 && !epilogue::SENDS && tile > 0; /* the last tile, in packed */
    const tile_info *last = note_of(tile & 1 ^ 1);
    if constexpr (epilogue::REDUCES_LAST) {
        if (waiting && (epilogue::LAST_STORED || last->owner != args.team.rank))
            store_pieces(packed, args, c, last, base, 0, ALL_GONE);
        if (waiting && last->owner == args.team.rank &&
            !epilogue::last_tile(packed, args, watch, c, last, warp_row(), &at, consumer))
            gave_up_here() = 1;
    } else if constexpr (TURNS == 1) {
        if (ONE_BUFFER)
            all_consumers_meet(); /* none reads a stage any more */
        if (waiting)
            store_pieces(packed, args, c, last, base, 0, ALL_GONE, ONE_BUFFER);
    }
    bulk_wait_read(0); /* shared memory goes when the block ends */
    imx_trace_end(IMX_TRACE_LAST, -1, -1);
    epilogue::finish(args);
}

#include "sm90_entry.cuh"
