/* cpu.c - the attend kernel on CPU ranks: a block has every count-th head of all rows. */
#include <float.h>
#include <math.h>

#include "args.h"
#include "kernels/dtype.h"

void imx_attend_cpu(const void *args, const imbrexd_block *block);

enum { DIM = 576, VALUES = 512 }; /* at most */
#define LOG2E 1.44269504088896341f
#define LN2   0.693147180559945309f

typedef struct attend {
    const imx_attend_args *args;
    const imbrexd_block *block;
    int64_t sequence, length;
    int head;
    float q[DIM], k[DIM], score[IMX_ATTEND_TILE];
} attend;

/* What tokens have come to: o is sum_v / sum, both weighed by 2 ^ (score - most). */
typedef struct state {
    float most, sum, sum_v[VALUES];
} state;

/* ---- where tokens are ------------------------------------------------------------------------ */

static void complain(const attend *p, int kind, int64_t have, int64_t want)
{
    imbrexd_wait_point point = { .plan = p->args->plan,
                                 .rank = p->block->watch->rank,
                                 .index = (int32_t)p->sequence };
    imbrexd_fault_raise(p->block->watch, kind, point, (uint64_t)have, (uint64_t)want);
}

static int64_t length_of(const attend *p)
{
    int64_t length = p->args->lengths[p->sequence], most = imx_attend_most(p->args);
    if (length >= 0 && length <= most)
        return length;
    complain(p, IMBREXD_FAULT_LENGTH, length, most);
    return length < 0 ? 0 : most;
}

/* The elements of token t in k or v. */
static const char *token_at(const attend *p, const void *cache, int64_t t)
{
    const imx_attend_args *x = p->args;
    int64_t from = p->sequence, element = imx_dtype_size(x->cache);
    int group = x->group;
    if (x->page) {
        from = x->pages[p->sequence * x->page_stride + t / x->page];
        t %= x->page;
        if (from < 0 || from >= x->page_count) {
            complain(p, IMBREXD_FAULT_PAGE, from, x->page_count);
            from = 0;
        }
    }
    int64_t at = from * x->cache_stride + imx_attend_row(x, t, p->head / group) * x->head_dim;
    return (const char *)cache + at * element;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static float score_of(attend *p, int64_t t)
{
    const imx_attend_args *x = p->args;
    const float *k = imx_dtype_floats(x->cache, token_at(p, x->k, t), p->k, x->head_dim);
    float sum = 0, scale = x->scale * (x->scale_k ? *x->scale_k : 1);
    for (int i = 0; i < x->head_dim; i++)
        sum += p->q[i] * k[i];
    sum *= scale;
    if (x->soft_cap > 0)
        sum = x->soft_cap * tanhf(sum / x->soft_cap);
    return sum * LOG2E;
}

static void scale_state(state *s, float by, int values)
{
    s->sum *= by;
    for (int i = 0; i < values; i++)
        s->sum_v[i] *= by;
}

/* Tokens [first, end), at most a tile. */
static void add_tile(attend *p, state *s, int64_t first, int64_t end)
{
    const imx_attend_args *x = p->args;
    const void *v = x->v ? x->v : x->k;
    float most = s->most;
    for (int64_t t = first; t < end; t++) {
        float score = score_of(p, t);
        p->score[t - first] = score;
        most = score > most || isnan(score) ? score : most;
    }
    if (most == -INFINITY)
        return; /* weights of 0 */
    if (most != s->most)
        scale_state(s, exp2f(s->most - most), x->value_dim);
    s->most = most;
    for (int64_t t = first; t < end; t++) {
        float weight = exp2f(p->score[t - first] - most);
        const float *of = imx_dtype_floats(x->cache, token_at(p, v, t), p->k, x->value_dim);
        s->sum += weight;
        for (int i = 0; i < x->value_dim; i++)
            s->sum_v[i] += weight * of[i];
    }
}

/* all += one. */
static void add_split(state *all, state *one, int values)
{
    float most = one->most > all->most || isnan(one->most) ? one->most : all->most;
    if (one->most == -INFINITY)
        return;
    scale_state(all, exp2f(all->most - most), values);
    scale_state(one, exp2f(one->most - most), values);
    all->most = most;
    all->sum += one->sum;
    for (int i = 0; i < values; i++)
        all->sum_v[i] += one->sum_v[i];
}

/* Tokens [first, end) of the sequence. */
static state add_all(attend *p, int64_t first, int64_t end)
{
    int64_t split = imx_attend_split((int)p->length, p->args->kv_heads);
    state all = { .most = -INFINITY };
    for (int64_t at = first / split * split; at < end; at += split) {
        state one = { .most = -INFINITY };
        int64_t last = at + split < end ? at + split : end;
        for (int64_t t = at; t < last; t += IMX_ATTEND_TILE) {
            int64_t from = t > first ? t : first;
            int64_t to = t + IMX_ATTEND_TILE < last ? t + IMX_ATTEND_TILE : last;
            if (from < to)
                add_tile(p, &one, from, to);
        }
        add_split(&all, &one, p->args->value_dim);
    }
    return all;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static void store(const attend *p, int64_t at, state *s)
{
    const imx_attend_args *x = p->args;
    float scale_v = x->scale_v ? *x->scale_v : x->scale_k && !x->v ? *x->scale_k : 1;
    float lse = s->sum > 0 ? s->most + log2f(s->sum) : -INFINITY;
    for (int i = 0; i < x->value_dim && s->sum != 0; i++)
        s->sum_v[i] = s->sum_v[i] / s->sum * scale_v;
    if (!isfinite(s->sum) || (s->sum > 0 && !isfinite(lse))) { /* not as one without tokens */
        for (int i = 0; i < x->value_dim; i++)
            s->sum_v[i] = NAN;
        lse = FLT_MAX;
    } else if (x->natural) {
        lse *= LN2;
    }
    imx_dtype_narrow(x->dtype, s->sum_v,
                     (char *)x->o + at * x->value_dim * imx_dtype_size(x->dtype), x->value_dim);
    if (x->lse)
        x->lse[at] = lse;
}

void imx_attend_cpu(const void *untyped, const imbrexd_block *block)
{
    const imx_attend_args *x = untyped;
    attend p = { .args = x, .block = block };
    int64_t rows = x->sequences * x->queries;
    for (int64_t at = block->index; at < rows * x->heads; at += block->count) {
        int64_t row = at / x->heads;
        p.sequence = row / x->queries;
        p.head = (int)(at % x->heads);
        p.length = length_of(&p);
        int64_t first = x->hidden ? x->hidden[row] : 0;
        int64_t end = x->visible ? x->visible[row] : p.length;
        first = first < 0 ? 0 : first;
        end = end < p.length ? end : p.length;
        imx_dtype_widen(x->dtype, imx_dtype_at(x->dtype, x->q, at * x->head_dim), p.q, x->head_dim);
        state all = add_all(&p, first, end);
        store(&p, at, &all);
    }
}
