/* sm80.cu - the ll kernel on NVIDIA GPUs.
 *
 *     IMX_RANKS   ranks of the team        IMX_LINES   1: lines, 0: words
 *     IMX_THREADS of a block, at most  IMX_REDUCES 1: adds, 0: gathers
 *     IMX_DTYPE   of what is added     IMX_FANS    with IMX_REDUCES: in two shots
 *
 * A thread stores its unit of this rank's shard at all peers, then looks at the same unit of every
 * peer's shard here until it has come, and puts it into its place, or adds it up: one way between
 * GPUs, and no block waits for another.  In two shots it stores a unit of each peer's shard at that
 * peer, adds up the same unit of its own shard, stores the sum at all peers, and looks for theirs:
 * a block waits for the peers' blocks of its own number, which wait for earlier ones of nobody.
 */
#include "../grid.cuh"
#include "sm80_sums.cuh"

/* Of rank's shard, from the first byte of all: of its rows, or, in two shots, of what it adds. */
LL_FN int64_t first_byte(const imx_ll_args &args, int rank)
{
#ifdef IMX_FANS
    return imx_ll_first(IMX_LINES, args.m * args.row_bytes, IMX_RANKS, rank);
#else
    return imx_team_row(args.m, IMX_RANKS, rank) * args.row_bytes;
#endif
}

LL_FN int64_t shard_bytes(const imx_ll_args &args, int rank)
{
    return first_byte(args, rank + 1) - first_byte(args, rank);
}

/* What rank sends to this one, of rows or of parts. */
LL_FN int64_t sent_bytes(const imx_ll_args &args, int rank)
{
#ifdef IMX_FANS
    return shard_bytes(args, args.team.rank);
#else
    return IMX_REDUCES ? args.most : shard_bytes(args, rank);
#endif
}

/* ---- what comes ------------------------------------------------------------------------------ */

/* Whether the shard of number p has a unit i. */
template <stage S, typename At> LL_FN bool comes(const imx_ll_args &args, int p, At i)
{
    if (p >= IMX_RANKS || sender<S>(args, p) == args.team.rank)
        return false;
    int from = sender<S>(args, p);
    return i <
           imx_ll_units(IMX_LINES, S == SUMS ? shard_bytes(args, from) : sent_bytes(args, from));
}

template <stage S, typename At>
LL_FN const imx_ll_unit *arrival(const imx_ll_args &args, int p, At i, uint64_t epoch)
{
    int from = sender<S>(args, p), here = args.team.rank;
    return (S == SUMS ? imx_ll_sum(&args, here, from, epoch)
                      : imx_ll_part(&args, here, from, epoch)) +
           i;
}

/* Units i of all peers' rows or sums, each to its place; 0: gave up. */
template <stage S>
LL_FN int receive(const imx_ll_args &args, const imbrexd_watch &watch, int64_t i, uint64_t epoch)
{
    imx_ll_unit unit[AT_ONCE];
#pragma unroll 1
    for (int first = 1; first < IMX_RANKS; first += AT_ONCE) {
        if (!take<S>(args, watch, i, epoch, first, unit))
            return 0;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (!comes<S>(args, first + j, i))
                continue;
            int from = sender<S>(args, first + j);
            store_data((char *)args.to + first_byte(args, from), shard_bytes(args, from), i,
                       unpack(unit[j]));
        }
    }
    return 1;
}

#if IMX_REDUCES

/* *to = unit i, of those that begin at byte `first` of the matrix and have `bytes`, of all ranks,
 * added in their order; 0: gave up. */
LL_FN int add_up(const imx_ll_args &args, const imbrexd_watch &watch, int64_t i, uint64_t epoch,
                 int64_t first, int64_t bytes, imx_ll_unit *to)
{
    const char *residual = args.residual ? (const char *)args.residual + first : NULL;
    int64_t column = args.bias ? (first + data_at(i)) % args.row_bytes / (IMX_IS_F32 ? 4 : 2) : 0;
    if (!sum_up(args, watch, i, epoch, (const char *)args.from + first, residual, bytes, column,
                to))
        return 0;
    store_data((char *)args.to + first, bytes, i, *to);
    return 1;
}

