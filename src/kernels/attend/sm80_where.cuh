/* sm80_where.cuh - what a block of the attend kernel works on: splits of sequences, for a head of
 * the cache and a piece of its rows; and where tokens are. */
#ifndef IMX_ATTEND_SM80_WHERE_CUH
#define IMX_ATTEND_SM80_WHERE_CUH

#include "../grid.cuh"
#include "../vector.cuh"
#include "args.h"

#define ATTEND_FN     static __device__ __forceinline__
/* What is seldom run: beside the loops of tiles it would push these out of the cache for code. */
#define ATTEND_SELDOM static __device__ __noinline__
#define ATTEND_METHOD __device__ __forceinline__

enum { LANES = 32, WARPS = IMX_THREADS / LANES };
enum : unsigned { ALL = 0xffffffff };

#define NONE    __int_as_float(0xff800000)
#define LARGEST __int_as_float(0x7f7fffff)
#define LOG2E   1.44269504088896341f
#define LN2     0.693147180559945309f

struct work {
    int sequence, head; /* of the cache */
    int piece, split, splits;
    int first, end; /* tokens of the split, */
    int length;     /* and of the sequence, */
    int each;       /* of which a split has so many */
    bool is_whole;  /* all of its splits one after another, from `first` up to `end` */
};

/* What a block does of a chunk of sequences: items from `next` on, every gridDim.x-th. */
struct items {
    int first, next, end; /* first: sequence */
    const int *upto;      /* count_splits */
};

/* ---- pieces ---------------------------------------------------------------------------------- */

/* As imx_attend_rows, of this kernel's sizes. */
enum {
    PIECE_ROWS = IMX_DIM != IMX_VALUES ? IMX_ATTEND_ROWS_MLA
                 : IMX_DIM > 128       ? IMX_ATTEND_ROWS_WIDE
                                       : IMX_ATTEND_ROWS
};

ATTEND_FN int pieces_of(const imx_attend_args &x)
{
    return (int)((unsigned)(x.queries * x.group + PIECE_ROWS - 1) / PIECE_ROWS);
}

/* Items of the same tokens. */
ATTEND_FN int beside_of(const imx_attend_args &x)
{
    return x.kv_heads * pieces_of(x);
}

/* at / by, of numbers up to some thousands: what it takes less of is code. */
ATTEND_FN int divide_few(int at, int by)
{
    return (int)__fdividef((float)at + 0.5f, (float)by);
}

/* ---- lengths --------------------------------------------------------------------------------- */

ATTEND_SELDOM void complain(const imx_attend_args &x, const imbrexd_watch &watch, int kind,
                            int sequence, int64_t have, int64_t want)
{
    imbrexd_wait_point point = { x.plan, 0, watch.rank, sequence };
    imbrexd_fault_raise(&watch, kind, point, (uint64_t)have, (uint64_t)want);
}

/* As it counts: what the caller says may be beyond. */
ATTEND_FN int length_of(const imx_attend_args &x, int said)
{
    int64_t most = imx_attend_most(&x);
    return said < 0 ? 0 : said < most ? said : (int)most;
}

/* ---- splits ---------------------------------------------------------------------------------- */

ATTEND_SELDOM int splits_of(const imx_attend_args &x, int length)
{
    return imx_attend_splits(length, x.kv_heads);
}

/* Sequences that are counted together: some 500. */
enum { EACH_COUNTS = (512 + IMX_THREADS - 1) / IMX_THREADS, CHUNK = EACH_COUNTS * IMX_THREADS };

/* Sequences of the chunk that begins at `first`. */
ATTEND_FN int chunk_of(const imx_attend_args &x, int first)
{
    return x.sequences - first < CHUNK ? (int)x.sequences - first : CHUNK;
}

/* Tokens of a sequence of which the caller says that it has so many; the first block complains. */
ATTEND_FN int checked_length(const imx_attend_args &x, const imbrexd_watch &watch, int sequence,
                             int said)
{
    int length = length_of(x, said);
    if (blockIdx.x == 0 && length != said)
        complain(x, watch, IMBREXD_FAULT_LENGTH, sequence, said, imx_attend_most(&x));
    return length;
}

/* A warp: the sum over this lane and those before it. */
template <class number> ATTEND_FN number sum_upto(number of)
{
    int lane = (int)threadIdx.x % LANES;
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
        number other = __shfl_up_sync(ALL, of, step);
        of += lane >= step ? other : 0;
    }
    return of;
}

/* upto[i]: splits of sequences `first` up to and with first + i.  Returns all of them. */
ATTEND_FN int count_splits(const imx_attend_args &x, const imbrexd_watch &watch, int first,
                           int *upto)
{
    __shared__ int warps[WARPS];
    int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    int count = chunk_of(x, first), each = (count + IMX_THREADS - 1) / IMX_THREADS;
    int own[EACH_COUNTS], sum = 0, before = 0, begin = (int)threadIdx.x * each;
#pragma unroll
    for (int i = 0; i < EACH_COUNTS; i++)
        own[i] = i < each && begin + i < count ? x.lengths[first + begin + i] : 0;
#pragma unroll
    for (int i = 0; i < EACH_COUNTS; i++) {
        if (i < each && begin + i < count)
            sum += splits_of(x, checked_length(x, watch, first + begin + i, own[i]));
        own[i] = sum;
    }
    int scan = sum_upto(sum);
    __syncthreads(); /* the chunk before is done with */
    if (lane == LANES - 1)
        warps[warp] = scan;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        before += warps[i];
#pragma unroll
    for (int i = 0; i < EACH_COUNTS; i++) {
        if (i < each && begin + i < count)
            upto[begin + i] = before + scan - sum + own[i];
    }
    __syncthreads();
    return upto[count - 1];
}

