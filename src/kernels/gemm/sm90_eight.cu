/* sm90_eight.cu - the GEMM kernel for Hopper of a and b of 8 bits: sm90.cu's pipeline, whose
 * producer, ring, features and options it shares, with consumers of its own.
 *
 * Sums are those of sm90_sum.cuh.  No registers are left to keep a finished tile in: it goes to
 * shared memory at once and leaves from there beneath the next one's products.  Where there is room
 * for half of it, beside four stages of the widest tiles, the first half has to leave before.
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
 *   IMX_BUFFERS  the pieces of a tile that there is room for, all, half or more
 */
#include "sm90_consume.cuh"
#include "sm90_scales.cuh"

static_assert(IMX_BUFFERS <= PIECES && 2 * IMX_BUFFERS >= PIECES && HALVES == 1,
              "a tile has room in shared memory, or half of one");

/* ---- a tile leaves --------------------------------------------------------------------------- */

/* This warp's room for piece p. */
IMX_FN uint32_t room_for(uint32_t base, int p)
{
    return base + C_AT + ((threadIdx.x / 32 - 4) * IMX_BUFFERS + p % IMX_BUFFERS) * PIECE_BYTES;
}

/* The first piece of a tile that leaves beneath the next one's products. */
enum { FIRST_LEFT = PIECES - IMX_BUFFERS };

/* All of a tile to where it leaves from, some of it from there on: whatever was there has left. */
IMX_FN void fill(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                 const imx_tma_map *c, const tile_info *note, uint32_t base)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        if (p % IMX_BUFFERS == 0) {
            if (lane_here() == 0)
                bulk_wait_read(0);
            __syncwarp();
        }
        fill_buffer(room_for(base, p), &packed[p * PIECE_COLS / 4]);
        if (p < FIRST_LEFT)
            send_piece(args, c, note, warp_row(), room_for(base, p), p);
    }
}

/* What leaves next of the tile before, PIECES being the post, and at which step. */
typedef struct leaving {
    int piece, step;
} leaving;

/* Its pieces from one on, below `to`; ALL_GONE: and behind the last of them, a post. */
IMX_FN void send(const imx_gemm_args &args, const imx_tma_map *c, const tile_info *note,
                 uint32_t base, int from, int to)
{
    if (epilogue::HAS_OWNERS && from == FIRST_LEFT)
        imx_trace_begin(IMX_TRACE_STORE);
#pragma unroll 1
    for (int p = from; p < to && p < PIECES; p++)
        send_piece(args, c, note, warp_row(), room_for(base, p), p);
    if (to == ALL_GONE)
        post(args, note);
    if (epilogue::HAS_OWNERS && to == ALL_GONE)
        imx_trace_end(IMX_TRACE_STORE, note->owner, note->chunk);
}

/* Step i of the tile `now` is under way. */
IMX_FN void send_due(const imx_gemm_args &args, const imx_tma_map *c, uint32_t now, uint32_t base,
                     int consumer, int i, leaving *l)
{
    if (epilogue::SENDS || i == NEVER || i != l->step)
        return;
    send(args, c, note_of(now ^ 1), base, l->piece, l->piece + 1);
    l->piece++;
    l->step = l->piece < PIECES    ? piece_step(note_of(now), consumer, l->piece)
              : l->piece == PIECES ? i + POST_AFTER
                                   : NEVER;
}

/* ---- the consumers --------------------------------------------------------------------------- */

/* What travels beside products has registers of its own.  Where tiles of 64, 224 and 256 columns
 * ask for a scale a row beneath their products, they take 0.4 to 3.5 % less; of 128 and 192, 2 and
 * 3 % more. */
enum {
    TWO_PARTS = CONSUMER_REGISTERS >= 232 ? 128 : 96,
    ASKS_BENEATH = !prologue::GATHERS && (IMX_TILE_N <= 64 || IMX_TILE_N >= 224)
};

