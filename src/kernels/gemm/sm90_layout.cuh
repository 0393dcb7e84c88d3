/* sm90_layout.cuh - what sm90.cu's options come to: sizes, where things lie in shared memory, and
 * this block's place in its cluster. */
#ifndef IMX_SM90_LAYOUT_CUH
#define IMX_SM90_LAYOUT_CUH

#include "../vector.cuh"
#include "args.h"
#include "sm90_ptx.cuh"
#include "sm90_tile.h"

#if defined(IMX_PINGPONG) && IMX_WG_M != IMX_TILE_M
#error "taking turns, a warpgroup has whole tiles, all of the same depth"
#endif
#if defined(IMX_PINGPONG) && defined(IMX_STORE)
#error "taking turns, a tile is stored in one burst, which the way to a peer does not take"
#endif
#if defined(IMX_SPLIT) && (defined(IMX_PINGPONG) || defined(IMX_STORE) || defined(IMX_RING) || \
                           IMX_WG_M != 64 || IMX_CLUSTER_M > 1)
#error "the two blocks of a split tile have nothing else to share"
#endif
#if defined(IMX_TURNED) && (defined(IMX_PINGPONG) || defined(IMX_EIGHT) || defined(IMX_RING) || \
                            defined(IMX_HOOKS) || defined(IMX_POST) || defined(IMX_STORE) ||    \
                            defined(IMX_REDUCE_PUSH) || defined(IMX_REDUCE_PULL))
#error "a turned tile goes to c, and nobody waits for it"
#endif
#if defined(IMX_BULK) && (!defined(IMX_PUSH) || defined(IMX_SLICES))
#error "the copy engine pushes chunks of rows, nothing else"
#endif
#if defined(IMX_SPANS) && (!defined(IMX_GATHER) || defined(IMX_SLICES) || defined(IMX_RING))
#error "tiles of several ranks' rows wait for chunks of them"
#endif
#if defined(IMX_STORE) && !defined(IMX_HOOKS)
#define IMX_EPILOGUE_REDUCE /* own tiles are added to what comes from the peers */
#ifndef IMX_C_PLAIN
#define IMX_LAST_PARTS /* which the last one takes through the ring */
#endif
#endif
#if defined(IMX_EIGHT) && (defined(IMX_PINGPONG) || defined(IMX_SPLIT) || defined(IMX_B_KN) || \
                           defined(IMX_BULK) || defined(IMX_RING) || defined(IMX_HOOKS))
#error "a and b of 8 bits have none of these"
#endif
#if defined(IMX_SLICES) && defined(IMX_PUSH) && !defined(IMX_EIGHT)
#define IMX_PASS /* slice by slice of k; of 8 bits a rank's rows go at once, and their scales */
#endif
#if defined(IMX_POST) || defined(IMX_STORE) || defined(IMX_REDUCE_PULL)
#define IMX_POSTS /* a chunk's last tile tells somebody */
#endif
#if (defined(IMX_STORE) || defined(IMX_REDUCE_PUSH) || defined(IMX_REDUCE_PULL)) && \
    !defined(IMX_HOOKS)
#define IMX_CREDITS /* tiles go where peers read: a warp beside the producer looks when they may */
#endif
#if defined(IMX_PINGPONG)
#define IMX_CONSUMERS 2
#elif defined(IMX_TURNED)
#define IMX_CONSUMERS (IMX_TILE_N / IMX_WG_M)
#else
#define IMX_CONSUMERS (IMX_TILE_M / IMX_WG_M)
#endif

#if defined(IMX_TEAM) && !defined(IMX_POSTS)
#define IMX_READS /* a run ends with the last load: nobody reads or writes what this one stores */
#endif
#if defined(IMX_READS) || defined(IMX_LAST_PARTS)
#define IMX_ENDS_EARLY /* or may, for a block: ends_with_loads */
#endif

