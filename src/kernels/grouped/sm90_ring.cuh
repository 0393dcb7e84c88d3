/* sm90_ring.cuh - the ring of stages of the grouped kernels for Hopper, and the threads that fill
 * it: rows of a by index, b by the copy engine.
 *
 * A block has four producer warps and a consumer warpgroup for each 64 rows of a tile.  A ring of
 * stages lies between them (gemm/sm90.cu): full[stage], empty[stage].  All producer threads bring
 * a, 16 bytes at a time from wherever a row lies, one of them also b:
 *
 *     tile of an expert | its rows' pairs | their tokens: each a row of own or of gathered |
 *
 *     IMX_TILE_M 64 | 128   IMX_TILE_N   a multiple of 64, at most 256   IMX_STAGES
 *     IMX_F16    else bf16  IMX_B_KN     b is [k, n], else [n, k]
 *     IMX_SHARED_BYTES      of dynamic shared memory (sm90_shape.h)
 *     IMX_EIGHT  a and b are of 8 bits
 *
 * n is a multiple of 8, rows of a and b are of 16 bytes, k is not 0.  Blocks are persistent and
 * count the tiles for themselves (tiles.cuh).
 */
#ifndef IMX_GROUPED_SM90_RING_CUH
#define IMX_GROUPED_SM90_RING_CUH

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
#ifdef IMX_EIGHT
    EIGHT = 1,
#else
    EIGHT = 0,
#endif
    ELEMENT = EIGHT ? 1 : 2, /* bytes, of a and b */
    TILE_K = IMX_GROUPED_ROW / ELEMENT,
    A_BYTES = IMX_TILE_M * IMX_GROUPED_ROW,
    B_BYTES = IMX_TILE_N * IMX_GROUPED_ROW,
    B_ATOM = 64 * 128, /* 64 columns of b [k, n] */
    STAGE_BYTES = A_BYTES + B_BYTES,
    PIECES = IMX_TILE_N / 64, /* of c; a warp has room for one, or of 8 bits for all */
    BUFFERS = EIGHT ? PIECES : 1,
    PIECES_AT = IMX_STAGES * STAGE_BYTES,
    BARRIERS_AT = PIECES_AT + CONSUMERS * 4 * BUFFERS * IMX_GROUPED_PIECE,
    INFO_AT = BARRIERS_AT + IMX_STAGES * 16,
    SCALED_AT = INFO_AT + IMX_STAGES * IMX_GROUPED_INFO, /* of 8 bits: whose scales rows have */
    KEPT_AT = SCALED_AT + EIGHT * IMX_STAGES * IMX_TILE_M * 4, /* and two notes of each warp's */
    NOTES_AT = KEPT_AT + EIGHT * CONSUMERS * 4 * 2 * IMX_GROUPED_INFO,
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
    int expert;
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

/* Of each row of the tile that the stage begins, which row of scales it has; -1: none. */
IMX_FN int *scaled_of(uint32_t stage)
{
    return (int *)(shared + SCALED_AT) + stage * IMX_TILE_M;
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
        const char *at = row < tile.rows ? row_of_a(args, tile.row + row, ELEMENT) : NULL;
        r->there |= (uint32_t)(at != NULL) << i;
        r->at[i] = at ? at + unit * 16 : (const char *)args.b;
    }
}

/* Of a stage: columns from k on; those beyond the end are zeros, and so they are in b. */
IMX_FN void load_a(const rows *r, const imx_grouped_args &args, uint32_t stage_address, int k)
{
    int first = (int)threadIdx.x / 8, unit = (int)threadIdx.x % 8;
    uint32_t to = stage_address + first * 128 + ((unit ^ (first & 7)) << 4);
    bool inside = k + unit * (16 / ELEMENT) < (int)args.k;
#pragma unroll
    for (int i = 0; i < A_UNITS; i++) {
        bool there = inside && r->there >> i & 1;
        if (i < r->count) /* rows behind the tile's end are nobody's: whatever is there stays */
            copy_unit(to + i * ROWS_APART * 128, r->at[i] + (there ? k * ELEMENT : 0),
                      there ? 16 : 0);
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
    info->expert = n->expert;
}

/* This thread's row of scales of a tile; see scaled_of. */
IMX_FN int scaled_row(const imx_grouped_args &args, const imx_tile &tile)
{
    int row = (int)threadIdx.x;
    return EIGHT && row < tile.rows ? (int)source_of_row(args, tile.row + row) : -1;
}

/* By all producers, before the first of them arrives at the stage that begins the tile. */
IMX_FN void tell_scaled(int row, uint32_t stage)
{
    if (!EIGHT)
        return;
    if (threadIdx.x < IMX_TILE_M)
        scaled_of(stage)[threadIdx.x] = row;
    producers_meet();
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
        int scaled = scaled_row(args, here->tile);
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            uint32_t stage = base + at.stage * STAGE_BYTES, full = full_of(base, at.stage);
            mbar_wait(empty_of(base, at.stage), at.phase ^ 1);
            if (s == 0)
                tell_scaled(scaled, at.stage);
            if (threadIdx.x == 0) {
                if (s == 0)
                    tell_consumers(here, at.stage);
                load_b(&maps.b, here, stage, full, s * TILE_K);
            }
            load_a(&r, args, stage, s * TILE_K);
            mbar_arrive_behind_copies(full);
            step(&at);
        }
        producers_meet(); /* all have read the note, and know the next */
        uint32_t after = i + 2 * gridDim.x;
        if (threadIdx.x == 32 && after < tiles)
            ((note *)notes)[parity] = tile_at(args, before, columns, after);
    }
}

/* ---- for the consumers ----------------------------------------------------------------------- */

/* This warp has read the stage. */
IMX_FN void release(uint32_t base, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbar_arrive(empty_of(base, stage));
}

#endif /* IMX_GROUPED_SM90_RING_CUH */
