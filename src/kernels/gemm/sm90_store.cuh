/* sm90_store.cuh - the way of sm90.cu's tiles from the registers of its consumers to where they
 * belong: c, or with IMX_STORE the owner of their rows.
 *
 * A warp has 16 rows of every 64.  They go through buffers in shared memory, a piece at a time:
 *
 *     registers | stmatrix | piece | copy engine | c, or a slot at the owner
 *                              own rows: += the peers' parts, from this rank's slots
 */
#ifndef IMX_SM90_STORE_CUH
#define IMX_SM90_STORE_CUH

#include "sm90_layout.cuh"
#include "team.cuh"

#ifdef IMX_BIAS
/* Volatile, so that the loads stay where they are: all of them at once want too many registers. */
IMX_FN float bias_at(const uint16_t *bias, int at, int n)
{
    uint16_t element = 0;
    if (at < n)
        asm volatile("ld.global.u16 %0, [%1];" : "=h"(element) : "l"(bias + at) : "memory");
    return unpack(element);
}

/* A row's two elements of d at col, col + 1 take these; beyond n it does not matter. */
IMX_FN void add_bias(float (&d)[HALVES][IMX_ACC], const imx_gemm_args &args, int col)
{
    const uint16_t *bias = (const uint16_t *)args.bias;
    if (!bias)
        return;
    int n = (int)args.schedule.n, at = col + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < IMX_ACC / 4; j++, at += 8) {
        float b0 = bias_at(bias, at, n), b1 = bias_at(bias, at + 1, n);
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            d[h][4 * j] += b0;
            d[h][4 * j + 1] += b1;
            d[h][4 * j + 2] += b0;
            d[h][4 * j + 3] += b1;
        }
    }
}
#endif

/* Where in its piece of c a row's 16-byte unit lies, as the copy engine will read it: swizzled
 * where rows are 128 or 64 bytes; else rows of an odd number of units mostly, which meet no bank
 * twice. */
IMX_FN uint32_t piece_offset(int row, int unit)
{
    if (PIECE_SWIZZLE == 3)
        return row * 128 + ((unit ^ (row & 7)) << 4);
    if (PIECE_SWIZZLE == 2)
        return row * 64 + ((unit ^ (row >> 1 & 3)) << 4);
    return row * PIECE_COLS * 2 + (unit << 4);
}

/* The lane, worked out where it stands: a volatile read that the compiler does not move. */
IMX_FN int lane_here(void)
{
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/* The matrix [rows, n] that the tile is part of, as this rank reaches it. */
IMX_FN uint16_t *home_of(const imx_gemm_args &args, const tile_info *note)
{
#ifdef IMX_STORE
    if (note->owner != args.team.rank)
        return (uint16_t *)(imx_team_data(&args.team, note->owner) +
                            args.team.rank * args.slot_bytes);
#endif
    return (uint16_t *)args.c;
}

IMX_FN const imx_tma_map *map_for(const imx_tma_map *c, const tile_info *note)
{
#ifdef IMX_STORE
    return c + note->owner;
#else
    return c;
#endif
}

/* One warp's piece by ordinary stores, with an eye to both edges. */
IMX_FN void store_plain(const imx_gemm_args &args, uint16_t *home, int row, int rows, int col,
                        uint32_t piece)
{
    int lane = lane_here(), n = (int)args.schedule.n;
#pragma unroll 1
    for (int r = 0; r < 16 && r < rows; r++) {
#pragma unroll 1
        for (int c = lane; c < PIECE_COLS && col + c < n; c += 32) {
            uint16_t element;
            uint32_t from = piece + piece_offset(r, c / 8) + c % 8 * 2;
            asm volatile("ld.shared.u16 %0, [%1];" : "=h"(element) : "r"(from) : "memory");
            home[(int64_t)(row + r) * n + col + c] = element;
        }
    }
}

#ifdef IMX_STORE

/* A warp reads a piece as whole rows: so many 16-byte units, of so many rows at once. */
enum {
    UNITS = PIECE_COLS / 8,
    ROWS_APART = 32 / UNITS,
#ifdef IMX_C_PLAIN
    ROWS_AT_ONCE = 1,
#else
    ROWS_AT_ONCE = 2, /* of one lane: more take too many registers */
#endif
    PARTS_AT_ONCE = 4,
};

/* Eight elements, of which `left` are in the row. */
IMX_FN uint4 load_part(const char *from, int left)
{
#ifndef IMX_C_PLAIN
    return imx_vector_load(from);
#else
    uint32_t words[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < left)
            words[i / 2] |= (uint32_t)((const volatile uint16_t *)from)[i] << i % 2 * 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
#endif
}

/* sum = part, or += if this is not the first one (which is not 0 + part: -0 stays -0). */
IMX_FN void add_part(float (&sum)[8], uint4 part, bool first)
{
    const uint32_t words[] = { part.x, part.y, part.z, part.w };
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float x = unpack((uint16_t)(words[i / 2] >> i % 2 * 16));
        sum[i] = first ? x : sum[i] + x;
    }
}