enum {
#ifdef IMX_F16
    DTYPE = IMBREX_F16,
#else
    DTYPE = IMBREX_BF16,
#endif
#ifdef IMX_RING
    FORWARDERS = 1,
#else
    FORWARDERS = 0,
#endif
#ifdef IMX_HOOKS
    HOOKS = 1,
#else
    HOOKS = 0,
#endif
#ifdef IMX_LISTED_ONCE
    PRODUCERS = 1, /* threads: who waits and loads */
#else
    PRODUCERS = 32, /* and the rest of its warp, which lists more tiles */
#endif
#ifdef IMX_PINGPONG
    TURNS = 2,
#else
    TURNS = 1,
#endif
#ifdef IMX_STORE
    SCATTER_PUSH = 1,
#else
    SCATTER_PUSH = 0,
#endif
#ifdef IMX_REDUCE_PULL
    REDUCE_PULL = 1,
#else
    REDUCE_PULL = 0,
#endif
#if defined(IMX_GATHER) || defined(IMX_NODES)
    BUSY = 1, /* the producer, or those beside it */
#else
    BUSY = 0,
#endif
#ifdef IMX_PASS
    PASSES = 1, /* slices, from rank to rank */
#else
    PASSES = 0,
#endif
    PASSES_FAST = PASSES && IMX_SUMS_N <= (IMX_CONSUMERS > 2 ? 96 : 224),
#ifdef IMX_BULK
    BULK = 1,
#else
    BULK = 0,
#endif
#ifdef IMX_REDUCE_PUSH
    REDUCE_PUSH = 1,
#else
    REDUCE_PUSH = 0,
#endif
#ifdef IMX_TURNED
    TURNED = 1,
#else
    TURNED = 0,
#endif
#ifdef IMX_SPLIT
    SPLIT = 2,
#else
    SPLIT = 1,
#endif
    CLUSTER = IMX_CLUSTER_M * SPLIT,
    BESIDE_WARPS = 3, /* of the four that produce */
#ifdef IMX_EIGHT
    EIGHT = 1,
#else
    EIGHT = 0,
#endif
    ELEMENT_BYTES = EIGHT ? 1 : 2, /* of a and b */
    TILE_K = 128 / ELEMENT_BYTES,
    CONSUMERS = IMX_CONSUMERS,
    THREADS = 128 * (1 + CONSUMERS),
    HALVES = IMX_WG_M / 64,                 /* 64-row products of a warpgroup */
    TILE_ROWS = IMX_TILE_M * IMX_CLUSTER_M, /* the schedule's: a cluster's */
    TILE_COLS = IMX_TILE_N,
#ifdef IMX_B_KN
    B_SHARE = 64 / IMX_CLUSTER_M, /* rows that a block brings for its neighbour too */
#else
    B_SHARE = IMX_TILE_N / IMX_CLUSTER_M,
#endif
    A_BYTES = IMX_TILE_M * 128,
#ifdef IMX_B_KN
    B_COLS = (IMX_TILE_N + 63) / 64 * 64, /* whole atoms */
#else
    B_COLS = IMX_TILE_N,
#endif
    B_BYTES = B_COLS * 128,
    STAGE_BYTES = A_BYTES + B_BYTES,
    /* Columns of c that one store takes, of a turned tile rows, and bits of its swizzle. */
    PIECE_COLS = SPLIT > 1              ? IMX_SUMS_N / 2
                 : TURNED               ? 16
                 : IMX_TILE_N % 64 == 0 ? 64
                 : IMX_TILE_N % 32 == 0 ? 32
                                        : IMX_TILE_N / 2,
    PIECE_SWIZZLE = PIECE_COLS == 64   ? 3
                    : PIECE_COLS == 32 ? 2
                                       : 0,
    PIECE_BYTES = 16 * PIECE_COLS * 2,
    PIECES = (IMX_SUMS_N + PIECE_COLS - 1) / PIECE_COLS,
    /* Whether pieces, which leave beneath products, have but one buffer: then they are further
     * apart, and the last tile's, which has no products above it, leave through the stages. */
    ONE_BUFFER = IMX_BUFFERS == 1 && TURNS == 1 && SPLIT == 1 && !EIGHT,
    PIECES_APART = ONE_BUFFER ? 4 : 1, /* steps */
    C_AT = IMX_STAGES * STAGE_BYTES,
    EXCHANGE_AT = C_AT + CONSUMERS * 4 * IMX_BUFFERS * PIECE_BYTES, /* with IMX_SPLIT */
    EXCHANGE_BYTES = 32 * IMX_SUMS_N,                               /* a warp: half of its sums */
    BULK_AT = EXCHANGE_AT + (SPLIT - 1) * CONSUMERS * 4 * EXCHANGE_BYTES, /* with IMX_BULK */
    INFO_AT = BULK_AT + BULK * 2 * IMX_SM90_BULK,
    INFO_BYTES = 32,
    LISTED = IMX_SM90_LISTED,
    LIST_AT = INFO_AT + IMX_STAGES * INFO_BYTES,
    ROWS_AT = LIST_AT + LISTED * INFO_BYTES, /* of a, of each */
    WORDS_AT = ROWS_AT + LISTED * 4,
    NOTES_AT = WORDS_AT + IMX_SM90_WORDS, /* a warp's own: of the tile in its registers, and the
                                           * one before */
    BARRIERS_AT = NOTES_AT + CONSUMERS * 4 * 2 * INFO_BYTES,
    BARRIERS = 2 * IMX_STAGES + (TURNS == 2 ? 2 : 0) + (SPLIT - 1) * 2 * CONSUMERS * 4,
    BULK_BARRIERS_AT = BARRIERS_AT + BARRIERS * 8,
    SHARED_BYTES = BULK_BARRIERS_AT + BULK * 2 * 8,
    /* Columns of a part, as they come through the ring (sm90_last.cuh); boxes of a stage. */
    BOX_BYTES = IMX_TILE_M * PIECE_COLS * 2,
    BOXES = STAGE_BYTES / BOX_BYTES,
    POST_AFTER = 4, /* steps after a tile's last piece was stored: it has landed by then */
/* What a lane of the idle warps has under way when it folds (sm90_epilogue_reduce.cuh).  Where b is
 * [k, n]
     * the widest tiles' consumers leave it no registers for more. */
#ifdef IMX_B_KN
    FOLD_LOADS = IMX_TILE_N > 224 ? 4 : 8,
#else
    FOLD_LOADS = 8,
#endif
#ifdef IMX_LAST_PARTS
    FOLDS_FAST = FOLD_LOADS > 4,
#else
    FOLDS_FAST = 0,
#endif
    /* Of a thread; together what the launch gives all warpgroups.  A third consumer leaves each of
     * them less, and what they cannot share evenly to the producer's. */
    PRODUCER_REGISTERS = REDUCE_PULL || PASSES_FAST ? (CONSUMERS > 2 ? 104 : 88)
                         : HOOKS || FOLDS_FAST      ? (CONSUMERS > 2 ? 80 : 72)
                         : SCATTER_PUSH || REDUCE_PUSH || BUSY || CONSUMERS > 2 || IMX_SUMS_N <= 64
                             ? 56
                             : 40,
    CONSUMER_REGISTERS =
        CONSUMERS > 2 ? (4 * 128 - PRODUCER_REGISTERS) / 3 : (3 * 168 - PRODUCER_REGISTERS) / 2,
#if defined(IMX_SLICES) /* which waits for a: so much more of b, a block */
    PREFETCH_BYTES = 160 << 10,
    PREFETCH_STEPS = IMX_STAGES + PREFETCH_BYTES / (B_BYTES / IMX_CLUSTER_M),
#elif IMX_TILE_M == 64
    PREFETCH_STEPS = IMX_STAGES,
#else
    PREFETCH_STEPS = 0,
#endif
#ifdef IMX_SLICES
    READS_B_ONCE = IMX_CLUSTER_M == 1, /* if there is one row of tiles; much of it is in the cache
                                        * early, and should stay there */
#else
    READS_B_ONCE = 0,
#endif
    GAVE_UP = -1, /* instead of a chunk: a wait gave up, nothing is posted any more */
};

