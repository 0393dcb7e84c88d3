/* sm90_prologue_ring.cuh - rows of a go on from rank to rank beneath sm90.cu's product (ring.h):
 * the thread that looks for the producer whether they have come, and the one that passes them on.
 *
 *     scout       | tile 0: slice 0 | slice 1 | ... | tile 1: ...    as far ahead as it can see
 *     producer    | load 0 | load 1 | load 2 | load 3 | ...
 *     forwarder            | pass 0 | pass 1 | -      | ...      this tile's slice, out of
 *                                                     | post |   shared memory; once it has landed
 *     consumers            | mul 0  | mul 1  | mul 2  | ...
 *
 * A stage is free when the consumers and the forwarder have read it.  The forwarder takes part in
 * every stage, also of tiles that do not pass their rows on: of a barrier one sees no more than
 * whether its phase is odd, so whoever skipped stages might take an old phase for a new one.
 */
#ifndef IMX_SM90_PROLOGUE_RING_CUH
#define IMX_SM90_PROLOGUE_RING_CUH

#include "sm90_policy.cuh"
#include "sm90_tile.h"

enum {
    ALL_SLICES = 1 << 30, /* more than a block's tiles have */
    LANDED_AFTER = 3,     /* steps after a slice's last: by then a peer has it */
    RING_PATIENCE_NS = 10 * 1000 * 1000,
};

/* ---- the producer ---------------------------------------------------------------------------- */

/* Of tiles. */
IMX_FN int ring_columns(const imx_gemm_args &args)
{
    return ((int)args.schedule.n + TILE_COLS - 1) / TILE_COLS;
}

/* What a tile's rows are to the ring, for this block. */
IMX_FN void ring_note(const imx_gemm_args &args, const imx_sm90_tile &t, tile_info *info)
{
    const imx_schedule *s = &args.schedule;
    int step = imx_ring_step(s, t.rank);
    info->strip = imx_ring_strip(s, t.rank, t.rank_row, block_m());
    bool passes = imx_ring_takes_part(ring_columns(args), t.col / TILE_COLS, args.slices);
    info->pass = passes && step < s->ranks - 1 ? step : -1;
    info->pass_row = t.rank_row + block_m() * IMX_TILE_M;
}

/* In shared memory: the producer has few registers.  How many tiles the block has begun, and the
 * columns of this one's rows that are here. */
IMX_FN volatile uint32_t &ring_turn(void)
{
    return words().turn;
}

IMX_FN volatile int &ring_here(void)
{
    return words().here;
}

/* Of the run. */
IMX_FN volatile uint64_t &ring_use(void)
{
    return words().epoch;
}

/* Before thread 0 meets the others. */
IMX_FN void ring_init(void)
{
    ring_turn() = 0;
    words().scouted = 0;
}

IMX_FN void ring_begin(int own)
{
    ring_turn() = ring_turn() + 1;
    ring_here() = own ? ALL_COLUMNS : 0;
}

/* Until the scout has seen column k of the tile.  Slices are counted through all of the block's
 * tiles, so that this one's first is number (turn - 1) * slices. */
IMX_FN void ring_wait(const imx_gemm_args &args, int strip, int k)
{
    uint32_t before = (ring_turn() - 1) * args.slices, want = k / args.slice_k, seen;
    seen = shared_counted(scouted()) - before; /* of this tile, if it is so far */
    if ((int)(seen - want) <= 0) {
        imx_trace_begin(IMX_TRACE_CHUNK);
        while ((int)(seen - want) <= 0)
            seen = shared_counted(scouted()) - before;
        imx_trace_end(IMX_TRACE_CHUNK, imx_ring_from(&args.schedule), strip / IMX_RING_LANES);
    }
    ring_here() = seen >= (uint32_t)args.slices ? ALL_COLUMNS : (int)seen * args.slice_k;
}

/* ---- the scout ------------------------------------------------------------------------------- */

/* Until a slice is here.  Who waits for rows that came a longer way is more patient, so that the
 * first to say that it waited too long is the one next to the rank that is to blame. */
IMX_FN int wait_slice(const imx_gemm_args &args, const imbrexd_watch *watch, const imx_sm90_tile &t,
                      int slice, uint64_t epoch)
{
    const imx_schedule *s = &args.schedule;
    int strip = imx_ring_strip(s, t.rank, t.rank_row, block_m());
    imbrexd_wait_point point = { args.plan, IMX_POINT_PASS, imx_ring_from(s),
                                 t.row + block_m() * IMX_TILE_M };
    imbrexd_watch patient = *watch;
    patient.timeout_ns += imx_ring_step(s, t.rank) * RING_PATIENCE_NS;
    int there = imbrexd_signal_wait(
        &patient, &args.ready[imx_ring_signal(strip, args.slices, slice)], epoch, point);
    imbrexd_fence_tma();
    return there;
}

/* One thread, beside the producer, whose loads would run dry while it looked.  After a wait that
 * gave up nothing is waited for any more: other blocks of the cluster count on what this one
 * brings. */
IMX_FN void scout(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    unsigned stride = gridDim.x / CLUSTER;
    uint64_t epoch = team_use(args);
    for (unsigned index = blockIdx.x / CLUSTER; index < tiles_of(); index += stride) {
        imx_sm90_tile t = imx_sm90_tile_at(&args.schedule, TILE_ROWS, TILE_COLS, index);
        if (t.rank == args.own) {
            shared_count(scouted(), (uint32_t)args.slices);
            continue;
        }
        for (int i = 0; i < args.slices; i++) {
            if (!wait_slice(args, watch, t, i, epoch)) {
                gave_up_here() = 1;
                shared_count(scouted(), ALL_SLICES);
                return;
            }
            shared_count(scouted(), 1);
        }
    }
}