/* A unit of all of this lane's rows, from `from` on in slot 0 and from `piece` on in shared memory:
 * sums in rank order.  step: bytes of slots to the next of the rows; left: how many there are. */
IMX_FN void sum_parts(float (&sum)[ROWS_AT_ONCE][8], const imx_gemm_args &args, const char *from,
                      int64_t step, int left, int columns, const uint32_t (&piece)[ROWS_AT_ONCE])
{
    int size = args.team.size, own = args.team.rank;
#pragma unroll 1
    for (int r = 0; r < size; r += PARTS_AT_ONCE) {
        uint4 part[PARTS_AT_ONCE][ROWS_AT_ONCE]; /* all under way before the first is added */
#pragma unroll
        for (int j = 0; j < PARTS_AT_ONCE; j++, from += args.slot_bytes) {
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++) {
                part[j][i] = make_uint4(0, 0, 0, 0);
                if (r + j < size && r + j != own && i < left)
                    part[j][i] = load_part(from + i * step, columns);
            }
        }
#pragma unroll
        for (int j = 0; j < PARTS_AT_ONCE; j++) {
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++) {
                if (r + j == own && i < left)
                    part[j][i] = ld_shared(piece[i]);
                if (r + j < size)
                    add_part(sum[i], part[j][i], r + j == 0);
            }
        }
    }
}

/* A piece of own rows, rounded as the peers' parts are, becomes the sum of all, plus bias.  row: in
 * the rank's rows; rows: how many of them there are from it on. */
IMX_FN void fold_piece(const imx_gemm_args &args, int row, int rows, int col, uint32_t piece)
{
    int n = (int)args.schedule.n, lane = lane_here(), unit = lane % UNITS;
    const char *slots = imx_team_data(&args.team, args.team.rank);
    int64_t step = (int64_t)n * 2 * ROWS_APART;
    rows = rows < 16 ? rows : 16;
    col += unit * 8;
    if (lane >= ROWS_APART * UNITS || col >= n)
        return;
#pragma unroll 1
    for (int r = lane / UNITS; r < rows; r += ROWS_APART * ROWS_AT_ONCE) {
        /* Set, though not added to: else the registers are taken from the loops around this. */
        float sum[ROWS_AT_ONCE][8] = {};
        uint32_t at[ROWS_AT_ONCE];
        int left = (rows - r + ROWS_APART - 1) / ROWS_APART;
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++)
            at[i] = piece + piece_offset(r + i * ROWS_APART, unit);
        sum_parts(sum, args, slots + ((int64_t)(row + r) * n + col) * 2, step, left, n - col, at);
        const uint16_t *bias = (const uint16_t *)args.bias;
#pragma unroll
        for (int e = 0; e < 8 && bias; e++) {
            float b = bias_at(bias, col + e, n);
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++)
                sum[i][e] += b;
        }
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++) {
            if (i < left)
                st_shared(at[i], make_uint4(pack(sum[i][0], sum[i][1]), pack(sum[i][2], sum[i][3]),
                                            pack(sum[i][4], sum[i][5]),
                                            pack(sum[i][6], sum[i][7])));
        }
    }
}

#endif

