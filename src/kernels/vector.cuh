/* vector.cuh - elements of an imbrex_dtype on a GPU: 16 bytes at a time where the address allows
 * it, into float32 and back with one rounding to nearest even.  Where dtype is a constant, nothing
 * is left of the branches. */
#ifndef IMX_VECTOR_CUH
#define IMX_VECTOR_CUH

#include "imbrex_device.h"

/* Which one IMX_DTYPE is: the preprocessor knows no enumerators. */
#define IMX_IS_BF16 (IMX_DTYPE == 1)
#define IMX_IS_F16  (IMX_DTYPE == 2)
#define IMX_IS_F32  (IMX_DTYPE == 3)
#ifdef IMX_DTYPE
static_assert(IMX_IS_BF16 == (IMX_DTYPE == IMBREX_BF16) &&
                  IMX_IS_F16 == (IMX_DTYPE == IMBREX_F16) &&
                  IMX_IS_F32 == (IMX_DTYPE == IMBREX_F32) && IMX_DTYPE >= 1 && IMX_DTYPE <= 3,
              "an imbrex_dtype");
#endif

#define IMX_VECTOR_FN static __device__ __forceinline__

IMX_VECTOR_FN int imx_vector_bytes(int dtype)
{
    return dtype == IMBREX_F32 ? 4 : 2;
}

IMX_VECTOR_FN bool imx_vector_aligned(const void *at)
{
    return ((uintptr_t)at & 15) == 0;
}

/* ---- elements -------------------------------------------------------------------------------- */

IMX_VECTOR_FN float imx_vector_widen16(int dtype, uint16_t x)
{
    if (dtype == IMBREX_BF16)
        return __uint_as_float((uint32_t)x << 16);
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
}

IMX_VECTOR_FN uint16_t imx_vector_narrow16(int dtype, float x)
{
    uint16_t narrow;
    if (dtype == IMBREX_BF16)
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(x));
    else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(x));
    return narrow;
}

/* Two numbers as E4M3, the first one low, to nearest even: what is too large becomes 448, NaN 0x7f.
 * Older GPUs have no instruction for it; below 2^-6 the sum with 2^14 rounds to multiples of 2^-9.
 */
#if __CUDA_ARCH__ >= 890
IMX_VECTOR_FN uint16_t imx_vector_e4m3(float low, float high)
{
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
    return two;
}
#else
IMX_VECTOR_FN uint32_t imx_vector_one_e4m3(float x)
{
    uint32_t bits = __float_as_uint(x), size = bits & 0x7fffffff;
    uint32_t code = (size + 0x7ffff + (size >> 20 & 1) - 0x3c000000) >> 20;
    if (size > 0x7f800000)
        return 0x7f;
    if (size < 0x3c800000)
        code = __float_as_uint(__fadd_rn(__uint_as_float(size), 16384.0f)) - 0x46800000;
    else if (size >= 0x43e00000)
        code = 0x7e;
    return code | (bits >> 24 & 0x80);
}

IMX_VECTOR_FN uint16_t imx_vector_e4m3(float low, float high)
{
    return (uint16_t)(imx_vector_one_e4m3(low) | imx_vector_one_e4m3(high) << 8);
}
#endif

/* A 32-bit word holds one element of f32, or two of the others, the first one low. */
IMX_VECTOR_FN float imx_vector_low(int dtype, uint32_t word)
{
    return dtype == IMBREX_F32 ? __uint_as_float(word)
                               : imx_vector_widen16(dtype, (uint16_t)word);
}

IMX_VECTOR_FN float imx_vector_high(int dtype, uint32_t word)
{
    return imx_vector_widen16(dtype, (uint16_t)(word >> 16));
}

IMX_VECTOR_FN uint32_t imx_vector_word(int dtype, float low, float high)
{
    if (dtype == IMBREX_F32)
        return __float_as_uint(low);
    return imx_vector_narrow16(dtype, low) | (uint32_t)imx_vector_narrow16(dtype, high) << 16;
}

/* Element `index` of an array, as it is in memory now. */
IMX_VECTOR_FN float imx_vector_get(int dtype, const void *array, int64_t index)
{
    if (dtype == IMBREX_F32)
        return ((const volatile float *)array)[index];
    return imx_vector_widen16(dtype, ((const volatile uint16_t *)array)[index]);
}

IMX_VECTOR_FN void imx_vector_put(int dtype, void *array, int64_t index, float x)
{
    if (dtype == IMBREX_F32)
        ((float *)array)[index] = x;
    else
        ((uint16_t *)array)[index] = imx_vector_narrow16(dtype, x);
}

/* ---- 8 bytes --------------------------------------------------------------------------------- */

/* Up to 8 bytes at an element's address, of which `left` are there. */
IMX_VECTOR_FN uint64_t imx_vector_load_word(const char *at, int64_t left)
{
    if (((uintptr_t)at & 7) == 0 && left >= 8)
        return *(const volatile uint64_t *)at;
    uint64_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (2 * i < left)
            word |= (uint64_t)((const volatile uint16_t *)at)[i] << 16 * i;
    }
    return word;
}

IMX_VECTOR_FN void imx_vector_store_word(char *at, uint64_t word, int64_t left)
{
    if (((uintptr_t)at & 7) == 0 && left >= 8) {
        *(uint64_t *)at = word;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (2 * i < left)
            ((uint16_t *)at)[i] = (uint16_t)(word >> 16 * i);
    }
}

