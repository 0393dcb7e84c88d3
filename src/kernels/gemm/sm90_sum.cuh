/* sm90_sum.cuh - the sum of a tile's products of 8-bit a and b, of whoever brings the stages.
 *
 * A stage is 128 of k.  Tensor cores add up what they multiply with some 14 bits, so that every
 * stage's products are added up from 0 and then, in float32, to the sum of the stages before, with
 * their scales where they have some: `part` and `sum`, in as many registers.  Where those suffice
 * there are two parts, and the next stage's products are under way meanwhile, else those of the
 * other consumer.  Of tiles of 224 and 256 columns there is a part of one half, and the other
 * half's products come behind it: two consumers make these by turns.
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
 *
 * and calls begin_turns before the first tile, where there are turns (BY_TURNS).
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

/* d (+)= a stage's a and b; add: whether it adds from the first. */
IMX_FN void multiply(float (&d)[IMX_PRODUCT_ACC], uint32_t stage_address, int first_row, int add)
{
    uint64_t a = wgmma_tile(stage_address + first_row * 128, 16);
    uint64_t b = wgmma_tile(stage_address + A_BYTES, 16);
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

/* ---- turns ----------------------------------------------------------------------------------- */

/* Whether two consumers' halves go to the tensor cores by turns: else they would share these, end
 * together and add up together.  A half begins when the other consumer's has been asked for, not
 * when it is done.  Both have as many halves of all tiles; the last turn is passed to nobody.
 * Barriers 7 and 8 are the turns of the first consumer and of the second. */
enum { BY_TURNS = PRODUCTS > 1 && (int)CONSUMERS == 2 };

IMX_FN void await_turn(int first_row)
{
    if (BY_TURNS)
        asm volatile("bar.sync %0, 256;" : : "r"(first_row ? 8 : 7) : "memory");
}

IMX_FN void pass_turn(int first_row)
{
    if (BY_TURNS)
        asm volatile("bar.arrive %0, 256;" : : "r"(first_row ? 7 : 8) : "memory");
}

/* Of a consumer, before its first tile: the first one's turn it is. */
IMX_FN void begin_turns(int first_row)
{
    if (first_row > 0)
        pass_turn(first_row);
}

/* A stage as multiply_in_turn takes it, worked out before there is anything to wait for: the low
 * word of wgmma_tile, which counts 16 bytes and alone moves on within shared memory. */
IMX_FN uint32_t operands_of(const making *t, uint32_t stage)
{
    uint32_t low = (uint32_t)wgmma_tile(t->base + stage * STAGE_BYTES, 16);
    asm volatile("" : "+r"(low));
    return low;
}

/* d = the stage's a and b, of which columns of product q. */
IMX_FN void multiply_in_turn(float (&d)[IMX_PRODUCT_ACC], uint32_t operands, int first_row, int q)
{
    const uint64_t high = wgmma_tile(0, 0);
    await_turn(first_row);
    uint32_t a = operands + (first_row * 128 >> 4);
    uint32_t b = operands + ((A_BYTES + q * IMX_PRODUCT_N * 128) >> 4);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TILE_K / 32; i++, a += 32 >> 4, b += 32 >> 4)
        wgmma(d, high | a, high | b, i > 0);
    wgmma_commit();
    pass_turn(first_row);
}

/* ---- sums ------------------------------------------------------------------------------------ */

#ifdef IMX_FAST

IMX_FN void make_sum(float (&sum)[IMX_ACC], making *t, int steps)
{
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        await_step(t, i);
        multiply(sum, t->base + t->at.stage * STAGE_BYTES, t->first_row, i > 0);
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

/* part = the product of step i, which is under way. */
IMX_FN void begin_step(float (&part)[IMX_PRODUCT_ACC], making *t, int i)
{
    await_step(t, i);
    multiply(part, t->base + t->at.stage * STAGE_BYTES, t->first_row, 0);
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

/* Halves one behind the other.  The next step's stage is waited for beneath the last of them, so
 * that between products there is nothing to do but to add up. */
IMX_FN void sum_halves(float (&sum)[IMX_ACC], making *t, int steps)
{
    static_assert(IMX_STAGES > 1, "the next stage comes before this one is released");
    float part[IMX_PRODUCT_ACC];
    await_step(t, 0);
    multiply_in_turn(part, operands_of(t, t->at.stage), t->first_row, 0);
    ask_scales(t);
#pragma unroll 1
    for (int i = 0;;) {
        find_scales(t, i);
        go_on(t, i);
        uint32_t operands = operands_of(t, t->before); /* again: kept, it would spill */
        end_product<0>(sum, part, t, t->before, i, 0);
#pragma unroll
        for (int q = 1; q < PRODUCTS; q++) {
            multiply_in_turn(part, operands, t->first_row, q);
            if (q == PRODUCTS - 1) {
                if (i + 1 < steps)
                    await_step(t, i + 1);
                operands = operands_of(t, t->at.stage);
            }
            end_product<0>(sum, part, t, t->before, i, q);
        }
        if (++i == steps)
            return;
        multiply_in_turn(part, operands, t->first_row, 0);
    }
}

/* One product a step.  It begins the step, for which ptxas has the wait for a stage wait for loads
 * of scales, too: there are no registers for it at the end of the step before. */
IMX_FN void sum_steps(float (&sum)[IMX_ACC], making *t, int steps)
{
    float part[IMX_PRODUCT_ACC];
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        begin_step(part, t, i);
        if (i == 0)
            ask_scales(t);
        find_scales(t, i);
        go_on(t, i);
        end_product<0>(sum, part, t, t->before, i, 0);
    }
}

/* The next step's product is under way while one's is added up. */
IMX_FN void sum_two_parts(float (&sum)[IMX_ACC], making *t, int steps)
{
    float part[2][IMX_PRODUCT_ACC];
    int i = 1;
    begin_step(part[0], t, 0);
    ask_scales(t);
    find_scales(t, 0);
    go_on(t, 0);
#pragma unroll 1
    for (; i + 1 < steps; i += 2) {
        step_behind(sum, part[1], part[0], t, i);
        step_behind(sum, part[0], part[1], t, i + 1);
        find_scales(t, i + 1);
    }
    if (i < steps) {
        step_behind(sum, part[1], part[0], t, i);
        end_product<0>(sum, part[1], t, t->before, i, 0);
    } else {
        end_product<0>(sum, part[0], t, t->before, i - 1, 0);
    }
}

IMX_FN void make_sum(float (&sum)[IMX_ACC], making *t, int steps)
{
#pragma unroll
    for (int j = 0; j < IMX_ACC; j++)
        sum[j] = 0;
    if constexpr (PRODUCTS > 1)
        sum_halves(sum, t, steps);
    else if constexpr (IMX_TILE_N <= (int)TWO_PARTS) /* there are registers for two */
        sum_two_parts(sum, t, steps);
    else
        sum_steps(sum, t, steps);
}

#endif

#endif /* IMX_SM90_SUM_CUH */
