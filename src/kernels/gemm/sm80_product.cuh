/* sm80_product.cuh - a tile's products, of whoever brings the stages that they are made of: a ring
 * of stages in shared memory, fragments of the next product loaded during this one.
 *
 * Who includes it defines `worker`, what a thread loads next; load_ahead, which brings the next
 * stage, if there is one more; and wait_ahead: until the next stage's copies by this thread have
 * come. */
#ifndef IMX_SM80_PRODUCT_CUH
#define IMX_SM80_PRODUCT_CUH

#include "sm80_eight.cuh"
#include "sm80_load.cuh"
#include "sm80_store.cuh"

typedef struct worker worker;
IMX_FN void load_ahead(worker *w, int stage, bool more);
IMX_FN void wait_ahead(void);
#ifdef IMX_EIGHT
/* sum += part, of a stage, and part begins again. */
IMX_FN void end_stage(const worker *w, sums &sum, sums &part, int stage);
#endif

extern __shared__ __attribute__((aligned(128))) unsigned char ring[];

/* What one warp multiplies at once. */
typedef struct fragments {
    uint32_t a[PARTS_M][4], b[PARTS_N][2];
} fragments;

/* Where this thread finds and puts its shares of a stage. */
typedef struct places {
    uint32_t a_to, b_to;     /* its units */
    uint32_t a_from, b_from; /* its rows of the first fragments */
} places;

IMX_FN uint32_t stage_at(int stage)
{
    return (uint32_t)__cvta_generic_to_shared(ring) + stage * STAGE_BYTES;
}

IMX_FN places places_here(void)
{
    int lane = lane_of(), thread = threadIdx.x;
    places at;
    at.a_to = place_along(thread / (A_ROW / 16), thread % (A_ROW / 16));
    at.a_from = place_along(warp_row() + lane % 16, lane / 16);
#if !defined(IMX_B_KN)
    at.b_to = A_BYTES + place_along(thread / (B_ROW / 16), thread % (B_ROW / 16));
    at.b_from = A_BYTES + place_along(warp_col() + lane / 16 * 8 + lane % 8, lane / 8 % 2);
#else
    at.b_to = A_BYTES + place_across(thread / (B_ROW / 16), thread % (B_ROW / 16));
    if (FROM_BYTES == 2)
        at.b_from = A_BYTES + place_across(lane % 16, warp_col() / 8 + lane / 16);
    else
        at.b_from = A_BYTES + place_across(lane % 4, warp_col() / 4 + lane / 16) + lane / 4 % 4 * 4;
#endif
    return at;
}

/* At least one: with k = 0 it is zeros. */
IMX_FN int stages_of(int64_t k)
{
    return k > IMX_TILE_K ? (int)((k + IMX_TILE_K - 1) / IMX_TILE_K) : 1;
}

/* ---- products -------------------------------------------------------------------------------- */

/* The fragments of a stage's product number `step`.  Exclusive or, because places are swizzled. */
IMX_FN void load_fragments(fragments *f, const places &at, uint32_t from, int step)
{
#pragma unroll
    for (int i = 0; i < PARTS_M; i++)
        load_matrices(f->a[i], from + (at.a_from ^ step << 5) + i * 16 * A_ROW);
#pragma unroll
    for (int j = 0; j + 1 < PARTS_N; j += 2) {
#if !defined(IMX_B_KN)
        uint32_t two[4];
        load_matrices(two, from + (at.b_from ^ step << 5) + j * 8 * B_ROW);
#elif IMX_TF32
        uint32_t row = from + step * 8 * B_ROW;
        uint32_t two[] = { load_word(row + (at.b_from ^ j << 5)),
                           load_word(row + (at.b_from ^ j << 5) + 4 * B_ROW),
                           load_word(row + (at.b_from ^ (j + 1) << 5)),
                           load_word(row + (at.b_from ^ (j + 1) << 5) + 4 * B_ROW) };
#else
        uint32_t two[4];
        load_matrices_turned(two, from + (at.b_from ^ j << 4) + step * 16 * B_ROW);
#endif
        f->b[j][0] = two[0], f->b[j][1] = two[1];
        f->b[j + 1][0] = two[2], f->b[j + 1][1] = two[3];
    }
#if !defined(IMX_B_KN)
    if (PARTS_N % 2)
        load_two_matrices(f->b[PARTS_N - 1],
                          from + (at.b_from ^ step << 5) + (PARTS_N - 1) * 8 * B_ROW);
#endif
}

