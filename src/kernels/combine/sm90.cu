/* sm90.cu - the combine kernel for Hopper: rows that lie well come into shared memory by the copy
 * engine, several of them at once, and are added from there.  Others as everywhere
 * (sm80_sums.cuh).
 *
 *     first warp   | list of token 0 | load its rows ... | list of the next token | ...
 *     the others                       | add row 0 | add row 1 | ... | store the sum | ...
 *
 * A ring of stages lies between them, each a piece of a row: full[stage], empty[stage].  Each
 * thread of the others adds 16 bytes of a piece.
 */
enum { ADDERS = 256, THREADS = 32 + ADDERS, BLOCKS = 4 /* on a multiprocessor */ };

#include "../grid.cuh"
#include "../sm90_bulk.cuh"
#include "sm80_sums.cuh"

enum { STAGES = 8, PIECE = ADDERS * 16 };
enum { FIRST = 1, LAST = 2, NOTHING = 4, END = 8 }; /* what a piece is of a sum */

/* What adders are told of a piece. */
struct note {
    char *to; /* of the sum */
    float weight;
    uint32_t bytes;
    int what;
};

struct __attribute__((aligned(128))) ring {
    char data[STAGES][PIECE];
    note notes[STAGES];
    uint64_t full[STAGES], empty[STAGES];
};

COMBINE_FN uint32_t shared_of(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* ---- the first warp; its first lane loads ---------------------------------------------------- */

/* Piece number i; from NULL: there is nothing to load. */
COMBINE_FN void load_piece(ring *r, uint32_t i, const char *from, const note &n)
{
    uint32_t stage = i % STAGES, full = shared_of(&r->full[stage]);
    mbar_wait(shared_of(&r->empty[stage]), (i / STAGES & 1) ^ 1);
    r->notes[stage] = n;
    if (!from) {
        mbar_arrive(full);
        return;
    }
    mbar_expect(full, n.bytes);
    bulk_load(shared_of(r->data[stage]), from, n.bytes, full);
}

/* Columns after columns, of each all rows in their order; *pieces: so far. */
COMBINE_FN void load_token(ring *r, uint32_t *pieces, const list *l, int64_t row_bytes,
                           bool weighted)
{
    int64_t count = (row_bytes + PIECE - 1) / PIECE,
            most = (row_bytes / 16 + count - 1) / count * 16;
    int rows = l->count;
    for (int64_t at = 0; at < row_bytes; at += most) {
        note n = { l->to + at, 1.0f, (uint32_t)(row_bytes - at < most ? row_bytes - at : most),
                   FIRST };
        if (!rows) {
            n.what = NOTHING | LAST;
            load_piece(r, (*pieces)++, NULL, n);
        }
        for (int k = 0; k < rows; k++) {
            n.what = (k == 0 ? FIRST : 0) | (k == rows - 1 ? LAST : 0);
            n.weight = weighted ? l->weight[k] : 1.0f;
            load_piece(r, (*pieces)++, l->from[k] + at, n);
        }
    }
}

COMBINE_FN void load_tokens(const imx_combine_args &args, ring *r, list *l)
{
    bool weighted = args.step == IMX_COMBINE_PLACES;
    uint32_t pieces = 0;
    for (uint32_t i = blockIdx.x; i < walk_of(args); i += gridDim.x) {
        int32_t token = token_at(args, i);
        if (token < 0)
            continue;
        make_list(args, token, l);
        __syncwarp();
        if (threadIdx.x == 0 && l->to && args.n)
            load_token(r, &pieces, l, args.n * BYTES, weighted);
        __syncwarp(); /* before another token's list comes to the same place */
    }
    const note end = { NULL, 0.0f, 0, END };
    if (threadIdx.x == 0)
        load_piece(r, pieces, NULL, end);
}

/* ---- the others ------------------------------------------------------------------------------ */

COMBINE_FN uint4 load_shared(const char *at)
{
    return *(const uint4 *)at;
}

COMBINE_FN void add_pieces(ring *r, bool weighted)
{
    uint32_t at = (threadIdx.x - 32) * 16;
    float sum[TOGETHER] = { 0.0f };
    for (uint32_t i = 0;; i++) {
        uint32_t stage = i % STAGES;
        mbar_wait(shared_of(&r->full[stage]), i / STAGES & 1);
        const note n = r->notes[stage];
        bool in = at < n.bytes;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (in && !(n.what & NOTHING))
            v = load_shared(r->data[stage] + at);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            mbar_arrive(shared_of(&r->empty[stage]));
        if (n.what & END)
            return;
        add_vector(sum, v, weighted, n.weight, n.what & (FIRST | NOTHING));
        if (in && n.what & LAST)
            *(uint4 *)(n.to + at) = imx_vector_narrow(IMX_DTYPE, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    imx_combine(const __grid_constant__ imx_combine_args args,
                const __grid_constant__ imbrexd_watch watch)
{
    __shared__ ring r;
    __shared__ list l;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbar_init(shared_of(&r.full[i]), 1);
            mbar_init(shared_of(&r.empty[i]), ADDERS / 32);
        }
        mbar_init_fence();
    }
    __syncthreads();
    imx_grid_wait();
    imx_grid_let_go();
    if (!lies_well(args)) {
        for (uint32_t i = blockIdx.x; i < walk_of(args); i += gridDim.x) {
            int32_t token = token_at(args, i);
            if (token >= 0)
                one_token(args, token, false, &l);
        }
    } else if (threadIdx.x < 32) {
        load_tokens(args, &r, &l);
    } else {
        add_pieces(&r, args.step == IMX_COMBINE_PLACES);
    }
}
