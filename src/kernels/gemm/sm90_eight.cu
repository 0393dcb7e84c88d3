/* sm90_eight.cu - the GEMM kernel for Hopper of a and b of 8 bits: sm90.cu's pipeline, whose
 * producer, ring, features and options it shares, with consumers of its own.
 *
 * A stage is 128 of k.  Tensor cores add up what they multiply with some 14 bits, so that every
 * stage's products are added up from 0 and then, in float32, to the sum of the stages before, with
 * their scales where they have some: `part` and `sum`, in as many registers.  Meanwhile the other
 * consumer multiplies, and where tiles are narrow this one does, the next stage.  No registers are
 * left to keep a finished tile in: it goes to shared memory at once, all of it, and leaves from
 * there beneath the next one's products.
 *
 *     consumer 0  | mul 0 | add 0 | mul 1 | add 1 | ... | fill | tile 1: mul 0 | ...
 *     consumer 1          | mul 0 | add 0 | mul 1 | ...        | fill | ...
 *                                                                send a piece of tile 0 | another |
 *
 * Options beside those of sm90.cu, of which it has no PINGPONG, SPLIT, BULK, RING, HOOKS, B_KN:
 *   IMX_EIGHT    imbrex_dtype of a; b is E4M3
 *   IMX_SCALING  imbrex_scaling
 *   IMX_FAST     sums stay in the tensor cores over all of k
 *   IMX_F16      c is f16, else bf16
 *   IMX_BUFFERS  the pieces of a tile
 */
#include "sm90_consume.cuh"
#include "sm90_scales.cuh"

#if defined(IMX_FAST) && IMX_SCALING == 3
#error "each 128 of k have scales of their own"
#endif
static_assert(IMX_BUFFERS == PIECES && HALVES == 1, "a tile has room in shared memory");

/* d (+)= a stage's a and b; add: whether the first product adds. */
IMX_FN void multiply(float (&d)[IMX_ACC], uint32_t stage_address, int first_row, int add)
{
    uint64_t a = wgmma_tile(stage_address + first_row * 128, 16);
    uint64_t b = wgmma_tile(stage_address + A_BYTES, 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TILE_K / 32; i++)
        wgmma(d, a + i * (32 >> 4), b + i * (32 >> 4), i > 0 || add);
    wgmma_commit();
}

/* Until all products are done but those that were told last, `left` times; d is of those that are,
 * and not looked at before. */
template <int left> IMX_FN void finish(float (&d)[IMX_ACC])
{
    if (left)
        wgmma_wait(1);
    else
        wgmma_wait(0);
#pragma unroll
    for (int j = 0; j < IMX_ACC; j++)
        asm volatile("" : "+f"(d[j]) : : "memory");
}

/* ---- a tile leaves --------------------------------------------------------------------------- */

/* This warp's room for piece p. */
IMX_FN uint32_t room_for(uint32_t base, int p)
{
    return base + C_AT + ((threadIdx.x / 32 - 4) * PIECES + p) * PIECE_BYTES;
}

/* All of a tile to where it leaves from: whatever was there has left. */
IMX_FN void fill(const uint32_t (&packed)[IMX_ACC / 2], uint32_t base)
{
    if (lane_here() == 0)
        tma_store_wait_read(0);
    __syncwarp();
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        fill_buffer(room_for(base, p), &packed[p * PIECE_COLS / 4]);
}

/* What leaves next of the tile before, PIECES being the post, and at which step. */
typedef struct leaving {
    int piece, step;
} leaving;

/* Its pieces from one on, below `to`; ALL_GONE: and behind the last of them, a post. */
IMX_FN void send(const imx_gemm_args &args, const imx_tma_map *c, const tile_info *note,
                 uint32_t base, int from, int to)
{
    if (SCATTER_PUSH && from == 0)
        imx_trace_begin(IMX_TRACE_STORE);
#pragma unroll 1
    for (int p = from; p < to && p < PIECES; p++)
        send_piece(args, c, note, warp_row(), room_for(base, p), p);
#ifdef IMX_POSTS
    if (to == ALL_GONE)
        post(args, note);
#endif
#ifdef IMX_STORE
    if (to == ALL_GONE)
        imx_trace_end(IMX_TRACE_STORE, note->owner, note->chunk);
#endif
}

