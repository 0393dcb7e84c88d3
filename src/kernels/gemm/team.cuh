/* team.cuh - what the GEMM kernel does on GPUs when it reaches its peers itself: the epoch of its
 * run, pushes of a, and the end of a run; see args.h. */
#ifndef IMX_TEAM_CUH
#define IMX_TEAM_CUH

#include "../end.cuh"
#include "../grid.cuh"
#include "../trace.cuh"
#include "args.h"

#define IMX_TEAM_GPU static __device__ __forceinline__

/* The thread, worked out where it stands: a volatile read that the compiler does not move, where it
 * has no register to keep it in. */
IMX_TEAM_GPU uint32_t thread_here(void)
{
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* Clock cycles of this multiprocessor, which wrap. */
IMX_TEAM_GPU uint32_t clock_here(void)
{
    uint32_t now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now) : : "memory");
    return now;
}

/* The epoch of this run. */
IMX_TEAM_GPU uint64_t team_use(const imx_gemm_args &args)
{
    return *(const volatile uint64_t *)args.epoch + (uint64_t)args.ahead;
}

/* One thread: until the peer has read the previous epoch of its buffer; 0: give up. */
IMX_TEAM_GPU int team_credit(const imx_gemm_args &args, const imbrexd_watch *watch, int rank)
{
    if (!args.ahead || rank == args.team.rank)
        return 1;
    imbrexd_wait_point point = { args.plan, IMX_POINT_CREDIT, rank, -1 };
    return imbrexd_signal_wait(watch, imx_team_credit(&args.team, args.team.rank, rank),
                               team_use(args) - 1, point);
}

/* One warp: the same for all peers at once. */
IMX_TEAM_GPU int team_credits(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    int lane = (int)threadIdx.x % 32;
    imx_trace_begin(IMX_TRACE_CREDIT);
    int there = lane >= args.team.size || team_credit(args, watch, lane);
    there = __all_sync(0xffffffffu, there);
    imx_trace_end(IMX_TRACE_CREDIT, -1, -1);
    __syncwarp(); /* what a lane saw comes before what others do from here on */
    return there;
}

/* The signal of the rank's part of a chunk of own rows. */
IMX_TEAM_GPU const uint64_t *team_part_signal(const imx_gemm_args &args, int rank, int number)
{
    return imx_team_signal(&args.team, args.team.rank, rank * args.schedule.chunks + number);
}

/* One thread: until that part is in its slot here; 0: give up. */
IMX_TEAM_GPU int team_part(const imx_gemm_args &args, const imbrexd_watch *watch, int rank,
                           int number)
{
    if (rank == args.team.rank)
        return 1;
    imbrexd_wait_point point = { args.plan, IMX_POINT_PART, rank, number };
    return imbrexd_signal_wait(watch, team_part_signal(args, rank, number), team_use(args), point);
}

/* One warp: the same of all peers' parts at once. */
IMX_TEAM_GPU int team_parts(const imx_gemm_args &args, const imbrexd_watch *watch, int chunk)
{
    int number = chunk - args.team.rank * args.schedule.chunks;
    int lane = (int)threadIdx.x % 32;
    imx_trace_begin(IMX_TRACE_PART);
    int there = lane >= args.team.size || team_part(args, watch, lane, number);
    there = __all_sync(0xffffffffu, there);
    __syncwarp();
    imx_trace_end(IMX_TRACE_PART, -1, number);
    return there;
}

/* One thread, the last to count a chunk of the owner's rows: this rank's part of it is there. */
IMX_TEAM_GPU void team_post_owner(const imx_gemm_args &args, int owner, int chunk)
{
    int chunks = args.schedule.chunks;
    imbrexd_signal_post(
        imx_team_signal(&args.team, owner, args.team.rank * chunks + chunk - owner * chunks),
        team_use(args));
}

