/* sm80.cu - the grouped kernel on NVIDIA GPUs: the general GEMM's products over the tiles of all
 * experts.  Rows of a are found by index as they are loaded:
 *
 *     tile of an expert | its rows' pairs | their tokens: each a row of own or of gathered |
 *
 *     IMX_DTYPE, IMX_TILE_M, IMX_TILE_N, IMX_WARP_M, IMX_WARP_N, IMX_TILE_K, IMX_STAGES, IMX_B_KN,
 *     IMX_SHARED_BYTES   as gemm/sm80_shape.cuh has them, and IMX_ALIGNED, always
 *     IMX_EIGHT, IMX_SCALING   of a and b of 8 bits; IMX_DTYPE is c's then
 *     IMX_ANYWHERE       rows of a or b begin at no multiples of 16 bytes: loaded by elements, with
 *                        nothing under way meanwhile
 *
 * Blocks are persistent.  Which tiles there are is only known now: each block counts them for
 * itself (tiles.cuh).
 */
#define IMX_PROLOGUE IMX_PROLOGUE_NONE
#define IMX_EPILOGUE IMX_EPILOGUE_STORE

#include "../gemm/args.h"
#include "../gemm/sm80_product.cuh"
#include "../grid.cuh"
#include "args.h"
#include "tiles.cuh"

/* What this thread loads next.  Its rows of a are anywhere; those that are not there are zeros. */
typedef struct worker {
    places at;
    source b;
    const char *a[A_UNITS]; /* its unit of each row */
    uint32_t a_there;       /* bit i: of row i */
    int a_left;             /* elements of a row, from the unit on; may be negative */
#ifdef IMX_EIGHT
    const imx_grouped_args *args;
    const note *here;
    int source[ROWS_HERE]; /* whose scales this thread's rows of sums have; -1: none */
#endif
} worker;

/* ---- loads ----------------------------------------------------------------------------------- */

/* left: elements from there on; below 1 they are zeros. */
IMX_FN void copy_unit(uint32_t to, const char *from, int left)
{
#ifdef IMX_ANYWHERE
    uint32_t words[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < PER_UNIT; i++) {
        if (i >= left)
            continue;
        if (ELEMENT == 4)
            words[i] = ((const volatile uint32_t *)from)[i];
        else
            words[i / 2] |= (uint32_t)((const volatile uint16_t *)from)[i] << i % 2 * 16;
    }
    shared_store(to, make_uint4(words[0], words[1], words[2], words[3]));
#else
    copy_async(to, from, left > 0 ? 16 : 0);
#endif
}

IMX_FN void load_ahead(worker *w, int stage, bool more)
{
    uint32_t to = stage_at(stage);
    if (more) {
#pragma unroll
        for (int i = 0; i < A_UNITS; i++) {
            copy_unit(to + w->at.a_to + i * A_APART * A_ROW, w->a[i],
                      w->a_there >> i & 1 ? w->a_left : 0);
            w->a[i] += A_ROW;
        }
        w->a_left -= IMX_TILE_K;
        const char *b = w->b.at;
#pragma unroll
        for (int i = 0; i < B_UNITS; i++, b += B_APART * w->b.stride)
            copy_unit(to + w->at.b_to + i * B_APART * B_ROW, b,
                      i * B_APART < w->b.rows ? w->b.left : 0);
#ifdef IMX_B_KN
        step_down(&w->b);
#else
        step_along(&w->b);
#endif
    }
    copy_commit();
}

IMX_FN void wait_ahead(void)
{
    copy_wait();
}

/* The first of a tile's stages: all of the ring but one. */
IMX_FN void load_first(worker *w, int stages)
{
#pragma unroll 1
    for (int stage = 0; stage < IMX_STAGES - 1; stage++)
        load_ahead(w, stage, stage < stages);
}

/* ---- scales ---------------------------------------------------------------------------------- */

#ifdef IMX_EIGHT

/* Of the tile whose products come next. */
IMX_FN void find_sources(worker *w, const imx_grouped_args &args, const note *n)
{
    w->args = &args;
    w->here = n;
#pragma unroll
    for (int i = 0; i < ROWS_HERE; i++)
        w->source[i] =
            row_of(i) < n->tile.rows ? (int)source_of_row(args, n->tile.row + row_of(i)) : -1;
}

#if IMX_SCALING
/* Scale `at` of each of this thread's rows of a. */
IMX_FN void find_row_scales(float (&s)[ROWS_HERE], const worker *w, int at)
{
#pragma unroll
    for (int i = 0; i < ROWS_HERE; i++)
        s[i] = w->source[i] < 0
                   ? 0
                   : scale_at(w->args->scale_a, w->source[i] * w->args->scale_stride + at);
}
#endif