/* What consumers need to know of a tile; what fits in 32 bytes. */
typedef struct __attribute__((aligned(16))) tile_info {
#ifdef IMX_EIGHT
    int a_row; /* where rows of a and their scales begin; see listed_row */
#else
    int steps; /* of TILE_K along k */
#endif
    int rows;     /* of this block, to be stored; may be none, or less */
    int row, col; /* of c */
    int chunk;    /* or GAVE_UP */
#ifdef IMX_RING
    int strip;    /* of this block's rows of a */
    int pass;     /* step of the ring at which they are passed on; -1: they are not */
    int pass_row; /* the first of them, among its owner's */
#elif defined(IMX_SPANS)
    int last;  /* chunk of the block's last row */
#else
    int tiles; /* of the chunk */
#endif
#ifdef IMX_STORE
    int owner; /* of the rows; row counts in those */
    int apart; /* steps from one piece of the tile before to the next, as they are stored */
#endif
} tile_info;

/* What a block has one of. */
typedef struct block_words {
    uint64_t epoch;   /* of the run, with IMX_RING */
    unsigned tiles;   /* in all */
    int gave_up;      /* a wait of this block did */
    uint32_t turn;    /* with IMX_RING: tiles that the producer has begun, */
    int here;         /* columns of the rows of this one that are here, */
    uint32_t scouted; /* slices that are here, of all the block's tiles in their order, or, with
                         * IMX_SLICES, of all rows; */
    uint32_t sent;    /* and those behind the first of whose own rows its share is there */
    uint32_t ready;   /* with IMX_CREDITS: tiles may go where peers read, or are written to */
    uint32_t edge;    /* rows of a's smaller box */
    uint32_t
        stored[8]; /* with IMX_EPILOGUE_REDUCE: own tiles that each consumer warp has stored; with
                         * IMX_REDUCE_PULL [0]: tiles that they all have, counted by each */
} block_words;