/* A tile that is being made, by one of the consumers. */
typedef struct making {
    const imx_gemm_args *args;
    const imx_tma_map *c;
    uint32_t base, tile, now; /* of this block's; parity of its note */
    int consumer, first_row;
    place at;
    uint32_t before; /* the stage of the step before */
    bool waiting;    /* the tile before has yet to leave */
    leaving leaves;
#if IMX_SCALING == 3
    product_scales scales; /* of these four steps */
    block_scales next;     /* of the next four, or of the next tile's first */
#elif IMX_SCALING == 2
    tile_scales whole;
#endif
} making;

#include "sm90_sum.cuh"

/* The first begins a tile, whose note is taken before products, for which the warps meet: then all
 * have read it. */
IMX_FN void await_step(making *t, int i)
{
    mbar_wait(full_of(t->base, t->at.stage), t->at.phase);
    if (i > 0)
        return;
    imx_trace_begin(IMX_TRACE_TILE);
    take_note(note_of(t->now), t->at.stage);
    leaving l = { t->waiting ? (int)FIRST_LEFT : (int)ALL_GONE,
                  t->waiting ? piece_step(note_of(t->now), t->consumer, 0) : (int)NEVER };
    t->leaves = l;
}

IMX_FN void go_on(making *t, int i)
{
    send_due(*t->args, t->c, t->now, t->base, t->consumer, i, &t->leaves);
    t->before = t->at.stage;
    step(&t->at);
}

#if IMX_SCALING >= 2

/* The scales of this lane's upper row. */
IMX_FN const float *row_scales(const imx_gemm_args &args, const tile_info *note)
{
    int row = note->a_row;
    const float *from = args.scale_a;
    if (prologue::GATHERS && row >= 0)
        from = args.gathered_scales;
    row = (row < 0 ? ~row : row) + warp_row() + lane_here() / 4;
    return from + (int64_t)row * args.row_scales;
}

/* Rows from this lane's upper one on. */
IMX_FN int rows_left(const tile_info *note)
{
    return note->rows - warp_row() - lane_here() / 4;
}

#endif

#if IMX_SCALING == 3

IMX_FN int first_col(const making *t)
{
    return note_of(t->now)->col;
}

/* Whether a block knows its next tile, the scales of that one's rows are here, and there are
 * registers for it. */
enum { ASKS_EARLY = IMX_HAS(IMX_LISTED_ONCE) && !prologue::GATHERS && CONSUMER_REGISTERS >= 232 };

IMX_FN bool has_asked(const making *t)
{
    return ASKS_EARLY && t->tile > 0;
}

IMX_FN block_scales load_scales(const making *t, int first)
{
    const imx_gemm_args &args = *t->args;
    const tile_info *note = note_of(t->now);
    bool there = true;
    if (ASKS_EARLY && first >= steps_of(args)) {
        first = 0;
        note = listed((int)t->tile + 1);
        there = index_of(t->tile + 1) < tiles_of();
    }
    int step = first + lane_here() % 4, rows = rows_left(note);
    int block = note->col / BLOCK_COLS + block_here();
    there = there && step < steps_of(args);
    const float *of_rows = row_scales(args, note) + step;
    const float *of_cols = args.scale_b + (int64_t)block * args.row_scales + step;
    block_scales s;
#pragma unroll
    for (int h = 0; h < 2; h++)
        s.row[h] = scale_at(of_rows + h * 8 * args.row_scales, there && rows > h * 8);
    s.col = scale_at(of_cols, there && block * BLOCK_COLS < (int)args.schedule.n);
    return s;
}

#endif

#if IMX_SCALING == 2

IMX_FN void load_scales(tile_scales *s, const making *t)
{
    const imx_gemm_args &args = *t->args;
    const tile_info *note = note_of(t->now);
    const float *of_rows = row_scales(args, note);
#pragma unroll
    for (int h = 0; h < 2; h++)
        s->row[h] = scale_at(of_rows + h * 8, rows_left(note) > h * 8);
    load_cols(s, args.scale_b, note->col, (int)args.schedule.n);
}

