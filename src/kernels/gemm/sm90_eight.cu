/* sm90_eight.cu - the GEMM kernel for Hopper of a and b of 8 bits: sm90.cu's pipeline, whose
 * producer, ring, sides and options it shares, with consumers of its own.
 *
 * A stage is 128 of k.  Tensor cores add up what they multiply with some 14 bits, so that every
 * stage's products are added up from 0 and then, in float32, to the sum of the stages before, with
 * their scales where they have some: `part` and `sum`, in as many registers.  Meanwhile the other
 * consumer multiplies.  No registers are left to keep a finished tile in: it goes to shared memory
 * at once, all of it, and leaves from there beneath the next one's products.
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

/* Until the products are done; d is not looked at before. */
IMX_FN void finish(float (&d)[IMX_ACC])
{
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
    if (STORES && from == 0)
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
    if (SUMS || i == NEVER || i != l->step)
        return;
    send(args, c, note_of(now ^ 1), base, l->piece, l->piece + 1);
    l->piece++;
    l->step = l->piece < PIECES    ? piece_step(note_of(now), consumer, l->piece)
              : l->piece == PIECES ? i + POST_AFTER
                                   : NEVER;
}

/* ---- the consumers --------------------------------------------------------------------------- */

/* sum = the tile's sums.  waiting: the tile before has yet to leave. */
IMX_FN void make_tile(float (&sum)[IMX_ACC], const imx_gemm_args &args, const imx_tma_map *c,
                      uint32_t now, bool waiting, place *at, uint32_t base, int consumer)
{
    int steps = steps_of(args), first_row = consumer * IMX_WG_M;
    leaving l = { waiting ? 0 : (int)ALL_GONE, NEVER };
#ifdef IMX_FAST
    uint32_t before = 0;
#else
    float part[IMX_ACC];
#pragma unroll
    for (int j = 0; j < IMX_ACC; j++)
        sum[j] = 0;
#endif
#if IMX_SCALING == 3
    block_scales scales;
#endif
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        mbar_wait(full_of(base, at->stage), at->phase);
        if (i == 0) { /* before products, for which the warps meet: then all have read it */
            imx_trace_begin(IMX_TRACE_TILE);
            take_note(note_of(now), at->stage);
            l.step = waiting ? piece_step(note_of(now), consumer, 0) : NEVER;
        }
#ifdef IMX_FAST
        multiply(sum, base + at->stage * STAGE_BYTES, first_row, i > 0);
        send_due(args, c, now, base, consumer, i, &l);
        wgmma_wait(1);
        if (i > 0)
            release(base, before);
        before = at->stage;
#else
        multiply(part, base + at->stage * STAGE_BYTES, first_row, 0);
#if IMX_SCALING == 3
        if (i % 4 == 0)
            scales = load_scales(args, note_of(now), warp_row(), i);
#endif
        send_due(args, c, now, base, consumer, i, &l);
        finish(part);
        release(base, at->stage);
#if IMX_SCALING == 3
        add_scaled(sum, part, scales, note_of(now), i);
#else
        add_part(sum, part);
#endif
#endif
        step(at);
    }
#ifdef IMX_FAST
    finish(sum);
    release(base, before);
#endif
    if (waiting && !SUMS && l.piece != ALL_GONE) /* a short tile */
        send(args, c, note_of(now ^ 1), base, l.piece, ALL_GONE);
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
    bool waiting = !SUMS && tile > 0; /* the last tile, in packed */
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
