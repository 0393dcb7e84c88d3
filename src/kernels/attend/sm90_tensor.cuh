/* sm90_tensor.cuh - splits by tensor cores on Hopper: a warp brings tokens by the copy engine, four
 * weigh them.
 *
 *     a ring of IMX_SLOTS   | k of 64 tokens | v of these | k of the next 64 | v | ...
 *     a slot                | 128 bytes of each token's row | the next 128 bytes of each |
 *
 * Between them lie two barriers of each slot, full and empty.  The warp that loads deals out items,
 * which are splits or whole sequences (sm90_deal.cuh), and looks up pages; it is ahead of the
 * others by what the ring has room for, also from one item to the next, so that loads pause for no
 * split's end.  The k of an item's first tokens comes with q.
 *
 * Where a block has a whole sequence the four add up its splits as they end.  Of others a sixth
 * warp counts the splits that have ended; whatever is complete it adds up over splits, and at the
 * end the four do so too. */
#ifndef IMX_ATTEND_SM90_TENSOR_CUH
#define IMX_ATTEND_SM90_TENSOR_CUH

#include "../sm90_tma.cuh"
#include "sm90_add.cuh"

enum {
    SLOT_BYTES = STEP * ROW_BYTES,
    COLUMNS = ROW_BYTES / ROW_APART, /* blocks of 128 bytes of a row */
    BOXES = STEP / IMX_BOX,          /* of tokens, of a slot */
    BOX_BYTES = IMX_BOX * ROW_BYTES,
    Q_ROOMS = IMX_SLOTS / 2 + 1, /* a split's is free when its last slot is */
    LEFT_AT = IMX_SLOTS * SLOT_BYTES,
    Q_AT = LEFT_AT + WARPS * LEFT_BYTES,
    HEADS_AT = Q_AT + Q_ROOMS * Q_BYTES
};
static_assert(ROWS_LEFT * FOURS % IMX_THREADS == 0, "all add up alike");
static_assert(STEP == 64 && ROW_BYTES % ROW_APART == 0 && STEP % IMX_BOX == 0 && IMX_BOX >= TOKENS,
              "boxes are of whole tiles");

typedef struct attend_maps {
    imx_tma_map k, v;
} attend_maps;

/* What a slot of k is of: entry of heads_room's splits; whether its tokens are the entry's first;
 * and whether with the v behind it they are a split's last, and the entry's. */
enum {
    ENTRY = ROOM - 1,
    IS_FIRST = ROOM,
    IS_LAST = 2 * ROOM,
    IS_DONE = 4 * ROOM,
    IS_END = 8 * ROOM
};

struct ring {
    uint64_t full[IMX_SLOTS], empty[IMX_SLOTS];
    int slot_of[IMX_SLOTS]; /* such words */
};

/* What the four tell the warp that counts, and it tells whoever is free. */
struct ends {
    uint32_t ended;      /* items that are done with, four times each */
    uint32_t counted;    /* how many of them */
    uint32_t all;        /* the block's splits and one; 0: not known yet */
    work complete[ROOM]; /* whose last split has ended */
    uint32_t added_to;   /* how many there are, */
    uint32_t taken;      /* how many parts of them somebody has taken, */
    uint32_t is_over;    /* and there is no further one */
    uint64_t read;       /* the barrier of the place where the four leave sums: they are read */
};

struct heads {
    heads_room room;
    ring slots;
    ends end;
    int upto[CHUNK];
};
static_assert(HEADS_AT + sizeof(heads) <= IMX_SHARED_BYTES, "launch.c has room for it");

/* ---- slots ----------------------------------------------------------------------------------- */

struct place {
    int slot;
    uint32_t parity;
};

ATTEND_FN uint32_t at_shared(const void *of)
{
    return (uint32_t)__cvta_generic_to_shared(of);
}

ATTEND_FN void move_on(place *p)
{
    if (++p->slot == IMX_SLOTS)
        p->slot = 0, p->parity ^= 1;
}

ATTEND_FN void wait_full(const heads &h, const place &p)
{
    mbar_wait(at_shared(&h.slots.full[p.slot]), p.parity);
}

/* A warp has read the slot. */
ATTEND_FN void give_back(const heads &h, place *p)
{
    __syncwarp();
    if (threadIdx.x % LANES == 0)
        mbar_arrive(at_shared(&h.slots.empty[p->slot]));
    move_on(p);
}

/* ---- loads ----------------------------------------------------------------------------------- */

