/* sm80_tensor.cuh - splits by tensor cores, whose tokens each warp loads for itself.
 *
 *     tokens of a split   | warp 0: 16 | warp 1: 16 | warp 2 | warp 3 | warp 0: 16 | ...
 *     of a warp           a ring of IMX_STAGES tiles: | k [16, IMX_DIM] | v [16, IMX_DIM] |
 *
 * A warp's loads go on into the next split without a pause.  At a split's end the tile that was
 * weighed last gives its place to the warp's sums, and the four add them, in the warps' order.  A
 * block's splits are looked up all at once, a lane each, or ahead, and up to ROOM of them counted
 * at once, with what is complete added up over splits then, so that loads seldom pause for that. */
#ifndef IMX_ATTEND_SM80_TENSOR_CUH
#define IMX_ATTEND_SM80_TENSOR_CUH

#include "sm80_tokens.cuh"

enum {
    RING_BYTES = IMX_STAGES * STAGE_BYTES, /* of a warp */
    Q_AT = WARPS * RING_BYTES              /* two splits' */
};

struct tensor_room : heads_room {
    uint32_t last; /* bit i: split i of those was its sequence's last, for that head and piece */
};

/* ---- the four ------------------------------------------------------------------------------- */

/* The four: adds up over the splits of whatever `last` has a bit for. */
ATTEND_FN void add_complete(const imx_attend_args &x, const work *splits, uint32_t last)
{
    int warp = (int)threadIdx.x / LANES, turn = warp; /* whose turn it is, counted from this one */
    for (; last; last &= last - 1, turn += IMX_ROWS / TOGETHER) {
        const work w = splits[__ffs((int)last) - 1];
        if (TOGETHER > 1 && w.splits <= FEW_SPLITS) {
            for (int row = turn % WARPS * TOGETHER; row < rows_of(x, w); row += WARPS * TOGETHER)
                add_rows(x, w, row);
        } else {
            for (int row = warp; row < rows_of(x, w); row += WARPS)
                add_row(x, w, row);
        }
    }
}

/* The four: counts entries from `first` up to `end`, which have ended. */
ATTEND_FN void add_ended(const imx_attend_args &x, tensor_room *room, int first, int end)
{
    int at = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    bool is_one = (unsigned)(at - first) % ROOM < (unsigned)(end - first);
    if (warp == 0) {
        uint32_t last = __ballot_sync(ALL, is_one && has_ended(x, room->splits[at]));
        if (at == 0)
            room->last = last;
    }
    __syncthreads();
    if (room->last)
        add_complete(x, room->splits, room->last);
}

/* ---- splits ---------------------------------------------------------------------------------- */

/* A ring's next stage. */
ATTEND_FN int after(int stage)
{
    return stage + 1 == IMX_STAGES ? 0 : stage + 1;
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* One thread: what it has claimed becomes an entry.  Whether there was one left. */
ATTEND_FN bool enter(const imx_attend_args &x, const items &all, int claimed, work *to)
{
    int blocks = (int)gridDim.x, item = DEALT * blocks + claimed;
    bool is_one = item < all.end;
    if (is_one)
        *to = work_of(x, all.first, all.upto, item);
    else
        to->sequence = -1;
    if (item == all.end + blocks - 1) /* each block has asked once too often */
        *x.claims = 0;
    return is_one;
}

/* All, when they have weighed their tokens of w; left: the first warp's place for its sums. */
ATTEND_FN void end_split(const imx_attend_args &x, const work &w, lane_sums *own, float *left,
                         heads_room *room)
{
    const int fours = IMX_DIM / 4; /* of a row */
    int warp = (int)threadIdx.x / LANES;
    add_lanes(own);
#pragma unroll
    for (int first = 0; first < IMX_ROWS; first += ROWS_LEFT) {
        leave(*own, first, left + warp * (LEFT_APART / 4), room);
        __syncthreads();
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < ROWS_LEFT * fours; i += IMX_THREADS) {
            int row = first + i / fours, value = i % fours * 4;
            float2 weights;
            if (row >= rows_of(x, w))
                continue;
            float4 all = sum_left(left, room, row, value, &weights);
            put_sum(x, w, row, value, all, weights);
        }
        __syncthreads();
    }
}

/* The first `count` entries of room->splits; where the others are claimed, these too: while split i
 * is attended to entry i + 2 is made, and what is claimed then is entry i + 3.  A split's q comes
 * while the one before is attended to. */
