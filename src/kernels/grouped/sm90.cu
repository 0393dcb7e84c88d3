/* sm90.cu - the grouped kernel for Hopper: rows of a by index, b by the copy engine, products of
 * warpgroups.
 *
 * A block has four producer warps and a consumer warpgroup for each 64 rows of a tile.  A ring of
 * stages lies between them (gemm/sm90.cu): full[stage], empty[stage].  All producer threads bring
 * a, 16 bytes at a time from wherever a row lies, one of them also b:
 *
 *     tile of an expert | its rows' pairs | their tokens: each a row of own or of gathered |
 *
 *     producers   | load 0 | load 1 | load 2 | ... | tile 1: load 0 | ...
 *     consumers            | mul 0  | mul 1  | ...      | tile 1: mul 0 | mul 1 | ...
 *                                                         | pieces of tile 0 leave |
 *
 *     IMX_TILE_M 64 | 128   IMX_TILE_N   a multiple of 64, at most 256   IMX_STAGES
 *     IMX_F16    else bf16  IMX_B_KN     b is [k, n], else [n, k]
 *     IMX_SHARED_BYTES      of dynamic shared memory (sm90_shape.h)
 *
 * n and k are multiples of 8, k is not 0.  Blocks are persistent and count the tiles for
 * themselves (tiles.cuh).  An element adds up k in steps of 16, in their order, whatever the tile.
 */
#include "args.h"

#include "../gemm/sm90_ptx.cuh"
#include "../grid.cuh"
#include "imbrex_device.h"
#include "sm90_shape.h"
#include "tiles.cuh"

enum {
    PRODUCERS = 128,
    CONSUMERS = IMX_TILE_M / 64, /* warpgroups */
    THREADS = PRODUCERS + 128 * CONSUMERS,
    TILE_K = IMX_GROUPED_K,
    A_BYTES = IMX_TILE_M * 128,
    B_BYTES = IMX_TILE_N * 128,
    B_ATOM = 64 * 128, /* 64 columns of b [k, n] */
    STAGE_BYTES = A_BYTES + B_BYTES,
    PIECES = IMX_TILE_N / 64,
    PIECES_AT = IMX_STAGES * STAGE_BYTES,
    BARRIERS_AT = PIECES_AT + CONSUMERS * 4 * IMX_GROUPED_PIECE,
    INFO_AT = BARRIERS_AT + IMX_STAGES * 16,
    NOTES_AT = INFO_AT + IMX_STAGES * IMX_GROUPED_INFO,
    BEFORE_AT = NOTES_AT + IMX_GROUPED_NOTES,
    SHARED_BYTES = BEFORE_AT + IMX_GROUPED_BEFORE,
    ROWS_APART = PRODUCERS / 8, /* from one of a thread's rows of a to the next */
    A_UNITS = IMX_TILE_M / ROWS_APART,
    /* Of a thread; together what the launch gives three warpgroups. */
    PRODUCER_REGISTERS = 56,
    CONSUMER_REGISTERS = (3 * 168 - PRODUCER_REGISTERS) / 2,
};

/* What consumers are told of a tile. */
typedef struct __attribute__((aligned(16))) tile_info {
    int row, col, rows; /* of c; rows to be stored */
    int part;
} tile_info;

static_assert(sizeof(tile_info) <= IMX_GROUPED_INFO, "it has its place");
static_assert(2 * sizeof(note) <= IMX_GROUPED_NOTES, "and so have the producers' two");
static_assert(4 * IMX_GROUPED_COUNTS <= IMX_GROUPED_BEFORE, "and what is counted");
static_assert(SHARED_BYTES == IMX_SHARED_BYTES, "the launch and the kernel agree");

/* As launch.c puts them together: b as [experts here][n, k] or [k, n]. */
typedef struct imx_grouped_maps {
    imx_tma_map b;
} imx_grouped_maps;

extern __shared__ __attribute__((aligned(1024))) unsigned char shared[];

IMX_FN uint32_t shared_base(void)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

