/* dtype.h - elements into float32 and back, with one rounding, to nearest even: the same bits on
 * every machine.
 *
 * Subnormals, infinities and signed zeros are kept; a NaN stays one and becomes quiet.  The loops
 * run over 16 elements at a time so that a compiler turns them into vectors also with -O2.
 */
#ifndef IMX_DTYPE_H
#define IMX_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "imbrex.h"

static inline int64_t imx_dtype_size(int dtype)
{
    return dtype >= IMBREX_E4M3 ? 1 : dtype == IMBREX_F32 ? 4 : 2;
}

static inline int imx_dtype_eight(int dtype)
{
    return dtype == IMBREX_E4M3 || dtype == IMBREX_E5M2;
}

/* The index-th element of an array of dtype. */
static inline const void *imx_dtype_at(int dtype, const void *array, int64_t index)
{
    return (const char *)array + index * imx_dtype_size(dtype);
}

#define IMX_DTYPE_FN static inline __attribute__((always_inline))

IMX_DTYPE_FN uint32_t imx_dtype_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

IMX_DTYPE_FN float imx_dtype_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* yes where the condition holds, else no; without a branch. */
IMX_DTYPE_FN uint32_t imx_dtype_select(int condition, uint32_t yes, uint32_t no)
{
    uint32_t mask = -(uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

IMX_DTYPE_FN float imx_dtype_from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    uint32_t quiet = imx_dtype_select((int32_t)(bits & 0x7fffffff) > 0x7f800000, 0x00400000, 0);
    return imx_dtype_float(bits | quiet);
}

IMX_DTYPE_FN uint16_t imx_dtype_to_bf16(float x)
{
    uint32_t bits = imx_dtype_bits(x);
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1); /* a carry out of the top finite number
                                                            gives infinity, as it should */
    int nan = (int32_t)(bits & 0x7fffffff) > 0x7f800000;
    return (uint16_t)(imx_dtype_select(nan, bits | 0x00400000, rounded) >> 16);
}

/* Exponent and fraction moved into place are the number times 2^-112, also for subnormals. */
IMX_DTYPE_FN float imx_dtype_from_f16(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    uint32_t bits = imx_dtype_bits(imx_dtype_float(magnitude) * 0x1p112f);
    bits |= imx_dtype_select((int32_t)magnitude >= 0x0f800000, 0x7f800000, 0);
    bits |= imx_dtype_select((int32_t)magnitude > 0x0f800000, 0x00400000, 0);
    return imx_dtype_float(bits | (uint32_t)(h & 0x8000) << 16);
}

/* Adding 0.5 leaves a small number's multiple of 2^-24, the subnormals' step, in the low bits,
 * rounded by the addition. */
IMX_DTYPE_FN uint16_t imx_dtype_to_f16(float x)
{
    uint32_t bits = imx_dtype_bits(x);
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    uint32_t small = imx_dtype_bits(imx_dtype_float(magnitude) + 0.5f) - 0x3f000000;
    uint32_t nan = 0x7e00 | (bits >> 13 & 0x3ff);
    uint32_t h = imx_dtype_select((int32_t)magnitude < 0x38800000, small, normal);
    h = imx_dtype_select((int32_t)magnitude >= 0x477ff000, 0x7c00, h); /* 65520 and up */
    h = imx_dtype_select((int32_t)magnitude > 0x7f800000, nan, h);
    return (uint16_t)(h | (bits >> 16 & 0x8000));
}

/* As from_f16, 2^-120; only the code of all ones is no number. */
IMX_DTYPE_FN float imx_dtype_from_e4m3(uint8_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7f) << 20;
    uint32_t bits = imx_dtype_bits(imx_dtype_float(magnitude) * 0x1p120f);
    bits = imx_dtype_select((h & 0x7f) == 0x7f, 0x7fc00000, bits);
    return imx_dtype_float(bits | (uint32_t)(h & 0x80) << 24);
}

/* As to_f16, with subnormals in steps of 2^-9.  What is larger than 448, infinities too, becomes
 * 448; every NaN 0x7f. */
IMX_DTYPE_FN uint8_t imx_dtype_to_e4m3(float x)
{
    uint32_t bits = imx_dtype_bits(x);
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude + 0x7ffff + (magnitude >> 20 & 1) - 0x3c000000) >> 20;
    uint32_t small = imx_dtype_bits(imx_dtype_float(magnitude) + 0x1p14f) - 0x46800000;
    uint32_t h = imx_dtype_select((int32_t)magnitude < 0x3c800000, small, normal);
    h = imx_dtype_select((int32_t)magnitude >= 0x43e00000, 0x7e, h);
    h |= bits >> 24 & 0x80;
    return (uint8_t)imx_dtype_select((int32_t)magnitude > 0x7f800000, 0x7f, h);
}

/* The upper half of a float16. */
IMX_DTYPE_FN float imx_dtype_from_e5m2(uint8_t h)
{
    return imx_dtype_from_f16((uint16_t)(h << 8));
}

/* As to_f16, with subnormals in steps of 2^-16; 61440 and up become infinity. */
IMX_DTYPE_FN uint8_t imx_dtype_to_e5m2(float x)
{
    uint32_t bits = imx_dtype_bits(x);
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude + 0xfffff + (magnitude >> 21 & 1) - 0x38000000) >> 21;
    uint32_t small = imx_dtype_bits(imx_dtype_float(magnitude) + 0x1p7f) - 0x43000000;
    uint32_t nan = 0x7e | (bits >> 21 & 3);
    uint32_t h = imx_dtype_select((int32_t)magnitude < 0x38800000, small, normal);
    h = imx_dtype_select((int32_t)magnitude >= 0x47700000, 0x7c, h);
    h = imx_dtype_select((int32_t)magnitude > 0x7f800000, nan, h);
    return (uint8_t)(h | (bits >> 24 & 0x80));
}

