/* imbrex_decode.h - attention over a cache whose tokens lie on all ranks.  Part of imbrex.h, which
 * includes it and whose rules hold; docs/decode.md says how results are put together.
 */
#ifndef IMBREX_DECODE_H
#define IMBREX_DECODE_H

#ifndef IMBREX_H
#error "include imbrex.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct imbrex_decode_desc {
    int64_t batch;         /* the most sequences of a run */
    int64_t context;       /* the most tokens of a sequence on one rank */
    int heads;             /* of q and o, of all ranks: from 1 to 65536 */
    int kv_heads;          /* of the cache, all on every rank: heads is a multiple, at most 16
                              times, with head_dim 576 at most 128 */
    int head_dim;          /* of q and k: 64, 128, 256 or 576 */
    int value_dim;         /* of v and o: head_dim, or 512 where that is 576 (MLA): v is then the
                              beginning of k.  merge_states: from 1 to 1024 */
    int queries;           /* rows of a sequence, from 1 to 8; 0: 1 */
    int page;              /* tokens of a page, at most 2^20; 0: a sequence's lie together */
    int heads_first;       /* 0: [pages, page, kv_heads, head_dim]; 1: [pages, kv_heads, page,
                              head_dim].  Without pages: batch and context in their places */
    imbrex_dtype dtype;    /* of q and o */
    imbrex_dtype cache;    /* of k and v: dtype, or E4M3 */
    int replicate;         /* 0: rank r gets heads r*H/R up to (r+1)*H/R of o; 1: each gets all */
    float scale;           /* of q . k; 0: 1/sqrt(head_dim) */
    float soft_cap;        /* a score s becomes soft_cap * tanh(s / soft_cap); 0: it stays */
    const char *algorithm; /* "sequential", "store", "ll", "hierarchical"; NULL: chosen */
    int sms;               /* as in imbrex_gemm_desc */
    uint32_t reserved[8];
} imbrex_decode_desc;

/* Rows are batch * queries; in memory of the device, and outputs overlap nothing. */
typedef struct imbrex_decode_args {
    int64_t batch; /* sequences of this run, alike on all ranks; 0: desc.batch; IMBREX_NONE: none */

    /* Of flash_decode. */
    const void *q;     /* [rows, heads, head_dim], alike on all ranks */
    const void *k, *v; /* this rank's tokens, as desc.heads_first says; in MLA v is NULL */
    const float *scale_k, *scale_v; /* of an E4M3 cache, one each (in MLA scale_k alone): an element
                                       stands for itself times its scale.  Else NULL */
    int64_t page_count;             /* pages that k and v have */
    int64_t cache_stride;   /* elements from page to page, or, without pages, from sequence to
                               sequence; 0: as they are, dense */
    int64_t page_stride;    /* pages that a sequence has room for in: */
    const int32_t *pages;   /* [batch, page_stride] its pages, in the order of its tokens */
    const int32_t *lengths; /* [batch] tokens that lie on this rank; 0: none, and none is read */
    const int32_t *visible; /* [batch, queries] how many of those a query sees; NULL: all */
    const int32_t *hidden;  /* [batch, queries] how many of the first it does not; NULL: 0 */

    /* Of merge_states. */
    const void *o_partial;    /* [rows, heads, value_dim] softmax over own tokens, times v */
    const float *lse_partial; /* [rows, heads] logarithm of the sum that it was divided by */

    int natural;        /* 1: lse and lse_partial are to base e; 0: to base 2 */
    const float *sinks; /* [heads] scores, to base e, of one more token whose v is 0, alike on all
                           ranks; NULL: none */
    void *o;            /* [rows, own heads, value_dim] */
    float *lse;         /* [rows, own heads]; NULL: not wanted */
    uint64_t reserved[6];
} imbrex_decode_args;

/* Collective.  merge_states: o = the softmax over the tokens of all ranks, times v, from each
 * rank's own.  Of desc it reads batch, heads, value_dim, queries, dtype, replicate, algorithm and
 * sms.
 *
 *
 *     o = sum of w_r * o_partial of rank r / sum of w_r,   w_r = base ^ (lse_partial of rank r)
 *
 * in float32, in rank order, rounded once; lse is the logarithm of the sum of w_r.  An lse_partial
 * that is NaN or infinite counts as nothing, and its o_partial is not read: a rank without tokens
 * of a sequence gives -infinity.  Where all count as nothing o is 0 and lse -infinity.  Over
 * several nodes each node's ranks are merged first, and stay float32: bits may differ from those of
 * one node.  Elsewhere the bits of a row depend on the numbers of that row alone. */
IMBREX_TRY imbrex_plan_merge_states(imbrex_group *group, const imbrex_decode_desc *desc,
                                    imbrex_plan **plan);

/* Collective.  flash_decode: o = softmax(q k^T * scale) v over the tokens of all ranks, of a few
 * queries a sequence.  Each rank attends to its own tokens; what comes of it is rounded to dtype
 * and merged as merge_states does.  Lengths and page tables are read on the device, when the stream
 * comes to them.  A sequence's tokens on a rank are cut into splits whose size follows from their
 * number, and added in order, in float32: a row's bits depend on its own tokens, and on which of
 * them each rank has.  On one node all algorithms give the same bits.
 *
 * A length beyond desc.context or page_stride pages is clamped, a page outside of page_count is
 * taken for page 0, and nothing is read out of bounds; the group fails: INVALID, naming rank and
 * sequence.  visible and hidden may be anything.  A row with a score that is NaN or infinite
 * becomes NaN. */
IMBREX_TRY imbrex_plan_flash_decode(imbrex_group *group, const imbrex_decode_desc *desc,
                                    imbrex_plan **plan);

/* What imbrex_plan_run is for other plans, and by the same rules. */
IMBREX_TRY imbrex_plan_run_decode(imbrex_plan *plan, const imbrex_decode_args *args,
                                  imbrex_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* IMBREX_DECODE_H */
