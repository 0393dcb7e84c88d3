/* sm90_sum.cuh - the sum of a tile's products of 8-bit a and b, of whoever brings the stages.
 *
 * A stage is 128 of k.  Tensor cores add up what they multiply with some 14 bits, so that every
 * stage's products are added up from 0 and then, in float32, to the sum of the stages before, with
 * their scales where they have some: `part` and `sum`, in as many registers.  Where those suffice
 * there are two parts, and the next stage's products are under way meanwhile, else those of the
 * other consumer.  Of tiles of 224 and 256 columns there is a part of one half, and the other
 * half's products come behind it.
 *
 *     consumer 0  | mul 0 | add 0 | mul 1 | add 1 | ...
 *     consumer 1          | mul 0 | add 0 | mul 1 | ...
 *
 *   IMX_EIGHT    imbrex_dtype of a; b is E4M3
 *   IMX_SCALING  imbrex_scaling
 *   IMX_FAST     sums stay in the tensor cores over all of k
 *
 * Who includes it has A_BYTES, STAGE_BYTES, TILE_K, release, and TWO_PARTS: the columns of a tile,
 * at most, that there are registers for two parts of; PER_ROW also ASKS_BENEATH, whether there are
 * some for a tile's scales beside its products.  It defines `making`, a tile that is being
 * made, with at least these fields:
 *
 *     base, at       the ring, and the stage of this step
 *     first_row      of the consumer's rows of the tile
 *     before         the stage of the step before
 *     scales, next   PER_BLOCK, of these four steps, and as they come of the next four
 *     whole          PER_ROW, of the tile
 */
#ifndef IMX_SM90_SUM_CUH
#define IMX_SM90_SUM_CUH

#include "sm90_scales.cuh"

#if defined(IMX_FAST) && IMX_SCALING == 3
#error "each 128 of k have scales of their own"
#endif

IMX_FN void await_step(making *t, int i); /* until step i is there */
IMX_FN void go_on(making *t, int i);      /* its products are under way: `at` moves on */
#if IMX_SCALING == 3
/* Of step `first` + the lane's number among its four. */
IMX_FN block_scales load_scales(const making *t, int first);
IMX_FN bool has_asked(const making *t); /* while the tile before was made, for the first four */
IMX_FN int first_col(const making *t);
#elif IMX_SCALING == 2
IMX_FN void load_scales(tile_scales *s, const making *t);
#endif

/* Those of a tile, or of its first four steps, are asked for. */
IMX_FN void ask_scales(making *t)
{
#if IMX_SCALING == 3
    if (!has_asked(t))
        t->next = load_scales(t, 0);
#elif IMX_SCALING == 2
    if (ASKS_BENEATH)
        load_scales(&t->whole, t);
#endif
}

/* d (+)= a stage's a and b, of which columns of product q; add: whether it adds from the first. */
IMX_FN void multiply(float (&d)[IMX_PRODUCT_ACC], uint32_t stage_address, int first_row, int q,
                     int add)
{
    uint64_t a = wgmma_tile(stage_address + first_row * 128, 16);
    uint64_t b = wgmma_tile(stage_address + A_BYTES + q * IMX_PRODUCT_N * 128, 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TILE_K / 32; i++)
        wgmma(d, a + i * (32 >> 4), b + i * (32 >> 4), i > 0 || add);
    wgmma_commit();
}

/* Until all products are done but those of the last `left` groups; d is of those that are, and not
 * looked at before. */
template <int left> IMX_FN void finish(float (&d)[IMX_PRODUCT_ACC])
{
    if (left)
        wgmma_wait(1);
    else
        wgmma_wait(0);
#pragma unroll
    for (int j = 0; j < IMX_PRODUCT_ACC; j++)
        asm volatile("" : "+f"(d[j]) : : "memory");
}

#ifdef IMX_FAST

IMX_FN void make_sum(float (&sum)[IMX_ACC], making *t, int steps)
{
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        await_step(t, i);
        multiply(sum, t->base + t->at.stage * STAGE_BYTES, t->first_row, 0, i > 0);
        if (i == 0)
            ask_scales(t);
        uint32_t before = t->before;
        go_on(t, i);
        wgmma_wait(1);
        if (i > 0)
            release(t->base, before);
    }
    finish<0>(sum);
    release(t->base, t->before);
}

#else

