/* sm90_prologue_slices.cuh - all ranks' rows are one chunk, of slices of k, and come under the
 * first tiles' products, slice by slice.
 *
 *     sender     | slice 0 of own rows, to the peers and to where loads find it | slice 1, in time
 *     mover      | slice 0 of peers' rows, as it comes, to where loads find it | slice 1 ...
 *     scout      |       slice 0 has been moved by all blocks | slice 1 ...
 *     who loads  |                                            | slice 0 | slice 0 | ... slice 1
 *
 * are warps of each block, also of one that has no tile, where nobody scouts; of slice 0, which
 * everybody waits for, the first three do a third each.
 * Between ranks data tells by itself that it has come (vector.cuh), in an inbox, whose units are 0
 * before and are made 0 again by who moved them on.  So no slice waits for a fence that reaches
 * the peers, and all signals stay on this GPU: a word of each block, that no block needs to wait
 * for another's count.  Who loads would run dry if it looked for them itself.
 */
#ifndef IMX_SM90_PROLOGUE_SLICES_CUH
#define IMX_SM90_PROLOGUE_SLICES_CUH

#include "sm90_policy.cuh"

enum {
    PASSES_FAST = IMX_SUMS_N <= (CONSUMERS > 2 ? 96 : 224),
    /* Units of a lane, under way at once, and as they are moved on: what there are registers for,
     * beside wide tiles' sums. */
    SLICE_SENDS = IMX_SUMS_N < (CONSUMERS > 2 ? 112 : 144) ? 4 : 2,
    SLICE_MOVES = PASSES_FAST ? 6 : 2,
    NO_UNIT = ~0u,
    SCOUT_WARP = 1,
    SENDER_WARP = 2,
    MOVER_WARP = 3,
    SLICES_NAP_NS = 300, /* between looks for what is not waited for yet */
    SCOUT_LOADS = 3,     /* of words of two blocks */
};

/* ---- a slice, and a warp's way through it ---------------------------------------------------- */

/* So many units of each row, the first at byte `at` of it, rows `stride` units apart. */
typedef struct slice {
    int number;
    uint32_t at, columns, stride;
} slice;

IMX_FN slice slice_of(const imx_gemm_args &args, int number)
{
    int at = number * args.slice_k, left = (int)args.k - at;
    slice s = { number, (uint32_t)at * 2,
                (uint32_t)(left < args.slice_k ? left : args.slice_k) * 2 / PUSH_UNIT,
                (uint32_t)args.k * 2 / PUSH_UNIT };
    return s;
}

/* A lane's next unit of it, and how far it is to the one after that: a warp that divided for each
 * unit would do little else. */
typedef struct slice_walk {
    uint32_t row, column, more_rows, more_columns;
} slice_walk;

/* One warp of these, which together take unit after unit, row after row. */
IMX_FN slice_walk walk_begin(slice s, push_warps warps)
{
    uint32_t first = push_number(warps) * 32 + (uint32_t)lane_here(), more = push_count(warps) * 32;
    slice_walk w = { first / s.columns, 0, more / s.columns, 0 };
    w.column = first - w.row * s.columns;
    w.more_columns = more - w.more_rows * s.columns;
    return w;
}

IMX_FN void walk_on(slice s, slice_walk *w)
{
    w->row += w->more_rows;
    w->column += w->more_columns;
    if (w->column >= s.columns) {
        w->column -= s.columns;
        w->row++;
    }
}

/* Its byte, from where row 0 begins. */
IMX_FN uint32_t slice_unit(slice s, uint32_t row, uint32_t column)
{
    return (row * s.stride + column) * PUSH_UNIT + s.at;
}

/* ---- who sends ------------------------------------------------------------------------------- */

/* One warp of these: own rows of it, to the peers' inboxes, and to where this rank's loads find
 * them.  *may: whether peers may be written to, which is asked while the first loads are under way.
 * 0: gave up. */
