/* sm80_rows.cu - the ll kernel on NVIDIA GPUs where rows are normed behind their sum.
 *
 *     IMX_RANKS   ranks of the team        IMX_LINES     1: lines, 0: words
 *     IMX_THREADS of a block, at most      IMX_CLUSTER   1: a row is a cluster's, a piece a block's
 *     IMX_DTYPE   of what is added                       0: all pieces of a row are one block's
 *     IMX_FANS    in two shots             IMX_REDUCES 1
 *
 * Blocks first send all of their rows, then take one after the other:
 *
 *     sum, unit by unit | into shared memory | squares, to all blocks of the row | all of them | c
 *
 * In two shots every rank adds up its lines of each piece, and sends the sums to all, whose blocks
 * of the same number look for them.  What is to be sent of the next row goes before this one's sums
 * are waited for.
 */
#include "../fragment.cuh"
#include "../grid.cuh"
#include "../norm/sm80_steps.cuh"
#include "sm80_sums.cuh"
#include "sm80_told.cuh"

enum {
    GROUP_COLS = LANES * TOGETHER,
    ROOMS = 1 + IMX_TWO_SHOTS, /* of rows in turns */
};

/* What is where in shared memory: this block's columns of ROOMS rows, and of gamma. */
extern __shared__ uint4 room[];

/* ---- places ---------------------------------------------------------------------------------- */

/* A piece of a row. */
typedef struct piece {
    int64_t row, slot; /* its number, of all rows */
    int first, bytes;  /* of the row */
} piece;

/* A unit of it; is: there is one; its number; where it is in its shard's parts; with IMX_FANS, who
 * adds it up. */
typedef struct place {
    bool is;
    int unit;
    int64_t at;
    int owner;
} place;

LL_FN int warps(void)
{
    return (int)blockDim.x / LANES;
}

LL_FN int64_t unit_of(place p)
{
    return p.unit;
}

LL_FN int piece_bytes(const imx_ll_args &args)
{
    return args.piece_cols * ELEMENT;
}

LL_FN piece piece_of(const imx_ll_args &args, int64_t row, int number)
{
    int first = number * piece_bytes(args), left = (int)args.row_bytes - first;
    piece p = { row, row * args.pieces + number, first, piece_bytes(args) };
    p.bytes = left < p.bytes ? left : p.bytes;
    return p;
}

/* The first row of this block, and how far apart its rows are; which of a row's blocks it is; its
 * pieces. */
LL_FN int first_row(void)
{
    int cluster = (int)blockIdx.x;
#if IMX_CLUSTER
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
#endif
    return cluster;
}

LL_FN int rows_apart(void)
{
    int clusters = (int)gridDim.x;
#if IMX_CLUSTER
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(clusters));
#endif
    return clusters;
}

