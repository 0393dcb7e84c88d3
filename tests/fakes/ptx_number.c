/* ptx_number.c - narrow floating-point numbers: conversions that round once. */
#include <math.h>

#include "ptx_inside.h"

/* A type's bits below the sign: exponent, then fraction.  What is not finite: infinities and NaN by
 * the highest exponent, or in E4M3 NaN alone, all ones. */
typedef struct form {
    int bits, fraction, bias;
    uint32_t largest; /* finite */
    uint32_t nan;
    uint32_t infinity; /* 0: none */
    int unused;        /* low bits of the register, zero */
} form;

static const form forms[] = {
    [PTX_F16] = { 16, 10, 15, 0x7bff, 0x7fff, 0x7c00, 0 },
    [PTX_BF16] = { 16, 7, 127, 0x7f7f, 0x7fff, 0x7f80, 0 },
    [PTX_TF32] = { 19, 10, 127, 0x3fbff, 0x3ffff, 0x3fc00, 13 },
    [PTX_E4M3] = { 8, 3, 7, 0x7e, 0x7f, 0, 0 },
    [PTX_E5M2] = { 8, 2, 15, 0x7b, 0x7f, 0x7c, 0 },
};

int ptx_bits(ptx_type type)
{
    return forms[type].bits + forms[type].unused;
}

/* x >= 0, an integer after rounding. */
static double rounded(double x, ptx_rounding rounding)
{
    double low = floor(x), rest = x - low;
    if (rounding == PTX_RZ || rest < 0.5)
        return low;
    bool up = rest > 0.5 || rounding == PTX_RNA || fmod(low, 2.0) != 0.0;
    return low + up;
}

/* Of a finite size > 0: numbers below the sign count up in order, so one that rounds up to the next
 * exponent is right by itself. */
static uint64_t encode(const form *f, double size, ptx_rounding rounding)
{
    int exponent;
    frexp(size, &exponent); /* size < 2^exponent */
    int least = 1 - f->bias;
    int at = exponent - 1 > least ? exponent - 1 : least;
    double units = rounded(ldexp(size, f->fraction - at), rounding);
    return ((uint64_t)(at - least) << f->fraction) + (uint64_t)units;
}

uint32_t ptx_narrow(const ptx_to *to, double x)
{
    const form *f = &forms[to->type];
    if (isnan(x))
        return to->type == PTX_TF32 ? 0x7fffffff : f->nan;
    bool negative = signbit(x);
    if (negative && to->relu)
        return 0;
    bool clips = to->satfinite || f->bits == 8;
    uint32_t most = clips || (to->rounding == PTX_RZ && !isinf(x)) ? f->largest : f->infinity;
    uint32_t code = most;
    if (!isinf(x)) {
        uint64_t exact = x == 0.0 ? 0 : encode(f, fabs(x), to->rounding);
        code = exact > f->largest ? most : (uint32_t)exact;
    }
    return (code | (uint32_t)negative << (f->bits - 1)) << f->unused;
}

/* A float whose exponent is the type's, brought to float's bias by an exact product. */
static inline float widen(const form *f, uint32_t bits)
{
    uint32_t code = bits & ((1u << (f->bits - 1)) - 1), scale = (uint32_t)(254 - f->bias) << 23;
    uint32_t sign = (bits >> (f->bits - 1) & 1) << 31, word = code << (23 - f->fraction);
    float x, by;
    memcpy(&x, &word, sizeof x);
    memcpy(&by, &scale, sizeof by);
    x *= by;
    memcpy(&word, &x, sizeof word);
    word = code <= f->largest ? word : code == f->infinity ? 0x7f800000 : 0x7fffffff;
    word |= sign;
    memcpy(&x, &word, sizeof x);
    return x;
}

float ptx_widen(ptx_type type, uint32_t bits)
{
    return widen(&forms[type], bits >> forms[type].unused);
}

/* One loop a type, so that the compiler knows its form and takes several elements at once. */
#define ROW(element, type)                                \
    do {                                                  \
        const element *in = from;                         \
        for (int i = 0; i < count; i++)                   \
            to[i] = widen(&forms[type], (uint32_t)in[i]); \
    } while (0)

void ptx_widen_row(ptx_type type, const void *from, int count, float *to)
{
    if (type == PTX_F16)
        ROW(uint16_t, PTX_F16);
    else if (type == PTX_BF16)
        ROW(uint16_t, PTX_BF16);
    else if (type == PTX_E4M3)
        ROW(uint8_t, PTX_E4M3);
    else if (type == PTX_E5M2)
        ROW(uint8_t, PTX_E5M2);
    else
        for (int i = 0; i < count; i++)
            to[i] = ptx_widen(type, ((const uint32_t *)from)[i]);
}

uint32_t ptx_narrow_two(const ptx_to *to, double high, double low)
{
    return ptx_narrow(to, high) << forms[to->type].bits | ptx_narrow(to, low);
}
