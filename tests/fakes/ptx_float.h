/* ptx_float.h - narrow numbers and f32, where ptx_tensor.h's are too slow. */
#ifndef PTX_FLOAT_H
#define PTX_FLOAT_H

#include <stdint.h>
#include <string.h>

static inline float ptx_bits_to_f32(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint32_t ptx_f32_to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float ptx_bf16_to_f32(uint32_t x)
{
    return ptx_bits_to_f32(x << 16);
}

static inline uint16_t ptx_f32_to_bf16(float x)
{
    uint32_t bits = ptx_f32_to_bits(x);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fff : rounded);
}

/* Numbers below 2^-14 by way of a sum that rounds as they do. */
static inline float ptx_f16_to_f32(uint32_t x)
{
    uint32_t sign = (x & 0x8000) << 16, rest = x & 0x7fff;
    uint32_t normal = (rest << 13) + (112u << 23);
    uint32_t special = (rest << 13) | 0x7f800000u;
    float small = (float)(int32_t)rest * 0x1p-24f;
    uint32_t bits = rest >= 0x7c00 ? special : rest >= 0x400 ? normal : ptx_f32_to_bits(small);
    return ptx_bits_to_f32(sign | bits);
}

static inline uint16_t ptx_f32_to_f16(float x)
{
    uint32_t bits = ptx_f32_to_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffffu;
    uint32_t normal = (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
    uint32_t small = ptx_f32_to_bits(ptx_bits_to_f32(rest) + 0.5f) - 0x3f000000u;
    uint32_t result = rest > 0x7f800000u    ? 0x7fff
                      : rest >= 0x47800000u ? 0x7c00
                      : rest >= 0x38800000u ? normal
                                            : small;
    return (uint16_t)(rest > 0x7f800000u ? 0x7fff : sign | result);
}

#endif /* PTX_FLOAT_H */