IMX_FN void multiply_row(float (&c)[PARTS_N][4], const uint32_t (&a)[4],
                         const uint32_t (&b)[PARTS_N][2])
{
#pragma unroll
    for (int j = 0; j < PARTS_N; j++)
        mma(c[j], a, b[j]);
}

#if IMX_TF32

/* The small products first. */
IMX_FN void multiply(sums &c, const fragments *f)
{
    uint32_t b_high[PARTS_N][2], b_low[PARTS_N][2];
#pragma unroll
    for (int j = 0; j < PARTS_N * 2; j++)
        split(f->b[j / 2][j % 2], b_high[j / 2][j % 2], b_low[j / 2][j % 2]);
#pragma unroll
    for (int i = 0; i < PARTS_M; i++) {
        uint32_t a_high[4], a_low[4];
#pragma unroll
        for (int q = 0; q < 4; q++)
            split(f->a[i][q], a_high[q], a_low[q]);
        multiply_row(c[i], a_low, b_high);
        multiply_row(c[i], a_high, b_low);
        multiply_row(c[i], a_high, b_high);
    }
}

/* sum += part, and part begins again. */
IMX_FN void add_stage(sums &sum, sums &part)
{
#pragma unroll
    for (int i = 0; i < PARTS_M * PARTS_N * 4; i++) {
        sum[i / 4 / PARTS_N][i / 4 % PARTS_N][i % 4] +=
            part[i / 4 / PARTS_N][i / 4 % PARTS_N][i % 4];
        part[i / 4 / PARTS_N][i / 4 % PARTS_N][i % 4] = 0;
    }
}

#elif defined(IMX_EIGHT)

/* A word has four codes of a row, of which two are the first and two the second half of what an mma
 * takes of the row: of a and b alike, so that it does not matter which of k they are. */
IMX_FN void multiply(sums &c, const fragments *f)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t b[PARTS_N][2];
#pragma unroll
        for (int j = 0; j < PARTS_N; j++) {
            b[j][0] = widen_low(IMBREX_E4M3, f->b[j][half]);
            b[j][1] = widen_high(IMBREX_E4M3, f->b[j][half]);
        }
#pragma unroll
        for (int i = 0; i < PARTS_M; i++) {
            const uint32_t upper = f->a[i][2 * half], lower = f->a[i][2 * half + 1];
            const uint32_t a[4] = { widen_low(IMX_EIGHT, upper), widen_low(IMX_EIGHT, lower),
                                    widen_high(IMX_EIGHT, upper), widen_high(IMX_EIGHT, lower) };
            multiply_row(c[i], a, b);
        }
    }
}

#else

IMX_FN void multiply(sums &c, const fragments *f)
{
#pragma unroll
    for (int i = 0; i < PARTS_M; i++)
        multiply_row(c[i], f->a[i], f->b);
}

#endif

/* sum = a tile, whose first copies are under way.  At its end all are done with the ring. */
IMX_FN void multiply_tile(sums &sum, worker *w, const places &at, int stages)
{
    fragments f[2];
#if IMX_TF32 || defined(IMX_EIGHT)
    sums part = {};
#else
    sums &part = sum;
#endif
#pragma unroll
    for (int i = 0; i < PARTS_M * PARTS_N * 4; i++)
        sum[i / 4 / PARTS_N][i / 4 % PARTS_N][i % 4] = 0;

    int read = 0;
    wait_ahead();
    __syncthreads();
    load_fragments(&f[0], at, stage_at(0), 0);
#pragma unroll 1
    for (int left = stages; left > 0; left--) {
        uint32_t from = stage_at(read);
        int before = read > 0 ? read - 1 : RING - 1;
        read = read + 1 < RING ? read + 1 : 0;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step + 1 < STEPS) {
                load_fragments(&f[(step + 1) % 2], at, from, step + 1);
            } else {
                wait_ahead();
                __syncthreads(); /* the next stage is there, this one may be overwritten */
                if (left > 1)
                    load_fragments(&f[0], at, stage_at(read), 0);
            }
            if (step == 0)
                load_ahead(w, before, left > AHEAD);
            multiply(part, &f[step % 2]);
        }
#if IMX_TF32
        add_stage(sum, part);
#elif defined(IMX_EIGHT)
        end_stage(w, sum, part, stages - left);
#endif
    }
}

#endif /* IMX_SM80_PRODUCT_CUH */