LL_FN int first_piece(void)
{
    int rank = 0;
#if IMX_CLUSTER
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

LL_FN int own_pieces(const imx_ll_args &args)
{
    return IMX_CLUSTER ? 1 : args.pieces;
}

/* Units that a piece takes in a part. */
LL_FN int64_t units_apart(const imx_ll_args &args)
{
    return imx_ll_piece_units(IMX_LINES, piece_bytes(args), args.row_bytes, IMX_RANKS,
                              IMX_TWO_SHOTS);
}

LL_FN place place_of(const imx_ll_args &args, const piece &p, int unit)
{
    place at = { unit < imx_ll_units(IMX_LINES, p.bytes), unit, p.slot * units_apart(args) + unit,
                 -1 };
#ifdef IMX_FANS
    const int of_grain = IMX_LINES ? IMX_LL_UNITS : 1;
    int64_t grain = imx_ll_grain(IMX_LINES);
    at.owner = imx_ll_owner(IMX_LINES, p.bytes, IMX_RANKS, unit / of_grain);
    at.at -= imx_ll_first(IMX_LINES, p.bytes, IMX_RANKS, at.owner) / grain * of_grain;
#endif
    return at;
}

/* This block's columns of a row in its turn; behind all turns, of gamma. */
LL_FN char *room_of(const imx_ll_args &args, int turn)
{
    return (char *)room + turn * own_pieces(args) * piece_bytes(args);
}

LL_FN bool is_own(const imx_ll_args &args, const place &at)
{
    return !IMX_TWO_SHOTS || at.owner == args.team.rank;
}

/* ---- what comes ------------------------------------------------------------------------------ */

template <stage S, typename At> LL_FN bool comes(const imx_ll_args &args, int p, At at)
{
    if (!at.is || p >= IMX_RANKS || sender<S>(args, p) == args.team.rank)
        return false;
    return S == SUMS ? at.owner == sender<S>(args, p) : is_own(args, at);
}

template <stage S, typename At>
LL_FN const imx_ll_unit *arrival(const imx_ll_args &args, int p, At at, uint64_t epoch)
{
    int from = sender<S>(args, p), here = args.team.rank;
    return (S == SUMS ? imx_ll_sum(&args, here, from, epoch)
                      : imx_ll_part(&args, here, from, epoch)) +
           at.at;
}

/* ---- the sum of a row ------------------------------------------------------------------------ */

/* A unit of a sum is here; to: the row's room. */
LL_FN void keep(const imx_ll_args &args, const piece &p, int unit, imx_ll_unit sum, char *to)
{
    int in_block = p.first - first_piece() * piece_bytes(args);
    store_data(to + in_block, p.bytes, unit, sum);
    if (args.norm.h)
        store_data((char *)args.norm.h + p.row * args.row_bytes + p.first, p.bytes, unit, sum);
}

/* What will be added behind a wait comes near before it. */
LL_FN void fetch_residual(const imx_ll_args &args, const piece &p, const place &at)
{
    enum { IN_SECTOR = 2 }; /* units, at least */
    const char *from = (const char *)args.residual + p.row * args.row_bytes + p.first;
    int64_t byte = data_at(at.unit);
    if (args.residual && at.is && is_own(args, at) && at.unit % IN_SECTOR == 0 && byte < p.bytes)
        asm volatile("prefetch.global.L2 [%0];" : : "l"(from + byte));
}

LL_FN void send_piece(const imx_ll_args &args, const piece &p, uint64_t epoch)
{
    const char *from = (const char *)args.from + p.row * args.row_bytes + p.first;
    int units = (int)imx_ll_units(IMX_LINES, p.bytes), lane = lane_of();
    for (int i = (int)threadIdx.x; i - lane < units; i += (int)blockDim.x) {
        place at = place_of(args, p, i);
        imx_ll_unit unit = pack(i, load_data(from, p.bytes, i), epoch);
        fetch_residual(args, p, at);
        __syncwarp();
        if (!at.is)
            continue;
#ifdef IMX_FANS
        if (!is_own(args, at))
            store_unit(imx_ll_part(&args, at.owner, args.team.rank, epoch) + at.at, unit);
#else
#pragma unroll TO_AT_ONCE
        for (int r = 1; r < IMX_RANKS; r++)
            store_unit(imx_ll_part(&args, peer(args, r), args.team.rank, epoch) + at.at, unit);
#endif
    }
}

/* A unit of a sum to all peers. */
LL_FN void fan_out(const imx_ll_args &args, const place &at, uint64_t epoch, imx_ll_unit unit)
{
#pragma unroll TO_AT_ONCE
    for (int r = 1; r < IMX_RANKS; r++)
        store_unit(imx_ll_sum(&args, peer(args, r), args.team.rank, epoch) + at.at, unit);
}

/* This rank's share of the sum, and with IMX_FANS to all; 0: gave up. */
LL_FN int add_piece(const imx_ll_args &args, const imbrexd_watch &watch, const piece &p,
                    uint64_t epoch, char *to)
{
    int64_t first = p.row * args.row_bytes + p.first;
    const char *residual = args.residual ? (const char *)args.residual + first : NULL;
    int units = (int)imx_ll_units(IMX_LINES, p.bytes), lane = lane_of();
    for (int i = (int)threadIdx.x; i - lane < units; i += (int)blockDim.x) {
        place at = place_of(args, p, i);
        bool own = at.is && is_own(args, at);
        int64_t data = data_at(i), column = (p.first + (data < p.bytes ? data : 0)) / ELEMENT;
        imx_ll_unit sum;
        if (together(!own))
            continue;
        if (!sum_up(args, watch, at, epoch, (const char *)args.from + first, residual,
                    own ? p.bytes : 0, column, &sum))
            return 0;
        imx_ll_unit unit = pack(i, sum, epoch);
        if (IMX_LINES)
            __syncwarp(); /* the lanes of a line store it at once */
        if (own && IMX_TWO_SHOTS)
            fan_out(args, at, epoch, unit);
        if (own)
            keep(args, p, i, sum, to);
    }
    return 1;
}

/* The peers' shares. */
LL_FN int take_piece(const imx_ll_args &args, const imbrexd_watch &watch, const piece &p,
                     uint64_t epoch, char *to)
{
    int units = (int)imx_ll_units(IMX_LINES, p.bytes), lane = lane_of();
    for (int i = (int)threadIdx.x; i - lane < units; i += (int)blockDim.x) {
        place at = place_of(args, p, i);
        imx_ll_unit unit[AT_ONCE];
#pragma unroll 1
        for (int first = 1; first < IMX_RANKS; first += AT_ONCE) {
            if (!take<SUMS>(args, watch, at, epoch, first, unit))
                return 0;
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (comes<SUMS>(args, first + j, at))
                    keep(args, p, i, unpack(unit[j]), to);
            }
        }
    }
    return 1;
}