/* What the warp that loads has. */
struct loads {
    const attend_maps *maps;
    uint32_t shared;
    place next;
    int split;    /* how many before this one */
    bool by_maps; /* k and v are aligned as the copy engine wants them */
    int page, in; /* the caller's page, and a token in it: of box `lane` of the group */
    int y, z;     /* where that box is in the maps */
};

/* Boxes that lanes look up together, in tokens. */
enum { GROUP = LANES * IMX_BOX };

/* Where the group is that begins with token `first`; it is waited for when it is used. */
ATTEND_FN void look_up(const imx_attend_args &x, const work &w, int first, loads *l)
{
    int t = first + (int)threadIdx.x % LANES * IMX_BOX;
    l->page = w.sequence;
    l->in = t;
    if (x.page) {
        int page = (int)((unsigned)t / (unsigned)x.page);
        l->in = t - page * x.page;
        l->page = t < w.end ? x.pages[w.sequence * x.page_stride + page] : 0;
    }
}

ATTEND_FN void find(const imx_attend_args &x, const imbrexd_watch &watch, const work &w, loads *l)
{
    int tokens = x.page ? x.page : (int)x.context;
    l->y = x.heads_first ? w.head * tokens + l->in : l->in;
    l->z = w.end > w.first ? page_there(x, watch, w, l->page) : 0; /* there may be no page */
}

/* Tokens from `first` on by all lanes: from anywhere. */
ATTEND_SELDOM void load_apart(const imx_attend_args &x, const imbrexd_watch &watch, const work &w,
                              const void *cache, int first, uint32_t to)
{
    for (int i = (int)threadIdx.x % LANES; i < STEP * UNITS; i += LANES) {
        int row = i / UNITS, unit = i % UNITS, t = first + row;
        if (t >= w.end)
            break;
        int page = page_there(x, watch, w, page_of(x, w, t)), in = x.page ? t % x.page : t;
        int64_t at = page * x.cache_stride + imx_attend_row(&x, in, w.head) * IMX_DIM;
        uint32_t there = (uint32_t)(row / IMX_BOX * BOX_BYTES + unit / 8 * EIGHTH_UNIT +
                                    row % IMX_BOX * ROW_APART + (unit % 8 ^ row % 8) * 16);
        shared_store(to + there, load_any((const char *)cache + at * ELEMENT + unit * 16));
    }
}

/* The next slot: k, or v, of tokens from `first` on; what: of slot_of, of k. */
ATTEND_FN void load_slot(const imx_attend_args &x, const imbrexd_watch &watch, heads *h, loads *l,
                         const work &w, int first, bool is_v, int what)
{
    int lane = (int)threadIdx.x % LANES, left = w.end - first;
    int boxes = !l->by_maps || left <= 0 ? 0
                : left >= STEP           ? BOXES
                                         : (left + IMX_BOX - 1) / IMX_BOX;
    int box = lane - (first - w.first) / IMX_BOX % LANES;
    uint32_t full = at_shared(&h->slots.full[l->next.slot]);
    uint32_t to = l->shared + (uint32_t)(l->next.slot * SLOT_BYTES);
    mbar_wait(at_shared(&h->slots.empty[l->next.slot]), l->next.parity ^ 1);
    if (box >= 0 && box < boxes)
        tma_load_blocks_once(to + (uint32_t)(box * BOX_BYTES), is_v ? &l->maps->v : &l->maps->k,
                             l->y, x.heads_first ? 0 : w.head * COLUMNS, l->z, full);
    if (!is_v && what & IS_FIRST)
        load_q(x, w, l->shared + (uint32_t)(Q_AT + l->split % Q_ROOMS * Q_BYTES), lane, LANES);
    if (!l->by_maps)
        load_apart(x, watch, h->room.splits[l->split % ROOM], is_v ? x.v : x.k, first, to);
    mbar_arrive_behind_copies(full);
    __syncwarp(); /* what was not copied by an engine is there */
    if (lane == 0) {
        if (!is_v)
            h->slots.slot_of[l->next.slot] = what;
        mbar_expect(full, (uint32_t)(boxes * BOX_BYTES));
    }
    move_on(&l->next);
}

/* The warp that loads: all of the block's splits, of each whatever its rows see, and one slot of k
 * and one of v at least.  The next item, and pages, are looked up while slots are under way. */
