/* sm80_units.cuh - units of 16 bytes that carry their flags, on NVIDIA GPUs.
 *
 *     IMX_LINES   1: lines, 0: words (args.h)
 */
#ifndef IMX_LL_SM80_UNITS_CUH
#define IMX_LL_SM80_UNITS_CUH

#include "../vector.cuh"
#include "args.h"

#define LL_FN static __device__ __forceinline__

/* The first byte of a shard that unit i carries. */
LL_FN int64_t data_at(int64_t i)
{
    return IMX_LINES ? i / IMX_LL_UNITS * IMX_LL_LINE + i % IMX_LL_UNITS * (2 * IMX_LL_WORD)
                     : i * IMX_LL_WORD;
}

/* Whether its second word is the line's epoch. */
LL_FN bool is_flag(int64_t i)
{
    return IMX_LINES && i % IMX_LL_UNITS == IMX_LL_UNITS - 1;
}

/* The data of unit i of a shard. */
LL_FN imx_ll_unit load_data(const char *from, int64_t bytes, int64_t i)
{
    int64_t at = data_at(i), left = bytes - at;
    imx_ll_unit data = { 0, 0 };
    if (left > 0)
        data.first = imx_vector_load_word(from + at, left);
    if (IMX_LINES && left > IMX_LL_WORD && !is_flag(i))
        data.second = imx_vector_load_word(from + at + IMX_LL_WORD, left - IMX_LL_WORD);
    return data;
}

LL_FN void store_data(char *to, int64_t bytes, int64_t i, imx_ll_unit data)
{
    int64_t at = data_at(i), left = bytes - at;
    if (left > 0)
        imx_vector_store_word(to + at, data.first, left);
    if (IMX_LINES && left > IMX_LL_WORD && !is_flag(i))
        imx_vector_store_word(to + at + IMX_LL_WORD, data.second, left - IMX_LL_WORD);
}

/* With its flags, as it travels; and back. */
LL_FN imx_ll_unit pack(int64_t i, imx_ll_unit data, uint64_t epoch)
{
    if (IMX_LINES)
        return is_flag(i) ? imx_ll_unit{ data.first, epoch } : data;
    return imx_ll_unit{ epoch << 32 | (uint32_t)data.first, epoch << 32 | data.first >> 32 };
}

LL_FN imx_ll_unit unpack(imx_ll_unit unit)
{
    if (IMX_LINES)
        return unit;
    return imx_ll_unit{ (uint32_t)unit.first | unit.second << 32, 0 };
}

LL_FN bool is_here(int64_t i, imx_ll_unit unit, uint64_t epoch)
{
    if (IMX_LINES)
        return !is_flag(i) || unit.second == epoch;
    return unit.first >> 32 == (uint32_t)epoch && unit.second >> 32 == (uint32_t)epoch;
}

LL_FN void store_unit(imx_ll_unit *at, imx_ll_unit unit)
{
    imx_vector_store_whole(at, make_uint4((uint32_t)unit.first, (uint32_t)(unit.first >> 32),
                                          (uint32_t)unit.second, (uint32_t)(unit.second >> 32)));
}

LL_FN imx_ll_unit load_unit(const imx_ll_unit *at)
{
    uint4 v = imx_vector_load_whole(at);
    return imx_ll_unit{ v.x | (uint64_t)v.y << 32, v.z | (uint64_t)v.w << 32 };
}

#endif /* IMX_LL_SM80_UNITS_CUH */