/* ---- the norm of a row ----------------------------------------------------------------------- */

/* Eight columns from `column` of this block's on, of the row or of gamma. */
LL_FN void load_eight(const char *from, int column, float *x)
{
    const uint4 *at = (const uint4 *)(from + column * ELEMENT);
    imx_vector_add(IMX_DTYPE, x, at[0], true);
    if (IMX_IS_F32)
        imx_vector_add(IMX_DTYPE, x + 4, at[1], true);
}

LL_FN int own_columns(const imx_ll_args &args)
{
    int first = first_piece() * piece_bytes(args), left = (int)args.row_bytes - first;
    int most = own_pieces(args) * piece_bytes(args);
    return (left < most ? left : most) / ELEMENT;
}

LL_FN const char *own_gamma(const imx_ll_args &args)
{
    return room_of(args, ROOMS);
}

/* This thread's part of it; see load_gamma. */
LL_FN void await_gamma(void)
{
    asm volatile("cp.async.wait_all;" : : : "memory");
}

LL_FN float squares_of(const char *row, int segment)
{
    float x[GROUPS][TOGETHER];
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        load_eight(row, segment * IMX_NORM_SEGMENT + g * GROUP_COLS + lane_of() * TOGETHER, x[g]);
    return norm_squares(x);
}

/* Of this block's segments. */
LL_FN void tell_squares(const imx_ll_args &args, const char *row, told *told, int gave_up)
{
    int segment = first_piece() * (piece_bytes(args) / (IMX_NORM_SEGMENT * ELEMENT));
#pragma unroll 1
    for (int s = (int)threadIdx.x / LANES; s * IMX_NORM_SEGMENT < own_columns(args); s += warps()) {
        float squares = args.norm.rms ? squares_of(row, s) : 0.0f;
        tell(args, &told->squares[segment + s], &told->squares_here, squares, (unsigned)gave_up);
    }
}

LL_FN int segments_of(const imx_ll_args &args)
{
    return ((int)args.norm.n + IMX_NORM_SEGMENT - 1) / IMX_NORM_SEGMENT;
}

/* By what the row is multiplied, as all of its blocks have told; 0: some block gave up. */
LL_FN int take_squares(const imx_ll_args &args, const told *told, float *inverse)
{
    int segments = segments_of(args);
    uint2 mine = make_uint2(0, 0);
    if (lane_of() < segments)
        mine = told->squares[lane_of()];
    float squares = 0.0f;
#pragma unroll
    for (int s = 0; s < SEGMENTS; s++) {
        float one = __uint_as_float(__shfl_sync(0xffffffffu, mine.x, s));
        if (s < segments)
            squares = __fadd_rn(squares, one);
    }
    *inverse = args.norm.rms ? imx_norm_inverse(squares, args.norm.n, args.norm.eps) : 0.0f;
    return __all_sync(0xffffffffu, !mine.y);
}

