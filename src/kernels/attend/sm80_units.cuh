/* sm80_units.cuh - what attention by tensor cores is made of: units of 16 bytes in shared memory,
 * fragments, products.
 *
 * The units of row r of a tile lie at their number ^ (r % 8), or, where a row has but four of them,
 * ^ (r / 2 % 4), so that eight rows' units of one column are in different banks.  Shared addresses
 * are 32-bit numbers of the .shared window. */
#ifndef IMX_ATTEND_SM80_UNITS_CUH
#define IMX_ATTEND_SM80_UNITS_CUH

#include "../fragment.cuh"
#include "sm80_add.cuh"

enum {
    EIGHT = IMX_CACHE == IMBREX_E4M3,
    ELEMENT = EIGHT ? 1 : 2,       /* bytes, of the cache */
    ROW_BYTES = IMX_DIM * ELEMENT, /* of a row of k */
    UNITS = ROW_BYTES / 16,
    K_STEPS = IMX_DIM / 16,
/* In shared memory: bytes from row to row, and from eight units of a row to the next eight. */
#ifdef IMX_BOX
    ROW_APART = 128,
    EIGHTH_UNIT = IMX_BOX * ROW_APART, /* after those of all tokens of a box */
#else
    ROW_APART = ROW_BYTES,
    EIGHTH_UNIT = 128,
#endif
};

/* ---- instructions ---------------------------------------------------------------------------- */

#if IMX_IS_BF16
#define ATTEND_MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define ATTEND_MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif

/* c += a b; lane 4 g + t has of c, 16 x 8 in float32, rows g and g + 8, columns 2 t, 2 t + 1. */
ATTEND_FN void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm(ATTEND_MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A matrix of 8 x 8 numbers of which a lane has two of a row: two of a column. */
ATTEND_FN uint32_t turn(uint32_t two)
{
    uint32_t turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(two));
    return turned;
}

ATTEND_FN int swizzle(int row)
{
    return UNITS < 8 ? row / 2 & 3 : row & 7;
}

/* The same in two parts, so that most of it is known when the kernel is compiled: unit `half`, 0 or
 * 1, of a lane's row, and `unit` units further, which are even. */
ATTEND_FN uint32_t lane_unit(int row, int half)
{
    return (uint32_t)((half ^ swizzle(row)) * 16);
}

ATTEND_FN uint32_t further(uint32_t row_at, uint32_t lane_unit, int unit)
{
    const int low = UNITS < 8 ? 3 : 7;
    return row_at + (lane_unit ^ (uint32_t)((unit & low) * 16)) +
           (uint32_t)(unit / 8 * EIGHTH_UNIT);
}

/* The address of a unit of row `row` of a tile. */
ATTEND_FN uint32_t unit_at(uint32_t tile, int row, int unit)
{
    return tile + (uint32_t)(row * ROW_BYTES + (unit ^ swizzle(row)) * 16);
}

/* ---- 8-bit numbers --------------------------------------------------------------------------- */

#define IMX_EIGHT (IMX_CACHE == 4)

#if IMX_EIGHT
/* Two E4M3 numbers, the low half of a word, as two of dtype: none is rounded. */
ATTEND_FN uint32_t widen(uint32_t two)
{
    uint32_t wide;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"((uint16_t)two));
    if (IMX_IS_F16)
        return wide;
    return imx_vector_word(IMX_DTYPE, imx_vector_widen16(IMBREX_F16, (uint16_t)wide),
                           imx_vector_widen16(IMBREX_F16, (uint16_t)(wide >> 16)));
}

/* A word of two tokens with two numbers each: the first number of both, and the second. */
ATTEND_FN void part_words(uint32_t word, uint32_t &first, uint32_t &second)
{
    uint32_t one = widen(word), other = widen(word >> 16);
    first = __byte_perm(one, other, 0x5410);
    second = __byte_perm(one, other, 0x7632);
}
#endif

/* ---- loads ----------------------------------------------------------------------------------- */

/* copy_async of what nobody reads again: it leaves L2 first. */
ATTEND_FN void copy_once(uint32_t to, const void *from, int bytes)
{
    uint64_t first;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 :
                 : "r"(to), "l"(from), "r"(bytes), "l"(first)
                 : "memory");
}

/* 16 bytes of the cache from anywhere. */
ATTEND_FN uint4 load_any(const void *at)
{
    if (!EIGHT)
        return imx_vector_load_any(IMX_DTYPE, at);
    uint32_t words[4] = { 0, 0, 0, 0 };
#pragma unroll
    for (int i = 0; i < 16; i++)
        words[i / 4] |= (uint32_t)((const volatile uint8_t *)at)[i] << i % 4 * 8;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

ATTEND_FN void load_unit(uint32_t to, const void *from, bool there, bool aligned)
{
    if (aligned)
        copy_once(to, from, there ? 16 : 0);
    else
        shared_store(to, there ? load_any(from) : make_uint4(0, 0, 0, 0));
}

ATTEND_FN void commit(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

/* Until all but so many, the newest groups of this thread, are here. */
template <int newest> ATTEND_FN void wait_but(void)
{
    asm volatile("cp.async.wait_group %0;" : : "n"(newest) : "memory");
}

ATTEND_FN void wait_all(void)
{
    asm volatile("cp.async.wait_all;" : : : "memory");
}

/* ---- scores ---------------------------------------------------------------------------------- */

ATTEND_FN float scale_of(const imx_attend_args &x)
{
    return EIGHT ? x.scale * *x.scale_k : x.scale;
}

/* To base 2. */
ATTEND_FN float score_of(const imx_attend_args &x, float scale, float product)
{
    float value = product * scale;
    if (x.soft_cap > 0)
        value = x.soft_cap * tanhf(__fdividef(value, x.soft_cap));
    return value * LOG2E;
}

/* The whole of w's tokens in steps, but for those ahead of `from` and from `to` on, which nobody
 * sees: they are not read. */
ATTEND_FN work narrow(work w, int from, int to, int step)
{
    if (from > w.first)
        w.first += (from - w.first) / step * step;
    w.end = to < w.end ? to : w.end;
    return w;
}

#ifdef IMX_BOX
extern __shared__ __attribute__((aligned(1024))) uint4 imx_attend_shared[];
#else
extern __shared__ uint4 imx_attend_shared[];
#endif

#endif /* IMX_ATTEND_SM80_UNITS_CUH */