IMX_FN int slice_send(const imx_gemm_args &args, const imbrexd_watch *watch, slice s,
                      push_warps warps, int *may)
{
    const imx_team &team = args.team;
    int64_t own = args.push_first * args.k * 2;
    uint32_t rows = (uint32_t)args.push_rows;
    slice_walk w = walk_begin(s, warps);
#pragma unroll 1
    while (__any_sync(0xffffffffu, w.row < rows) || !*may) {
        uint4 value[SLICE_SENDS];
        uint32_t at[SLICE_SENDS];
#pragma unroll
        for (int j = 0; j < SLICE_SENDS; j++) {
            at[j] = w.row < rows ? slice_unit(s, w.row, w.column) : NO_UNIT;
            if (at[j] != NO_UNIT)
                value[j] = imx_vector_load((const char *)args.a + at[j]);
            walk_on(s, &w);
        }
        if (!*may && !(*may = push_agree(team_credits(args, watch), warps)))
            return 0;
        int r = team.rank; /* not all ranks store to the same one at once */
#pragma unroll 1
        while ((r = r + 1 < team.size ? r + 1 : 0) != team.rank) {
            char *to = imx_team_data(&team, r) + args.inbox + own;
#pragma unroll
            for (int j = 0; j < SLICE_SENDS; j++) {
                if (at[j] != NO_UNIT)
                    imx_vector_store_whole(to + at[j], imx_vector_go(value[j]));
            }
        }
        char *here = imx_team_data(&team, r) + own;
#pragma unroll
        for (int j = 0; j < SLICE_SENDS; j++) {
            if (at[j] != NO_UNIT)
                *(uint4 *)(here + at[j]) = value[j];
        }
    }
    return 1;
}

/* ---- who moves on what comes ----------------------------------------------------------------- */

/* How many words so many slices have: whole pairs for each. */
IMX_FN uint32_t slice_words(int slices)
{
    return (uint32_t)slices * ((gridDim.x + 1) / 2 * 2);
}

/* The block's warps that brought it, which have met, of which the first tells: the block's word
 * says so, and the last block's also for the one that its pair lacks. */
IMX_FN void slice_moved(const imx_gemm_args &args, int number, uint32_t first_warp)
{
    uint32_t count = blockIdx.x + 1 < gridDim.x ? 1 : slice_words(1) - blockIdx.x;
    uint32_t word = thread_here() - first_warp * 32;
    __syncwarp();
    if (word < count)
        imbrexd_store_release_gpu(&args.done[slice_words(number) + blockIdx.x + word],
                                  team_use(args));
}

/* The row that is number `row` of the peers'. */
IMX_FN uint32_t slice_row(const imx_gemm_args &args, uint32_t row)
{
    return row < (uint32_t)args.push_first ? row : row + (uint32_t)args.push_rows;
}

/* One lane: until its next units are here, with an eye on the clock; 0: give up. */
IMX_FN int slice_wait(const imx_gemm_args &args, const imbrexd_watch *watch, slice s, slice_walk w)
{
    const char *inbox = imx_team_data(&args.team, args.team.rank) + args.inbox;
    uint32_t rows = (uint32_t)(args.schedule.m - args.push_rows);
#pragma unroll 1
    for (int j = 0; j < SLICE_MOVES && w.row < rows; j++, walk_on(s, &w)) {
        uint32_t row = slice_row(args, w.row);
        imbrexd_wait_point point = { args.plan, IMX_POINT_CHUNK, team_owner(args, (int)row),
                                     s.number };
        if (!team_unit(watch, inbox + slice_unit(s, row, w.column), point))
            return 0;
    }
    return 1;
}

/* One warp of these: peers' rows of it, as they come, from the inbox to where loads find them;
 * nap_ns: between looks.  0: gave up. */
