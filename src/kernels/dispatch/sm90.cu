/* sm90.cu - the dispatch kernel for Hopper: rows that lie well go through shared memory by the copy
 * engine, which a block's first warp asks, while the others bring what is beside the rows.  Other
 * rows go as everywhere (sm80_rows.cuh).
 *
 *     first warp   | load 0 | load 1 | load 2, store 0 | load 3, store 1 | ...
 *
 * A piece of a row is loaded once, and each lane that has a place for it stores it there.
 */
#include "../grid.cuh"
#include "../sm90_bulk.cuh"
#include "sm80_rows.cuh"

enum { PIECES = 4, PIECE = 8192, BEHIND = 2 /* pieces that stores lie behind loads */ };
enum { HALVES = 2, PLACES = HALVES * LANES /* top_k, and ranks, are at most as many */ };
enum : unsigned { ALL = 0xffffffff }; /* lanes */

/* Pieces on their way, and where they go; NULL: nowhere. */
struct __attribute__((aligned(128))) ring {
    char data[PIECES][PIECE];
    char *to[PIECES][PLACES];
    uint32_t bytes[PIECES];
    uint64_t full[PIECES];
};

DISPATCH_FN uint32_t shared_of(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* A lane's: where a token's row goes. */
struct row_places {
    char *to[HALVES];
};

/* ---- the ring, by the first warp ------------------------------------------------------------- */

/* Loads piece number i. */
DISPATCH_FN void load_piece(ring *r, uint32_t i, const char *from, uint32_t bytes,
                            const row_places &places, int64_t at)
{
    uint32_t place = i % PIECES, lane = threadIdx.x, bar = shared_of(&r->full[place]);
    static_assert(PIECES - 1 - BEHIND == 1, "stores that may read on: all behind piece i - PIECES");
    bulk_wait_read(1);
    __syncwarp(); /* all lanes' stores of what lay here have read it */
#pragma unroll
    for (int h = 0; h < HALVES; h++)
        r->to[place][lane + h * LANES] = places.to[h] ? places.to[h] + at : NULL;
    if (lane == 0) {
        r->bytes[place] = bytes;
        mbar_expect(bar, bytes);
        bulk_load(shared_of(r->data[place]), from, bytes, bar);
    }
    __syncwarp();
}

/* Stores piece number i, once it is here. */
DISPATCH_FN void store_piece(ring *r, uint32_t i)
{
    uint32_t place = i % PIECES;
    mbar_wait(shared_of(&r->full[place]), i / PIECES & 1);
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        char *to = r->to[place][threadIdx.x + h * LANES];
        if (to)
            bulk_store(to, shared_of(r->data[place]), r->bytes[place]);
    }
    bulk_commit();
}

/* Piece by piece, as even as they can be; *pieces: so far. */
DISPATCH_FN void copy_token(ring *r, uint32_t *pieces, const char *from, uint32_t bytes,
                            const row_places &places)
{
    if (!__any_sync(ALL, places.to[0] != NULL || places.to[1] != NULL))
        return;
    uint32_t count = (bytes + PIECE - 1) / PIECE, most = (bytes / 16 + count - 1) / count * 16;
    for (uint32_t at = 0; at < bytes; at += most) {
        uint32_t left = bytes - at;
        load_piece(r, *pieces, from + at, left < most ? left : most, places, at);
        if (++*pieces > BEHIND)
            store_piece(r, *pieces - 1 - BEHIND);
    }
}

/* ---- where rows go --------------------------------------------------------------------------- */

/* Each target once; lane t has target t's. */
DISPATCH_FN row_places targets_places(const imx_dispatch_args &args, int32_t token)
{
    unsigned targets = 0, lane = threadIdx.x;
    for (int first = 0; first < args.top_k; first += LANES) {
        int place = first + (int)lane;
        int target = place < args.top_k
                         ? imx_dispatch_target(&args, args.ids[(int64_t)token * args.top_k + place])
                         : -1;
        targets |= __reduce_or_sync(ALL, target < 0 ? 0u : 1u << target);
    }
    int64_t number = (int64_t)args.rank * args.most + token;
    row_places p = { { NULL, NULL } };
    if (targets >> lane & 1)
        p.to[0] = imx_dispatch_row(&args, (int)lane, number);
    return p;
}

/* In c; lane p has those of places p and p + 32. */
DISPATCH_FN row_places rows_places(const imx_dispatch_args &args, int32_t token)
{
    row_places p;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        int place = (int)threadIdx.x + h * LANES;
        int32_t row = place < args.top_k ? args.pair_row[(int64_t)token * args.top_k + place] : -1;
        p.to[h] = row < 0 ? NULL : (char *)args.c + row * bytes_of_row(args);
    }
    return p;
}

/* ---- a block's tokens ------------------------------------------------------------------------ */

DISPATCH_FN void copy_tokens(const imx_dispatch_args &args, ring *r)
{
    bool sends = args.step == IMX_DISPATCH_SENDS;
    int32_t end = sends ? args.tokens : imx_dispatch_tokens(&args);
    int64_t bytes = bytes_of_row(args);
    uint32_t pieces = 0;
    for (int32_t token = blockIdx.x; token < end; token += gridDim.x) {
        const row_places places = sends ? targets_places(args, token) : rows_places(args, token);
        const char *from =
            sends ? (const char *)args.a + token * bytes : imx_dispatch_row(&args, 0, token);
        copy_token(r, &pieces, from, (uint32_t)bytes, places);
    }
    for (uint32_t i = pieces < BEHIND ? 0 : pieces - BEHIND; i < pieces; i++)
        store_piece(r, i);
    bulk_wait();
}

/* By the other warps: ids and weights, or scales. */
DISPATCH_FN void bring_the_rest(const imx_dispatch_args &args)
{
    int thread = (int)threadIdx.x - LANES, threads = THREADS - LANES;
    for (int32_t token = blockIdx.x; token < imx_dispatch_tokens(&args); token += gridDim.x) {
        if (args.step == IMX_DISPATCH_SENDS)
            pack(args, token, thread, threads);
        else
            take_scales(args, token, thread, threads);
    }
}

/* Whether the copy engine can take rows as they are: of slots it always can. */
DISPATCH_FN bool lies_well(const imx_dispatch_args &args)
{
    bool sends = args.step == IMX_DISPATCH_SENDS;
    int64_t bytes = bytes_of_row(args);
    return bytes && bytes % 16 == 0 && bytes <= INT32_MAX &&
           imx_vector_aligned(sends ? args.a : args.c) && !(sends && args.wire == IMBREX_E4M3);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    imx_dispatch(const __grid_constant__ imx_dispatch_args args,
                 const __grid_constant__ imbrexd_watch watch)
{
    __shared__ ring r;
    if (threadIdx.x == 0) {
        for (int i = 0; i < PIECES; i++)
            mbar_init(shared_of(&r.full[i]), 1);
        mbar_init_fence();
    }
    imx_grid_wait();
    imx_grid_let_go();
    if (!lies_well(args)) {
        for (int32_t token = blockIdx.x; token < imx_dispatch_tokens(&args); token += gridDim.x)
            one_token(args, token);
    } else if (threadIdx.x < LANES) {
        __syncwarp(); /* behind the barriers' beginning */
        copy_tokens(args, &r);
    } else {
        bring_the_rest(args);
    }
}