IMX_FN uint32_t full_of(uint32_t base, uint32_t stage)
{
    return base + BARRIERS_AT + stage * 8;
}

IMX_FN uint32_t empty_of(uint32_t base, uint32_t stage)
{
    return base + BARRIERS_AT + (IMX_STAGES + stage) * 8;
}

IMX_FN tile_info *info_of(uint32_t stage)
{
    return (tile_info *)(shared + INFO_AT) + stage;
}

typedef struct place {
    uint32_t stage, phase;
} place;

IMX_FN void step(place *at)
{
    if (++at->stage == IMX_STAGES) {
        at->stage = 0;
        at->phase ^= 1;
    }
}

IMX_FN int steps_of(const imx_grouped_args &args)
{
    return ((int)args.k + TILE_K - 1) / TILE_K;
}

/* ---- the producers --------------------------------------------------------------------------- */

/* bytes: 16, or 0 for zeros. */
IMX_FN void copy_unit(uint32_t to, const char *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* Arrives once this thread's copies so far have come. */
IMX_FN void arrive_behind_copies(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(bar) : "memory");
}

IMX_FN void producers_meet(void)
{
    asm volatile("bar.sync 1, %0;" : : "n"((int)PRODUCERS) : "memory");
}

/* This thread's 16 bytes of each of its rows of a tile. */
typedef struct rows {
    const char *at[A_UNITS];
    uint32_t there; /* bit i: at[i] is; else its row is zeros */
    int count;      /* of rows that the tile has */
} rows;

IMX_FN void find_rows(rows *r, const imx_grouped_args &args, const imx_tile &tile)
{
    int first = (int)threadIdx.x / 8, unit = (int)threadIdx.x % 8;
    r->there = 0;
    r->count = (tile.rows - first + ROWS_APART - 1) / ROWS_APART;
#pragma unroll
    for (int i = 0; i < A_UNITS; i++) {
        int row = first + i * ROWS_APART;
        const char *at = row < tile.rows ? row_of_a(args, tile.row + row, 2) : NULL;
        r->there |= (uint32_t)(at != NULL) << i;
        r->at[i] = at ? at + unit * 16 : (const char *)args.b;
    }
}

/* Of a stage: columns from k on; those beyond the end are zeros, and so they are in b. */
IMX_FN void load_a(const rows *r, const imx_grouped_args &args, uint32_t stage_address, int k)
{
    int first = (int)threadIdx.x / 8, unit = (int)threadIdx.x % 8;
    uint32_t to = stage_address + first * 128 + ((unit ^ (first & 7)) << 4);
    bool inside = k + unit * 8 < (int)args.k;
#pragma unroll
    for (int i = 0; i < A_UNITS; i++) {
        bool there = inside && r->there >> i & 1;
        if (i < r->count) /* rows behind the tile's end are nobody's: whatever is there stays */
            copy_unit(to + i * ROWS_APART * 128, r->at[i] + (there ? k * 2 : 0), there ? 16 : 0);
    }
}

IMX_FN void load_b(const imx_tma_map *b, const note *n, uint32_t stage_address, uint32_t bar, int k)
{
    mbar_expect(bar, B_BYTES);
#ifdef IMX_B_KN
#pragma unroll
    for (int i = 0; i < IMX_TILE_N / 64; i++)
        tma_load_plane(stage_address + A_BYTES + i * B_ATOM, b, (int)n->tile.col + i * 64, k,
                       n->expert, bar);
#else
    tma_load_plane(stage_address + A_BYTES, b, k, (int)n->tile.col, n->expert, bar);
#endif
}

IMX_FN void tell_consumers(const note *n, uint32_t stage)
{
    tile_info *info = info_of(stage);
    info->row = (int)n->tile.row;
    info->col = (int)n->tile.col;
    info->rows = n->tile.rows;
    info->part = n->part;
}