/* As many registers as there are: with two, the next step's products are under way while one's are
 * added up. */
enum { PARTS = IMX_TILE_N <= TWO_PARTS ? 2 : 1 };

/* Whether a step's products begin at the end of the one before.  In a loop whose steps begin with
 * their products ptxas has the wait for their stage wait for loads of scales, too; one wide product
 * leaves no registers for it. */
enum { BEGUN = PARTS > 1 || PRODUCTS > 1 };

#if IMX_SCALING == 3
enum { EARLY = PRODUCTS > 1 || COL_BLOCKS == 1 }; /* of one of b's blocks they take few registers */
#endif

/* Scales of step i, if these are others than the ones before; those of four steps more are asked
 * for: they take longer than a step to come.  ptxas makes whatever reads a register wait for all
 * loads that might have been to it, so that nothing but arrived() may read what is loaded. */
IMX_FN void find_scales(making *t, int i)
{
#if IMX_SCALING == 3
    if (i % 4)
        return;
    t->scales = arrived(t->next);
    t->next = load_scales(t, i + 4);
#endif
}

/* sum += part, product q of step i, which was in `stage`; left: groups that are under way behind
 * it. */
template <int left>
IMX_FN void end_product(float (&sum)[IMX_ACC], float (&part)[IMX_PRODUCT_ACC], making *t,
                        uint32_t stage, int i, int q)
{
#if IMX_SCALING == 3
    product_scales scales;
    if (EARLY)
        scales = scales_of(t->scales, i, q);
#endif
    finish<left>(part);
    if (q == PRODUCTS - 1)
        release(t->base, stage);
#if IMX_SCALING == 3
    if (!EARLY)
        scales = scales_of(t->scales, i, q);
    add_scaled(sum, part, scales, first_col(t), q);
#else
    add_part(sum, part, q);
#endif
}

/* part = product 0 of step i, which is under way. */
IMX_FN void begin_step(float (&part)[IMX_PRODUCT_ACC], making *t, int i)
{
    await_step(t, i);
    multiply(part, t->base + t->at.stage * STAGE_BYTES, t->first_row, 0, 0);
}

/* Step i begins, and the one before ends, in `part`. */
IMX_FN void step_behind(float (&sum)[IMX_ACC], float (&next)[IMX_PRODUCT_ACC],
                        float (&part)[IMX_PRODUCT_ACC], making *t, int i)
{
    begin_step(next, t, i);
    uint32_t before = t->before;
    go_on(t, i);
    end_product<1>(sum, part, t, before, i - 1, 0);
}

IMX_FN void make_sum(float (&sum)[IMX_ACC], making *t, int steps)
{
    float part[PARTS][IMX_PRODUCT_ACC];
    int i = 0;
#pragma unroll
    for (int j = 0; j < IMX_ACC; j++)
        sum[j] = 0;
    if (BEGUN) {
        begin_step(part[0], t, 0);
        ask_scales(t);
    }
#pragma unroll 1
    while (PARTS == 1) {
        if (!BEGUN)
            begin_step(part[0], t, i);
        if (!BEGUN && i == 0)
            ask_scales(t);
        find_scales(t, i);
        go_on(t, i);
        end_product<0>(sum, part[0], t, t->before, i, 0);
#pragma unroll
        for (int q = 1; q < PRODUCTS; q++) {
            uint32_t stage = t->base + t->before * STAGE_BYTES;
            asm volatile("" : "+r"(stage)); /* worked out again, not kept */
            multiply(part[0], stage, t->first_row, q, 0);
            end_product<0>(sum, part[0], t, t->before, i, q);
        }
        if (++i == steps)
            return;
        if (BEGUN)
            begin_step(part[0], t, i);
    }
    find_scales(t, 0);
    go_on(t, 0);
#pragma unroll 1
    for (i = 1; i + 1 < steps; i += 2) {
        step_behind(sum, part[PARTS - 1], part[0], t, i);
        step_behind(sum, part[0], part[PARTS - 1], t, i + 1);
        find_scales(t, i + 1);
    }
    if (i < steps) {
        step_behind(sum, part[PARTS - 1], part[0], t, i);
        end_product<0>(sum, part[PARTS - 1], t, t->before, i, 0);
    } else {
        end_product<0>(sum, part[0], t, t->before, i - 1, 0);
    }
}

#endif

#endif /* IMX_SM90_SUM_CUH */