/* Piece p of this warp's 16 rows, which begin at first_row of the block's tile, through its
 * buffers; packed: the tile's rounded elements.  folds: it is of own rows, which others have parts
 * of. */
IMX_FN void store_piece(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                        const imx_tma_map *c, const tile_info *note, int first_row, uint32_t base,
                        int p, bool folds)
{
    uint32_t buffers = base + C_AT + (threadIdx.x / 32 - 4) * BUFFERS * PIECE_BYTES;
    uint32_t piece = buffers + p % BUFFERS * PIECE_BYTES;
    int row = note->row + first_row, rows = note->rows - first_row;
    int col = note->col + p * PIECE_COLS;
    int lane = lane_here(); /* addresses made of it are not worth a register through the loops */
    int own_row = lane & 15, right = lane >> 4;
#if defined(IMX_C_PLAIN)
    const int whole = 0;
#elif defined(IMX_STORE)
    const int whole = 1; /* the map ends where the owner's rows do */
#else
    int whole = rows >= 16;
#endif
    /* With an odd number of pieces the first follows the last tile's last in the same buffer. */
    bool other = BUFFERS == 2 && (p > 0 || PIECES % 2 == 0);
    if (lane == 0) {
        if (other)
            tma_store_wait_read(1);
        else
            tma_store_wait_read(0);
    }
    __syncwarp();
    const uint32_t *x = &packed[p * PIECE_COLS / 4];
#pragma unroll
    for (int unit = 0; unit < PIECE_COLS / 8; unit += 2, x += 4) {
        if (unit + 2 <= PIECE_COLS / 8)
            st_matrix4(piece + piece_offset(own_row, unit + right), x[0], x[1], x[2], x[3]);
        else
            st_matrix2(piece + piece_offset(own_row, unit), x[0], x[1]);
    }
#ifdef IMX_STORE
    if (folds && rows > 0) {
        __syncwarp();
        fold_piece(args, row, rows, col, piece);
    }
#endif
    if (whole) {
        tma_fence_shared();
        __syncwarp();
        if (lane == 0) {
            if (col < (int)args.schedule.n && (!STORES || rows > 0))
                tma_store(map_for(c, note), col, row, piece);
            tma_store_commit();
        }
    } else {
        __syncwarp();
        store_plain(args, home_of(args, note), row, rows, col, piece);
        __syncwarp();
    }
}

/* All of them. */
IMX_FN void store(const uint32_t (&packed)[IMX_ACC / 2], const imx_gemm_args &args,
                  const imx_tma_map *c, const tile_info *note, int first_row, uint32_t base,
                  bool folds)
{
#pragma unroll
    for (int p = 0; p < PIECES; p++)
        store_piece(packed, args, c, note, first_row, base, p, folds);
}

#if defined(IMX_POST) || defined(IMX_STORE)

/* Whether anybody is told when the tile's chunk is stored. */
IMX_FN bool is_counted(const imx_gemm_args &args, const tile_info *note)
{
#ifdef IMX_STORE
    return note->owner != args.team.rank;
#else
    return args.done;
#endif
}

/* This warp's share of a tile is stored: counts it, and the chunk's last posts. */
IMX_FN void post(const imx_gemm_args &args, const tile_info *note)
{
    int chunk = note->chunk;
    __syncwarp();
    if (threadIdx.x % 32 != 0 || chunk == GAVE_UP || !is_counted(args, note))
        return;
    tma_store_wait();
#if defined(IMX_STORE) && defined(IMX_C_PLAIN)
    imbrexd_fence_post(); /* ordinary stores: their way to a peer does not lie within this GPU */
#endif
    uint32_t last = (uint32_t)(note->tiles * CLUSTER * CONSUMERS / TURNS * 4);
    if (!imbrexd_counter_last(&args.counters[chunk], last))
        return;
#if defined(IMX_STORE)
    team_post_owner(args, note->owner, chunk);
#elif defined(IMX_TEAM)
    team_post_all(args, chunk);
#else
    imbrexd_signal_post(&args.done[chunk], *args.use);
#endif
}

#endif

#endif /* IMX_SM90_STORE_CUH */
