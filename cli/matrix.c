/* matrix.c - pieces of a matrix, converted or generated a short run of elements at a time. */
#include "matrix.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { RUN = 1024 }; /* elements on the stack between two dtypes */

const char *const matrix_dtype_names[MATRIX_DTYPES] = { "default", "bf16", "f16", "f32", "e4m3" };

int64_t matrix_dtype_bytes(imbrex_dtype dtype)
{
    return dtype == IMBREX_E4M3 ? 1 : dtype == IMBREX_F32 ? 4 : 2;
}

/* ---- Dtypes ---------------------------------------------------------------------------------- */

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* A float16's exponent and fraction, moved into place, are the number times 2^-112. */
static float from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = (uint32_t)(half & 0x7fff) << 13;
    if (magnitude >= 0x0f800000)
        return from_bits(sign | magnitude | 0x7f800000); /* infinity, NaN */
    return from_bits(sign | to_bits(from_bits(magnitude) * 0x1p112f));
}

/* Adding just under half of the last bit that stays, and that bit itself, rounds to nearest even; a
 * carry into the exponent is right. */
static uint16_t to_bf16(float x)
{
    uint32_t bits = to_bits(x);
    if (x != x)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t to_f16(float x)
{
    uint32_t bits = to_bits(x), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (x != x)
        return sign | 0x7e00;
    if (magnitude >= 0x477ff000) /* 65520: half-way from the largest to the next */
        return sign | 0x7c00;
    if (magnitude < 0x38800000) /* subnormal: near 0.5, float32 has float16's last step */
        return (uint16_t)(sign | (to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000));
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (magnitude - 0x38000000) >> 13);
}

/* A sign, four bits of exponent, of which 7 is 2^0, and three of fraction. */
static float from_e4m3(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24, magnitude = (uint32_t)(code & 0x7f) << 20;
    if ((code & 0x7f) == 0x7f)
        return from_bits(sign | 0x7fc00000);
    return from_bits(sign | to_bits(from_bits(magnitude) * 0x1p120f));
}

static uint8_t to_e4m3(float x)
{
    uint32_t bits = to_bits(x), magnitude = bits & 0x7fffffff;
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    if (x != x)
        return sign | 0x7f;
    if (magnitude >= 0x43e00000) /* 448 */
        return sign | 0x7e;
    if (magnitude < 0x3c800000) /* subnormal: near 2^14, float32 has its last step, 2^-9 */
        return (uint8_t)(sign | (to_bits(from_bits(magnitude) + 0x1p14f) - 0x46800000));
    magnitude += 0x7ffff + (magnitude >> 20 & 1);
    return (uint8_t)(sign | (magnitude - 0x3c000000) >> 20);
}

static void widen(imbrex_dtype dtype, const void *in, int64_t count, float *out)
{
    const uint16_t *half = in;
    if (dtype == IMBREX_F32)
        memcpy(out, in, (size_t)count * sizeof *out);
    else if (dtype == IMBREX_F16)
        for (int64_t i = 0; i < count; i++)
            out[i] = from_f16(half[i]);
    else if (dtype == IMBREX_E4M3)
        for (int64_t i = 0; i < count; i++)
            out[i] = from_e4m3(((const uint8_t *)in)[i]);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = from_bits((uint32_t)half[i] << 16);
}

static void narrow(imbrex_dtype dtype, const float *in, int64_t count, void *out)
{
    uint16_t *half = out;
    if (dtype == IMBREX_F32)
        memcpy(out, in, (size_t)count * sizeof *in);
    else if (dtype == IMBREX_F16)
        for (int64_t i = 0; i < count; i++)
            half[i] = to_f16(in[i]);
    else if (dtype == IMBREX_E4M3)
        for (int64_t i = 0; i < count; i++)
            ((uint8_t *)out)[i] = to_e4m3(in[i]);
    else
        for (int64_t i = 0; i < count; i++)
            half[i] = to_bf16(in[i]);
}

/* ---- Elements -------------------------------------------------------------------------------- */

matrix matrix_random(uint64_t seed, int64_t rows, int64_t cols, double scale)
{
    return (
        matrix){ .rows = rows, .cols = cols, .dtype = IMBREX_F32, .seed = seed, .scale = scale };
}

/* splitmix64's output function: every bit of the result depends on every bit of x. */
static uint64_t scramble(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/* The sum of four 16-bit uniforms: near enough to a normal distribution, cut at 3.46 deviations.
 * It is made of integers and one product, so that every machine gives the same bits; a logarithm
 * would not. */
static void generate(const matrix *from, int64_t row, int64_t col, int64_t count, float *out)
{
    const uint64_t step = 0x9e3779b97f4a7c15;
    const double deviation = 37837.227; /* of the sum: 65536 / sqrt(3) */
    double factor = from->scale / deviation;
    uint64_t key = scramble(scramble(from->seed + step) + (uint64_t)row * step);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = scramble(key + (uint64_t)(col + i + 1) * step);
        int sum =
            (int)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
        out[i] = (float)((sum - 2 * 0xffff) * factor);
    }
}

/* A run of a row as float32.  The bytes are copied out first: a file need not align them. */
static void read_floats(const matrix *from, int64_t row, int64_t col, int64_t count, float *out)
{
    if (!from->data) {
        generate(from, row, col, count, out);
        return;
    }
    uint32_t raw[RUN];
    size_t bytes = (size_t)matrix_dtype_bytes(from->dtype);
    const char *at = (const char *)from->data + (size_t)(row * from->cols + col) * bytes;
    memcpy(raw, at, (size_t)count * bytes);
    widen(from->dtype, raw, count, out);
}

void matrix_copy(const matrix *from, int64_t row0, int64_t row1, int64_t col0, int64_t col1,
                 imbrex_dtype to, void *out, int64_t stride)
{
    int64_t bytes = matrix_dtype_bytes(to);
    if (col0 >= col1)
        return; /* a matrix without columns may claim any number of rows */
    for (int64_t row = row0; row < row1; row++) {
        char *line = (char *)out + (row - row0) * stride * bytes;
        if (from->data && from->dtype == to) {
            const char *at = (const char *)from->data + (row * from->cols + col0) * bytes;
            memcpy(line, at, (size_t)((col1 - col0) * bytes));
            continue;
        }
        for (int64_t col = col0; col < col1; col += RUN) {
            float run[RUN];
            int64_t count = col1 - col < RUN ? col1 - col : RUN;
            read_floats(from, row, col, count, run);
            narrow(to, run, count, line + (col - col0) * bytes);
        }
    }
}

imbrex_status matrix_fill(imbrex_group *group, void *to, imbrex_dtype dtype, int64_t elements,
                          uint64_t seed)
{
    enum { BLOCK = 1048583 }; /* a prime, so that rows differ */
    int64_t first = elements < BLOCK ? elements : BLOCK;
    size_t bytes = (size_t)(elements * matrix_dtype_bytes(dtype));
    size_t block = (size_t)(first * matrix_dtype_bytes(dtype));
    char *at = to;
    void *host = malloc(block + 1);
    if (!host)
        return IMBREX_NO_MEMORY;
    const matrix values = matrix_random(seed, 1, first, 1);
    matrix_copy(&values, 0, 1, 0, first, dtype, host, first);
    imbrex_status status = imbrex_copy(group, at, host, block, NULL);
    for (size_t done = block; done < bytes && status == IMBREX_OK; done *= 2)
        status = imbrex_copy(group, at + done, at, done < bytes - done ? done : bytes - done, NULL);
    status = failure_drain(status, group, NULL);
    free(host);
    return status;
}
