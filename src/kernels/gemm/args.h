/* args.h - the contract of the GEMM kernel: c[m, n] = a[m, k] * b, tile by tile in the schedule's
 * order, with room for communication on both sides.  Products accumulate in float32; bias, if any,
 * is added in float32; one rounding to out.
 *
 * a and b of 8 bits (with E5M2 b is E4M3) are of layout NK.  Their products are exact in float32;
 * those of 128 of k are added up, and such sums are added in the order of k.  scaling: a sum is
 * taken times s, the product of a scale of a and one of b, rounded to float32.
 *   PER_TENSOR  s = scale_a[0] * scale_b[0], of the whole sum
 *   PER_ROW     s = scale_a[row] * scale_b[col], of the whole sum
 *   PER_BLOCK   s = scale_a[row, k / 128] * scale_b[col / 128, k / 128], of each 128 of k
 * Scales of rows of a, row_scales each, lie and travel as these do, under their signals: of rows in
 * `gathered` they are in gathered_scales, [m, row_scales], which begins `scales` bytes behind the
 * begin of a rank's data.  PER_TENSOR: in scale_a.
 *
 * IMX_GEMM_GATHERS, about a:
 *   own      rows of rank `own` come from `a` ([rows, k], its own rows only), all others from
 *            `gathered` ([m, k]).  -1: all come from `gathered`
 *   ready    before the first load of a tile that is not own: wait until ready[chunk] is at the
 *            run's epoch.  NULL: all is here.  own = -1: all rows are one chunk, of slices of
 *            slice_k columns of a; wait for ready[s * team.size + r] of all ranks r before the
 *            first load from slice s, or, where Hopper's form pushes, for what it says below
 *            schedule.spans: a tile with rows of several ranks, own ones among them, has them all
 *            from `gathered`, where the edges of own rows are (imx_schedule_edges_of) once
 *            ready[own * chunks] is at the run's epoch; it waits for that and for each chunk of the
 *            others that it has rows of
 *   IMX_GEMM_PUSHES: the kernel itself stores `a`, this rank's rows, into all peers' `gathered`,
 *            the rank's before first, raising signal rank * chunks + q of theirs after chunk q of
 *            the schedule's, with spans also own edges into its own; GPUs take push_pace clock
 *            cycles or more for 64 KB of them, [0] to the rank before, [1] to the others, so that
 *            the product's loads get through.  own = -1:
 *            into its own, too, as one chunk; on the CPU slice after slice, raising signal s *
 *            team.size + rank.  Hopper's form sends slices to peers' inboxes ([m, k], 0 between
 *            runs), behind the first one push_pace[0] cycles or more from one's begin to the next
 *            one's, and each block moves its share of own rows and of what comes to `gathered`,
 *            under done[s * blocks + block], blocks rounded up to even, for which tiles wait: all
 *            blocks must be there at once, as of every push.  There a word of all ones,
 *            which is NaN, loses its last bit
 *   IMX_GEMM_FORWARDS: rows go on from rank to rank (ring.h), each strip's slices of slice_k
 *            columns under signals of their own, ready[...] as well as the rank before's.
 *            schedule.first = own = team.rank; for several ranks, without bands
 *
 * IMX_GEMM_SCATTERS, about c; all rows of a are in `a` ([m, k]):
 *   done     counters[chunk] counts a chunk's tiles; the last posts done[chunk].  NULL: nobody asks
 *   IMX_GEMM_SCATTER_PUSH: a tile goes straight to its rows' owner, into slot `rank` of its data
 *            (slots of slot_bytes, [rows, n]); the chunk's last tile raises signal rank * chunks +
 *            q there.  A tile of one's own rows waits for the peers' parts of its chunk and becomes
 *            c ([own rows, n]): the parts, its own product, rounded, among them, added in rank
 *            order in float32, then bias, then residual, whose memory c may be; such a
 *            tile need not go through the slot
 *
 *   IMX_GEMM_REDUCE_PUSH: the same where tiles have rows of several ranks: schedule.ranks = 1, not
 *            f32. Each of a tile's rows goes to its owner, into its place in slot `rank` (sum.h);
 *            of own rows of all ranks' tiles the kernel makes c.  The kernel begins and ends the
 *            run. On GPUs all its blocks must be there at once, as they wait for each other's rows;
 *            slots are 0 before a run and after it; and an epoch's credit comes when the next one
 *            of its buffer begins
 *
 *   IMX_GEMM_REDUCE_ALL: with REDUCE_PUSH, all rows are every rank's own, and c is [m, n]: each of
 *            them goes to all ranks, who all make c of it
 *
 *   IMX_GEMM_REDUCE_FAN: with REDUCE_PUSH, owners send their sums on, and c is [m, n], as residual
 *            is: rank r's come into slot team.size + r; on CPUs signal (tiles + tile) * ranks + r
 *            says that they are there
 *
 *   IMX_GEMM_REDUCE_PULL: the same for any number of rows: schedule.ranks = 1, chunks of columns.
 *            The product stays in this rank's data, [m, n]; the last tile of a chunk raises signal
 *            rank * chunks + chunk on all ranks, which then read their own rows of all ranks'
 *            chunk, and make c of them.  The kernel begins and ends the run
 *
 *   IMX_GEMM_MERGED: whoever sends them, tiles have rows of several ranks; IMX_GEMM_SUMMABLE: and
 *            REDUCE_PUSH is possible: for the choice of tiles
 *
 *   IMX_GEMM_INVARIANT: an element's products are added up as n and k alone decide: no two
 *            blocks make a tile, and no BLAS is asked
 *
 *   IMX_GEMM_DEEP: four or eight blocks may make a tile, each of a part of k; not with SCATTERS
 *
 *   IMX_GEMM_FAST: sums of 8-bit a and b may stay in the tensor cores over all of k
 *
 *   IMX_GEMM_HOOKS, with SCATTER_PUSH and GATHERS: a kernel of the caller's, imx_gemm_user_args.
 *            Its hooks take the places of ready, of the signals, of one's own rows' sum, and of
 *            the run's begin and end; rows of rank r go to base[r] + team.data, [rows, n]
 *
 * ahead = 1: the kernel begins the run: its epoch is *epoch + 1, and it waits for a peer's credit
 * before it writes there (or, where peers read here or all get rows, for all of them).
 * ended != NULL: it ends the run too: the last block that has read what it wants advances *epoch
 * and, but with REDUCE_PUSH on GPUs, gives every peer its credit. */