IMX_FN void produce(const imx_grouped_args &args, const imbrexd_watch *watch,
                    const imx_grouped_maps &maps, const note *notes, const int32_t *before,
                    int64_t columns, uint32_t tiles)
{
    uint32_t base = shared_base();
    int parity = 0, steps = steps_of(args), all_here = 0;
    place at = { 0, 0 };
#pragma unroll 1
    for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x, parity ^= 1) {
        const note *here = &notes[parity];
        if (here->late && !all_here) {
            if (threadIdx.x < 32)
                wait_for_all(args, watch);
            producers_meet();
            all_here = 1;
        }
        rows r;
        find_rows(&r, args, here->tile);
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            uint32_t stage = base + at.stage * STAGE_BYTES, full = full_of(base, at.stage);
            mbar_wait(empty_of(base, at.stage), at.phase ^ 1);
            if (threadIdx.x == 0) {
                if (s == 0)
                    tell_consumers(here, at.stage);
                load_b(&maps.b, here, stage, full, s * TILE_K);
            }
            load_a(&r, args, stage, s * TILE_K);
            arrive_behind_copies(full);
            step(&at);
        }
        producers_meet(); /* all have read the note, and know the next */
        uint32_t after = i + 2 * gridDim.x;
        if (threadIdx.x == 32 && after < tiles)
            ((note *)notes)[parity] = tile_at(args, before, columns, after);
    }
}

/* ---- the consumers --------------------------------------------------------------------------- */

/* d (+)= 64 rows of a stage's a, times b. */
IMX_FN void multiply(float (&d)[IMX_ACC], uint32_t stage_address, int first_row, int add)
{
    uint64_t a = wgmma_tile(stage_address + first_row * 128, 16);
#ifdef IMX_B_KN
    uint64_t b = wgmma_tile(stage_address + A_BYTES, B_ATOM);
    const uint32_t b_step = 16 * 128 >> 4;
#else
    uint64_t b = wgmma_tile(stage_address + A_BYTES, 16);
    const uint32_t b_step = 32 >> 4;
#endif
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++)
        wgmma(d, a + i * (32 >> 4), b + i * b_step, i > 0 || add);
    wgmma_commit();
}

/* This warp has read the stage. */
IMX_FN void release(uint32_t base, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbar_arrive(empty_of(base, stage));
}

/* The lane, worked out where it stands: what follows from it has no registers between pieces. */
IMX_FN int lane_here(void)
{
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* Piece q of a tile, 64 columns of this warp's 16 rows, the first of which is `row`. */
IMX_FN void store_piece(const uint32_t (&packed)[IMX_ACC / 2], const imx_grouped_args &args,
                        const tile_info &t, int row, uint32_t buffer, int q)
{
    int lane = lane_here(), r = lane % 16;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t *from = &packed[q * 16 + j * 4];
        int unit = 2 * j + lane / 16;
        st_matrix4(buffer + r * 128 + ((unit ^ (r & 7)) << 4), from[0], from[1], from[2], from[3]);
    }
    __syncwarp();
    int unit = lane % 8, col = t.col + q * 64 + unit * 8;
    uint16_t *c = (uint16_t *)args.c + (t.row + row) * args.n + col;
    bool wide = ((uintptr_t)args.c & 15) == 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int down = lane / 8 + 4 * i;
        uint4 v = ld_shared(buffer + down * 128 + ((unit ^ (down & 7)) << 4));
        uint16_t *to = c + down * args.n;
        if (row + down >= t.rows || col >= args.n)
            continue;
        if (wide) {
            *(uint4 *)to = v;
            continue;
        }
        const uint32_t words[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int w = 0; w < 8; w++)
            to[w] = (uint16_t)(words[w / 2] >> w % 2 * 16);
    }
    __syncwarp();
}

/* Pieces from `from` on, below `to`. */
IMX_FN void store_pieces(const uint32_t (&packed)[IMX_ACC / 2], const imx_grouped_args &args,
                         const tile_info &t, int row, uint32_t buffer, int from, int to)
{
#pragma unroll
    for (int q = 0; q < PIECES; q++)
        if (q >= from && q < to && row < t.rows)
            store_piece(packed, args, t, row, buffer, q);
}

