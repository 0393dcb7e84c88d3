/* sm80_norms.cuh - the push kernel's rows that are normed as they come, and own ones: each half of
 * a block's workers is a crew.  Links are slower than memory, so that it goes on beneath what is
 * sent.  Senders send all of theirs first; own chunks that they have sent, so that they may be
 * changed in place, receivers norm while none comes, and in the end whoever is free.
 */
#ifndef IMX_PUSH_SM80_NORMS_CUH
#define IMX_PUSH_SM80_NORMS_CUH

#define IMX_NORM_FEW
#include "../norm/sm80_crew.cuh"

static_assert(SENDERS / LANES * IMX_NORM_SEGMENT == IMX_PUSH_NORM_COLUMNS, "a half holds a row");

/* Of one half of the workers.  Own rows stand where they were added up, the peers' where they
 * came, both as in the whole matrix. */
PUSH_FN void norm_chunk(const imx_push_args &args, norm_crew &crew, int rank, int64_t q)
{
    int own = args.team.rank;
    int64_t row = imx_team_row(args.m, IMX_RANKS, rank) + q * args.chunk_rows;
    int64_t end = imx_team_row(args.m, IMX_RANKS, rank + 1);
    const char *all = rank == own ? (const char *)args.from - first_byte(args, own)
                                  : imx_team_data(&args.team, own);
    end = row + args.chunk_rows < end ? row + args.chunk_rows : end;
    norm_rows(&args.norm, crew, all, row, end, 1);
}

/* Receivers: whether all of their warps say so.  If only some went on, they would wait for the
 * others in the rows' barriers. */
PUSH_FN int receivers_agree(int mine)
{
    int all;
    __syncwarp();
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "setp.ne.s32 p, %1, 0;\n\t"
                 "bar.red.and.pred p, 2, %2, p;\n\t"
                 "selp.s32 %0, 1, 0, p;\n\t}"
                 : "=r"(all)
                 : "r"(mine), "r"((int)SENDERS)
                 : "memory");
    return all;
}

/* Of this block's own chunks: how many the senders have read, how many are taken to be normed, and
 * which each crew has. */
static __shared__ int own_sent, own_taken, own_claimed[2];

/* One warp: whether chunk q of all peers is here. */
PUSH_FN bool is_here(const imx_push_args &args, int64_t q, uint64_t epoch)
{
    int lane = (int)threadIdx.x % 32, own = args.team.rank;
    bool here = true;
    if (has_peer(args, lane) && chunk_bytes(args, sent_bytes(args, lane, own), q) > 0)
        here = imbrexd_load_acquire(
                   imx_team_signal(&args.team, own, (int64_t)lane * args.chunks + q)) >= epoch;
    return __all_sync(0xffffffffu, here);
}

/* One warp of the receivers: whether an own chunk can be normed before chunk q of the peers is
 * here.  The senders may be about to have one: it takes some looks. */
PUSH_FN bool has_time(const imx_push_args &args, int64_t q, uint64_t epoch)
{
    enum { LOOKS = 16 };
    for (int i = 0; i < LOOKS && !is_here(args, q, epoch); i++) {
        if (__any_sync(0xffffffffu, *(volatile int *)&own_taken < *(volatile int *)&own_sent))
            return true;
    }
    return false;
}

/* A crew norms this block's next own chunk, in time before chunk q, or with q < 0 at any time;
 * false: there is none. */
PUSH_FN bool norm_own(const imx_push_args &args, norm_crew &crew, int64_t q, uint64_t epoch)
{
    int *claimed = &own_claimed[crew.barrier - 1];
    if (crew.warp == 0) {
        bool wanted = q < 0 || has_time(args, q, epoch);
        if (lane_of() == 0)
            *claimed = wanted ? atomicAdd(&own_taken, 1) : -1;
    }
    crew_sync(crew);
    int number = *claimed;
    crew_sync(crew); /* before it is written again */
    int64_t own = blockIdx.x + (int64_t)number * gridDim.x;
    if (number < 0 || own * args.chunk_bytes >= args.most)
        return false;
    norm_chunk(args, crew, args.team.rank, own);
    return true;
}

template <typename unit> PUSH_FN void send_all(const imx_push_args &args, uint64_t epoch)
{
    for (int64_t q = blockIdx.x; q * args.chunk_bytes < args.most; q += gridDim.x) {
        send_and_post<unit>(args, epoch, q, threadIdx.x);
        if (threadIdx.x == SENDERS - 1) /* its warp posts nothing */
            *(volatile int *)&own_sent += 1;
    }
}

/* 0: gave up. */
PUSH_FN int norm_peers(const imx_push_args &args, const imbrexd_watch &watch, norm_crew &crew,
                       uint64_t epoch)
{
#pragma unroll 1
    for (int64_t q = blockIdx.x; q * args.chunk_bytes < args.most; q += gridDim.x) {
        while (norm_own(args, crew, q, epoch))
            ;
        if (!receivers_agree(wait_chunk(args, watch, q, epoch)))
            return 0;
        imx_trace_begin(IMX_TRACE_FOLD);
#pragma unroll 1
        for (int i = 1; i < IMX_RANKS; i++)
            norm_chunk(args, crew, peer(args, i), q);
        imx_trace_end(IMX_TRACE_FOLD, args.team.rank, (int)q);
    }
    return 1;
}

PUSH_FN void by_normed_chunks(const imx_push_args &args, const imbrexd_watch &watch, uint64_t epoch)
{
    static __shared__ crew_words words[2];
    bool sends = threadIdx.x < SENDERS;
    bool whole = (((uintptr_t)args.from | (uintptr_t)args.row_bytes) & 15) == 0;
    int warp = (int)threadIdx.x % SENDERS / LANES;
    norm_crew crew = { sends ? 1 : 2, SENDERS / LANES, warp, 0, &words[sends] };
    if (threadIdx.x == 0)
        own_sent = own_taken = 0;
    __syncthreads();
    if (sends && whole)
        send_all<uint4>(args, epoch);
    else if (sends)
        send_all<uint16_t>(args, epoch);
    else if (!norm_peers(args, watch, crew, epoch))
        return;
    /* Own rows change in place from here on: first the senders have read all of them.  They wait
     * for nobody. */
    __syncwarp();
    if (sends)
        asm volatile("bar.arrive 3, %0;" : : "r"((int)(2 * SENDERS)) : "memory");
    else
        asm volatile("bar.sync 3, %0;" : : "r"((int)(2 * SENDERS)) : "memory");
    while (norm_own(args, crew, -1, epoch))
        ;
}

#endif /* IMX_PUSH_SM80_NORMS_CUH */
