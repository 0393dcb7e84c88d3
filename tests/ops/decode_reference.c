/* decode_reference.c - what decode's cases are given, and what they should give, in float64. */
#include "decode_reference.h"

#include <math.h>

#include "reference.h"

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Tokens of sequence s on rank r: none, one, page edges, all there can be. */
int64_t decode_length(const decode_case *c, int r, int s)
{
    const int64_t page = c->page ? c->page : 64, all = c->context;
    const int64_t lengths[] = { all, 0, 1, page, page + 1, page - 1, 2 * page, all - 1 };
    int64_t length = lengths[(s * 3 + r) % 8];
    return s == 1 ? (r == 1 ? 5 : 0) : length < c->context ? length : c->context;
}

int32_t decode_visible(const decode_case *c, int r, int s, int j)
{
    int64_t length = decode_length(c, r, s); /* what comes may be less than none */
    return (int32_t)(c->windows == APART && j == 0 ? length / 4 : length - c->queries + 1 + j);
}

int32_t decode_hidden(const decode_case *c, int r, int s, int j)
{
    int64_t length = decode_length(c, r, s);
    return (int32_t)(c->windows == APART ? j * (length / 2) : (length / 3 + j) * ((s + r) % 2) - 2);
}

static double e4m3_value(unsigned code)
{
    int exponent = (int)(code >> 3 & 15), fraction = (int)(code & 7);
    double size = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return code & 0x80 ? -size : size;
}

unsigned decode_code(int input, int64_t i)
{
    unsigned code = (unsigned)((uint64_t)(i * 2654435761 + input * 40503) >> 7 & 0xff);
    return (code & 0x7f) > 0x48 ? code & 0xc7 : code; /* up to 4 */
}

/* Element i of token t of sequence s, head h, on rank r; of v or k. */
double decode_cache_value(const decode_case *c, int v, int r, int s, int64_t t, int h, int i)
{
    bool own_v = v && c->head_dim == c->value_dim;
    int input = (own_v ? 60 : 20) + r;
    int64_t at = (((int64_t)s * c->context + t) * c->kv_heads + h) * c->head_dim + i;
    return c->cache == E4M3
               ? e4m3_value(decode_code(input, at)) * (own_v ? decode_scale_v : decode_scale_k)
               : input_value(c->cache, input, at);
}

double decode_q_value(const decode_case *c, int64_t i)
{
    return input_value(c->dtype, 5, i);
}

float decode_sink(int head)
{
    return (float)(2 * input_value(F32, 900, head));
}

/* ---- what it is to be ------------------------------------------------------------------------ */

static void look(const decode_case *c, int ranks, int s, int h, decode_seen *x)
{
    if (x->s == s && x->h == h)
        return;
    double *k = x->k, *v = x->v;
    x->s = s;
    x->h = h;
    for (int r = 0; r < ranks; r++) {
        for (int64_t t = 0; t < c->context; t++) {
            bool there = t < decode_length(c, r, s);
            for (int i = 0; i < c->head_dim; i++)
                *k++ = there ? decode_cache_value(c, 0, r, s, t, h, i) : 0;
            for (int i = 0; i < c->value_dim; i++)
                *v++ = there ? decode_cache_value(c, 1, r, s, t, h, i) : 0;
        }
    }
}

static double score(const decode_case *c, const double *q, const double *k)
{
    double sum = 0, scale = c->scale != 0 ? (double)c->scale : 1 / sqrt(c->head_dim);
    for (int i = 0; i < c->head_dim; i++)
        sum += q[i] * k[i];
    sum *= scale;
    return c->soft_cap > 0 ? c->soft_cap * tanh(sum / c->soft_cap) : sum;
}

decode_want decode_expect(const decode_case *c, int ranks, int64_t row, int head, decode_seen *x)
{
    decode_want w = { .size = 0 };
    double q[KEYS_MOST];
    int s = (int)(row / c->queries), j = (int)(row % c->queries);
    double sum = c->sinks ? exp(decode_sink(head)) : 0; /* scores are small */
    look(c, ranks, s, head / (c->heads / c->kv_heads), x);
    for (int i = 0; i < c->head_dim; i++)
        q[i] = decode_q_value(c, (row * c->heads + head) * c->head_dim + i);
    for (int r = 0; r < ranks; r++) {
        int64_t end = decode_length(c, r, s), first = 0;
        if (c->windows && decode_visible(c, r, s, j) < end)
            end = decode_visible(c, r, s, j);
        if (c->windows && decode_hidden(c, r, s, j) > 0)
            first = decode_hidden(c, r, s, j);
        for (int64_t t = first; t < end; t++) {
            const double *v = x->v + (r * c->context + t) * c->value_dim;
            double weight = exp(score(c, q, x->k + (r * c->context + t) * c->head_dim));
            sum += weight;
            for (int i = 0; i < c->value_dim; i++) {
                w.o[i] += weight * v[i];
                w.size += weight * fabs(v[i]) / c->value_dim;
            }
        }
    }
    for (int i = 0; i < c->value_dim && sum > 0; i++)
        w.o[i] /= sum;
    w.size = sum > 0 ? w.size / sum : 0;
    w.lse = log(sum) / (c->natural ? 1 : log(2));
    return w;
}