/* The same where the chunk stays here: tells all who read it, this rank among them.  One fence for
 * all posts, which would else wait for each other. */
IMX_TEAM_GPU void team_post_all(const imx_gemm_args &args, int chunk)
{
    const imx_team &team = args.team;
    uint64_t epoch = team_use(args);
    imbrexd_fence_post();
    for (int r = 0; r < team.size; r++)
        *(volatile uint64_t *)imx_team_signal(&team, r, team.rank * args.schedule.chunks + chunk) =
            epoch;
}

/* One warp: until every rank's tiles of a chunk of columns stand; 0: give up. */
IMX_TEAM_GPU int team_columns(const imx_gemm_args &args, const imbrexd_watch *watch, int chunk)
{
    int lane = (int)threadIdx.x % 32, there = 1;
    imx_trace_begin(IMX_TRACE_PART);
    if (lane < args.team.size) {
        imbrexd_wait_point point = { args.plan, IMX_POINT_PART, lane, chunk };
        there =
            imbrexd_signal_wait(watch, team_part_signal(args, lane, chunk), team_use(args), point);
    }
    there = __all_sync(0xffffffffu, there);
    __syncwarp(); /* what a lane saw comes before what others do from here on */
    imx_trace_end(IMX_TRACE_PART, -1, chunk);
    return there;
}

/* Ranks, as divisions by them are cheapest: where they are known when the kernel is made. */
IMX_TEAM_GPU unsigned team_ranks(const imx_gemm_args &args)
{
#ifdef IMX_PARTS
    return IMX_PARTS;
#else
    return (unsigned)args.team.size;
#endif
}

/* The first of a rank's rows, where its tiles span ranks: of few rows. */
IMX_TEAM_GPU int team_row(const imx_gemm_args &args, int rank)
{
    return (int)((unsigned)rank * (unsigned)args.schedule.m / team_ranks(args));
}

/* Whose row it is, there. */
IMX_TEAM_GPU int team_owner(const imx_gemm_args &args, int row)
{
    return (int)((((unsigned)row + 1) * team_ranks(args) - 1) / (unsigned)args.schedule.m);
}

/* One lane: until these 16 bytes, which tell by themselves that they have come (vector.cuh), are
 * here; 0: give up. */
IMX_TEAM_GPU int team_unit(const imbrexd_watch *watch, const void *unit, imbrexd_wait_point point)
{
    const uint64_t *words = (const uint64_t *)unit;
    return imbrexd_signal_wait(watch, &words[0], 1, point) &&
           imbrexd_signal_wait(watch, &words[1], 1, point);
}

/* One thread: until the chunk is here; 0: give up. */
IMX_TEAM_GPU int team_chunk(const imx_gemm_args &args, const imbrexd_watch *watch, int chunk)
{
    int rank = chunk / args.schedule.chunks;
    imbrexd_wait_point point = { args.plan, IMX_POINT_CHUNK, rank,
                                 chunk - rank * args.schedule.chunks };
    imx_trace_begin(IMX_TRACE_CHUNK);
    int there = imbrexd_signal_wait(watch, &args.ready[chunk], team_use(args), point);
    imx_trace_end(IMX_TRACE_CHUNK, point.rank, point.index);
    return there;
}

/* One thread: the same for all ranks' rows, where those of each are one; 0: give up. */
IMX_TEAM_GPU int team_chunks(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    int there = 1;
    for (int r = 0; r < args.team.size && there; r++)
        there = team_chunk(args, watch, r);
    return there;
}

/* One warp a block, when imx_end_run may be called: the last block ends the run. */
IMX_TEAM_GPU void team_end(const imx_gemm_args &args)
{
    if (args.ended)
        imx_end_run(&args.team, args.epoch, team_use(args), args.ended);
}

/* ---- pushes ---------------------------------------------------------------------------------- */

enum { PUSH_AT_ONCE = 2, PUSH_UNIT = 16, PUSH_BURST = PUSH_AT_ONCE * 32 * PUSH_UNIT };