/* The columns of group g of this block's as they become c, or before they are quantised. */
LL_FN void normed(const imx_ll_args &args, const char *row, int g, float inverse, float *x)
{
    int column = g * GROUP_COLS + lane_of() * TOGETHER;
    float gamma[TOGETHER];
    load_eight(row, column, x);
    if (!args.norm.rms)
        return;
    load_eight(own_gamma(args), column, gamma);
    norm_columns(&args.norm, inverse, gamma, x);
    imx_row_round(IMX_DTYPE, x);
}

/* This warp's groups.  PER_ROW: once for the scale, and once more by it. */
LL_FN void store_columns(const imx_ll_args &args, int64_t row, const char *sums, told *told,
                         uint32_t parity, float inverse)
{
    const imx_norm_args &norm = args.norm;
    int first = first_piece() * piece_bytes(args) / ELEMENT, n = (int)norm.n;
    float scale = 0.0f;
    if (norm.quant == IMBREX_PER_TENSOR)
        scale = *(const volatile float *)norm.scale;
#pragma unroll 1
    for (int again = norm.quant != IMBREX_PER_ROW; again < 2; again++) {
#pragma unroll 1
        for (int g = (int)threadIdx.x / LANES; g * GROUP_COLS < own_columns(args); g += warps()) {
            int column = first + g * GROUP_COLS + lane_of() * TOGETHER;
            float x[TOGETHER];
            normed(args, sums, g, inverse, x);
            if (!again) {
                tell(args, &told->largest[first / GROUP_COLS + g], &told->largest_here,
                     imx_row_largest_of(imx_row_largest(x), LANES));
                continue;
            }
            if (norm.normed)
                norm_store(IMX_DTYPE, norm_row_at(IMX_DTYPE, norm.normed, row, n), column, n, x);
            if (norm.quant)
                norm_quantize(&norm, row, column, scale, x);
            else
                norm_store(IMX_DTYPE, norm_row_at(IMX_DTYPE, norm.c, row, n), column, n, x);
        }
        if (again)
            break;
        await(&told->largest_here, parity);
        float largest = 0.0f;
#pragma unroll 1
        for (int g = 0; g * GROUP_COLS < n; g++)
            largest = fmaxf(largest, told->largest[g]);
        scale = imx_scale_of(largest, norm.power_of_two);
        if (threadIdx.x == 0 && first == 0)
            norm.scale[row] = scale;
    }
}