ATTEND_FN void load_all(const imx_attend_args &x, const imbrexd_watch &watch,
                        const attend_maps &maps, heads *h)
{
    int lane = (int)threadIdx.x % LANES;
    loads l = { &maps, at_shared(imx_attend_shared), { 0, 0 }, 0, is_aligned(x) };
    dealer d = new_dealer();
    work w = {}, next = {};
    for (bool is_one = false, more = true; more;
         w = next, is_one = true) { /* first there is none */
        if (is_one && lane == 0)
            h->room.splits[l.split % ROOM] = w;
        __syncwarp();
        int what = l.split % ROOM | IS_FIRST, first = w.first;
        int upto = w.is_whole ? first / w.each * w.each + w.each : w.end; /* of the split */
        bool is_done;
        do {
            is_done = first + STEP >= w.end;
            what |= is_done ? IS_LAST | IS_DONE : first + STEP >= upto ? IS_LAST : 0;
            if (is_one && (first - w.first) % GROUP == 0)
                find(x, watch, w, &l);
            if (is_one) {
                load_slot(x, watch, h, &l, w, first, false, what);
                load_slot(x, watch, h, &l, w, first, true, 0);
            }
            if (what & IS_FIRST)
                more = deal(x, watch, h->upto, &d, &next);
            upto += what & IS_LAST ? w.each : 0;
            what = l.split % ROOM;
            first += STEP;
            if (!is_done && (first - w.first) % GROUP == 0)
                look_up(x, w, first, &l);
            else if (is_done && more)
                look_up(x, next, next.first, &l);
        } while (!is_done);
        l.split += is_one;
    }
    mbar_wait(at_shared(&h->slots.empty[l.next.slot]), l.next.parity ^ 1);
    mbar_arrive_behind_copies(at_shared(&h->slots.full[l.next.slot]));
    if (lane == 0) {
        h->slots.slot_of[l.next.slot] = IS_END;
        mbar_arrive(at_shared(&h->slots.full[l.next.slot]));
    }
}

/* ---- the four -------------------------------------------------------------------------------- */

/* A split's rows of q, as products read them: from registers, if these are enough. */
struct held_rows {
    enum { UNROLLED = K_STEPS };
    uint32_t of[K_STEPS][EIGHTS][2];

    ATTEND_METHOD held_rows(uint32_t q)
    {
#pragma unroll
        for (int step = 0; step < K_STEPS; step++)
            read_q(q, step, of[step]);
    }

    ATTEND_METHOD void read(int step, uint32_t (&to)[EIGHTS][2]) const
    {
#pragma unroll
        for (int i = 0; i < 2 * EIGHTS; i++)
            to[i / 2][i % 2] = of[step][i / 2][i % 2];
    }
};

#if IMX_ROWS == 8
typedef held_rows q_rows;
#else
struct q_rows : shared_rows {
    enum { UNROLLED = 2 };
};
#endif

/* Rows of v from `there` on, which no token of the split is of, become zeros: weights of 0 do not
 * make one that is no number harmless. */
ATTEND_SELDOM void clear_rows(uint32_t tile, int there)
{
    for (int i = (int)threadIdx.x % LANES; i < TOKENS * UNITS; i += LANES) {
        int row = i / UNITS, unit = i % UNITS;
        if (row >= there)
            shared_store(tile +
                             (uint32_t)(unit / 8 * EIGHTH_UNIT + row * ROW_APART + unit % 8 * 16),
                         make_uint4(0, 0, 0, 0));
    }
    tma_fence_shared(); /* before the copy engine overwrites them */
    __syncwarp();
}

/* ---- the ends of splits ---------------------------------------------------------------------- */

enum { PARTS = IMX_ROWS / TOGETHER }; /* of a complete one, that are taken */

ATTEND_FN uint32_t counted(const uint32_t *at)
{
    return shared_counted(at_shared(at));
}

/* As shared_count, by whoever alone writes it. */
ATTEND_FN void tell(uint32_t *at, uint32_t v)
{
    asm volatile("st.release.cta.shared.u32 [%0], %1;" : : "r"(at_shared(at)), "r"(v) : "memory");
}

/* What a thread keeps of a sequence's splits so far, if the block has all of them: of four numbers
 * of a row. */
struct so_far {
    float most, sum;
    float4 of;
};

ATTEND_FN so_far nothing_so_far(void)
{
    return so_far{ NONE, 0, make_float4(0, 0, 0, 0) };
}

/* A split's sums: as add_parts. */
ATTEND_FN void add_to(so_far *s, float4 of, float2 weights)
{
    float most = fmaxf(s->most, weights.x);
    share by = share_between(s->most, most, weights);
    s->most = most;
    add_share(by, weights.y, &s->sum);
    add_share(by, of.x, &s->of.x);
    add_share(by, of.y, &s->of.y);
    add_share(by, of.z, &s->of.z);
    add_share(by, of.w, &s->of.w);
}