/* Step i of the tile `now` is under way. */
IMX_FN void send_due(const imx_gemm_args &args, const imx_tma_map *c, uint32_t now, uint32_t base,
                     int consumer, int i, leaving *l)
{
    if (REDUCE_PUSH || i == NEVER || i != l->step)
        return;
    send(args, c, note_of(now ^ 1), base, l->piece, l->piece + 1);
    l->piece++;
    l->step = l->piece < PIECES    ? piece_step(note_of(now), consumer, l->piece)
              : l->piece == PIECES ? i + POST_AFTER
                                   : NEVER;
}

/* ---- the consumers --------------------------------------------------------------------------- */

/* A tile that is being made, by one of the consumers. */
typedef struct making {
    uint32_t base, now; /* parity of its note */
    int consumer, first_row;
    place at;
    uint32_t before; /* the stage of the step before */
    leaving leaves;  /* of the tile before */
#if IMX_SCALING == 3
    block_scales scales; /* of four steps */
#endif
} making;

/* Step i is there; the first begins a tile, whose note is taken before products, for which the
 * warps meet: then all have read it. */
IMX_FN void await_step(making *t, int i, bool waiting)
{
    mbar_wait(full_of(t->base, t->at.stage), t->at.phase);
    if (i > 0)
        return;
    imx_trace_begin(IMX_TRACE_TILE);
    take_note(note_of(t->now), t->at.stage);
    leaving l = { waiting ? 0 : (int)ALL_GONE,
                  waiting ? piece_step(note_of(t->now), t->consumer, 0) : (int)NEVER };
    t->leaves = l;
}

/* Its products are under way. */
IMX_FN void go_on(making *t, const imx_gemm_args &args, const imx_tma_map *c, int i)
{
    send_due(args, c, t->now, t->base, t->consumer, i, &t->leaves);
    t->before = t->at.stage;
    step(&t->at);
}

#ifdef IMX_FAST

IMX_FN void make_sum(float (&sum)[IMX_ACC], making *t, const imx_gemm_args &args,
                     const imx_tma_map *c, bool waiting)
{
    int steps = steps_of(args);
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        await_step(t, i, waiting);
        multiply(sum, t->base + t->at.stage * STAGE_BYTES, t->first_row, i > 0);
        uint32_t before = t->before;
        go_on(t, args, c, i);
        wgmma_wait(1);
        if (i > 0)
            release(t->base, before);
    }
    finish<0>(sum);
    release(t->base, t->before);
}

#else

/* As many registers as there are: with two, the next step's products are under way while one's are
 * added up. */
enum { PARTS = IMX_TILE_N <= 96 ? 2 : 1 };

/* part = the products of step i, which are under way. */
IMX_FN void begin_step(float (&part)[IMX_ACC], making *t, int i, bool waiting)
{
    await_step(t, i, waiting);
    multiply(part, t->base + t->at.stage * STAGE_BYTES, t->first_row, 0);
}

/* Scales of step i and, where these are others than the ones before, of three more. */
IMX_FN void find_scales(making *t, const imx_gemm_args &args, int i)
{
#if IMX_SCALING == 3
    if (i % 4 == 0)
        t->scales = load_scales(args, note_of(t->now), warp_row(), i);
#endif
}

/* sum += part, the products of step i, which was in `stage`; left: steps that are under way behind
 * it. */
template <int left>
IMX_FN void end_step(float (&sum)[IMX_ACC], float (&part)[IMX_ACC], making *t, uint32_t stage,
                     int i)
{
    finish<left>(part);
    release(t->base, stage);
#if IMX_SCALING == 3
    add_scaled(sum, part, t->scales, note_of(t->now), i);
#else
    add_part(sum, part);
#endif
}

/* Step i begins, and the one before ends, in `part`. */
IMX_FN void step_behind(float (&sum)[IMX_ACC], float (&next)[IMX_ACC], float (&part)[IMX_ACC],
                        making *t, const imx_gemm_args &args, const imx_tma_map *c, int i)
{
    begin_step(next, t, i, false);
    uint32_t before = t->before;
    go_on(t, args, c, i);
    end_step<1>(sum, part, t, before, i - 1);
    find_scales(t, args, i);
}