IMX_FN int slice_move(const imx_gemm_args &args, const imbrexd_watch *watch, slice s,
                      push_warps warps, unsigned nap_ns)
{
    char *to = imx_team_data(&args.team, args.team.rank), *inbox = to + args.inbox;
    uint32_t rows = (uint32_t)(args.schedule.m - args.push_rows);
    slice_walk w = walk_begin(s, warps);
#pragma unroll 1
    while (__any_sync(0xffffffffu, w.row < rows)) {
        const slice_walk begin = w;
        uint4 value[SLICE_MOVES];
        uint32_t at[SLICE_MOVES];
#pragma unroll
        for (int j = 0; j < SLICE_MOVES; j++) {
            at[j] = w.row < rows ? slice_unit(s, slice_row(args, w.row), w.column) : NO_UNIT;
            value[j] = make_uint4(1, 1, 1, 1);
            walk_on(s, &w);
        }
#pragma unroll 1
        for (int looks = 0;; looks++) {
            uint32_t come = 0; /* bit by bit: between tests ptxas would put loads */
#pragma unroll
            for (int j = 0; j < SLICE_MOVES; j++) {
                if (at[j] != NO_UNIT)
                    value[j] = imx_vector_load_whole(inbox + at[j]);
            }
#pragma unroll
            for (int j = 0; j < SLICE_MOVES; j++)
                come |= (uint32_t)imx_vector_has_come(value[j]) << j;
            if (__all_sync(0xffffffffu, come == (1 << SLICE_MOVES) - 1))
                break;
            if (looks >= IMX_TEAM_LOOKS &&
                !__all_sync(0xffffffffu, slice_wait(args, watch, s, begin)))
                return 0;
            if (nap_ns)
                __nanosleep(nap_ns);
        }
#pragma unroll
        for (int j = 0; j < SLICE_MOVES; j++) {
            if (at[j] == NO_UNIT)
                continue;
            imx_vector_store_whole(inbox + at[j], make_uint4(0, 0, 0, 0));
            *(uint4 *)(to + at[j]) = imx_vector_came(value[j]);
        }
    }
    return 1;
}

/* ---- the scout ------------------------------------------------------------------------------- */

/* Before thread 0 meets the others. */
IMX_FN void slices_init(void)
{
    words().scouted = words().sent = 0;
}

/* Whether all blocks have moved slice s on, as this lane sees it. */
IMX_FN int scout_looks(const imx_gemm_args &args, int s, uint64_t epoch)
{
    const uint64_t *first = args.done + slice_words(s);
    uint32_t pairs = slice_words(1) / 2, there = 1;
#pragma unroll 1
    for (uint32_t p = (uint32_t)lane_here(); p < pairs; p += SCOUT_LOADS * 32) {
        uint4 pair[SCOUT_LOADS];
#pragma unroll
        for (uint32_t i = 0; i < SCOUT_LOADS; i++)
            pair[i] = imx_vector_load_whole(first + 2 * min(p + i * 32, pairs - 1));
#pragma unroll
        for (uint32_t i = 0; i < SCOUT_LOADS; i++)
            there &= (pair[i].x | (uint64_t)pair[i].y << 32) >= epoch &&
                     (pair[i].z | (uint64_t)pair[i].w << 32) >= epoch;
    }
    return there;
}

/* The same when it has looked often, by the deadline; 0: give up.  Who waits for peers' rows does
 * it by half of that, and knows whose are late. */
IMX_FN int scout_waits(const imx_gemm_args &args, const imbrexd_watch *watch, int s, uint64_t epoch)
{
    const uint64_t *first = args.done + slice_words(s);
    imbrexd_wait_point point = { args.plan, IMX_POINT_CHUNK, args.team.rank, s };
    imbrexd_watch patient = *watch;
    patient.timeout_ns *= 2;
#pragma unroll 1
    for (uint32_t b = (uint32_t)lane_here(); b < gridDim.x; b += 32) {
        if (!imbrexd_signal_wait(&patient, &first[b], epoch, point))
            return 0;
    }
    return 1;
}

/* One warp.  After a wait that gave up nothing is waited for any more: other blocks of a cluster
 * count on what this one brings.  0: gave up. */
IMX_FN int slices_scout(const imx_gemm_args &args, const imbrexd_watch *watch, int there)
{
    uint64_t epoch = team_use(args);
#pragma unroll 1
    for (int s = 0; s < args.slices && there; s++) {
#pragma unroll 1
        for (int looks = 0; !__all_sync(0xffffffffu, scout_looks(args, s, epoch)) && there;
             looks++) {
            if (s > 0)
                __nanosleep(SLICES_NAP_NS);
            if (looks >= IMX_TEAM_LOOKS)
                there = __all_sync(0xffffffffu, scout_waits(args, watch, s, epoch));
        }
        imbrexd_fence_gpu(); /* what was stored before what this saw */
        imbrexd_fence_tma();
        __syncwarp();
        if (lane_here() == 0)
            shared_count(scouted(), 1);
    }
    if (!there) {
        gave_up_here() = 1;
        if (lane_here() == 0)
            shared_count(scouted(), (uint32_t)args.slices);
    }
    return there;
}

