/* sm80.cu - the push kernel on NVIDIA GPUs.
 *
 *     IMX_DTYPE   imbrex_dtype          IMX_RANKS     ranks of the team
 *     IMX_HOW     imx_push_how          IMX_WORKERS   threads of a block but for its last warp
 *     IMX_NORMS   rows that are gathered are normed
 *
 * Lines are in sm80_lines.cuh, rows that are normed in sm80_norms.cuh.  In chunks one half of a
 * block's workers sends and the other one receives, so that both go on at once.  The last warp
 * keeps the books: credits, and the epoch of the next run.
 */
#include "../grid.cuh"
#include "../trace.cuh"
#include "../vector.cuh"
#include "args.h"

#define PUSH_FN static __device__ __forceinline__

/* Of what is sent each owner gets its own rows; and these are added up there. */
#define TO_OWNERS (IMX_HOW != 0 /* IMX_PUSH_GATHERS */)
#define ADDS      (IMX_HOW == 1 /* IMX_PUSH_REDUCES */)
#ifdef IMX_NORMS
#define BOOKS 0 /* threads for the books: norms need the registers, and receivers wait at first */
#else
#define BOOKS 32
#endif

enum { SENDERS = IMX_WORKERS / 2 };
enum { AT_ONCE = 4 }; /* units of a thread, or ranks, that are under way */

/* Of rank's rows, from the first of all. */
PUSH_FN int64_t first_byte(const imx_push_args &args, int rank)
{
    return imx_team_row(args.m, IMX_RANKS, rank) * args.row_bytes;
}

PUSH_FN int64_t shard_bytes(const imx_push_args &args, int rank)
{
    return first_byte(args, rank + 1) - first_byte(args, rank);
}

/* What `from` sends to `to`: the sender's own rows, or the receiver's. */
PUSH_FN int64_t sent_bytes(const imx_push_args &args, int from, int to)
{
    return shard_bytes(args, TO_OWNERS ? to : from);
}

PUSH_FN const char *sent(const imx_push_args &args, int to)
{
    return (const char *)args.from + (TO_OWNERS ? first_byte(args, to) : 0);
}

/* i = 1, 2, ...: peers in the order in which they need this rank's rows, or make theirs. */
PUSH_FN int peer(const imx_push_args &args, int i)
{
    int r = args.team.rank + (TO_OWNERS ? i : IMX_RANKS - i);
    return r < IMX_RANKS ? r : r - IMX_RANKS;
}

PUSH_FN int wait_for(const imx_push_args &args, const imbrexd_watch &watch, const uint64_t *signal,
                     uint64_t value, int what, int rank, int index)
{
    imbrexd_wait_point point = { args.plan, what, rank, index };
    return imbrexd_signal_wait(&watch, signal, value, point);
}

enum { SHARD = ADDS ? IMX_POINT_PART : IMX_POINT_CHUNK };

PUSH_FN bool has_peer(const imx_push_args &args, int lane)
{
    return lane < IMX_RANKS && lane != args.team.rank;
}

/* A lane a peer: the credit that it has given by now. */
PUSH_FN uint64_t look_credit(const imx_push_args &args)
{
    int lane = (int)threadIdx.x % 32;
    if (!has_peer(args, lane))
        return UINT64_MAX;
    return imbrexd_load_acquire(imx_team_credit(&args.team, args.team.rank, lane));
}

/* One warp, which has looked: until all peers have given the credit; 0: give up. */
PUSH_FN int wait_credits(const imx_push_args &args, const imbrexd_watch &watch, uint64_t epoch,
                         uint64_t seen)
{
    int lane = (int)threadIdx.x % 32, there = 1;
    uint64_t want = imx_push_credit(&args, epoch);
    if (seen < want)
        there = wait_for(args, watch, imx_team_credit(&args.team, args.team.rank, lane), want,
                         IMX_POINT_CREDIT, lane, -1);
    there = __all_sync(0xffffffffu, there);
    __syncwarp(); /* what a lane saw comes before what others do from here on */
    return there;
}

#if ADDS

/* Whether sums are more than the ranks'.  One branch for all that may be added: with several of
 * them the compiler keeps fewer loads of parts under way. */
PUSH_FN bool adds_more(const imx_push_args &args)
{
    return args.bias || args.residual;
}

/* sum[0], sum[apart], ... of count += the bias of the elements from byte `at` of the shard on. */
template <int apart, int count>
PUSH_FN void add_bias(const imx_push_args &args, int64_t at, float (&sum)[count])
{
    const int element = IMX_IS_F32 ? 4 : 2;
    if (!args.bias)
        return;
    int64_t column = at % args.row_bytes / element, columns = args.row_bytes / element;
#pragma unroll
    for (int i = 0; i < count; i += apart) {
        sum[i] += imx_vector_get(IMX_DTYPE, args.bias, column);
        column = column + 1 < columns ? column + 1 : 0;
    }
}