IMX_FN void make_sum(float (&sum)[IMX_ACC], making *t, const imx_gemm_args &args,
                     const imx_tma_map *c, bool waiting)
{
    int steps = steps_of(args), i = 0;
    float part[PARTS][IMX_ACC];
#pragma unroll
    for (int j = 0; j < IMX_ACC; j++)
        sum[j] = 0;
#pragma unroll 1
    for (; PARTS == 1 && i < steps; i++) {
        begin_step(part[0], t, i, waiting);
        find_scales(t, args, i);
        go_on(t, args, c, i);
        end_step<0>(sum, part[0], t, t->before, i);
    }
    if (PARTS == 1)
        return;
    begin_step(part[0], t, 0, waiting);
    find_scales(t, args, 0);
    go_on(t, args, c, 0);
#pragma unroll 1
    for (i = 1; i + 1 < steps; i += 2) {
        step_behind(sum, part[PARTS - 1], part[0], t, args, c, i);
        step_behind(sum, part[0], part[PARTS - 1], t, args, c, i + 1);
    }
    if (i < steps) {
        step_behind(sum, part[PARTS - 1], part[0], t, args, c, i);
        end_step<0>(sum, part[PARTS - 1], t, t->before, i);
    } else {
        end_step<0>(sum, part[0], t, t->before, i - 1);
    }
}

#endif

/* sum = the tile's sums.  waiting: the tile before has yet to leave. */
IMX_FN void make_tile(float (&sum)[IMX_ACC], const imx_gemm_args &args, const imx_tma_map *c,
                      uint32_t now, bool waiting, place *at, uint32_t base, int consumer)
{
    making t;
    t.base = base, t.now = now, t.consumer = consumer, t.first_row = consumer * IMX_WG_M;
    t.at = *at;
    t.before = 0;
    make_sum(sum, &t, args, c, waiting);
    *at = t.at;
    if (waiting && !REDUCE_PUSH && t.leaves.piece != ALL_GONE) /* a short tile */
        send(args, c, note_of(now ^ 1), base, t.leaves.piece, ALL_GONE);
#if IMX_SCALING < 3
    scale_tile(sum, args, note_of(now), warp_row());
#endif
}

IMX_FN void consume(const imx_gemm_args &args, const imbrexd_watch *watch,
                    const imx_gemm_maps &maps, int consumer)
{
    const imx_tma_map *c = maps.c;
    uint32_t base = shared_base();
    uint32_t tile = 0; /* of this block's */
    uint32_t packed[HALVES][IMX_ACC / 2];
    place at = { 0, 0 };
    for (;; tile++) {
#ifdef IMX_REDUCE_PUSH
        if (!sum_due(args, watch, tile))
            gave_up_here() = 1;
#endif
        if (index_of(tile) >= tiles_of())
            break;
        uint32_t now = tile & 1; /* parity of its note */
        float sum[HALVES][IMX_ACC];
        make_tile(sum[0], args, c, now, tile > 0, &at, base, consumer);
        if (consumer == 0)
            imx_trace_end(IMX_TRACE_TILE, rank_of(args, note_of(now)), (int)index_of(tile));
#if !defined(IMX_STORE) && !defined(IMX_REDUCE_PUSH) && !defined(IMX_REDUCE_PULL)
        add_bias(sum, args, note_of(now)->col);
#endif
#if defined(IMX_CREDITS) && !defined(IMX_REDUCE_PUSH)
        if (tile == 0) { /* its first */
            if (!may_store())
                heed_giving_up(note_of(now));
            imbrexd_fence_tma();
        }
#endif
#ifdef IMX_REDUCE_PUSH
        int goes_on = may_store();
#endif
        pack_half(packed[0], sum[0]);
        bool last = index_of(tile + 1) >= tiles_of();
#ifdef IMX_REDUCE_PUSH
        if (goes_on)
            sum_send(packed[0], args, note_of(now), warp_row(), last);
#else
        if (last) { /* kept in registers */
            tile++;
            break;
        }
        fill(packed[0], base);
#endif
    }
    imx_trace_begin(IMX_TRACE_LAST);
    bool waiting = !REDUCE_PUSH && tile > 0; /* the last tile, in packed */
    const tile_info *last = note_of(tile & 1 ^ 1);
    bool leaves = waiting;
#ifdef IMX_EPILOGUE_REDUCE
    bool own = waiting && last->owner == args.team.rank;
    leaves = waiting && (LAST_STORED || !own);
#endif
    if (leaves) {
        fill(packed[0], base);
        send(args, c, last, base, 0, ALL_GONE);
    }
#ifdef IMX_EPILOGUE_REDUCE
    if (own && !last_tile(packed, args, watch, &maps.own, last, warp_row(), base, &at, consumer))
        gave_up_here() = 1;
#endif
    tma_store_wait_read(0); /* shared memory goes when the block ends */
    imx_trace_end(IMX_TRACE_LAST, -1, -1);
#ifdef IMX_REDUCE_PULL
    collect_last(args);
#endif
}

#include "sm90_entry.cuh"