/* ---- what it may do -------------------------------------------------------------------------- */

/* Slice 0, by all warps beside.  0: gave up. */
IMX_FN int slices_begin(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    const push_warps all = push_by(SCOUT_WARP, BESIDE_WARPS);
    slice s = slice_of(args, 0);
    int may = 0;
    int there = slice_send(args, watch, s, all, &may);
    imx_trace_begin(IMX_TRACE_PUSH);
    if (!push_agree(there && slice_move(args, watch, s, all, 0), all))
        return 0;
    slice_moved(args, 0, all.first);
    imx_trace_end(IMX_TRACE_PUSH, -1, 0);
    return 1;
}

/* The others, by one warp that sends, the next one not before its time, or it would stand in the
 * way of this one. */
IMX_FN void slices_send(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    uint32_t due = clock_here();
    int may = 1;
#pragma unroll 1
    for (int i = 1; i < args.slices; i++, due += (uint32_t)args.push_pace[0]) {
        while ((int32_t)(due - clock_here()) > 0)
            __nanosleep(100);
        slice_send(args, watch, slice_of(args, i), push_by(SENDER_WARP, 1), &may);
        __syncwarp();
        if (lane_here() == 0)
            shared_count(sent(), 1);
    }
}

/* And one that moves, and tells of both.  0: gave up. */
IMX_FN int slices_move(const imx_gemm_args &args, const imbrexd_watch *watch)
{
#pragma unroll 1
    for (int i = 1; i < args.slices; i++) {
        if (!slice_move(args, watch, slice_of(args, i), push_by(MOVER_WARP, 1), SLICES_NAP_NS))
            return 0;
        while (shared_counted(sent()) < (uint32_t)i)
            __nanosleep(100);
        slice_moved(args, i, MOVER_WARP);
    }
    return 1;
}

/* Each of the warps beside.  0: gave up. */
IMX_FN int slices_pass(const imx_gemm_args &args, const imbrexd_watch *watch)
{
    uint32_t warp = thread_here() / 32;
    int there = slices_begin(args, watch);
    if (warp == SCOUT_WARP) /* for who loads, if anybody does */
        return index_of(0) < tiles_of() ? slices_scout(args, watch, there) : there;
    if (there && warp == SENDER_WARP)
        slices_send(args, watch);
    return there && (warp != MOVER_WARP || slices_move(args, watch));
}

/* The loading thread: until column k is here; so many are. */
IMX_FN int slices_here(const imx_gemm_args &args, int k)
{
    uint32_t want = (uint32_t)min(k / args.slice_k, args.slices - 1), seen;
    imx_trace_begin(IMX_TRACE_CHUNK);
    do
        seen = shared_counted(scouted());
    while (seen <= want);
    imx_trace_end(IMX_TRACE_CHUNK, -1, (int)want);
    return seen >= (uint32_t)args.slices ? ALL_COLUMNS : (int)seen * args.slice_k;
}

/* ---- the prologue ---------------------------------------------------------------------------- */

static_assert(!EIGHT, "of 8 bits a rank's rows go at once, and their scales");

struct prologue_slices : prologue_none {
    enum {
        REGISTERS = PASSES_FAST ? REGISTERS_MOST : REGISTERS_FEW,
        GATHERS = 1,
        B_FIRST = 1,
        ALL_RANKS = 1,
        ENDS_RUN = 1,
    };

    IMX_FN void init(void) { slices_init(); }

    /* The columns that are here. */
    IMX_FN int begin(const imx_gemm_args &args) { return args.ready ? 0 : ALL_COLUMNS; }

    IMX_FN int begin_step(const imx_gemm_args &args, const imbrexd_watch *, int k, int here)
    {
        if (k >= here)
            here = slices_here(args, k);
        return here;
    }

    IMX_FN int beside(const imx_gemm_args &args, const imbrexd_watch *watch, const imx_tma_map *)
    {
        return slices_pass(args, watch);
    }
};

#endif /* IMX_SM90_PROLOGUE_SLICES_CUH */