ATTEND_FN void attend_splits(const imx_attend_args &x, const imbrexd_watch &watch, const items &all,
                             int count, bool claims, tensor_room *room)
{
    works known = { room->splits, claims ? 2 : count };
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    char *rings = (char *)imx_attend_shared;
    uint32_t shared = (uint32_t)__cvta_generic_to_shared(rings), ring = shared + warp * RING_BYTES;
    const bool all_see = !x.hidden && !x.visible;
    bool claiming = claims && threadIdx.x == 0;
    float scale = scale_of(x);
    int claimed = 0, counted = 0;
    int stage = 0, into = 0, ahead = 0; /* ahead: tiles that have been asked for */
    loader l;
    l.item = l.left = 0;
    l.together = is_aligned(x) && x.page % TOKENS == 0;
    l.apart = (x.heads_first ? 1 : x.kv_heads) * ROW_BYTES;
    load_q(x, room->splits[0], shared + Q_AT, (int)threadIdx.x, WARPS * LANES);
    commit();
    for (int i = 0; i < IMX_STAGES - 1; i++) {
        if (load_tile(x, watch, known, &l, ring + (uint32_t)(into * STAGE_BYTES)))
            ahead++, into = after(into);
    }
    wait_but<IMX_STAGES - 1>();
    __syncthreads(); /* q is here */
    for (int i = 0, more = 1; more; i++) {
        const work w = narrowed(x, room->splits[i % ROOM]);
        uint32_t q = shared + (uint32_t)(Q_AT + i % 2 * Q_BYTES);
        if (claims)
            known.known = i + 2;
        if (claiming && i)
            claiming = enter(x, all, claimed, room->splits + (i + 2) % ROOM);
        if (claiming)
            claimed = claim(x);
        const work &next = room->splits[(i + 1) % ROOM];
        more = i + 1 < known.known && next.sequence >= 0;
        if (more) /* nobody reads the q of split i - 1 any more */
            load_q(x, next, shared + (uint32_t)(Q_AT + (i + 1) % 2 * Q_BYTES), (int)threadIdx.x,
                   WARPS * LANES);
        lane_sums own = no_sums();
        look_all(x, w, room);
        int left = steps_of(w);
        if (left < IMX_STAGES) /* else the steps' own waits are enough for q */
            wait_all();
        for (int first = w.first + warp * TOKENS; left; left--, first += STEP) {
            __syncwarp(); /* all have read the tile before */
            if (load_tile(x, watch, known, &l, ring + (uint32_t)(into * STAGE_BYTES)))
                ahead++, into = after(into);
            if (ahead == IMX_STAGES)
                wait_but<IMX_STAGES - 1>();
            else
                wait_all(); /* at the end, or what comes was not known */
            __syncwarp();
            uint32_t tile = ring + (uint32_t)(stage * STAGE_BYTES);
            float score[EIGHTS][4] = {};
            multiply_k(tile, shared_rows{ q }, score);
            see(x, room, scale, first, all_see && first + TOKENS <= w.end, score);
            weigh(&own, score);
            multiply_v(tile + HALF_BYTES, score, &own);
            stage = after(stage);
            ahead--;
        }
        end_split(x, w, &own, (float *)(rings + into * STAGE_BYTES), room);
        if (!more || i + 5 - counted == ROOM) { /* or there is no room for more */
            add_ended(x, room, counted, i + 1);
            counted = i + 1;
        }
    }
}

/* A block's items of a chunk. */
ATTEND_FN void attend_items(const imx_attend_args &x, const imbrexd_watch &watch, const items &all)
{
    __shared__ tensor_room room;
    int blocks = (int)gridDim.x, i = (int)threadIdx.x;
    bool claims = are_claimed(x, all.end);
    for (int next = all.next; next < all.end; next += ROOM * blocks) {
        int left = claims ? DEALT : (all.end - next + blocks - 1) / blocks;
        int count = left < ROOM ? left : ROOM;
        __syncthreads(); /* those before are counted */
        if (i < count)
            room.splits[i] = work_of(x, all.first, all.upto, next + i * blocks);
        __syncthreads();
        attend_splits(x, watch, all, count, claims, &room);
        if (claims)
            break;
    }
}

#endif /* IMX_ATTEND_SM80_TENSOR_CUH */