/* ---- the forwarder --------------------------------------------------------------------------- */

/* One slice of the strip has landed: tells the rank that gets it. */
IMX_FN void ring_post(const imx_gemm_args &args, int strip, int slice)
{
    if (!gave_up_here())
        imbrexd_signal_post(imx_team_signal(&args.team, imx_ring_to(&args.schedule),
                                            imx_ring_signal(strip, args.slices, slice)),
                            ring_use());
}

IMX_FN void let_tile_go(uint32_t base, int steps, place *at)
{
    for (int i = 0; i < steps; i++) {
        mbar_wait(full_of(base, at->stage), at->phase);
        mbar_arrive(empty_of(base, at->stage));
        step(at);
    }
}

/* The tile's slices go on: a few, by turns with the tiles beside it.  One is posted a few stages
 * after its last, when it has landed without anybody having waited; the tile's last one at once,
 * whatever comes next. */
IMX_FN void pass_tile(const imx_gemm_args &args, const imx_tma_map *to, int row, int strip,
                      int column, uint32_t base, int steps, place *at)
{
    int columns = ring_columns(args);
    int slice_steps = args.slices > 1 ? args.slice_k / TILE_K : steps;
    int slice = 0, left = slice_steps; /* steps of it */
    int sent = -1, due = 0;            /* the slice whose post is due after that step */
    uint32_t before = IMX_STAGES;      /* the stage that is still being read; none */
    bool mine = imx_ring_column(columns, 0) == column;
    imx_trace_begin(IMX_TRACE_PUSH);
    for (int i = 0; i < steps; i++) {
        mbar_wait(full_of(base, at->stage), at->phase);
        if (mine) {
            tma_store(to, i * TILE_K, row, base + at->stage * STAGE_BYTES);
            bulk_commit();
            bulk_wait_read(1);
        } else {
            bulk_wait_read(0);
            mbar_arrive(empty_of(base, at->stage));
        }
        if (before < IMX_STAGES)
            mbar_arrive(empty_of(base, before));
        before = mine ? at->stage : IMX_STAGES;
        step(at);
        if (--left == 0) {
            if (mine) {
                sent = slice;
                due = i + LANDED_AFTER;
            }
            left = slice_steps;
            mine = imx_ring_column(columns, ++slice) == column;
        } else if (sent >= 0 && i == due) {
            bulk_wait();
            ring_post(args, strip, sent);
            sent = -1;
        }
    }
    bulk_wait_read(0);
    if (before < IMX_STAGES)
        mbar_arrive(empty_of(base, before));
    bulk_wait();
    if (sent >= 0)
        ring_post(args, strip, sent);
    if (left < slice_steps && mine) /* a shorter one at the end */
        ring_post(args, strip, slice);
    imx_trace_end(IMX_TRACE_PUSH, imx_ring_to(&args.schedule), strip / IMX_RING_LANES);
}

/* One thread, beside the producer.  to: the maps of each step. */
IMX_FN void forward(const imx_gemm_args &args, const imbrexd_watch *watch, const imx_tma_map *to)
{
    uint32_t base = shared_base();
    unsigned stride = gridDim.x / CLUSTER;
    int steps = steps_of(args);
    place at = { 0, 0 };
    /* Has the rank before read what is to be overwritten?  It is seldom that far behind. */
    if (!team_credit(args, watch, imx_ring_to(&args.schedule)))
        gave_up_here() = 1;
    imbrexd_fence_tma();
    for (unsigned index = blockIdx.x / CLUSTER; index < tiles_of(); index += stride) {
        mbar_wait(full_of(base, at.stage), at.phase);
        const tile_info *info = info_of(at.stage);
        int pass = info->pass, row = info->pass_row, strip = info->strip;
        int column = info->col / TILE_COLS;
        if (pass >= 0 && !gave_up_here())
            pass_tile(args, &to[pass], row, strip, column, base, steps, &at);
        else
            let_tile_go(base, steps, &at);
    }
}

/* ---- the prologue ---------------------------------------------------------------------------- */

struct prologue_ring : prologue_none {
    enum {
        REGISTERS = REGISTERS_FEW,
        MAPS = IMX_TEAM_MOST - 1, /* where rows go on to, at each step but the last */
        READERS = 1,
        GATHERS = 1,
        ENDS_RUN = 1,
    };

    IMX_FN void init(void) { ring_init(); }

    IMX_FN void note(const imx_gemm_args &args, const imx_sm90_tile &t, tile_info *info)
    {
        ring_note(args, t, info);
    }

    IMX_FN int begin(const imx_gemm_args &args)
    {
        if (threadIdx.x == 0)
            ring_use() = team_use(args);
        return 0;
    }

    IMX_FN int begin_tile(const tile_info *info, int row, int)
    {
        ring_begin(row < 0);
        return info->strip;
    }

    IMX_FN int begin_step(const imx_gemm_args &args, const imbrexd_watch *, int k, int strip)
    {
        if (k >= ring_here())
            ring_wait(args, strip, k);
        return strip;
    }

    IMX_FN int beside(const imx_gemm_args &args, const imbrexd_watch *watch,
                      const imx_tma_map *maps)
    {
        if (threadIdx.x == 32)
            forward(args, watch, maps);
        else if (threadIdx.x == 64)
            scout(args, watch);
        return 1;
    }
};

#endif /* IMX_SM90_PROLOGUE_RING_CUH */