/* The same of the residual, of which `left` bytes are there. */
template <int apart, int count>
PUSH_FN void add_residual(const imx_push_args &args, int64_t at, int64_t left, float (&sum)[count])
{
    if (!args.residual)
        return;
#pragma unroll
    for (int i = 0; i < count; i += apart) {
        if (i / apart * imx_vector_bytes(IMX_DTYPE) < left)
            sum[i] += imx_vector_get(IMX_DTYPE, (const char *)args.residual + at, i / apart);
    }
}

#endif

#include "sm80_lines.cuh"

/* ---- chunks ---------------------------------------------------------------------------------- */

/* As it is in memory now: another agent may have written it while this kernel ran. */
template <typename unit> PUSH_FN unit load_unit(const char *at)
{
    return *(const volatile unit *)at;
}

template <> __device__ __forceinline__ uint4 load_unit<uint4>(const char *at)
{
    return imx_vector_load(at);
}

/* AT_ONCE units from number i on, every threads-th. */
template <typename unit>
PUSH_FN void load_units(unit *v, const char *from, uint32_t i, uint32_t units, uint32_t threads)
{
#pragma unroll
    for (uint32_t j = 0; j < AT_ONCE; j++) {
        if (i + j * threads < units)
            v[j] = load_unit<unit>(from + (i + j * threads) * (int64_t)sizeof(unit));
    }
}

template <typename unit>
PUSH_FN void store_units(char *to, const unit *v, uint32_t i, uint32_t units, uint32_t threads)
{
#pragma unroll
    for (uint32_t j = 0; j < AT_ONCE; j++) {
        if (i + j * threads < units)
            *(unit *)(to + (i + j * threads) * (int64_t)sizeof(unit)) = v[j];
    }
}

/* By one of SENDERS threads, or as many receivers. */
template <typename unit>
PUSH_FN void copy(char *to, const char *from, int64_t bytes, uint32_t thread)
{
    uint32_t units = (uint32_t)(bytes / (int64_t)sizeof(unit));
    for (uint32_t i = thread; i < units; i += AT_ONCE * SENDERS) {
        unit v[AT_ONCE];
        load_units(v, from, i, units, SENDERS);
        store_units(to, v, i, units, SENDERS);
    }
}

/* Of chunk q of a shard of `bytes`; <= 0: there is none. */
PUSH_FN int64_t chunk_bytes(const imx_push_args &args, int64_t bytes, int64_t q)
{
    int64_t left = bytes - q * args.chunk_bytes;
    return left < args.chunk_bytes ? left : args.chunk_bytes;
}

/* Where rank's shard lies at its holder. */
PUSH_FN char *place(const imx_push_args &args, int holder, int rank)
{
    return imx_team_data(&args.team, holder) +
           (TO_OWNERS ? rank * args.slot_bytes : first_byte(args, rank));
}

/* Parts of chunk q, one owner after the other; or this rank's rows, read once, to all peers and to
 * their place here. */
template <typename unit>
PUSH_FN void send_chunk(const imx_push_args &args, int64_t q, uint32_t thread)
{
    int64_t at = q * args.chunk_bytes;
#if TO_OWNERS
#pragma unroll 1
    for (int i = 1; i < IMX_RANKS; i++) {
        int to = peer(args, i);
        int64_t bytes = chunk_bytes(args, shard_bytes(args, to), q);
        if (bytes > 0)
            copy<unit>(place(args, to, args.team.rank) + at, sent(args, to) + at, bytes, thread);
    }
#else
    int64_t bytes = chunk_bytes(args, shard_bytes(args, args.team.rank), q);
    uint32_t units = bytes > 0 ? (uint32_t)(bytes / (int64_t)sizeof(unit)) : 0;
    int64_t own = first_byte(args, args.team.rank) + at;
    for (uint32_t i = thread; i < units; i += AT_ONCE * SENDERS) {
        unit v[AT_ONCE];
        load_units(v, (const char *)args.from + at, i, units, SENDERS);
#pragma unroll
        for (int p = 1; p < IMX_RANKS; p++)
            store_units(imx_team_data(&args.team, peer(args, p)) + own, v, i, units, SENDERS);
#ifndef IMX_NORMS
        store_units((char *)args.to + own, v, i, units, SENDERS);
#endif
    }
#endif
}

/* One thread for all posts of a peer: its fence covers what the barrier brought together, and the
 * other warps are at the next chunk meanwhile. */