/* By a warp, which has stored its rows of the tile. */
IMX_FN void tell_piece(const imx_grouped_args &args, const int32_t *before, int64_t columns,
                       const tile_info &t)
{
    __syncwarp();
    if (args.part_cols && t.rows && lane_here() == 0)
        tell_stored(args, before[segments_of(args)], columns, t.part, CONSUMERS * 4);
}

IMX_FN void consume(const imx_grouped_args &args, const int32_t *before_tiles, int64_t columns,
                    uint32_t tiles)
{
    uint32_t base = shared_base();
    int warp = (int)threadIdx.x / 32 - PRODUCERS / 32, steps = steps_of(args);
    int first_row = warp / 4 * 64, row = warp * 16;
    uint32_t buffer = base + PIECES_AT + warp * IMX_GROUPED_PIECE;
    float d[IMX_ACC];
    uint32_t packed[IMX_ACC / 2]; /* the tile before, which leaves beneath this one's products */
    tile_info last = { 0, 0, 0, 0 };
    place at = { 0, 0 };
#pragma unroll 1
    for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        mbar_wait(full_of(base, at.stage), at.phase);
        tma_fence_shared(); /* a was written by ordinary copies */
        multiply(d, base + at.stage * STAGE_BYTES, first_row, 0);
        const tile_info now = *info_of(at.stage);
        uint32_t before = at.stage;
        step(&at);
#pragma unroll 1
        for (int s = 1; s < steps; s++) {
            mbar_wait(full_of(base, at.stage), at.phase);
            tma_fence_shared();
            multiply(d, base + at.stage * STAGE_BYTES, first_row, 1);
            if (s <= PIECES)
                store_pieces(packed, args, last, row, buffer, s - 1, s);
            wgmma_wait(1);
            release(base, before);
            before = at.stage;
            step(&at);
        }
        if (steps <= PIECES)
            store_pieces(packed, args, last, row, buffer, steps - 1, PIECES);
        wgmma_wait(0);
        release(base, before);
        tell_piece(args, before_tiles, columns, last);
#pragma unroll
        for (int j = 0; j < IMX_ACC / 2; j++)
            packed[j] = pack(d[2 * j], d[2 * j + 1]);
        last = now;
    }
    store_pieces(packed, args, last, row, buffer, 0, PIECES);
    tell_piece(args, before_tiles, columns, last);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imx_grouped(const __grid_constant__ imx_grouped_args args,
                const __grid_constant__ imbrexd_watch watch,
                const __grid_constant__ imx_grouped_maps maps)
{
    uint32_t base = shared_base();
    note *notes = (note *)(shared + NOTES_AT);
    int32_t *before = (int32_t *)(shared + BEFORE_AT);
    int64_t columns = (args.n + IMX_TILE_N - 1) / IMX_TILE_N;
    if (threadIdx.x == 0) {
        tma_prefetch_map(&maps.b);
        for (uint32_t i = 0; i < IMX_STAGES; i++) {
            mbar_init(full_of(base, i), PRODUCERS + 1);
            mbar_init(empty_of(base, i), CONSUMERS * 4);
        }
        mbar_init_fence();
    }
    imx_grid_wait();
    imx_grid_let_go();
    count_tiles(args, before);
    uint32_t tiles = (uint32_t)(before[segments_of(args)] * columns);
    if (threadIdx.x < 2 && blockIdx.x + threadIdx.x * gridDim.x < tiles)
        notes[threadIdx.x] = tile_at(args, before, columns, blockIdx.x + threadIdx.x * gridDim.x);
    __syncthreads();
    if (tiles == 0 && blockIdx.x == 0)
        tell_all(args);

    if (threadIdx.x < PRODUCERS) {
#if IMX_TILE_M > 64
        reg_less(PRODUCER_REGISTERS);
#endif
        produce(args, &watch, maps, notes, before, columns, tiles);
    } else {
#if IMX_TILE_M > 64
        reg_more(CONSUMER_REGISTERS);
#endif
        consume(args, before, columns, tiles);
    }
}