/* When a warp, or a thread, may push again, in clock cycles: the next burst is so far from the last
 * one. */
typedef struct push_pace {
    uint32_t due, apart;
} push_pace;

/* cycles: that all who push take together for 64 KB, or more; each of them sends a burst of so many
 * bytes at a time. */
IMX_TEAM_GPU push_pace push_pace_begin(int cycles, uint32_t pushers, uint64_t burst)
{
    push_pace pace = { 0, (uint32_t)(pushers * burst * (uint32_t)cycles >> 16) };
    if (pace.apart)
        pace.due = clock_here();
    return pace;
}

/* Who has been held up does not make up for it: that would be the burst that this is against. */
IMX_TEAM_GPU void push_keep_pace(push_pace *pace)
{
    if (!pace->apart)
        return;
    while ((int32_t)(pace->due - clock_here()) > 0)
        __nanosleep(100);
    pace->due += pace->apart;
    if ((int32_t)(pace->due - clock_here()) <= 0)
        pace->due = clock_here();
}

/* This warp's share of the units: every so-many-th line of 32. */
IMX_TEAM_GPU void push_units(char *to, const char *from, uint32_t units, uint32_t warp,
                             uint32_t warps, push_pace *pace)
{
    for (uint32_t at = warp * 32 + threadIdx.x % 32; at < units; at += PUSH_AT_ONCE * 32 * warps) {
        uint4 v[PUSH_AT_ONCE];
        push_keep_pace(pace);
#pragma unroll
        for (uint32_t j = 0; j < PUSH_AT_ONCE; j++) {
            uint32_t i = at + j * 32 * warps;
            if (i < units)
                v[j] = imx_vector_load(from + (int64_t)i * PUSH_UNIT);
        }
#pragma unroll
        for (uint32_t j = 0; j < PUSH_AT_ONCE; j++) {
            uint32_t i = at + j * 32 * warps;
            if (i < units)
                *(uint4 *)(to + (int64_t)i * PUSH_UNIT) = v[j];
        }
    }
}

/* The same where rows are not whole units. */
IMX_TEAM_GPU void push_halves(char *to, const char *from, int64_t halves, uint32_t warp,
                              uint32_t warps)
{
    for (int64_t i = warp * 32 + threadIdx.x % 32; i < halves; i += (int64_t)warps * 32)
        *((uint16_t *)to + i) = *((const uint16_t *)from + i);
}

/* Which warps of every block push. */
typedef struct push_warps {
    uint32_t first, count;
} push_warps;

IMX_TEAM_GPU push_warps push_by(uint32_t first, uint32_t count)
{
    push_warps warps = { first, count };
    return warps;
}

/* This warp's number among those of all blocks, and how many there are. */
IMX_TEAM_GPU uint32_t push_number(push_warps warps)
{
    return blockIdx.x * warps.count + thread_here() / 32 - warps.first;
}

IMX_TEAM_GPU uint32_t push_count(push_warps warps)
{
    return gridDim.x * warps.count;
}

/* Whether all of the block's warps that push say so.  If only some went on, they would wait for the
 * others in push_last. */
IMX_TEAM_GPU int push_agree(int mine, push_warps warps)
{
    int all;
    __syncwarp();
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "setp.ne.s32 p, %1, 0;\n\t"
                 "bar.red.and.pred p, 1, %2, p;\n\t"
                 "selp.s32 %0, 1, 0, p;\n\t}"
                 : "=r"(all)
                 : "r"(mine), "r"(warps.count * 32)
                 : "memory");
    return all;
}

/* Each of the block's warps that push, when it has stored its share: one thread tells for all of
 * them, and is told whether the block is the last of the grid. */
