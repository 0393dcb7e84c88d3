/* sm90_push.cuh - pushes of a by the copy engine, beneath the product, in the order and at the pace
 * of team.cuh: with IMX_BULK, where there is room for them.  One thread a block, whose pieces of
 * every chunk go through two buffers in shared memory:
 *
 *     a | bring | one of two buffers | arrived, bulk_store | a peer's gathered
 *
 * Loads and stores of warps do the same, but are more in the way of the product's loads.
 */
#ifndef IMX_SM90_PUSH_CUH
#define IMX_SM90_PUSH_CUH

#include "sm90_layout.cuh"
#include "team.cuh"

/* ---- pieces ---------------------------------------------------------------------------------- */

/* How many the thread has begun to bring, and how many have been told to leave. */
typedef struct pieces {
    uint32_t brought, sent;
} pieces;

/* Piece `number`'s buffer: at a multiple of 128 bytes.  Of 16 is enough, but much slower. */
IMX_FN uint32_t piece_buffer(uint32_t number)
{
    return shared_base() + BULK_AT + number % 2 * IMX_SM90_BULK;
}

IMX_FN uint32_t piece_barrier(uint32_t number)
{
    return shared_base() + BULK_BARRIERS_AT + number % 2 * 8;
}

/* One thread, before a barrier of the block and mbar_init_fence. */
IMX_FN void push_init(void)
{
    mbar_init(piece_barrier(0), 1);
    mbar_init(piece_barrier(1), 1);
}

/* Begins to bring the next piece.  All before it have been told to leave; the one before last has
 * been read. */
IMX_FN void bring(pieces *p, const char *from, uint32_t bytes)
{
    uint32_t number = p->brought++;
    bulk_wait_read(1);
    mbar_expect(piece_barrier(number), bytes);
    bulk_load(piece_buffer(number), from, bytes, piece_barrier(number));
}

/* Until the next piece that is to leave has come: where it is. */
IMX_FN uint32_t arrived(pieces *p)
{
    uint32_t number = p->sent++;
    mbar_wait(piece_barrier(number), number / 2 & 1);
    return piece_buffer(number);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* A chunk on its way to a peer. */
typedef struct push_chunk {
    int to, number; /* -1: none */
    char *theirs;
    const char *mine;
    int64_t bytes;
} push_chunk;

IMX_FN push_chunk rows_for(const imx_gemm_args &args, int to, int number, int64_t row, int64_t rows)
{
    int64_t row_bytes = args.k * 2;
    push_chunk chunk = { to, number,
                         imx_team_data(&args.team, to) + (args.push_first + row) * row_bytes,
                         (const char *)args.a + row * row_bytes, rows * row_bytes };
    return chunk;
}

IMX_FN push_chunk chunk_for(const imx_gemm_args &args, int to, int number)
{
    int64_t row = (int64_t)number * args.schedule.chunk_rows, left = args.push_rows - row;
    return rows_for(args, to, number, row,
                    left < args.schedule.chunk_rows ? left : args.schedule.chunk_rows);
}

IMX_FN uint32_t piece_bytes(const push_chunk *chunk, int64_t at)
{
    int64_t left = chunk->bytes - at;
    return left < IMX_SM90_BULK ? (uint32_t)left : IMX_SM90_BULK;
}

/* This block's share of the chunk is there once its pieces have landed: counts it, and the last
 * block posts. */
IMX_FN void tell_chunk(const imx_gemm_args &args, const push_chunk *chunk)
{
    const imx_team &team = args.team;
    int chunks = args.schedule.chunks;
    if (chunk->number < 0)
        return;
    bulk_wait();
    imbrexd_fence_post();
    if (imbrexd_counter_last(&args.counters[chunk->to * chunks + chunk->number], gridDim.x))
        imbrexd_signal_post(imx_team_signal(&team, chunk->to, team.rank * chunks + chunk->number),
                            team_use(args));
    imx_trace_end(IMX_TRACE_PUSH, chunk->to, chunk->number);
}

/* This block's pieces of the chunk, of which the first is number `first`; those of the one before
 * are told of while it comes. */
IMX_FN void push_pieces(const imx_gemm_args &args, const push_chunk *chunk, uint32_t first,
                        const push_chunk *before, pieces *p, push_pace *pace)
{
    int64_t at = (int64_t)first * IMX_SM90_BULK, apart = (int64_t)gridDim.x * IMX_SM90_BULK;
    if (at < chunk->bytes)
        bring(p, chunk->mine + at, piece_bytes(chunk, at));
    tell_chunk(args, before);
    imx_trace_begin(IMX_TRACE_PUSH);
#pragma unroll 1
    for (; at < chunk->bytes; at += apart) {
        push_keep_pace(pace);
        bulk_store(chunk->theirs + at, arrived(p), piece_bytes(chunk, at));
        bulk_commit();
        if (at + apart < chunk->bytes)
            bring(p, chunk->mine + at + apart, piece_bytes(chunk, at + apart));
    }
}

/* The block that has one chunk's last piece comes before the one that has the next one's first: so
 * all have as many as others, or one less. */
IMX_FN uint32_t first_behind(const push_chunk *chunk, uint32_t first)
{
    uint32_t count = (uint32_t)((chunk->bytes + IMX_SM90_BULK - 1) / IMX_SM90_BULK);
    return (first + gridDim.x - count % gridDim.x) % gridDim.x;
}

/* Its share of one, behind what it sent before. */
IMX_FN void push_next(const imx_gemm_args &args, const push_chunk &chunk, uint32_t *first,
                      push_chunk *before, pieces *p, push_pace *pace)
{
    push_pieces(args, &chunk, *first, before, p, pace);
    *first = first_behind(&chunk, *first);
    *before = chunk;
}

/* One thread a block: its share of every chunk to every peer, the rank's before first. */
IMX_FN void push_all(const imx_gemm_args &args)
{
    uint32_t first = blockIdx.x;
    pieces p = { 0, 0 };
    push_pace pace = push_pace_begin(args.push_pace[0], gridDim.x, IMX_SM90_BULK);
    push_chunk before = { -1, -1 };
    int to = args.team.rank;
    if (SPANS) { /* own edges, of which the second tells for both */
        imx_sm90_edges edges = imx_sm90_edges_of(&args.schedule, TILE_ROWS, (unsigned)to);
        push_next(args, rows_for(args, to, -1, 0, edges.head), &first, &before, &p, &pace);
        push_next(args, rows_for(args, to, 0, edges.tail, args.push_rows - edges.tail), &first,
                  &before, &p, &pace);
    }
#pragma unroll 1
    for (int peer = 1; peer < args.team.size; peer++) {
        to = to ? to - 1 : args.team.size - 1;
        if (peer == 2)
            pace = push_pace_begin(args.push_pace[1], gridDim.x, IMX_SM90_BULK);
#pragma unroll 1
        for (int q = 0; (int64_t)q * args.schedule.chunk_rows < args.push_rows; q++) {
            push_next(args, chunk_for(args, to, q), &first, &before, &p, &pace);
        }
    }
    tell_chunk(args, &before);
}

/* One warp a block; 0: it gave up. */
IMX_FN int push_bulk(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    if (!team_credits(args, watch))
        return 0;
    if (lane_here() == 0) {
        imbrexd_fence_tma(); /* peers may be written to: by the copy engine, too */
        push_all(args);
    }
    __syncwarp();
    return 1;
}

#endif /* IMX_SM90_PUSH_CUH */