template <typename unit>
PUSH_FN void send_and_post(const imx_push_args &args, uint64_t epoch, int64_t q, uint32_t thread)
{
    const imx_team &team = args.team;
    int lane = (int)thread;
    imx_trace_begin(IMX_TRACE_PUSH);
    send_chunk<unit>(args, q, thread);
    asm volatile("bar.sync 1, %0;" : : "r"((int)SENDERS) : "memory");
    if (has_peer(args, lane) && chunk_bytes(args, sent_bytes(args, team.rank, lane), q) > 0)
        imbrexd_signal_post(imx_team_signal(&team, lane, (int64_t)team.rank * args.chunks + q),
                            epoch);
    imx_trace_end(IMX_TRACE_PUSH, -1, (int)q);
}

/* One warp: until chunk q of all peers is here; 0: give up. */
PUSH_FN int wait_chunk(const imx_push_args &args, const imbrexd_watch &watch, int64_t q,
                       uint64_t epoch)
{
    const imx_team &team = args.team;
    int lane = (int)threadIdx.x % 32, there = 1;
    imx_trace_begin(IMX_TRACE_CHUNK);
    if (has_peer(args, lane) && chunk_bytes(args, sent_bytes(args, lane, team.rank), q) > 0)
        there = wait_for(args, watch,
                         imx_team_signal(&team, team.rank, (int64_t)lane * args.chunks + q), epoch,
                         SHARD, lane, (int)q);
    there = __all_sync(0xffffffffu, there);
    __syncwarp();
    imx_trace_end(IMX_TRACE_CHUNK, -1, (int)q);
    return there;
}

PUSH_FN const char *part(const imx_push_args &args, int rank, int64_t at)
{
    return (rank == args.team.rank ? sent(args, rank) : place(args, args.team.rank, rank)) + at;
}

#if ADDS

enum { SUMS_AT_ONCE = IMX_IS_F32 && IMX_RANKS > AT_ONCE ? 1 : 2, SUMS_APART = SENDERS * 16 };

/* 16 bytes of the sum, and others SUMS_APART further that begin before `end`: the loads of all are
 * under way together. */
PUSH_FN void add_vectors(const imx_push_args &args, int64_t at, int64_t end)
{
    float sum[SUMS_AT_ONCE][IMX_IS_F32 ? 4 : 8];
#pragma unroll 1
    for (int first = 0; first < IMX_RANKS; first += AT_ONCE) {
        uint4 v[SUMS_AT_ONCE][AT_ONCE];
#pragma unroll
        for (int i = 0; i < SUMS_AT_ONCE; i++) {
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (first + j < IMX_RANKS && at + i * SUMS_APART < end)
                    v[i][j] = imx_vector_load(part(args, first + j, at + i * SUMS_APART));
            }
        }
#pragma unroll
        for (int i = 0; i < SUMS_AT_ONCE; i++) {
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (first + j < IMX_RANKS)
                    imx_vector_add(IMX_DTYPE, sum[i], v[i][j], first + j == 0);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < SUMS_AT_ONCE; i++, at += SUMS_APART) {
        if (at >= end)
            return;
        if (adds_more(args)) {
            add_bias<1>(args, at, sum[i]);
            if (args.residual)
                imx_vector_add(IMX_DTYPE, sum[i],
                               imx_vector_load_any(IMX_DTYPE, (const char *)args.residual + at),
                               false);
        }
        *(uint4 *)((char *)args.to + at) = imx_vector_narrow(IMX_DTYPE, sum[i]);
    }
}

PUSH_FN void add_one(const imx_push_args &args, int64_t at)
{
    float sum[1] = { imx_vector_get(IMX_DTYPE, part(args, 0, at), 0) };
#pragma unroll 4
    for (int r = 1; r < IMX_RANKS; r++)
        sum[0] += imx_vector_get(IMX_DTYPE, part(args, r, at), 0);
    if (adds_more(args)) {
        add_bias<1>(args, at, sum);
        add_residual<1>(args, at, 16, sum);
    }
    imx_vector_put(IMX_DTYPE, (char *)args.to + at, 0, sum[0]);
}

/* Chunk q of this rank's rows. */
template <typename unit>
PUSH_FN void put_chunk(const imx_push_args &args, int64_t q, uint32_t thread)
{
    enum { IS_VECTOR = sizeof(unit) == sizeof(uint4), STEP = IS_VECTOR ? 16 : IMX_IS_F32 ? 4 : 2 };
    enum { AHEAD = SENDERS * STEP * (IS_VECTOR ? SUMS_AT_ONCE : 1) };
    int64_t first = q * args.chunk_bytes;
    int64_t bytes = chunk_bytes(args, shard_bytes(args, args.team.rank), q);
    for (int64_t at = (int64_t)thread * STEP; at < bytes; at += AHEAD) {
        if (IS_VECTOR)
            add_vectors(args, first + at, first + bytes);
        else
            add_one(args, first + at);
    }
}

