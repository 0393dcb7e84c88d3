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
 * they are added in an order that the split alone decides, then to those before it, or, of MLA on
 * Hopper, by pairs of splits, pairs of these and so on, in float32; o is rounded once.  So bits of
 * a row depend on its own tokens alone.
 *
 * On GPUs what splits come to lies in parts; the block that ends a sequence's last one for a head
 * of the cache, as counts say, adds them up, and one that has all of them needs no parts; of MLA on
 * Hopper blocks leave parts of splits, or of runs of them, and all add up when all have ended.
 * Tensor cores round weights to dtype, and multiply what any query of a sequence sees: a v that is
 * no number makes all of them NaN.
 *
 * A length beyond context, or beyond what page_stride has room for, is clamped, and a page that
 * is not there becomes page 0; the group fails by IMBREXD_FAULT_LENGTH or IMBREXD_FAULT_PAGE.
 * Where there is no page at all there are no tokens. */
#ifndef IMX_ATTEND_ARGS_H
#define IMX_ATTEND_ARGS_H

#include "../team.h"
#include "imbrex_device.h"

enum {
    IMX_ATTEND_SPLITS = 128,  /* of a sequence, at most */
    IMX_ATTEND_TILE = 64,     /* tokens whose scores are weighed together */
    IMX_ATTEND_ROWS = 16,     /* of q for one head of the cache, that a block takes at once, */
    IMX_ATTEND_ROWS_WIDE = 8, /* where head_dim is 256: their sums fill its registers, */
    IMX_ATTEND_ROWS_MLA = 64, /* and of MLA */
    IMX_ATTEND_BLOCKS = 255   /* that meet at their end, at most */
};

typedef struct imx_attend_args {
    int heads, kv_heads, group; /* group: heads that share one of the cache */
    int head_dim, value_dim, queries, page, heads_first;
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
    float *lse;       /* or NULL */
    int splits;       /* GPUs: the most of a sequence */
    float *parts;     /* [rows, heads, splits, value_dim], then their [.., 2] largest and sum */
    uint32_t *counts; /* [imx_attend_words] how many have ended; 0 between launches, as is */
    int32_t *claims;  /* how many items blocks have asked for beyond those that are dealt out */
} imx_attend_args;

/* Splits of a sequence at most: where the cache has few heads, several blocks are to have work all
 * the same. */
IMX_TEAM_FN int imx_attend_splits_most(int kv_heads)
{
    return kv_heads <= 2 ? IMX_ATTEND_SPLITS : kv_heads <= 4 ? 64 : 32;
}

/* Tokens that a split has until a sequence has as many splits as it may. */
IMX_TEAM_FN int imx_attend_wanted(int kv_heads)
{
    return (32 << 10) / imx_attend_splits_most(kv_heads);
}

/* Tokens of a split of a sequence that has so many here: an eighth of the most splits while these
 * have fewer tokens than is wanted, then more splits, then longer ones; whole tiles, and two of
 * them at least. */
IMX_TEAM_FN int imx_attend_split(int length, int kv_heads)
{
    int most = imx_attend_splits_most(kv_heads), wanted = imx_attend_wanted(kv_heads);
    int few = length < wanted * (most / 8) ? most / 8 : most; /* a power of two */
    int digits = (most == 32 ? 5 : most == 64 ? 6 : 7) - (few < most ? 3 : 0);
    int each = (int)(((unsigned)length + (unsigned)few - 1) >> digits);
    each = (each + IMX_ATTEND_TILE - 1) / IMX_ATTEND_TILE * IMX_ATTEND_TILE;
    if (few == most && each < wanted)
        each = wanted;
    return each > 2 * IMX_ATTEND_TILE ? each : 2 * IMX_ATTEND_TILE;
}

/* Its splits: one at least, which may have no tokens. */
IMX_TEAM_FN int imx_attend_splits(int length, int kv_heads)
{
    int each = imx_attend_split(length, kv_heads);
    return length <= each ? 1 : (int)(((unsigned)length + (unsigned)each - 1) / (unsigned)each);
}

/* The most splits of a sequence that has up to so many tokens. */
IMX_TEAM_FN int imx_attend_splits_room(int64_t context, int kv_heads)
{
    int most = imx_attend_splits_most(kv_heads), wanted = imx_attend_wanted(kv_heads);
    int64_t splits = (context + wanted - 1) / wanted;
    return splits < most / 8 ? most / 8 : splits < most ? (int)splits : most;
}

IMX_TEAM_FN int imx_attend_rows(const imx_attend_args *args)
{
    if (args->head_dim != args->value_dim)
        return IMX_ATTEND_ROWS_MLA;
    return args->head_dim > 128 ? IMX_ATTEND_ROWS_WIDE : IMX_ATTEND_ROWS;
}

/* Pieces of so many rows that a sequence has for a head of the cache, and the counts of so
 * many sequences. */
IMX_TEAM_FN int imx_attend_pieces(const imx_attend_args *args)
{
    int rows = args->queries * args->group;
    return (rows + imx_attend_rows(args) - 1) / imx_attend_rows(args);
}

IMX_TEAM_FN int64_t imx_attend_counts(const imx_attend_args *args)
{
    return args->sequences * args->kv_heads * imx_attend_pieces(args);
}

/* Words of counts: a sequence's for a head and a piece; or of MLA on Hopper, as
 * sm90_mla_end.cuh has them. */
IMX_TEAM_FN int64_t imx_attend_words(const imx_attend_args *args)
{
    int64_t counts = imx_attend_counts(args);
    return counts > 1 + IMX_ATTEND_BLOCKS ? counts : 1 + IMX_ATTEND_BLOCKS;
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