#endif

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Unit i of what all peers get. */
LL_FN void send(const imx_ll_args &args, int64_t i, uint64_t epoch, imx_ll_unit data, bool sums)
{
    imx_ll_unit unit = pack(i, data, epoch);
#pragma unroll TO_AT_ONCE
    for (int p = 1; p < IMX_RANKS; p++)
        store_unit((sums ? imx_ll_sum : imx_ll_part)(&args, peer(args, p), args.team.rank, epoch) +
                       i,
                   unit);
}

#ifdef IMX_FANS

/* Unit i of each peer's shard to that peer. */
LL_FN void send_parts(const imx_ll_args &args, int64_t i, uint64_t epoch)
{
#pragma unroll TO_AT_ONCE
    for (int p = 1; p < IMX_RANKS; p++) {
        int to = peer(args, p);
        int64_t bytes = shard_bytes(args, to);
        imx_ll_unit data = load_data((const char *)args.from + first_byte(args, to), bytes, i);
        __syncwarp();
        if (i < imx_ll_units(IMX_LINES, bytes))
            store_unit(imx_ll_part(&args, to, args.team.rank, epoch) + i, pack(i, data, epoch));
    }
}

/* Unit i of own rows' sum to all; 0: gave up. */
LL_FN int fan_out(const imx_ll_args &args, const imbrexd_watch &watch, int64_t i, uint64_t epoch)
{
    int64_t bytes = shard_bytes(args, args.team.rank);
    imx_ll_unit sum;
    int there = add_up(args, watch, i, epoch, first_byte(args, args.team.rank), bytes, &sum);
    if (!__all_sync(0xffffffffu, there)) /* which all lanes come to */
        return 0;
    if (i < imx_ll_units(IMX_LINES, bytes))
        send(args, i, epoch, sum, true);
    return 1;
}

#endif

/* The first unit and the epoch are under way together.  Whole warps go round: in lines their
 * threads store, load and vote together. */
LL_FN void exchange(const imx_ll_args &args, const imbrexd_watch &watch)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x, lane = threadIdx.x % 32;
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t most = imx_ll_units(IMX_LINES, args.most);
    uint64_t *at = &args.uses[blockIdx.x];
#ifdef IMX_FANS
    uint64_t epoch = *(volatile uint64_t *)at + 1;
    for (int64_t i = first; i - lane < most; i += step)
        send_parts(args, i, epoch);
#else
    int64_t bytes = sent_bytes(args, args.team.rank), units = imx_ll_units(IMX_LINES, bytes);
    imx_ll_unit data = load_data((const char *)args.from, bytes, first);
    uint64_t epoch = *(volatile uint64_t *)at + 1;

    for (int64_t i = first; i - lane < units; i += step) {
        if (i != first)
            data = load_data((const char *)args.from, bytes, i);
        __syncwarp();
        if (i >= units)
            continue;
        send(args, i, epoch, data, false);
        if (!IMX_REDUCES)
            store_data((char *)args.to + first_byte(args, args.team.rank), bytes, i, data);
    }
#endif
    __syncthreads(); /* all threads have read the epoch */
    if (threadIdx.x == 0)
        *(volatile uint64_t *)at = epoch;
#if IMX_REDUCES
    for (int64_t i = first; i - lane < most; i += step) {
        __syncwarp();
#ifdef IMX_FANS
        int there = fan_out(args, watch, i, epoch);
#else
        imx_ll_unit sum;
        int there = add_up(args, watch, i, epoch, 0, args.most, &sum);
#endif
        if (!__all_sync(0xffffffffu, there))
            return;
    }
#endif
#if !IMX_REDUCES || defined(IMX_FANS)
    for (int64_t i = first; i - lane < most; i += step) {
        __syncwarp();
        if (!__all_sync(0xffffffffu, receive < IMX_REDUCES ? SUMS : ROWS > (args, watch, i, epoch)))
            return;
    }
#endif
}

extern "C" __global__ void __launch_bounds__(IMX_THREADS, 1)
    imx_ll(const __grid_constant__ imx_ll_args args, const __grid_constant__ imbrexd_watch watch)
{
    /* What the kernel after does meanwhile, reading ahead in b, holds up a shard of many bytes; one
     * of few is over before it would come. */
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
