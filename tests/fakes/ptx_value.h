/* ptx_value.h - results that C has no operator for. */
#ifndef PTX_VALUE_H
#define PTX_VALUE_H

#include <math.h>

#include "ptx_float.h"
#include "ptx_run.h"

typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;

/* ---- what C has no operator for -------------------------------------------------------------- */

static inline u32 permute(u32 a, u32 b, u32 selector)
{
    u64 bytes = (u64)b << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; i++) {
        u32 which = selector >> 4 * i & 15, byte = (u32)(bytes >> 8 * (which & 7)) & 255;
        if (which & 8)
            byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}

static inline u32 look_up(u32 a, u32 b, u32 c, u32 table)
{
    u32 result = 0;
    for (u32 i = 0; i < 8; i++) {
        if (table >> i & 1)
            result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return result;
}

static inline u64 extract(u64 a, u32 from, u32 count, u32 bits, bool is_signed)
{
    from &= 255;
    count &= 255;
    u64 result = from < bits ? a >> from : 0;
    if (count < bits)
        result &= ((u64)1 << count) - 1;
    u32 top = from + count - 1 < bits - 1 ? from + count - 1 : bits - 1;
    if (is_signed && count && a >> top & 1) {
        u32 have = from < bits ? (count < bits - from ? count : bits - from) : 0;
        if (have < 64)
            result |= ~(u64)0 << have;
    }
    return bits == 32 ? (u32)result : result;
}

static inline u64 insert(u64 a, u64 b, u32 at, u32 count, u32 bits)
{
    at &= 255;
    count &= 255;
    if (at >= bits || !count)
        return b;
    u64 field = count >= 64 ? ~(u64)0 : ((u64)1 << count) - 1;
    field <<= at;
    return (b & ~field) | ((a << at) & field);
}

static inline u64 reverse(u64 a, int bits)
{
    u64 result = 0;
    for (int i = 0; i < bits; i++)
        result |= (a >> i & 1) << (bits - 1 - i);
    return result;
}

static inline u64 high_u64(u64 a, u64 b)
{
    return (u64)((unsigned __int128)a * b >> 64);
}

static inline s64 high_s64(s64 a, s64 b)
{
    return (s64)((__int128)a * b >> 64);
}

static inline float least(float a, float b)
{
    return a != a ? b : b != b ? a : a < b || (a == b && signbit(a)) ? a : b;
}

static inline float most_of(float a, float b)
{
    return a != a ? b : b != b ? a : a > b || (a == b && !signbit(a)) ? a : b;
}

/* The product is exact, and what the sum loses is known: it says on which side the result is. */
static inline float fma_down(float a, float b, float c)
{
    double product = (double)a * b, sum = product + c, back = sum - product;
    double lost = (product - (sum - back)) + (c - back);
    float result = (float)sum;
    bool above = result > sum || (result == sum && lost < 0);
    return above && isfinite(result) ? nextafterf(result, -INFINITY) : result;
}

static inline double rounded(double x, int how)
{
    return how == PTX_ROUND_RZ   ? trunc(x)
           : how == PTX_ROUND_RM ? floor(x)
           : how == PTX_ROUND_RP ? ceil(x)
                                 : nearbyint(x);
}

/* NaN becomes 0 of 32 bits and less; what is too large becomes the largest. */
static inline u64 to_integer(double x, int how, int kind, int bytes)
{
    double low = kind == PTX_SIGNED ? -ldexp(1, 8 * bytes - 1) : 0;
    double high = kind == PTX_SIGNED ? ldexp(1, 8 * bytes - 1) : ldexp(1, 8 * bytes);
    x = rounded(x, how);
    if (x != x)
        return bytes == 8 ? (u64)1 << 63 : 0;
    if (x <= low)
        return kind == PTX_SIGNED ? (u64)(s64)low : 0;
    if (x >= high) /* one less than a power of two */
        return kind == PTX_SIGNED ? ((u64)1 << (8 * bytes - 1)) - 1
               : bytes == 8       ? ~(u64)0
                                  : ((u64)1 << 8 * bytes) - 1;
    return kind == PTX_SIGNED ? (u64)(s64)x : (u64)x;
}

static inline u64 extended(u64 x, int kind, int bytes)
{
    int unused = 64 - 8 * bytes;
    return kind == PTX_SIGNED ? (u64)((s64)(x << unused) >> unused) : x << unused >> unused;
}

/* ---- pairs of narrow numbers ----------------------------------------------------------------- */

#define PAIR(name, widen, narrow, value)                                   \
    static inline u32 name(u32 x, u32 y, u32 z)                            \
    {                                                                      \
        u32 result = 0;                                                    \
        for (int i = 0; i < 32; i += 16) {                                 \
            float a = widen(x >> i), b = widen(y >> i), c = widen(z >> i); \
            (void)b, (void)c;                                              \
            result |= (u32)narrow(value) << i;                             \
        }                                                                  \
        return result;                                                     \
    }
PAIR(add_bf16, ptx_bf16_to_f32, ptx_f32_to_bf16, a + b)
PAIR(sub_bf16, ptx_bf16_to_f32, ptx_f32_to_bf16, a - b)
PAIR(mul_bf16, ptx_bf16_to_f32, ptx_f32_to_bf16, a *b)
PAIR(min_bf16, ptx_bf16_to_f32, ptx_f32_to_bf16, least(a, b))
PAIR(max_bf16, ptx_bf16_to_f32, ptx_f32_to_bf16, most_of(a, b))
PAIR(add_f16, ptx_f16_to_f32, ptx_f32_to_f16, a + b)
PAIR(sub_f16, ptx_f16_to_f32, ptx_f32_to_f16, a - b)
PAIR(mul_f16, ptx_f16_to_f32, ptx_f32_to_f16, a *b)
PAIR(min_f16, ptx_f16_to_f32, ptx_f32_to_f16, least(a, b))
PAIR(max_f16, ptx_f16_to_f32, ptx_f32_to_f16, most_of(a, b))

/* One rounding: the product is exact in a double, and the sum is but for what is too far below. */
static inline u32 fma_of(ptx_type type, u32 x, u32 y, u32 z)
{
    ptx_to to = { .type = type };
    u32 result = 0;
    for (int i = 0; i < 32; i += 16) {
        double product =
            (double)ptx_widen(type, x >> i & 0xffff) * ptx_widen(type, y >> i & 0xffff);
        result |= ptx_narrow(&to, product + ptx_widen(type, z >> i & 0xffff)) << i;
    }
    return result;
}

static inline u32 narrow_two(ptx_type type, float high, float low)
{
    ptx_to to = { .type = type, .satfinite = true };
    return ptx_narrow_two(&to, high, low);
}

static inline u32 widen_two(ptx_type type, u32 x)
{
    return (u32)ptx_f32_to_f16(ptx_widen(type, x & 255)) |
           (u32)ptx_f32_to_f16(ptx_widen(type, x >> 8 & 255)) << 16;
}

#endif /* PTX_VALUE_H */