/* Split `split` of those, of sequence first + i.  Blocks side by side have the heads and pieces of
 * the same tokens: at says which. */
ATTEND_FN work work_in(const imx_attend_args &x, int first, const int *upto, int i, int split,
                       int at)
{
    int pieces = pieces_of(x), head = divide_few(at, pieces);
    work w = { first + i, head, at - head * pieces, split - (i ? upto[i - 1] : 0) };
    w.length = length_of(x, x.lengths[w.sequence]);
    w.splits = imx_attend_splits(w.length, x.kv_heads);
    w.each = imx_attend_split(w.length, x.kv_heads);
    w.first = w.split * w.each;
    w.end = w.first + w.each < w.length ? w.first + w.each : w.length;
    return w;
}

ATTEND_SELDOM work work_of(const imx_attend_args &x, int first, const int *upto, int item)
{
    int beside = beside_of(x), split = item / beside;
    int low = 0, high = chunk_of(x, first) - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (upto[middle] > split)
            high = middle;
        else
            low = middle + 1;
    }
    return work_in(x, first, upto, low, split, item % beside);
}

/* ---- who has which --------------------------------------------------------------------------- */

/* Items of a block that are dealt out; where there are more rounds, all others go to whoever is
 * free, since some SMs read faster than others. */
enum { DEALT = 3 };

ATTEND_FN bool are_claimed(const imx_attend_args &x, int items)
{
    return items >= (DEALT + 1) * (int)gridDim.x && x.sequences <= CHUNK;
}

/* One thread: the next of those, from 0 on. */
ATTEND_FN int claim(const imx_attend_args &x)
{
    int before;
    asm volatile("atom.add.relaxed.gpu.global.s32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(x.claims)
                 : "memory");
    return before;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows of a piece: each a query and a head of q. */
ATTEND_FN int rows_of(const imx_attend_args &x, const work &w)
{
    int rows = x.queries * x.group - w.piece * PIECE_ROWS;
    return rows < PIECE_ROWS ? rows : PIECE_ROWS;
}

/* The row of [sequences, queries] that row i of the piece is of, and of [.., heads]. */
ATTEND_FN int64_t query_of(const imx_attend_args &x, const work &w, int i)
{
    int at = w.piece * PIECE_ROWS + i;
    return (int64_t)w.sequence * x.queries + divide_few(at, x.group);
}

ATTEND_FN int64_t state_of(const imx_attend_args &x, const work &w, int i)
{
    int at = w.piece * PIECE_ROWS + i, query = divide_few(at, x.group);
    return ((int64_t)w.sequence * x.queries + query) * x.heads + w.head * x.group + at -
           query * x.group;
}

/* The tokens that a row sees. */
ATTEND_FN void look(const imx_attend_args &x, const work &w, int row, int *from, int *to)
{
    int64_t query = query_of(x, w, row);
    bool is_one = row < rows_of(x, w);
    int end = is_one && x.visible ? x.visible[query] : w.end;
    *from = is_one && x.hidden ? x.hidden[query] : 0;
    *to = !is_one ? 0 : end < w.end ? end : w.end;
}

/* From the first to the last token that any of so many lanes, side by side, has. */
template <int lanes> ATTEND_FN void join(int *from, int *to)
{
#pragma unroll
    for (int step = lanes / 2; step; step /= 2) {
        int other_from = __shfl_xor_sync(ALL, *from, step);
        int other_to = __shfl_xor_sync(ALL, *to, step);
        *from = other_from < *from ? other_from : *from;
        *to = other_to > *to ? other_to : *to;
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The page of token t, as the caller has it; the sequence where there are no pages. */
ATTEND_FN int page_of(const imx_attend_args &x, const work &w, int t)
{
    return x.page ? x.pages[w.sequence * x.page_stride + t / x.page] : w.sequence;
}

/* The page, or page 0 where it is none of the cache's. */
ATTEND_FN int page_there(const imx_attend_args &x, const imbrexd_watch &watch, const work &w,
                         int page)
{
    if (x.page && (page < 0 || page >= x.page_count)) {
        complain(x, watch, IMBREXD_FAULT_PAGE, w.sequence, page, x.page_count);
        page = 0;
    }
    return page;
}

/* The first element of token `in` of a page, or of a sequence, in k or v. */
ATTEND_FN int64_t token_in(const imx_attend_args &x, const imbrexd_watch &watch, const work &w,
                           int page, int in)
{
    int64_t there = page_there(x, watch, w, page);
    return there * x.cache_stride + imx_attend_row(&x, in, w.head) * IMX_DIM;
}

/* ---- what splits come to --------------------------------------------------------------------- */

/* Of a row and head: the sum over v [IMX_VALUES], and | the largest score | sum of weights |. */
ATTEND_FN float *part_of(const imx_attend_args &x, int64_t state, int split)
{
    return x.parts + (state * x.splits + split) * IMX_VALUES;
}

ATTEND_FN float *weight_of(const imx_attend_args &x, int64_t state, int split)
{
    int64_t states = x.sequences * x.queries * x.heads;
    return x.parts + states * x.splits * IMX_VALUES + (state * x.splits + split) * 2;
}

#endif /* IMX_ATTEND_SM80_WHERE_CUH */