#endif

/* Of a whole tile. */
IMX_FN void scale_tile(float (&sum)[IMX_ACC], making *t)
{
#if IMX_SCALING == 1
    float s = scale_at(t->args->scale_a, true) * scale_at(t->args->scale_b, true);
#pragma unroll
    for (int j = 0; j < IMX_ACC; j++)
        sum[j] *= s;
#elif IMX_SCALING == 2
    if (!ASKS_BENEATH)
        load_scales(&t->whole, t);
    scale_sums(sum, t->whole);
#endif
}

/* sum = the sums of the block's tile number `tile`. */
IMX_FN void make_tile(float (&sum)[IMX_ACC], making *t, uint32_t tile)
{
    const imx_gemm_args &args = *t->args;
    t->tile = tile, t->now = tile & 1;
    t->before = 0;
    t->waiting = tile > 0;
    make_sum(sum, t, steps_of(args));
    if (t->waiting && !epilogue::SENDS && t->leaves.piece != ALL_GONE) /* a short tile */
        send(args, t->c, note_of(t->now ^ 1), t->base, t->leaves.piece, ALL_GONE);
    scale_tile(sum, t);
}

IMX_FN void consume(const imx_gemm_args &args, const imbrexd_watch *watch,
                    const imx_gemm_maps &maps, int consumer)
{
    const imx_tma_map *c = maps.more;
    uint32_t base = shared_base();
    uint32_t tile = 0; /* of this block's */
    uint32_t packed[HALVES][IMX_ACC / 2];
    making t;
    t.args = &args, t.c = c;
    t.base = base, t.consumer = consumer, t.first_row = consumer * IMX_WG_M;
    t.at = { 0, 0 };
    begin_turns(t.first_row);
    for (;; tile++) {
        epilogue::due(args, watch, tile);
        if (index_of(tile) >= tiles_of())
            break;
        uint32_t now = tile & 1; /* parity of its note */
        float sum[HALVES][IMX_ACC];
        make_tile(sum[0], &t, tile);
        if (consumer == 0)
            imx_trace_end(IMX_TRACE_TILE, rank_of(args, note_of(now)), (int)index_of(tile));
        if (epilogue::ADDS_BIAS)
            add_bias(sum, args, note_of(now)->col);
        if (epilogue::WANTS_CREDITS && tile == 0)
            await_credits(note_of(now));
        int goes_on = epilogue::may_send();
        pack_half(packed[0], sum[0]);
        bool last = index_of(tile + 1) >= tiles_of();
        if (epilogue::SENDS) {
            if (goes_on)
                epilogue::send(packed[0], args, note_of(now), warp_row(), last);
            continue;
        }
        if (last) { /* kept in registers */
            tile++;
            break;
        }
        fill(packed[0], args, c, note_of(now), base);
    }
    imx_trace_begin(IMX_TRACE_LAST);
    bool waiting = !epilogue::SENDS && tile > 0; /* the last tile, in packed */
    const tile_info *last = note_of(tile & 1 ^ 1);
    bool own = false, leaves = waiting;
    if constexpr (epilogue::REDUCES_LAST) {
        own = waiting && last->owner == args.team.rank;
        leaves = waiting && (epilogue::LAST_STORED || !own);
    }
    if (leaves) {
        fill(packed[0], args, c, last, base);
        send(args, c, last, base, FIRST_LEFT, ALL_GONE);
    }
    if (own && !epilogue::last_tile(packed, args, watch, c, last, warp_row(), &t.at, consumer))
        gave_up_here() = 1;
    bulk_wait_read(0); /* shared memory goes when the block ends */
    imx_trace_end(IMX_TRACE_LAST, -1, -1);
    epilogue::finish(args);
}

#include "sm90_entry.cuh"