#else

/* The chunks number q that come, and own ones that are not there yet. */
template <typename unit>
PUSH_FN void put_chunk(const imx_push_args &args, int64_t q, uint32_t thread)
{
    int64_t at = q * args.chunk_bytes;
#pragma unroll 1
    for (int i = TO_OWNERS ? 0 : 1; i < IMX_RANKS; i++) {
        int from = peer(args, i);
        int64_t bytes = chunk_bytes(args, sent_bytes(args, from, args.team.rank), q);
        if (bytes > 0)
            copy<unit>(put_at(args, from) + at, part(args, from, at), bytes, thread);
    }
}

#endif

template <typename unit>
PUSH_FN void by_chunks(const imx_push_args &args, const imbrexd_watch &watch, uint64_t epoch)
{
    if (threadIdx.x < SENDERS) {
        for (int64_t q = blockIdx.x; q * args.chunk_bytes < args.most; q += gridDim.x)
            send_and_post<unit>(args, epoch, q, threadIdx.x);
        return;
    }
    for (int64_t q = blockIdx.x; q * args.chunk_bytes < args.most; q += gridDim.x) {
        if (!wait_chunk(args, watch, q, epoch))
            return;
        imx_trace_begin(IMX_TRACE_FOLD);
        put_chunk<unit>(args, q, threadIdx.x - SENDERS);
        imx_trace_end(IMX_TRACE_FOLD, args.team.rank, (int)q);
    }
}

#ifdef IMX_NORMS
#include "sm80_norms.cuh"
#endif

/* ---- the kernel ------------------------------------------------------------------------------ */

/* One warp: what the run before read may be written again. */
PUSH_FN void give_credits(const imx_push_args &args, uint64_t epoch)
{
    int lane = (int)threadIdx.x % 32;
    if (blockIdx.x == 0 && has_peer(args, lane))
        imbrexd_signal_post(imx_team_credit(&args.team, lane, args.team.rank), epoch - 1);
}

/* The last warp: in chunks the peers wait for its credits before they begin, in lines nobody waits
 * for them now, so they do not hold up the block. */
PUSH_FN void keep_books(const imx_push_args &args, uint64_t epoch)
{
    if (args.lines)
        give_credits(args, epoch);
    if (threadIdx.x == blockDim.x - 32 && imbrexd_counter_last(args.ended, gridDim.x))
        *(volatile uint64_t *)args.epoch = epoch;
}

/* The words, the epoch and the credits are under way together: each takes as long as the others. */
PUSH_FN void push(const imx_push_args &args, const imbrexd_watch &watch)
{
    bool works = threadIdx.x < IMX_WORKERS, keeps_books = threadIdx.x >= blockDim.x - 32;
    uint64_t word[WORDS];
    if (args.lines && works)
        load_words(args, (int64_t)blockIdx.x * IMX_WORKERS + threadIdx.x, 0, word);
    uint64_t epoch = *(const volatile uint64_t *)args.epoch + 1;
    uint64_t credit = works ? look_credit(args) : UINT64_MAX;
    if (keeps_books && !args.lines)
        give_credits(args, epoch);

    /* After the barrier the block knows the epoch, and in chunks it has all credits. */
    int there = args.lines || wait_credits(args, watch, epoch, credit);
    if (!__syncthreads_and(there))
        return;
    if (keeps_books)
        keep_books(args, epoch);
    if (!works)
        return;
    if (args.lines) {
        if (wait_credits(args, watch, epoch, credit))
            by_lines(args, watch, epoch, word);
        return;
    }
#ifdef IMX_NORMS
    by_normed_chunks(args, watch, epoch);
#else
    uintptr_t bits = (uintptr_t)args.from | (uintptr_t)args.to | (uintptr_t)args.row_bytes;
    if ((bits & 15) == 0)
        by_chunks<uint4>(args, watch, epoch);
    else if ((bits & 3) == 0)
        by_chunks<uint32_t>(args, watch, epoch);
    else
        by_chunks<uint16_t>(args, watch, epoch);
#endif
}

extern "C" __global__ void __launch_bounds__(IMX_WORKERS + BOOKS, 1)
    imx_push(const __grid_constant__ imx_push_args args,
             const __grid_constant__ imbrexd_watch watch)
{
    imx_grid_wait();
    imx_grid_let_go();
    imx_trace_open();
    push(args, watch);
    imx_trace_close();
}
