/* sm90_last.cuh - with scatter_push: a block's last tile, where it is of own rows, becomes c
 * straight from the registers of those who made it, since nothing is left to hide a way through the
 * slots.  The peers' parts of it come through the ring, behind the last of a and b, while its last
 * products are under way:
 *
 *     producer   | a, b | a, b | parts of columns 0 | of columns 1 | ...
 *     consumers         | mul  | mul | sum of columns 0, bias, c | of columns 1 | ...
 *
 * A box of a part is [IMX_TILE_M, PIECE_COLS]; a stage takes BOXES of them.  Where rows are not
 * whole units of 16 bytes the tile takes the way through the slots all the same.
 */
#ifndef IMX_SM90_LAST_CUH
#define IMX_SM90_LAST_CUH

#include "sm90_store.cuh"

enum {
    BOX_BYTES = IMX_TILE_M * PIECE_COLS * 2,
    BOXES = STAGE_BYTES / BOX_BYTES,
    LAST_WORDS = PIECE_COLS / 4, /* a lane's of a piece, of two elements each */
};
static_assert(C_PLAIN || PIECE_SWIZZLE > 0, "a row of a box has no pitch");

/* ---- how parts come -------------------------------------------------------------------------- */

/* One thread: which chunk of own rows a block's last tile is of; -1: it is of a peer's. */
IMX_FN int last_number(const imx_gemm_args &args, const tile_info *last)
{
    int rank = args.team.rank;
    return last->owner == rank ? last->chunk - rank * args.schedule.chunks : -1;
}

/* One thread, while there are loads to do that nobody waits for yet: whether all peers' parts are
 * there already.  Looking takes a microsecond, which would hold up their loads; one by one, with an
 * acquire each, half of one a peer. */
IMX_FN int parts_here(const imx_gemm_args &args, int number)
{
    int here = 1;
#pragma unroll 4
    for (int r = 0; r < IMX_RANKS; r++) {
        if (r != args.team.rank)
            here &= imbrexd_load_relaxed(team_part_signal(args, r, number)) >= team_use(args);
    }
    imbrexd_fence_post(); /* what was seen comes before the loads of parts */
    return here;
}

/* One thread, behind the loads of the block's last tile, which is of own rows: the peers' parts of
 * it, column by column of boxes, in rank order.  here: they have been seen.  Who gives up goes on
 * all the same: consumers count on what comes, and so does the other block of the cluster. */
