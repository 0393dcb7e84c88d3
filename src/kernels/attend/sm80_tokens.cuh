/* sm80_tokens.cuh - how the k and v of a warp's tokens come into its ring of tiles; see
 * sm80_tensor.cuh. */
#ifndef IMX_ATTEND_SM80_TOKENS_CUH
#define IMX_ATTEND_SM80_TOKENS_CUH

#include "sm80_heads.cuh"

enum { STAGE_BYTES = 2 * HALF_BYTES };

/* ---- loads ----------------------------------------------------------------------------------- */

/* Splits that a block works on. */
struct works {
    const work *of; /* [ROOM] */
    int known;      /* entries; one with a sequence below 0 is the end */
};

/* What a warp loads next. */
struct loader {
    work w;
    int item, left; /* steps of w; 0: there is nothing more */
    int next;       /* first token of the warp's tile */
    int page, in;   /* of that token, or, where tiles are not together, of this lane's */
    bool together;  /* a tile's tokens are in one page, and begin at multiples of 16 bytes */
    int apart;      /* bytes from token to token */
};

ATTEND_FN void look_up(const imx_attend_args &x, loader *l)
{
    int t = l->next + (l->together ? 0 : (int)threadIdx.x % TOKENS);
    l->page = l->w.sequence;
    l->in = t;
    if (x.page) {
        int page = (int)((unsigned)t / (unsigned)x.page);
        l->in = t - page * x.page;
        l->page = t < l->w.end ? x.pages[l->w.sequence * x.page_stride + page] : 0;
    }
}

/* From l->item on, the first one with tokens. */
ATTEND_FN void find_tokens(const imx_attend_args &x, const works &all, loader *l)
{
    l->left = 0;
    for (; l->item < all.known && !l->left; l->item++) {
        const work w = all.of[l->item % ROOM];
        if (w.sequence < 0)
            break;
        l->w = narrowed(x, w);
        l->left = steps_of(l->w);
    }
    if (l->left) {
        l->next = l->w.first + (int)threadIdx.x / LANES * TOKENS;
        look_up(x, l);
    }
}

/* Rows that a warp loads at once, a lane a unit. */
enum { AT_ONCE = LANES / UNITS ? LANES / UNITS : 1 };
static_assert(UNITS <= LANES, "a row is no longer than a warp");

ATTEND_FN void load_together(const imx_attend_args &x, const loader &l, int64_t at, uint32_t tile)
{
    int lane = (int)threadIdx.x % LANES, row = lane / UNITS, there = l.w.end - l.next - row;
    int64_t from = at * ELEMENT + row * l.apart + lane % UNITS * 16;
    const char *k = (const char *)x.k + from, *v = (const char *)x.v + from;
    uint32_t to = tile + (uint32_t)(row * ROW_BYTES), unit = lane_unit(row, lane % UNITS);
#pragma unroll
    for (int i = 0; i < TOKENS; i += AT_ONCE) {
        uint32_t at = to + (uint32_t)(i * ROW_BYTES) + (unit ^ (uint32_t)(swizzle(i) * 16));
        copy_once(at, k, i < there ? 16 : 0);
        copy_once(at + HALF_BYTES, v, i < there ? 16 : 0);
        k += AT_ONCE * l.apart;
        v += AT_ONCE * l.apart;
    }
}

/* own: this lane's token, the first of `there`. */
ATTEND_SELDOM void load_apart(const imx_attend_args &x, int there, int64_t own, uint32_t tile)
{
    int lane = (int)threadIdx.x % LANES, unit = lane % UNITS;
    own = lane % TOKENS < there ? own : -1;
#pragma unroll 1
    for (int i = 0; i < TOKENS; i += AT_ONCE) {
        int row = i + lane / UNITS;
        int64_t at = __shfl_sync(ALL, own, row);
        int64_t from = (at < 0 ? 0 : at) * ELEMENT + unit * 16;
        uint32_t to = unit_at(tile, row, unit);
        bool aligned = (((uintptr_t)x.k | (uintptr_t)x.v | (uintptr_t)from) & 15) == 0;
        load_unit(to, (const char *)x.k + from, at >= 0, aligned);
        load_unit(to + HALF_BYTES, (const char *)x.v + from, at >= 0, aligned);
    }
}

/* The next tile of this warp into a stage; tokens from w.end on are zeros.  Whether there is one
 * that is known. */
ATTEND_FN bool load_tile(const imx_attend_args &x, const imbrexd_watch &watch, const works &all,
                         loader *l, uint32_t tile)
{
    if (!l->left)
        find_tokens(x, all, l);
    bool is_one = l->left;
    if (is_one) {
        int64_t at = token_in(x, watch, l->w, l->page, l->in);
        if (l->together)
            load_together(x, *l, at, tile);
        else
            load_apart(x, l->w.end - l->next, at, tile);
        l->next += STEP;
        if (--l->left)
            look_up(x, l);
        else
            find_tokens(x, all, l);
    }
    commit();
    return is_one;
}

#endif /* IMX_ATTEND_SM80_TOKENS_CUH */
