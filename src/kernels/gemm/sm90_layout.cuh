/* sm90_layout.cuh - what sm90.cu's options come to: sizes, where things lie in shared memory, and
 * this block's place in its cluster. */
#ifndef IMX_SM90_LAYOUT_CUH
#define IMX_SM90_LAYOUT_CUH

#include "../vector.cuh"
#include "args.h"
#include "sm90_ptx.cuh"
#include "sm90_tile.h"

/* Whether an option that has no value of its own is there: 1 or 0. */
#define IMX_HAS(option)                  IMX_HAS_VALUE(option)
#define IMX_HAS_VALUE(value)             IMX_HAS_BEHIND(IMX_HAS_COMMA_##value)
#define IMX_HAS_BEHIND(comma)            IMX_HAS_SECOND(comma 1, 0, )
#define IMX_HAS_SECOND(one, second, ...) second
#define IMX_HAS_COMMA_1                  ,

#ifndef IMX_SPLIT
#define IMX_SPLIT 1
#endif

#ifdef IMX_EIGHT
enum { EIGHT = 1 };
#else
enum { EIGHT = 0 };
#endif

enum {
    DTYPE = IMX_HAS(IMX_F16) ? IMBREX_F16 : IMBREX_BF16,
    B_KN = IMX_HAS(IMX_B_KN),
    C_PLAIN = IMX_HAS(IMX_C_PLAIN),
    SPANS = IMX_HAS(IMX_SPANS), /* tiles may have several ranks' rows */
    BULK = IMX_HAS(IMX_BULK),
    TURNED = IMX_HAS(IMX_TURNED),
    TURNS = IMX_HAS(IMX_PINGPONG) ? 2 : 1,
    SPLIT = IMX_SPLIT, /* blocks that make a tile together, a piece each */
    /* Threads: who waits and loads, and the rest of its warp, which lists more tiles. */
    PRODUCERS = IMX_HAS(IMX_LISTED_ONCE) ? 1 : 32,
    CONSUMERS = TURNS == 2 ? 2 : (TURNED ? IMX_TILE_N : IMX_TILE_M) / IMX_WG_M,
    CLUSTER = IMX_CLUSTER_M * SPLIT,
    BESIDE_WARPS = 3,              /* of the four that produce */
    ELEMENT_BYTES = EIGHT ? 1 : 2, /* of a and b */
    TILE_K = 128 / ELEMENT_BYTES,
    THREADS = 128 * (1 + CONSUMERS),
    HALVES = IMX_WG_M / 64,                 /* 64-row products of a warpgroup */
    TILE_ROWS = IMX_TILE_M * IMX_CLUSTER_M, /* the schedule's: a cluster's */
    TILE_COLS = IMX_TILE_N,
    B_SHARE = (B_KN ? 64 : IMX_TILE_N) / IMX_CLUSTER_M, /* rows that a block brings for its
                                                         * neighbour too */
    A_BYTES = IMX_TILE_M * 128,
    B_COLS = B_KN ? (IMX_TILE_N + 63) / 64 * 64 : IMX_TILE_N, /* whole atoms */
    B_BYTES = B_COLS * 128,
    STAGE_BYTES = A_BYTES + B_BYTES,
    /* Columns of c that one store takes, of a turned tile rows, and bits of its swizzle. */
    PIECE_COLS = SPLIT > 1              ? IMX_SUMS_N / SPLIT
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
    EXCHANGE_BYTES = 64 * IMX_SUMS_N / SPLIT, /* of a warp, what one block sends: a piece's sums */
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
    BARRIERS = 2 * IMX_STAGES + (TURNS == 2 ? 2 : 0) + (SPLIT > 1) * 2 * CONSUMERS * 4,
    BULK_BARRIERS_AT = BARRIERS_AT + BARRIERS * 8,
    SHARED_BYTES = BULK_BARRIERS_AT + BULK * 2 * 8,
    POST_AFTER = 4, /* steps after a tile's last piece was stored: it has landed by then */
    GAVE_UP = -1,   /* instead of a chunk: a wait gave up, nothing is posted any more */
};

/* What consumers need to know of a tile; what fits in 32 bytes.  Behind the chunk a prologue or an
 * epilogue keeps its own, never both. */
