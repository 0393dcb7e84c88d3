/* args.h - the contract of the attend kernel: a rank's own states of attention, o and lse, of few
 * queries a sequence over the tokens that lie here.
 *
 *   q [sequences, queries, heads, head_dim]   o [sequences, queries, heads, value_dim]
 *   lse [sequences, queries, heads], to base 2, or e
 *
 * Token t of sequence s, for a head h of the cache, has its head_dim elements of k at
 *
 *   page > 0   page p = pages[s * page_stride + t / page], element p * cache_stride, and in it row
 *              (t % page) * kv_heads + h, or, heads_first, h * page + t % page
 *   page 0     element s * cache_stride, and in it row t * kv_heads + h, or h * context + t
 *
 * and of v, which is the beginning of k where v is NULL.  Elements of an E4M3 cache stand for
 * themselves times *scale_k and *scale_v.
 *
 *   score = q . k * scale, then soft_cap * tanh(score / soft_cap) if there is a cap
 *
 * Query j of sequence s sees tokens hidden[s, j] up to visible[s, j] of lengths[s].  One without
 * tokens has lse -infinity.  One with a score that is no number has an o of NaN and as lse the
 * largest float32, so that it does not pass for one without.
 *
 * Sums: a sequence's tokens are cut into splits of imx_attend_split(its length); within a split
 * they are added in their order, then splits in theirs, in float32; o is rounded once.  So bits of
 * a row depend on its own tokens alone.
 *
 * On GPUs what splits come to lies in parts, and a second launch adds it up.
 *
 * A length beyond context, or beyond what page_stride has room for, is clamped, and a page that
 * is not there becomes page 0; the group fails by IMBREXD_FAULT_LENGTH or IMBREXD_FAULT_PAGE.
 * Where there is no page at all there are no tokens. */
#ifndef IMX_ATTEND_ARGS_H
#define IMX_ATTEND_ARGS_H

#include "../team.h"
#include "imbrex_device.h"

enum {
    IMX_ATTEND_SPLITS = 64, /* of a sequence, at most */
    IMX_ATTEND_TILE = 64,   /* tokens whose scores are weighed together */
    IMX_ATTEND_LEAST = 256  /* tokens of a split, at least */
};

typedef struct imx_attend_args {
    int heads, kv_heads, head_dim, value_dim, queries, page, heads_first;
    int dtype, cache; /* imbrex_dtype: of q and o; of k and v */
    int natural;
    int plan; /* for the fault */
    float scale, soft_cap;
    int64_t sequences, context;
    int64_t page_count, cache_stride, page_stride; /* cache_stride in elements */
    const void *q, *k, *v;
    const float *scale_k, *scale_v;
    const int32_t *pages, *lengths, *visible, *hidden;
    void *o;
    float *lse;
    int combines; /* GPUs, in a second launch: adds what splits have come to */
    int splits;   /* the most of a sequence */
    float *parts; /* [rows, heads, splits, value_dim + 2] */
} imx_attend_args;

/* Tokens of a split of a sequence that has so many here. */
IMX_TEAM_FN int64_t imx_attend_split(int64_t length)
{
    int64_t each = (length + IMX_ATTEND_SPLITS - 1) / IMX_ATTEND_SPLITS;
    each = (each + IMX_ATTEND_TILE - 1) / IMX_ATTEND_TILE * IMX_ATTEND_TILE;
    return each > IMX_ATTEND_LEAST ? each : IMX_ATTEND_LEAST;
}

/* The most tokens of a sequence that can be here. */
IMX_TEAM_FN int64_t imx_attend_most(const imx_attend_args *args)
{
    int64_t room = args->page ? args->page_stride * args->page : args->context;
    if (args->page && args->page_count <= 0)
        return 0;
    return room < args->context ? room : args->context;
}

/* The row of head_dim elements, in a page or a sequence, of its token t. */
IMX_TEAM_FN int64_t imx_attend_row(const imx_attend_args *args, int64_t t, int head)
{
    int64_t tokens = args->page ? args->page : args->context;
    return args->heads_first ? head * tokens + t : t * args->kv_heads + head;
}

#endif /* IMX_ATTEND_ARGS_H */