ATTEND_FN void put_so_far(const imx_attend_args &x, const work &w, const so_far &s, int row,
                          int value)
{
    const ending e = ending_of(x, s.most, s.sum);
    int64_t state = state_of(x, w, row), at = state * IMX_VALUES + value;
    put_o(x, e, at, s.of.x);
    put_o(x, e, at + 1, s.of.y);
    put_o(x, e, at + 2, s.of.z);
    put_o(x, e, at + 3, s.of.w);
    if (value == 0 && x.lse)
        x.lse[state] = e.lse;
}

ATTEND_FN void four_barrier(void)
{
    asm volatile("bar.sync 1, %0;" : : "n"(IMX_THREADS) : "memory");
}

/* The four, when they have weighed their tokens of a split; is_done: the last of w; times: how
 * often they have left sums before. */
ATTEND_FN void end_split(const imx_attend_args &x, const work &w, lane_sums *own, so_far *all,
                         bool is_done, heads *h, uint32_t *times)
{
    float *left = (float *)((char *)imx_attend_shared + LEFT_AT);
    int warp = (int)threadIdx.x / LANES;
    add_lanes(own);
#pragma unroll
    for (int first = 0; first < IMX_ROWS; first += ROWS_LEFT, ++*times) {
        mbar_wait(at_shared(&h->end.read), *times & 1 ^ 1);
        leave(*own, first, left + warp * (LEFT_APART / 4), &h->room);
        four_barrier();
#pragma unroll(KEEPS ? OWN : 1)
        for (int i = first * FOURS / IMX_THREADS; i < (first + ROWS_LEFT) * FOURS / IMX_THREADS;
             i++) {
            int at = i * IMX_THREADS + (int)threadIdx.x, row = at / FOURS, value = at % FOURS * 4;
            float2 weights;
            if (row >= rows_of(x, w))
                continue;
            float4 of = sum_left(left, &h->room, row, value, &weights);
            if (KEEPS && w.is_whole)
                add_to(&all[i], of, weights);
            else
                put_sum(x, w, row, value, of, weights);
        }
        __syncwarp();
        if (threadIdx.x % LANES == 0)
            mbar_arrive(at_shared(&h->end.read));
    }
    if (!KEEPS || !w.is_whole || !is_done)
        return;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int at = i * IMX_THREADS + (int)threadIdx.x;
        if (at / FOURS < rows_of(x, w))
            put_so_far(x, w, all[i], at / FOURS, at % FOURS * 4);
    }
}

/* The four: split i of the block has ended. */
ATTEND_FN void tell_ended(heads *h, int i)
{
    enum { UNCOUNTED_MOST = ROOM / 4 }; /* the warp that loads is ahead of these */
    if (threadIdx.x % LANES == 0) {
        shared_count(at_shared(&h->end.ended), 1);
        while (i - (int)counted(&h->end.counted) > UNCOUNTED_MOST)
            __nanosleep(50);
    }
    __syncwarp();
}

/* Rows from `first` up to `end` of a complete one. */
struct taken_rows {
    work of;
    int first, end;
};

/* A warp takes a part of what is complete; whether there was one. */
ATTEND_FN bool take_part(const imx_attend_args &x, heads *h, taken_rows *part)
{
    ends *end = &h->end;
    uint32_t got = ~0u;
    if (threadIdx.x % LANES == 0) {
        uint32_t most = counted(&end->added_to) * PARTS, seen = counted(&end->taken);
        while (seen < most && got != seen) {
            got = seen;
            seen = atomicCAS(&end->taken, got, got + 1);
        }
        got = seen < most ? got : ~0u;
    }
    got = __shfl_sync(ALL, got, 0);
    if (got == ~0u)
        return false;
    part->of = end->complete[got / PARTS % ROOM];
    part->first = (int)(got % PARTS) * TOGETHER;
    part->end = part->first + TOGETHER;
    part->end = part->end < rows_of(x, part->of) ? part->end : rows_of(x, part->of);
    return true;
}