IMX_FN void end_stage(const worker *w, sums &sum, sums &part, int stage)
{
    float s[ROWS_HERE] = {};
#if IMX_SCALING == 3
    const imx_grouped_args &args = *w->args;
    int64_t stages = (args.k + 127) / 128, blocks = (args.n + 127) / 128;
    if (stage >= stages) /* k is 0: nothing was multiplied, and there are none */
        return;
    int64_t block = w->here->expert * blocks + w->here->tile.col / 128;
    float of_b = scale_at(args.scale_b, block * stages + stage);
    find_row_scales(s, w, stage);
#pragma unroll
    for (int i = 0; i < ROWS_HERE; i++)
        s[i] *= of_b;
#endif
    add_stage(sum, part, s);
}

/* Of a whole tile. */
IMX_FN void scale_tile(sums &c, const worker *w)
{
    float s[ROWS_HERE];
    const float *cols = NULL;
#if IMX_SCALING == 2
    find_row_scales(s, w, 0);
    cols = w->args->scale_b + w->here->expert * w->args->n + w->here->tile.col;
#else
#pragma unroll
    for (int i = 0; i < ROWS_HERE; i++)
        s[i] = 1;
#endif
    scale_sums(c, s, cols, w->here->tile.cols);
}

#endif

/* ---- tiles ----------------------------------------------------------------------------------- */

IMX_FN void set_sources(worker *w, const imx_grouped_args &args, const note &n)
{
    int first = (int)threadIdx.x / (A_ROW / 16), unit = (int)threadIdx.x % (A_ROW / 16);
    const char *b = (const char *)args.b + n.expert * args.n * args.k * FROM_BYTES;
    w->a_left = (int)args.k - unit * FROM_UNIT;
    w->a_there = 0;
#pragma unroll
    for (int i = 0; i < A_UNITS; i++) {
        int row = first + i * A_APART;
        const char *at = row < n.tile.rows ? row_of_a(args, n.tile.row + row, FROM_BYTES) : NULL;
        w->a[i] = at + unit * 16;
        w->a_there |= (uint32_t)(at != NULL) << i;
    }
#ifdef IMX_B_KN
    w->b = source_of(b, args.k, args.n, 0, n.tile.col, B_ROW / 16);
#else
    w->b = source_of(b, args.n, args.k, n.tile.col, 0, B_ROW / 16);
#endif
}

/* All threads, before they load what a tile has of a: others' rows, for a block's first that has
 * such. */
IMX_FN void await(const imx_grouped_args &args, const imbrexd_watch *watch, const note &n,
                  int *all_here)
{
    if (!n.late || *all_here)
        return;
    if (threadIdx.x < 32)
        wait_for_all(args, watch);
    __syncthreads();
    *all_here = 1;
}

IMX_FN void store(sums &c, const imx_grouped_args &args, const imx_tile &tile)
{
    char *corner = (char *)args.c + (tile.row * args.n + tile.col) * ELEMENT;
    if (imx_vector_aligned(corner) && args.n % PER_UNIT == 0)
        store_vectors(c, corner, args.n, tile);
    else
        store_elements(c, corner, args.n, tile);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imx_grouped(const __grid_constant__ imx_grouped_args args,
                const __grid_constant__ imbrexd_watch watch)
{
    __shared__ note notes[2]; /* this tile and the next */
    __shared__ int32_t before[IMX_GROUPED_COUNTS];
    int64_t columns = (args.n + IMX_TILE_N - 1) / IMX_TILE_N;
    imx_grid_wait();
    imx_grid_let_go();
    count_tiles(args, before);
    int64_t tiles = before[segments_of(args)] * columns;
    if (threadIdx.x < 2 && blockIdx.x + threadIdx.x * gridDim.x < tiles)
        notes[threadIdx.x] = tile_at(args, before, columns, blockIdx.x + threadIdx.x * gridDim.x);
    __syncthreads();

    worker w;
    w.at = places_here();
    int parity = 0, stages = stages_of(args.k), all_here = 0;
    if (blockIdx.x < tiles) {
        await(args, &watch, notes[0], &all_here);
        set_sources(&w, args, notes[0]);
        load_first(&w, stages);
    }
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x, parity ^= 1) {
        note &here = notes[parity];
        sums c;
#ifdef IMX_EIGHT
        find_sources(&w, args, &here);
#endif
        multiply_tile(c, &w, w.at, stages);
#ifdef IMX_EIGHT
        scale_tile(c, &w);
#endif
        if (i + gridDim.x < tiles) {
            await(args, &watch, notes[parity ^ 1], &all_here);
            set_sources(&w, args, notes[parity ^ 1]);
            load_first(&w, stages);
        }
        store(c, args, here.tile);
        __syncthreads(); /* all have stored, and read the note */
        if (threadIdx.x == 0 && i + 2 * (int64_t)gridDim.x < tiles)
            here = tile_at(args, before, columns, i + 2 * (int64_t)gridDim.x);
    }
}