IMX_FN void last_load(const imx_gemm_args &args, const imbrexd_watch *watch,
                      const imx_tma_map *parts, const tile_info *last, int here, place *at)
{
    const imx_team &team = args.team;
    uint32_t base = shared_base();
    int number = last_number(args, last);
    imx_trace_begin(IMX_TRACE_PART);
#pragma unroll 1
    for (int r = 0; r < IMX_RANKS && !here && !gave_up_here(); r++)
        if (!team_part(args, watch, r, number))
            gave_up_here() = 1;
    imx_trace_end(IMX_TRACE_PART, -1, number);
    imbrexd_fence_tma();

    int rank = team.rank == 0, col = last->col;
    for (int left = PIECES * (IMX_RANKS - 1); left > 0; left -= BOXES) {
        int boxes = left < BOXES ? left : BOXES;
        mbar_wait(empty_of(base, at->stage), at->phase);
        mbar_expect(full_of(base, at->stage), boxes * BOX_BYTES);
        for (int i = 0; i < boxes; i++) {
            tma_load_plane(base + at->stage * STAGE_BYTES + i * BOX_BYTES, parts, col, last->row,
                           rank, full_of(base, at->stage));
            rank += rank + 1 == team.rank ? 2 : 1;
            if (rank >= IMX_RANKS) {
                rank = team.rank == 0;
                col += PIECE_COLS;
            }
        }
        step(at);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* sum += a part's words; they come from this warp's rows of a box, or are one's own. */
IMX_FN void last_add(float (&sum)[2 * LAST_WORDS], const uint32_t *own, uint32_t rows)
{
#pragma unroll
    for (int i = 0; i < LAST_WORDS; i++) {
        /* Words 2i and 2i + 1 are eight rows apart, where the swizzle is the same. */
        uint32_t at = (rows ^ (uint32_t)(i / 2 * 16)) + i % 2 * 8 * PIECE_COLS * 2;
        uint32_t word = own ? own[i] : ld_shared_word(at);
        sum[2 * i] += unpack((uint16_t)word);
        sum[2 * i + 1] += unpack((uint16_t)(word >> 16));
    }
}

/* This warpgroup has read the stage. */
IMX_FN void last_release(uint32_t base, place *at, int consumer)
{
    tma_fence_shared();
    consumers_meet(consumer);
    release(base, at->stage);
    step(at);
}

/* sum, whose words are `rows` rows' from `row` of own ones on, += the residual's from col on. */
IMX_FN void last_residual(float (&sum)[2 * LAST_WORDS], const imx_gemm_args &args, int row,
                          int rows, int col)
{
    int lane = lane_here(), n = (int)args.schedule.n;
    const uint16_t *from = (const uint16_t *)args.residual + (int64_t)(row + lane / 4) * n;
#pragma unroll
    for (int i = 0; i < LAST_WORDS; i++) {
        int down = i % 2 * 8, at = col + i / 2 * 8 + lane % 4 * 2;
        uint32_t word = 0;
        if (lane / 4 + down < rows && at < n)
            word = *(const volatile uint32_t *)(from + (int64_t)down * n + at);
        sum[2 * i] += unpack((uint16_t)word);
        sum[2 * i + 1] += unpack((uint16_t)(word >> 16));
    }
}

/* A warp's rows of it come near, while parts do. */
IMX_FN void last_fetch(const imx_gemm_args &args, int row, int rows, int col)
{
    enum { SECTOR = 16, ACROSS = (IMX_TILE_N + SECTOR - 1) / SECTOR }; /* columns */
    const uint16_t *from = (const uint16_t *)args.residual + (int64_t)row * args.schedule.n;
    rows = rows < 16 ? rows : 16;
#pragma unroll 1
    for (int i = lane_here(); i < rows * ACROSS; i += 32) {
        int down = i / ACROSS, at = col + (i - down * ACROSS) * SECTOR;
        if (at < (int)args.schedule.n)
            asm volatile("prefetch.global.L2 [%0];"
                         :
                         : "l"(from + (int64_t)down * args.schedule.n + at));
    }
}

/* One consumer warp; packed: own words, piece by piece, which are used up.  One piece's code serves
 * all: what runs but once waits for its instructions. */
IMX_FN int last_from_parts(uint32_t (&packed)[HALVES][IMX_ACC / 2], const imx_gemm_args &args,
                           const imx_tma_map *c, const tile_info *note, int first_row, place *at,
                           int consumer)
{
    uint32_t base = shared_base();
    int left = PIECES * (IMX_RANKS - 1), box = 0; /* boxes that are still to come; of this stage */
    uint32_t lane = (uint32_t)lane_here();
    uint32_t rows = piece_offset(first_row + (int)lane / 4, 0) + lane % 4 * 4;
    imx_trace_begin(IMX_TRACE_FOLD);
    if (args.residual)
        last_fetch(args, note->row + first_row, note->rows - first_row, note->col);
#pragma unroll 1
    for (int p = 0; p < PIECES; p++) {
        float sum[HALVES][2 * LAST_WORDS];
#pragma unroll
        for (int i = 0; i < 2 * LAST_WORDS; i++)
            sum[0][i] = -0.0f; /* to which anything may be added, -0 too, and stays what it is */
#pragma unroll 1
        for (int r = 0; r < IMX_RANKS; r++) {
            if (r == args.team.rank) {
                last_add(sum[0], packed[0], 0);
                continue;
            }
            if (box == 0)
                mbar_wait(full_of(base, at->stage), at->phase);
            last_add(sum[0], NULL, base + at->stage * STAGE_BYTES + box * BOX_BYTES + rows);
            left--;
            box = box + 1 < BOXES && left > 0 ? box + 1 : 0;
            if (box == 0)
                last_release(base, at, consumer);
        }
        int col = note->col + p * PIECE_COLS;
        add_bias(sum, args, col);
        if (args.residual)
            last_residual(sum[0], args, note->row + first_row, note->rows - first_row, col);
        uint32_t words[LAST_WORDS];
#pragma unroll
        for (int i = 0; i < LAST_WORDS; i++)
            words[i] = pack(sum[0][2 * i], sum[0][2 * i + 1]);
        uint32_t piece = take_buffer(base, p);
        fill_buffer(piece, words);
        send_buffer(c, piece, col, note->row + first_row,
                    col < (int)args.schedule.n && note->rows > first_row);
#pragma unroll
        for (int i = 0; i + LAST_WORDS < IMX_ACC / 2; i++)
            packed[0][i] = packed[0][i + LAST_WORDS];
    }
    imx_trace_end(IMX_TRACE_FOLD, args.team.rank, -1);
    return 1;
}

#endif /* IMX_SM90_LAST_CUH */