/* The row's sums are here, if there; 0: some block of it gave up.  number: of this block's rows. */
LL_FN int norm_row(const imx_ll_args &args, int64_t row, unsigned number, const char *sums,
                   int there)
{
    told *told = &all_told[number & 1];
    const uint32_t parity = number >> 1 & 1;
    float inverse;
    expect(&told->squares_here, segments_of(args) * (int)sizeof *told->squares);
    if (args.norm.quant == IMBREX_PER_ROW)
        expect(&told->largest_here,
               ((int)args.norm.n + GROUP_COLS - 1) / GROUP_COLS * (int)sizeof *told->largest);
    await_gamma();
    there = __syncthreads_and(there);
    tell_squares(args, sums, told, !there);
    await(&told->squares_here, parity);
    if (!take_squares(args, told, &inverse))
        return 0;
    store_columns(args, row, sums, told, parity, inverse);
    __syncthreads(); /* before another row comes to the same place */
    return 1;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

LL_FN const char *gamma_at(const imx_ll_args &args)
{
    return (const char *)args.norm.gamma + first_piece() * piece_bytes(args);
}

/* Before the kernel ahead has ended, which may have made it: none of it is read. */
LL_FN void fetch_gamma(const imx_ll_args &args)
{
    enum { SECTOR = 32 };
    for (int i = (int)threadIdx.x * SECTOR; i < own_columns(args) * ELEMENT;
         i += (int)blockDim.x * SECTOR)
        asm volatile("prefetch.global.L2 [%0];" : : "l"(gamma_at(args) + i));
}

/* While the first parts are under way. */
LL_FN void load_gamma(const imx_ll_args &args)
{
    const char *gamma = gamma_at(args);
    char *to = (char *)own_gamma(args);
    int bytes = own_columns(args) * ELEMENT;
    bool whole = imx_vector_aligned(gamma) && bytes % 16 == 0;
    for (int i = (int)threadIdx.x * 16; i < bytes && whole; i += (int)blockDim.x * 16)
        copy_async((uint32_t)__cvta_generic_to_shared(to + i), gamma + i, 16);
    for (int i = (int)threadIdx.x * 2; i < bytes && !whole; i += (int)blockDim.x * 2)
        *(uint16_t *)(to + i) = *(const volatile uint16_t *)(gamma + i);
}

/* Columns that a row does not have are 0 and stay it, of gamma, too. */
LL_FN void clear_rooms(const imx_ll_args &args)
{
    int bytes = own_pieces(args) * piece_bytes(args);
    for (int i = own_columns(args) * ELEMENT + (int)threadIdx.x * 2; i < bytes;
         i += (int)blockDim.x * 2) {
#pragma unroll
        for (int turn = 0; turn <= ROOMS; turn++)
            *(uint16_t *)(room_of(args, turn) + i) = 0;
    }
}

/* This rank's share of a row's sums; then, in two shots, the others'; 0: gave up. */
LL_FN int add_row(const imx_ll_args &args, const imbrexd_watch &watch, int64_t row, uint64_t epoch,
                  char *to)
{
    int from = first_piece(), there = 1;
    for (int p = from; p < from + own_pieces(args) && there; p++)
        there = add_piece(args, watch, piece_of(args, row, p), epoch, to);
    return there;
}

LL_FN int take_row(const imx_ll_args &args, const imbrexd_watch &watch, int64_t row, uint64_t epoch,
                   char *to)
{
    int from = first_piece(), there = 1;
    for (int p = from; p < from + own_pieces(args) && there && IMX_TWO_SHOTS; p++)
        there = take_piece(args, watch, piece_of(args, row, p), epoch, to);
    return there;
}

LL_FN void exchange(const imx_ll_args &args, const imbrexd_watch &watch)
{
    int64_t first = first_row(), step = rows_apart();
    int from = first_piece(), to = from + own_pieces(args);
    uint64_t *at = &args.uses[blockIdx.x];
    uint64_t epoch = *(volatile uint64_t *)at + 1;
    for (int64_t row = first; row < args.m; row += step)
        for (int p = from; p < to; p++)
            send_piece(args, piece_of(args, row, p), epoch);
    if (args.norm.rms)
        load_gamma(args);
    __syncthreads(); /* all threads have read the epoch */
    if (threadIdx.x == 0)
        *(volatile uint64_t *)at = epoch;
    int there = 1;
    unsigned number = 0;
    int64_t adds = first; /* the next row to be added */
#pragma unroll 1
    for (int64_t row = first; row < args.m; row += step) {
        int turn = number & 1;
        char *sums = room_of(args, turn % ROOMS);
        for (; there && adds < args.m && adds < row + ROOMS * step; adds += step)
            there = add_row(args, watch, adds, epoch, adds == row ? sums : room_of(args, turn ^ 1));
        if (IMX_TWO_SHOTS) /* who misses a rank's part says so before others miss what it is for */
            there = __syncthreads_and(there);
        there = there && take_row(args, watch, row, epoch, sums);
        if (!norm_row(args, row, number++, sums, there))
            return;
    }
}

extern "C" __global__ void __launch_bounds__(IMX_THREADS, 1)
    imx_ll_rows(const __grid_constant__ imx_ll_args args,
                const __grid_constant__ imbrexd_watch watch)
{
    clear_rooms(args);
    if (args.norm.rms)
        fetch_gamma(args);
    meet(); /* all blocks of a row have begun */
    bool is_short = args.most <= SHORT;
    if (is_short)
        imx_grid_let_go();
    imx_grid_wait();
    if (!is_short)
        imx_grid_let_go();
    imx_trace_open();
    exchange(args, watch);
    imx_trace_close();
}