static_assert(sizeof(tile_info) <= INFO_BYTES, "a note has its place");
static_assert(sizeof(block_words) <= IMX_SM90_WORDS, "and so have a block's words");
static_assert(TURNS == 2 || HALVES == 1, "who shares a tile has 64 rows of it, or columns");
static_assert(TURNS == 2 || !TURNED || IMX_TILE_M % (8 * SPLIT) == 0, "of eight, in each piece");
static_assert(BULK_AT % 128 == 0, "where bulk copies are fast");
static_assert(!ONE_BUFFER || BULK, "no parts come through the stages, nobody else meets there");
static_assert(!ONE_BUFFER || CONSUMERS * 4 * PIECES * PIECE_BYTES <= C_AT, "a tile fits there");
static_assert(SHARED_BYTES == IMX_SHARED_BYTES, "the launch and the kernel agree");

/* As launch.c puts them together.  Boxes of operands are those of a whole tile or smaller, of the
 * rows and columns of the tiles at the edges: the copy engine takes longer over what lies outside
 * of a matrix than over what is there.  c: one, or with IMX_STORE one of each owner's slot. */
typedef struct imx_gemm_maps {
    imx_tma_map a, gathered, b, a_edge, gathered_edge, b_edge;
#ifdef IMX_EPILOGUE_REDUCE
    imx_tma_map own, parts; /* c, and all ranks' parts of it */
#endif
#ifdef IMX_STORE
    imx_tma_map c[IMX_TEAM_MOST];
#else
    imx_tma_map c[1];
#endif
#ifdef IMX_RING
    imx_tma_map pass[IMX_TEAM_MOST - 1]; /* of each step */
#endif
} imx_gemm_maps;

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

/* As many steps on as the other consumer's tile takes. */
IMX_FN void skip(place *at, uint32_t steps)
{
    uint32_t stage = at->stage + steps;
    at->phase ^= stage / IMX_STAGES & 1;
    at->stage = stage % IMX_STAGES;
}

extern __shared__ __attribute__((aligned(1024))) unsigned char shared[];