/* sum[4] = or += the elements of a word: four, or, of f32, the two that stand at 0 and 2. */
IMX_VECTOR_FN void imx_vector_add_word(int dtype, float *sum, uint64_t word, bool first)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t bits = (uint32_t)(word >> 32 * half);
        float low = imx_vector_low(dtype, bits), high = imx_vector_high(dtype, bits);
        sum[2 * half] = first ? low : sum[2 * half] + low;
        sum[2 * half + 1] = first ? high : sum[2 * half + 1] + high;
    }
}

/* The same number of sums, each rounded once. */
IMX_VECTOR_FN uint64_t imx_vector_round_word(int dtype, const float *sum)
{
    return imx_vector_word(dtype, sum[0], sum[1]) |
           (uint64_t)imx_vector_word(dtype, sum[2], sum[3]) << 32;
}

/* ---- 16 bytes -------------------------------------------------------------------------------- */

/* Coherent, in program order: the memory may have been written by another agent while this kernel
 * ran.  Around the first-level cache: nobody reads it twice. */
IMX_VECTOR_FN uint4 imx_vector_load(const void *at)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

/* The same from any address of an element. */
IMX_VECTOR_FN uint4 imx_vector_load_any(int dtype, const void *at)
{
    if (imx_vector_aligned(at))
        return imx_vector_load(at);
    uint4 v;
    if (dtype == IMBREX_F32) {
        const volatile uint32_t *word = (const volatile uint32_t *)at;
        v.x = word[0], v.y = word[1], v.z = word[2], v.w = word[3];
    } else {
        const volatile uint16_t *half = (const volatile uint16_t *)at;
        v.x = half[0] | (uint32_t)half[1] << 16;
        v.y = half[2] | (uint32_t)half[3] << 16;
        v.z = half[4] | (uint32_t)half[5] << 16;
        v.w = half[6] | (uint32_t)half[7] << 16;
    }
    return v;
}

/* The 16 aligned bytes of one access go together, here and on the way to a peer: whoever sees one
 * word of them sees all.  So nothing else need be ordered.  PTX promises it of .b128, since version
 * 8.3; of a vector, which is the same instruction of the machine, it does not.  But ptxas (of 13.0)
 * loads only the words that are used, each by itself if some are not: use all four. */
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1203
#define IMX_VECTOR_STORE \
    "{\n\t.reg .b128 x;\n\tmov.b128 x, {%1, %2};\n\tst.relaxed.sys.global.b128 [%0], x;\n\t}"
#define IMX_VECTOR_LOAD \
    "{\n\t.reg .b128 x;\n\tld.relaxed.sys.global.b128 x, [%2];\n\tmov.b128 {%0, %1}, x;\n\t}"
#else
#define IMX_VECTOR_STORE "st.relaxed.sys.global.v2.u64 [%0], {%1, %2};"
#define IMX_VECTOR_LOAD  "ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
#endif

IMX_VECTOR_FN void imx_vector_store_whole(void *at, uint4 v)
{
    uint64_t low = v.x | (uint64_t)v.y << 32, high = v.z | (uint64_t)v.w << 32;
    asm volatile(IMX_VECTOR_STORE : : "l"(at), "l"(low), "l"(high) : "memory");
}

IMX_VECTOR_FN uint4 imx_vector_load_whole(const void *at)
{
    uint64_t low, high;
    asm volatile(IMX_VECTOR_LOAD : "=l"(low), "=l"(high) : "l"(at) : "memory");
    return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high,
                      (uint32_t)(high >> 32));
}

/* Data that tells by itself that it has come, in units of 16 bytes that go together: each word of
 * it travels inverted, and as 1 if that is 0, which is a pair of NaN or one; its place is 0 before.
 * A word as it travels; a unit; whether it has come; and what has. */
IMX_VECTOR_FN uint32_t imx_vector_go_word(uint32_t word)
{
    return ~word ? ~word : 1;
}

IMX_VECTOR_FN uint4 imx_vector_go(uint4 v)
{
    return make_uint4(imx_vector_go_word(v.x), imx_vector_go_word(v.y), imx_vector_go_word(v.z),
                      imx_vector_go_word(v.w));
}

IMX_VECTOR_FN int imx_vector_has_come(uint4 v)
{
    return v.x != 0 && v.y != 0 && v.z != 0 && v.w != 0;
}

IMX_VECTOR_FN uint4 imx_vector_came(uint4 v)
{
    return make_uint4(~v.x, ~v.y, ~v.z, ~v.w);
}

/* sum = v's four or eight elements, or += v if this is not the first part (which is not 0 + v: -0
 * stays -0). */
IMX_VECTOR_FN void imx_vector_add(int dtype, float *sum, uint4 v, bool first)
{
    const uint32_t words[] = { v.x, v.y, v.z, v.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float low = imx_vector_low(dtype, words[i]), high = imx_vector_high(dtype, words[i]);
        if (dtype == IMBREX_F32) {
            sum[i] = first ? low : sum[i] + low;
        } else {
            sum[2 * i] = first ? low : sum[2 * i] + low;
            sum[2 * i + 1] = first ? high : sum[2 * i + 1] + high;
        }
    }
}

/* The same number of sums, each rounded once. */
IMX_VECTOR_FN uint4 imx_vector_narrow(int dtype, const float *sum)
{
    const int two = dtype == IMBREX_F32 ? 1 : 2;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = imx_vector_word(dtype, sum[i * two], sum[i * two + two - 1]);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

#endif /* IMX_VECTOR_CUH */