#ifndef IMX_GEMM_ARGS_H
#define IMX_GEMM_ARGS_H

#include "../team.h"
#include "../user.h"
#include "../wait_points.h"
#include "imbrex_device.h"
#include "ring.h"
#include "schedule.h"
#include "sum.h"

enum {
    IMX_GEMM_GATHERS = 1,
    IMX_GEMM_PUSHES = 2,
    IMX_GEMM_SCATTERS = 4,
    IMX_GEMM_SCATTER_PUSH = 8,
    IMX_GEMM_FORWARDS = 16,
    IMX_GEMM_HOOKS = 32,
    IMX_GEMM_REDUCE_PUSH = 64,
    IMX_GEMM_REDUCE_PULL = 128,
    IMX_GEMM_SPANNING = 256,
    IMX_GEMM_SUMMABLE = 512,
    IMX_GEMM_INVARIANT = 1024,
    IMX_GEMM_FAST = 2048,
    IMX_GEMM_REDUCE_ALL = 4096,
    IMX_GEMM_REDUCE_FAN = 8192,
    IMX_GEMM_DEEP = 16384,
};

typedef struct imx_gemm_args {
    imx_schedule schedule;
    int64_t k;
    int dtype, layout; /* imbrex_dtype, imbrex_layout; of a and b */
    int out;           /* imbrex_dtype of c, bias, and what is added to it */
    int scaling;       /* imbrex_scaling */
    int row_scales;    /* of a row of a; 0: none are a row's alone */
    int features;      /* IMX_GEMM_...: what the kernel is compiled for */
    int reserved_sms;  /* multiprocessors that stay free for others: as the kernel is made */
    int own;
    int slices, slice_k; /* one of k, or several that are pushed or passed on, the last maybe
                          * shorter: on GPUs of a multiple of 64, which may be more than k */
    int push_pace[2];
    int64_t push_first, push_rows; /* this rank's, of the m rows of a */
    int ahead;
    int plan; /* for the wait point */
    const void *a, *gathered, *b, *bias;
    const void *residual; /* [own rows, n] or NULL: of what own rows' sums become c */
    const float *scale_a, *gathered_scales, *scale_b;
    int64_t scales;
    void *c;
    uint64_t *epoch; /* of the run */
    const uint64_t *ready;
    uint64_t *done;
    uint32_t *counters; /* [ranks * chunks] of tiles or pushes; 0 between runs */
    uint32_t *ended;
    int64_t slot_bytes;
    int64_t inbox; /* where it begins in a rank's data; see IMX_GEMM_PUSHES */
    imx_team team;
} imx_gemm_args;

typedef struct imx_gemm_user_args {
    imx_gemm_args gemm;
    imx_user_args user;
} imx_gemm_user_args;

#endif /* IMX_GEMM_ARGS_H */