IMX_FN uint32_t shared_at(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

IMX_FN uint32_t shared_base(void)
{
    return shared_at(shared);
}

/* This block's place in a cluster of blocks below each other. */
IMX_FN int block_m(void)
{
    return IMX_CLUSTER_M > 1 ? (int)cluster_cta() : 0;
}

/* Which steps of k are this block's: every second one, or all. */
IMX_FN int split_block(void)
{
    return SPLIT > 1 ? (int)cluster_cta() : 0;
}

/* How many steps of k a block takes. */
IMX_FN int steps_of(const imx_gemm_args &args)
{
    return ((int)args.k + SPLIT * TILE_K - 1) / (SPLIT * TILE_K);
}

IMX_FN int steps_of(const imx_gemm_args &args, const tile_info *note)
{
#ifdef IMX_EIGHT
    return steps_of(args);
#else
    return note->steps;
#endif
}

/* Where this block's step i begins; it may be at or beyond the end of k, where all is zeros. */
IMX_FN int k_of(int i)
{
    return (i * SPLIT + split_block()) * TILE_K;
}

IMX_FN tile_info *info_of(uint32_t stage)
{
    return (tile_info *)(shared + INFO_AT) + stage;
}

/* This warp's note of the tile that it works on, or of the one before. */
IMX_FN tile_info *note_of(uint32_t parity)
{
    return (tile_info *)(shared + NOTES_AT) + (threadIdx.x / 32 - 4) * 2 + parity;
}

/* Which of all tiles this block's tile number `tile` is. */
IMX_FN unsigned index_of(unsigned tile)
{
    return blockIdx.x / CLUSTER + tile * (gridDim.x / CLUSTER);
}

IMX_FN block_words &words(void)
{
    return *(block_words *)(shared + WORDS_AT);
}

/* How many tiles there are in all. */
IMX_FN unsigned &tiles_of(void)
{
    return words().tiles;
}

/* Whether a wait of this block gave up: then nothing more is posted for it. */
IMX_FN volatile int &gave_up_here(void)
{
    return words().gave_up;
}

IMX_FN uint32_t full_of(uint32_t base, uint32_t stage)
{
    return base + BARRIERS_AT + stage * 8;
}

IMX_FN uint32_t empty_of(uint32_t base, uint32_t stage)
{
    return base + BARRIERS_AT + (IMX_STAGES + stage) * 8;
}

/* Slices that the scout has seen. */
IMX_FN uint32_t scouted(void)
{
    return shared_at(&words().scouted);
}

IMX_FN uint32_t sent(void)
{
    return shared_at(&words().sent);
}

/* Whose turn it is.  Besides sharing out the tensor cores, a turn keeps a consumer from waiting
 * for a stage more than one phase ahead, where parity would deceive it. */
IMX_FN uint32_t turn_of(uint32_t base, uint32_t consumer)
{
    return base + BARRIERS_AT + (2 * IMX_STAGES + consumer) * 8;
}

/* With IMX_SPLIT, of each warp: the other block's half has come, and has room for this one's. */
IMX_FN uint32_t halves_of(uint32_t base, uint32_t warp)
{
    return base + BARRIERS_AT + (2 * IMX_STAGES + warp) * 8;
}

IMX_FN uint32_t room_of(uint32_t base, uint32_t warp)
{
    return halves_of(base, CONSUMERS * 4 + warp);
}

/* ---- between threads ------------------------------------------------------------------------- */

/* The four warps of a warpgroup.  Barrier 1 is team.cuh's. */
IMX_FN void consumers_meet(int consumer)
{
    if (consumer == 0)
        asm volatile("bar.sync 2, 128;" : : : "memory");
    else if (CONSUMERS < 3 || consumer == 1)
        asm volatile("bar.sync 3, 128;" : : : "memory");
    else
        asm volatile("bar.sync 6, 128;" : : : "memory");
}

/* All consumers; with IMX_REDUCE_PULL others have the use of this barrier. */
IMX_FN void all_consumers_meet(void)
{
    __syncwarp();
    asm volatile("bar.sync 5, %0;" : : "n"(CONSUMERS * 128) : "memory");
}

/* This stage may be overwritten, as far as this warpgroup goes: tells all who write to it. */
IMX_FN void release(uint32_t base, uint32_t stage)
{
    int block = (int)threadIdx.x / 32 % 4;
    if (threadIdx.x % 32 != 0 || block >= IMX_CLUSTER_M)
        return;
    if (IMX_CLUSTER_M == 1)
        mbar_arrive(empty_of(base, stage));
    else
        mbar_arrive_at(empty_of(base, stage), (uint32_t)block);
}

#endif /* IMX_SM90_LAYOUT_CUH */