IMX_TEAM_GPU int push_last(uint32_t *counter, push_warps warps)
{
    __syncwarp();
    if (warps.count > 1)
        asm volatile("bar.sync 1, %0;" : : "r"(warps.count * 32) : "memory");
    if (thread_here() != warps.first * 32)
        return 0;
    imbrexd_fence_post(); /* the way to the peers does not lie within this GPU */
    return imbrexd_counter_last(counter, gridDim.x);
}

/* One of all blocks' warps that push: its share of these rows. */
IMX_TEAM_GPU void push_rows(const imx_gemm_args &args, int64_t row_bytes, int to, int64_t row,
                            int64_t rows, uint32_t number, uint32_t all, push_pace *pace)
{
    char *theirs = imx_team_data(&args.team, to) + (args.push_first + row) * row_bytes;
    const char *mine = (const char *)args.a + row * row_bytes;
    int64_t bytes = rows * row_bytes;
    if (((row_bytes | (int64_t)(uintptr_t)args.a) & (PUSH_UNIT - 1)) == 0)
        push_units(theirs, mine, (uint32_t)(bytes / PUSH_UNIT), number, all, pace);
    else
        push_halves(theirs, mine, bytes / 2, number, all);
#ifdef IMX_EIGHT
    int64_t scales = (int64_t)args.row_scales * sizeof(float);
    push_halves(imx_team_data(&args.team, to) + args.scales + (args.push_first + row) * scales,
                (const char *)args.scale_a + row * scales, rows * scales / 2, number, all);
#endif
}

/* One of all blocks' warps that push: its share of every chunk to every peer, the rank's before
 * first; with own = -1 the chunk that a rank's rows then are, though it be of none, also to this
 * rank.  Whoever brings the last share of a chunk posts its signal. */
IMX_TEAM_GPU void push_chunks(const imx_gemm_args &args, int64_t row_bytes, push_warps warps)
{
    const imx_team &team = args.team;
    int chunk_rows = args.schedule.chunk_rows, chunks = args.schedule.chunks;
    uint32_t number = push_number(warps), all = push_count(warps);
    push_pace pace = push_pace_begin(args.push_pace[0], all, PUSH_BURST);
    int to = team.rank, all_ranks = args.own < 0;
#ifdef IMX_SPANS
    imx_schedule_edges edges = imx_schedule_edges_of(&args.schedule, to);
    push_rows(args, row_bytes, to, 0, edges.head, number, all, &pace);
    push_rows(args, row_bytes, to, edges.tail, args.push_rows - edges.tail, number, all, &pace);
    if (push_last(&args.counters[to * chunks], warps))
        imbrexd_signal_post(imx_team_signal(&team, to, to * chunks), team_use(args));
#endif
#pragma unroll 1
    for (int peer = 1; peer < team.size + all_ranks; peer++) {
        to = to ? to - 1 : team.size - 1;
        if (peer == 2)
            pace = push_pace_begin(args.push_pace[1], all, PUSH_BURST);
        int64_t row = 0;
#pragma unroll 1
        for (int q = 0; row < args.push_rows || q < all_ranks; q++, row += chunk_rows) {
            int64_t left = args.push_rows - row;
            imx_trace_begin(IMX_TRACE_PUSH);
            push_rows(args, row_bytes, to, row, left < chunk_rows ? left : chunk_rows, number, all,
                      &pace);
            if (push_last(&args.counters[to * chunks + q], warps))
                imbrexd_signal_post(imx_team_signal(&team, to, team.rank * chunks + q),
                                    team_use(args));
            imx_trace_end(IMX_TRACE_PUSH, to, q);
        }
    }
}

/* One of the warps that push; 0: it gave up. */
IMX_TEAM_GPU int push(const imx_gemm_args &args, const imbrexd_watch *watch, int element,
                      push_warps warps)
{
    if (!push_agree(team_credits(args, watch), warps))
        return 0;
    push_chunks(args, args.k * element, warps);
    return 1;
}

#endif /* IMX_TEAM_CUH */