typedef struct __attribute__((aligned(16))) tile_info {
    union {
        int steps; /* of TILE_K along k */
        int a_row; /* of 8 bits, where rows of a and their scales begin; see listed_row */
    };
    int rows;     /* of this block, to be stored; may be none, or less */
    int row, col; /* of c */
    int chunk;    /* or GAVE_UP */
    union {
        int last;         /* with SPANS: chunk of the block's last row */
        struct {          /* where rows go on from rank to rank */
            int strip;    /* of this block's rows of a */
            int pass;     /* step of the ring at which they are passed on; -1: they are not */
            int pass_row; /* the first of them, among its owner's */
        };
        struct {
            int tiles; /* of the chunk, where its last one tells */
            int owner; /* of the rows, where row counts in those */
            int apart; /* steps from one piece of the tile before to the next, as they are stored */
        };
    };
} tile_info;

/* What a block has one of. */
typedef struct block_words {
    uint64_t epoch;     /* of the run, where rows go from rank to rank */
    unsigned tiles;     /* in all */
    int gave_up;        /* a wait of this block did */
    uint32_t turn;      /* there: tiles that the producer has begun, */
    int here;           /* columns of the rows of this one that are here */
    uint32_t scouted;   /* slices that are here, of all the block's tiles in their order, or of all
                         rows; */
    uint32_t sent;      /* and those behind the first of whose own rows its share is there */
    uint32_t ready;     /* tiles may go where peers read, or are written to (sm90_credits.cuh) */
    uint32_t edge;      /* rows of a's smaller box */
    uint32_t stored[8]; /* scatter_push: own tiles that each consumer warp has stored; reduce_pull
                           [0]: tiles that they all have, counted by each */
} block_words;

static_assert(TURNS == 1 || IMX_WG_M == IMX_TILE_M,
              "taking turns, a warpgroup has whole tiles, all of the same depth");
static_assert(SPLIT == 1 || (TURNS == 1 && IMX_WG_M == 64 && IMX_CLUSTER_M == 1),
              "the blocks of a split tile have nothing else to share");
static_assert(!EIGHT || (TURNS == 1 && SPLIT == 1 && !B_KN && !BULK && !TURNED),
              "a and b of 8 bits have none of these");
static_assert(sizeof(tile_info) <= INFO_BYTES, "a note has its place");
static_assert(sizeof(block_words) <= IMX_SM90_WORDS, "and so have a block's words");
static_assert(TURNS == 2 || HALVES == 1, "who shares a tile has 64 rows of it, or columns");
static_assert(TURNS == 2 || !TURNED || IMX_TILE_M % 8 == 0, "of eight, in each piece");
static_assert(SPLIT == 1 || IMX_SUMS_N % (8 * SPLIT) == 0, "and as many in each");
static_assert(BULK_AT % 128 == 0, "where bulk copies are fast");
static_assert(!ONE_BUFFER || BULK, "no parts come through the stages, nobody else meets there");
static_assert(!ONE_BUFFER || CONSUMERS * 4 * PIECES * PIECE_BYTES <= C_AT, "a tile fits there");
static_assert(SHARED_BYTES == IMX_SHARED_BYTES, "the launch and the kernel agree");

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

/* Which steps of k are this block's: every SPLIT-th one from this on. */
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
    return EIGHT ? steps_of(args) : note->steps;
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

/* Tile i of the list: what consumers get. */
IMX_FN tile_info *listed(int i)
{
    return (tile_info *)(shared + LIST_AT) + i;
}

/* Where its loads of a begin: a row of map gathered, or ~row of map a. */
IMX_FN int &listed_row(int i)
{
    return ((int *)(shared + ROWS_AT))[i];
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

/* With IMX_SPLIT, of each warp: the other blocks' sums have come, and have room for this one's. */
IMX_FN uint32_t sums_of(uint32_t base, uint32_t warp)
{
    return base + BARRIERS_AT + (2 * IMX_STAGES + warp) * 8;
}

IMX_FN uint32_t room_of(uint32_t base, uint32_t warp)
{
    return sums_of(base, CONSUMERS * 4 + warp);
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

/* All consumers; with reduce_pull others have the use of this barrier. */
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
