/* sm80_norms.cuh - the push kernel's rows that are normed as they come, and own ones when they have
 * been sent: each half of a block's workers is a crew.  Links are slower than memory, so that it
 * goes on beneath what is sent.
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

/* Own rows are read once more, from the cache. */
PUSH_FN void by_normed_chunks(const imx_push_args &args, const imbrexd_watch &watch, uint64_t epoch)
{
    static __shared__ crew_words words[2];
    bool sends = threadIdx.x < SENDERS;
    bool whole = (((uintptr_t)args.from | (uintptr_t)args.row_bytes) & 15) == 0;
    uint32_t thread = threadIdx.x % SENDERS;
    norm_crew crew = { sends ? 1 : 2, SENDERS / LANES, (int)thread / LANES, 0, &words[sends] };
#pragma unroll 1
    for (int64_t q = blockIdx.x; q * args.chunk_bytes < args.most; q += gridDim.x) {
        if (sends && whole)
            send_and_post<uint4>(args, epoch, q, thread);
        else if (sends)
            send_and_post<uint16_t>(args, epoch, q, thread);
        else if (!receivers_agree(wait_chunk(args, watch, q, epoch)))
            return;
        imx_trace_begin(IMX_TRACE_FOLD);
#pragma unroll 1
        for (int i = sends ? IMX_RANKS : 1; i <= (sends ? IMX_RANKS : IMX_RANKS - 1); i++)
            norm_chunk(args, crew, i == IMX_RANKS ? args.team.rank : peer(args, i), q);
        imx_trace_end(IMX_TRACE_FOLD, args.team.rank, (int)q);
    }
}

#endif /* IMX_PUSH_SM80_NORMS_CUH */
