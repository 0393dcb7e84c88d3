/* place_kernel.h - a kernel of the tool's own, on CPU ranks and GPUs: norms the heads of q and k,
 * turns them by their position, and puts them and v where attention finds them.
 *
 *     qkv of all ranks   | head by head: norm, turn, round | q; k and v behind the cache's tokens |
 *
 * A block has a head of a row, and goes on to the next.  All is float32, and rounded once. */
#ifndef CLI_DECODE_PLACE_KERNEL_H
#define CLI_DECODE_PLACE_KERNEL_H

#include <math.h>
#include <string.h>

#include "imbrex_device.h"

/* A row of the projections has | q: heads | k: kv_heads | v: kv_heads |, each of dim numbers, in
 * columns that were shared out over parts: number f of row b is qkv[f / width, b, f % width]. */
typedef struct place_args {
    const void *qkv;              /* [parts, batch, width] */
    void *q;                      /* [batch, heads, dim] */
    void *k, *v;                  /* [batch, kv_heads, context, dim] */
    const float *turns;           /* [batch, dim]: cosines of the row's angles, then sines */
    const float *q_norm, *k_norm; /* [dim], or NULL */
    const int *places;            /* [batch]: where the row's k and v lie; -1: not on this rank */
    float eps;                    /* of the norms */
    int batch, heads, kv_heads, dim, width, context;
    int dtype; /* imbrex_dtype: 1 bf16, 2 f16, 3 f32 */
} place_args;

enum { PLACE_BF16 = 1, PLACE_F16, PLACE_F32 };

IMBREXD_FN float place_from_bits(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

IMBREXD_FN unsigned place_to_bits(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* A float16's exponent and fraction, moved into place, are the number times 2^-112. */
IMBREXD_FN float place_load(const void *from, long long at, int dtype)
{
    if (dtype == PLACE_F32)
        return ((const float *)from)[at];
    unsigned bits = ((const unsigned short *)from)[at];
    if (dtype == PLACE_BF16)
        return place_from_bits(bits << 16);
    unsigned sign = (bits & 0x8000) << 16, size = (bits & 0x7fff) << 13;
    if (size >= 0x0f800000)
        return place_from_bits(sign | size | 0x7f800000);
    return place_from_bits(sign | place_to_bits(place_from_bits(size) * 0x1p112f));
}

/* To nearest, ties to even. */
IMBREXD_FN unsigned place_f16(float x)
{
    unsigned bits = place_to_bits(x), size = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    if (x != x)
        return sign | 0x7e00;
    if (size >= 0x477ff000) /* 65520 */
        return sign | 0x7c00;
    if (size < 0x38800000) /* near 0.5 a float32 has the last step of small float16s */
        return sign | (place_to_bits(place_from_bits(size) + 0.5f) - 0x3f000000);
    size += 0xfff + (size >> 13 & 1);
    return sign | (size - 0x38000000) >> 13;
}

IMBREXD_FN void place_store(void *to, long long at, int dtype, float x)
{
    unsigned bits = place_to_bits(x);
    if (dtype == PLACE_F32)
        ((float *)to)[at] = x;
    else if (dtype == PLACE_F16)
        ((unsigned short *)to)[at] = (unsigned short)place_f16(x);
    else if (x != x)
        ((unsigned short *)to)[at] = (unsigned short)(bits >> 16 | 0x40);
    else
        ((unsigned short *)to)[at] = (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* 1 / the root of the mean of squares; each thread adds all of them, in one order. */
IMBREXD_FN float place_scale(const float *head, int dim, float eps)
{
    float sum = 0;
    for (int i = 0; i < dim; i++)
        sum += head[i] * head[i];
    return 1 / sqrtf(sum / (float)dim + eps);
}

/* Number i of a head, normed if gamma is there. */
IMBREXD_FN float place_normed(const float *head, int i, const float *gamma, float scale)
{
    return gamma ? head[i] * scale * gamma[i] : head[i];
}

/* The pair (i, i + dim / 2) is turned. */
IMBREXD_FN float place_turned(const float *head, int i, int dim, const float *turns,
                              const float *gamma, float scale)
{
    int half = dim / 2, pair = i % half, other = i < half ? i + half : i - half;
    float x = place_normed(head, i, gamma, scale), y = place_normed(head, other, gamma, scale);
    return x * turns[pair] + (i < half ? -y : y) * turns[half + pair];
}

IMBREXD_KERNEL(place, place_args)
{
    float *head = (float *)imbrexd_shared(); /* [dim] */
    int items = args->heads + 2 * args->kv_heads, dim = args->dim, kv = args->heads;
    int thread = (int)imbrexd_thread(), threads = (int)imbrexd_threads();
    (void)team;
    for (int at = imbrexd_block_index(); at < args->batch * items; at += imbrexd_block_count()) {
        int row = at / items, item = at % items, is_q = item < kv;
        int is_v = item >= kv + args->kv_heads, place = args->places[row];
        const float *gamma = is_q ? args->q_norm : args->k_norm;
        if (!is_q && place < 0)
            continue;
        for (int i = thread; i < dim; i += threads) {
            int f = item * dim + i;
            long long part = f / args->width;
            head[i] = place_load(
                args->qkv, (part * args->batch + row) * args->width + f % args->width, args->dtype);
        }
        imbrexd_sync_block();
        float scale = gamma && !is_v ? place_scale(head, dim, args->eps) : 1;
        long long cached = (long long)row * args->kv_heads + (item - kv) % args->kv_heads;
        long long to =
            is_q ? ((long long)row * kv + item) * dim : (cached * args->context + place) * dim;
        for (int i = thread; i < dim; i += threads) {
            float x =
                is_v ? head[i]
                     : place_turned(head, i, dim, args->turns + (long long)row * dim, gamma, scale);
            place_store(is_q ? args->q : is_v ? args->v : args->k, to + i, args->dtype, x);
        }
        imbrexd_sync_block();
    }
}

#endif /* CLI_DECODE_PLACE_KERNEL_H */