/* Arrays may have been written as anything of the same bits. */
typedef uint16_t imx_dtype_u16 __attribute__((may_alias));

IMX_DTYPE_FN float imx_dtype_same(float x)
{
    return x;
}

/* Defines name: to[i] = one(from[i]), or +=, for count elements. */
#define IMX_DTYPE_LOOP(attributes, name, type_from, type_to, put, one)                       \
    attributes static inline void name(const type_from *restrict from, type_to *restrict to, \
                                       int64_t count)                                        \
    {                                                                                        \
        for (; count >= 16; count -= 16, from += 16, to += 16)                               \
            for (int i = 0; i < 16; i++)                                                     \
                to[i] put one(from[i]);                                                      \
        for (int i = 0; i < count; i++)                                                      \
            to[i] put one(from[i]);                                                          \
    }

#define IMX_DTYPE_LOOPS(attributes, x)                                                             \
    IMX_DTYPE_LOOP(attributes, imx_dtype_widen_bf16##x, imx_dtype_u16, float, =,                   \
                   imx_dtype_from_bf16)                                                            \
    IMX_DTYPE_LOOP(attributes, imx_dtype_widen_f16##x, imx_dtype_u16, float, =,                    \
                   imx_dtype_from_f16)                                                             \
    IMX_DTYPE_LOOP(attributes, imx_dtype_add_bf16##x, imx_dtype_u16, float, +=,                    \
                   imx_dtype_from_bf16)                                                            \
    IMX_DTYPE_LOOP(attributes, imx_dtype_add_f16##x, imx_dtype_u16, float, +=, imx_dtype_from_f16) \
    IMX_DTYPE_LOOP(attributes, imx_dtype_add_f32##x, float, float, +=, imx_dtype_same)             \
    IMX_DTYPE_LOOP(attributes, imx_dtype_narrow_bf16##x, float, imx_dtype_u16, =,                  \
                   imx_dtype_to_bf16)                                                              \
    IMX_DTYPE_LOOP(attributes, imx_dtype_narrow_f16##x, float, imx_dtype_u16, =, imx_dtype_to_f16) \
    IMX_DTYPE_LOOP(attributes, imx_dtype_widen_e4m3##x, uint8_t, float, =, imx_dtype_from_e4m3)    \
    IMX_DTYPE_LOOP(attributes, imx_dtype_narrow_e4m3##x, float, uint8_t, =, imx_dtype_to_e4m3)     \
    IMX_DTYPE_LOOP(attributes, imx_dtype_widen_e5m2##x, uint8_t, float, =, imx_dtype_from_e5m2)    \
    IMX_DTYPE_LOOP(attributes, imx_dtype_narrow_e5m2##x, float, uint8_t, =, imx_dtype_to_e5m2)

IMX_DTYPE_LOOPS(, )
#if defined(__x86_64__)
IMX_DTYPE_LOOPS(__attribute__((target("avx2"))), _avx2)
#define IMX_DTYPE_RUN(loop, from, to, count) \
    (__builtin_cpu_supports("avx2") ? loop##_avx2(from, to, count) : loop(from, to, count))
#else
#define IMX_DTYPE_RUN(loop, from, to, count) loop(from, to, count)
#endif

/* dst[count] = src[count] of dtype. */
static inline void imx_dtype_widen(int dtype, const void *src, float *dst, int64_t count)
{
    if (dtype == IMBREX_BF16)
        IMX_DTYPE_RUN(imx_dtype_widen_bf16, src, dst, count);
    else if (dtype == IMBREX_F16)
        IMX_DTYPE_RUN(imx_dtype_widen_f16, src, dst, count);
    else if (dtype == IMBREX_E4M3)
        IMX_DTYPE_RUN(imx_dtype_widen_e4m3, src, dst, count);
    else if (dtype == IMBREX_E5M2)
        IMX_DTYPE_RUN(imx_dtype_widen_e5m2, src, dst, count);
    else
        memcpy(dst, src, (size_t)count * sizeof *dst);
}

/* sum[count] += src[count] of dtype. */
static inline void imx_dtype_add(int dtype, const void *src, float *sum, int64_t count)
{
    if (dtype == IMBREX_BF16)
        IMX_DTYPE_RUN(imx_dtype_add_bf16, src, sum, count);
    else if (dtype == IMBREX_F16)
        IMX_DTYPE_RUN(imx_dtype_add_f16, src, sum, count);
    else
        IMX_DTYPE_RUN(imx_dtype_add_f32, src, sum, count);
}

/* dst[count] of dtype = src[count], rounded. */
static inline void imx_dtype_narrow(int dtype, const float *src, void *dst, int64_t count)
{
    if (dtype == IMBREX_BF16)
        IMX_DTYPE_RUN(imx_dtype_narrow_bf16, src, dst, count);
    else if (dtype == IMBREX_F16)
        IMX_DTYPE_RUN(imx_dtype_narrow_f16, src, dst, count);
    else if (dtype == IMBREX_E4M3)
        IMX_DTYPE_RUN(imx_dtype_narrow_e4m3, src, dst, count);
    else if (dtype == IMBREX_E5M2)
        IMX_DTYPE_RUN(imx_dtype_narrow_e5m2, src, dst, count);
    else
        memcpy(dst, src, (size_t)count * sizeof *src);
}

/* src[count] as float32: src itself if it is, else widened into room[count]. */
static inline const float *imx_dtype_floats(int dtype, const void *src, float *room, int64_t count)
{
    if (dtype == IMBREX_F32)
        return src;
    imx_dtype_widen(dtype, src, room, count);
    return room;
}

#endif /* IMX_DTYPE_H */
