/* sm90_eight.cu - the grouped kernel for Hopper of a and b of 8 bits: sums of gemm/sm90_sum.cuh out
 * of sm90_ring.cuh's stages, of which each is 128 of k.  A finished tile goes to shared memory, all
 * of it, and leaves from there beneath the next one's products.
 *
 *     producers    | load 0 | load 1 | load 2 | ...
 *     consumer 0            | mul 0 | add 0 | mul 1 | add 1 | ... | fill | tile 1: mul 0 | ...
 *     consumer 1                    | mul 0 | add 0 | mul 1 | ...        | fill | ...
 *                                                                          pieces of tile 0 leave |
 *
 *     IMX_EIGHT    imbrex_dtype of a; b is E4M3
 *     IMX_SCALING  imbrex_scaling: unscaled, a row's or a block's
 */
#include "sm90_store.cuh"

#include "../gemm/sm90_scales.cuh"

#if IMX_SCALING == 1
#error "a tensor of experts has no one scale"
#endif

/* The first of this warp's rows of a tile. */
IMX_FN int warp_row(void)
{
    return ((int)threadIdx.x - PRODUCERS) / 32 * 16;
}

/* This warp's note of the tile that it works on, or of the one before. */
IMX_FN tile_info *note_of(uint32_t parity)
{
    return (tile_info *)(shared + KEPT_AT) + warp_row() / 16 * 2 + parity;
}

/* Its room for piece p. */
IMX_FN uint32_t room_for(uint32_t base, int p)
{
    return base + PIECES_AT + (warp_row() / 16 * PIECES + p) * IMX_GROUPED_PIECE;
}

enum { TWO_PARTS = CONSUMERS == 1 ? 128 : 0, ASKS_BENEATH = IMX_TILE_N <= 128 };

/* A tile that is being made, by one of the consumers. */
typedef struct making {
    const imx_grouped_args *args;
    uint32_t base, now; /* parity of its note */
    int first_row;      /* of the warpgroup's rows of the tile */
    place at;
    uint32_t before; /* the stage of the step before */
    int source[2];   /* whose scales this lane's rows have; -1: none */
#if IMX_SCALING == 2
    tile_scales whole;
#elif IMX_SCALING == 3
    product_scales scales; /* of these four steps */
    block_scales next;     /* of the next four */
#endif
} making;

#include "../gemm/sm90_sum.cuh"

static_assert(!BY_TURNS, "nobody begins them here");

IMX_FN void await_step(making *t, int i)
{
    mbar_wait(full_of(t->base, t->at.stage), t->at.phase);
    tma_fence_shared(); /* a was written by ordinary copies */
    if (i > 0)
        return;
    *note_of(t->now) = *info_of(t->at.stage); /* all lanes the same */
#pragma unroll
    for (int h = 0; h < 2; h++)
        t->source[h] = scaled_of(t->at.stage)[warp_row() + lane_here() / 4 + h * 8];
}

/* Pieces of a tile that was made, from `from` on, below `to`. */
IMX_FN void send(const imx_grouped_args &args, const tile_info *t, uint32_t base, int from, int to)
{
#pragma unroll 1
    for (int q = from; q < to && q < PIECES && warp_row() < t->rows; q++)
        send_piece(args, *t, warp_row(), room_for(base, q), q);
}

IMX_FN void go_on(making *t, int i)
{
    if (i > 0 && i <= PIECES)
        send(*t->args, note_of(t->now ^ 1), t->base, i - 1, i);
    t->before = t->at.stage;
    step(&t->at);
}

#if IMX_SCALING == 2

IMX_FN void load_scales(tile_scales *s, const making *t)
{
    const imx_grouped_args &args = *t->args;
    const tile_info *note = note_of(t->now);
#pragma unroll
    for (int h = 0; h < 2; h++)
        s->row[h] = scale_at(args.scale_a + t->source[h] * args.scale_stride, t->source[h] >= 0);
    load_cols(s, args.scale_b + note->expert * args.n, note->col, (int)args.n);
}

#elif IMX_SCALING == 3

IMX_FN int first_col(const making *t)
{
    return note_of(t->now)->col;
}

IMX_FN block_scales load_scales(const making *t, int first)
{
    const imx_grouped_args &args = *t->args;
    const tile_info *note = note_of(t->now);
    int step = first + lane_here() % 4, steps = steps_of(args);
    int block = note->col / BLOCK_COLS + block_here();
    int blocks = ((int)args.n + BLOCK_COLS - 1) / BLOCK_COLS;
    const float *of_cols = args.scale_b + ((int64_t)note->expert * blocks + block) * steps + step;
    block_scales s;
#pragma unroll
    for (int h = 0; h < 2; h++)
        s.row[h] = scale_at(args.scale_a + t->source[h] * args.scale_stride + step,
                            step < steps && t->source[h] >= 0);
    s.col = scale_at(of_cols, step < steps && block < blocks);
    return s;
}

#endif

#if IMX_SCALING == 3

IMX_FN bool has_asked(const making *)
{
    return false;
}

#endif

/* The tile's sums, to where they leave from: whatever was there has left. */
IMX_FN void fill(float (&sum)[IMX_ACC], making *t)
{
#if IMX_SCALING == 2
    if (!ASKS_BENEATH)
        load_scales(&t->whole, t);
    scale_sums(sum, t->whole);
#endif
    uint32_t packed[IMX_ACC / 2];
#pragma unroll
    for (int j = 0; j < IMX_ACC / 2; j++)
        packed[j] = pack(sum[2 * j], sum[2 * j + 1]);
#pragma unroll
    for (int q = 0; q < PIECES; q++)
        fill_piece(packed, room_for(t->base, q), q);
}

IMX_FN void consume(const imx_grouped_args &args, uint32_t tiles)
{
    int steps = steps_of(args);
    making t = {};
    t.args = &args;
    t.base = shared_base();
    t.first_row = warp_row() / 64 * 64;
    note_of(1)->rows = 0; /* there is no tile before the first */
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        float sum[IMX_ACC];
        make_sum(sum, &t, steps);
        send(args, note_of(t.now ^ 1), t.base, steps - 1, PIECES); /* a short tile */
        fill(sum, &t);
        t.now ^= 1;
    }
    send(args, note_of(t.now ^ 1), t.base, 0, PIECES);
}

#include "sm90_entry.cuh"
