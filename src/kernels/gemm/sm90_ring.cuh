/* sm90_ring.cuh - rows of a go on from rank to rank beneath sm90.cu's product (ring.h): what the
 * producer waits for, and the thread that passes on what came.
 *
 *     producer    | load 0 | load 1 | load 2 | load 3 | ...
 *     forwarder            | pass 0 | pass 1 | pass 2 | ...      out of shared memory
 *                                                     | post |   slice 0, once it has landed
 *     consumers            | mul 0  | mul 1  | mul 2  | ...
 *
 * A stage is free when the consumers and the forwarder have read it.  The forwarder takes part in
 * every stage, also of tiles that do not pass their rows on: of a barrier one sees no more than
 * whether its phase is odd, so whoever skipped stages might take an old phase for a new one.
 *
 * The blocks side by side in a cluster share rows of a: each passes on those that it loads.
 */
#ifndef IMX_SM90_RING_CUH
#define IMX_SM90_RING_CUH

#ifdef IMX_RING

#include "sm90_layout.cuh"
#include "sm90_tile.h"
#include "team.cuh"

enum {
    RING_ALL = 0x7fffffff,
    LANDED_AFTER = 3,              /* steps after a slice's last: by then a peer has it */
    RING_PATIENCE_NS = 10 * 1000 * 1000,
};

/* ---- the producer --------------------------------------------------------------------------- */

/* What a tile's rows are to the ring, for this block. */
IMX_FN void ring_note(const imx_gemm_args &args, const imx_sm90_tile &t, tile_info *info)
{
    const imx_schedule *s = &args.schedule;
    info->strip = imx_ring_strip(s, t.rank, t.rank_row, CLUSTER > 1 ? (int)cluster_cta() : 0);
    info->pass = imx_ring_passes(s, t.rank, t.col) ? imx_ring_step(s, t.rank) : -1;
    info->pass_row = t.rank_row + block_m() * IMX_TILE_M;
}

IMX_FN const uint64_t *ring_signal(const imx_gemm_args &args, int strip, int slice)
{
    return &args.ready[imx_ring_signal(strip, args.slices, slice)];
}

/* Of the tile that is being loaded.  In shared memory: the producer has few registers. */
IMX_FN volatile int &ring_strip(void)
{
    return *(volatile int *)(shared + STRIP_AT);
}

IMX_FN volatile int &ring_here(void)
{
    return *(volatile int *)(shared + HERE_AT);
}

/* Of the run. */
IMX_FN volatile uint64_t &ring_use(void)
{
    return *(volatile uint64_t *)(shared + USE_AT);
}

/* A tile begins: how many columns of its strip are here for certain?  None, or all, since one
 * thread posts slice after slice.  After a wait that gave up nothing is waited for any more: other
 * blocks of the cluster count on what this one brings. */
IMX_FN void ring_begin(const imx_gemm_args &args, int strip, int own)
{
    ring_strip() = strip;
    ring_here() = RING_ALL;
    if (own || gave_up_here())
        return;
    if (imbrexd_load_acquire(ring_signal(args, strip, args.slices - 1)) < ring_use())
        ring_here() = 0;
    imbrexd_fence_tma();
}

/* Until the slice that begins at column k is here.  Who waits for rows that came a longer way is
 * more patient, so that the first to say that it waited too long is the one next to the rank that
 * is to blame. */
IMX_FN void ring_wait(const imx_gemm_args &args, const imbrexd_watch *watch, int row, int k)
{
    const imx_schedule *s = &args.schedule;
    int slice = k / args.slice_k, strip = ring_strip();
    imbrexd_site site = { args.plan, IMX_SITE_PASS, imx_ring_from(s), row };
    imbrexd_watch patient = *watch;
    patient.timeout_ns += imx_ring_step(s, strip / imx_ring_strips(s)) * RING_PATIENCE_NS;
    ring_here() = slice + 1 < args.slices ? k + args.slice_k : RING_ALL;
    imx_trace_begin(IMX_TRACE_CHUNK);
    if (!imbrexd_signal_wait(&patient, ring_signal(args, strip, slice), ring_use(), site)) {
        gave_up_here() = 1;
        ring_here() = RING_ALL;
    }
    imx_trace_end(IMX_TRACE_CHUNK, site.rank, strip / IMX_RING_LANES);
    imbrexd_fence_tma();
}

/* ---- the forwarder -------------------------------------------------------------------------- */

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

/* A slice is posted a few stages later than its last was sent, when it has landed without anybody
 * having waited; the last one at once, whatever comes next. */
IMX_FN void pass_tile(const imx_gemm_args &args, const imx_tma_map *to, int row, int strip,
                      uint32_t base, int steps, place *at)
{
    int slice = 0, slice_steps = args.slice_k / TILE_K;
    int due = args.slices > 1 ? slice_steps + LANDED_AFTER : RING_ALL;
    uint32_t before = 0;
    imx_trace_begin(IMX_TRACE_PUSH);
    for (int i = 0; i < steps; i++) {
        mbar_wait(full_of(base, at->stage), at->phase);
        tma_store(to, i * TILE_K, row, base + at->stage * STAGE_BYTES);
        tma_store_commit();
        if (i > 0) {
            tma_store_wait_read(1);
            mbar_arrive(empty_of(base, before));
        }
        before = at->stage;
        step(at);
        if (i + 1 == due) {
            tma_store_wait_but(3); /* LANDED_AFTER */
            ring_post(args, strip, slice++);
            due += slice_steps;
        }
    }
    tma_store_wait_read(0);
    mbar_arrive(empty_of(base, before));
    tma_store_wait();
    while (slice < args.slices)
        ring_post(args, strip, slice++);
    imx_trace_end(IMX_TRACE_PUSH, imx_ring_to(&args.schedule), strip / IMX_RING_LANES);
}

/* One thread, beside the producer.  to: the maps of each step. */
IMX_FN void forward(const imx_gemm_args &args, const imbrexd_watch *watch, const imx_tma_map *to)
{
    uint32_t base = shared_base();
    unsigned stride = gridDim.x / CLUSTER;
    int steps = ((int)args.k + TILE_K - 1) / TILE_K;
    place at = { 0, 0 };
    /* Has the rank before read what is to be overwritten?  It is seldom that far behind. */
    if (!team_credit(args, watch, imx_ring_to(&args.schedule)))
        gave_up_here() = 1;
    imbrexd_fence_tma();
    for (unsigned index = blockIdx.x / CLUSTER; index < tiles_of(); index += stride) {
        mbar_wait(full_of(base, at.stage), at.phase);
        const tile_info *info = info_of(at.stage);
        int pass = info->pass, row = info->pass_row, strip = info->strip;
        if (pass >= 0 && !gave_up_here())
            pass_tile(args, &to[pass], row, strip, base, steps, &at);
        else
            let_tile_go(base, steps, &at);
    }
}

#endif /* IMX_RING */

#endif /* IMX_SM90_RING_CUH */