/* The warp that counts: entries from `first` up to `upto`, all at once. */
ATTEND_FN void count_ended(const imx_attend_args &x, heads *h, int first, int upto,
                           uint32_t *complete)
{
    int lane = (int)threadIdx.x % LANES;
    const work &w = h->room.splits[(first + lane) % ROOM];
    __syncwarp();
    bool is_one = lane < upto - first && !w.is_whole && has_ended(x, w);
    uint32_t all = __ballot_sync(ALL, is_one);
    if (is_one)
        h->end.complete[(*complete + (uint32_t)__popc(all & ((1u << lane) - 1))) % ROOM] = w;
    *complete += (uint32_t)__popc(all);
    __syncwarp();
    if (lane == 0) {
        tell(&h->end.added_to, *complete);
        tell(&h->end.counted, (uint32_t)upto);
    }
}

/* The warp that counts splits, and adds up over them what is complete. */
ATTEND_FN void count_all(const imx_attend_args &x, heads *h)
{
    enum { WAITING_MOST = ROOM / 4 * PARTS };
    ends *end = &h->end;
    uint32_t complete = 0;
    int before = 0;
    taken_rows part;
    for (;;) {
        int all = (int)counted(&end->all), ended = (int)counted(&end->ended) / WARPS;
        uint32_t waiting = complete * PARTS - counted(&end->taken);
        all = __shfl_sync(ALL, all, 0);
        ended = __shfl_sync(ALL, ended, 0);
        waiting = __shfl_sync(ALL, waiting, 0);
        if (ended > before && waiting < WAITING_MOST) {
            count_ended(x, h, before, ended, &complete);
            before = ended;
        } else if (all && before == all - 1) {
            break;
        } else if (take_part(x, h, &part)) {
#pragma unroll 1
            for (int row = part.first; row < part.end; row++)
                add_row(x, part.of, row);
        } else {
            __nanosleep(20);
        }
    }
    if (threadIdx.x % LANES == 0)
        tell(&end->is_over, 1);
}

/* One of the four, with nothing left to weigh: adds up what is complete. */
ATTEND_FN void add_left(const imx_attend_args &x, heads *h)
{
    taken_rows part;
    for (bool is_over = false;;) {
        if (take_part(x, h, &part))
            add_fetching(x, part.of, part.first, part.end);
        else if (is_over)
            return;
        is_over = __shfl_sync(ALL, counted(&h->end.is_over), 0);
    }
}

/* ---- the block's splits ---------------------------------------------------------------------- */

ATTEND_FN void attend_all(const imx_attend_args &x, heads *h)
{
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    heads_room *room = &h->room;
    uint32_t shared = at_shared(imx_attend_shared), own_at;
    own_at = (uint32_t)(warp * TOKENS / IMX_BOX * BOX_BYTES + warp * TOKENS % IMX_BOX * ROW_APART);
    const bool all_see = !x.hidden && !x.visible;
    float scale = scale_of(x);
    place p = { 0, 0 };
    uint32_t times = 0;
    int i = 0;
    for (;; i++) {
        wait_full(*h, p);
        int what = h->slots.slot_of[p.slot];
        if (what & IS_END)
            break;
        const work &w = room->splits[what & ENTRY];
        const int end = w.end;
        const q_rows q{ shared + (uint32_t)(Q_AT + i % Q_ROOMS * Q_BYTES) };
        lane_sums own = no_sums();
        so_far sums[OWN];
#pragma unroll
        for (int j = 0; j < OWN; j++)
            sums[j] = nothing_so_far();
        look_all(x, w, room);
        __syncwarp();
        for (int first = w.first + warp * TOKENS;; first += STEP) {
            uint32_t tile = shared + (uint32_t)(p.slot * SLOT_BYTES) + own_at;
            float score[EIGHTS][4] = {};
            const bool is_last = what & IS_LAST, is_done = what & IS_DONE;
            multiply_k(tile, q, score);
            give_back(*h, &p);
            see(x, room, scale, first, all_see && first + TOKENS <= end, score);
            weigh(&own, score);
            tile = shared + (uint32_t)(p.slot * SLOT_BYTES) + own_at;
            wait_full(*h, p);
            if (first + TOKENS > end)
                clear_rows(tile, end - first);
            multiply_v(tile, score, &own);
            give_back(*h, &p);
            if (is_last) {
                end_split(x, w, &own, sums, is_done, h, &times);
                if (is_done || !KEEPS)
                    break;
                own = no_sums();
            }
            wait_full(*h, p);
            what = h->slots.slot_of[p.slot];
        }
        tell_ended(h, i);
    }
    if (lane == 0)
        tell(&h->end.all, (uint32_t)i + 1);
    add_left(x, h);
}

#endif /* IMX_ATTEND_SM90_TENSOR_CUH */
