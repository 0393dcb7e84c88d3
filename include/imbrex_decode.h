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
    int heads;             /* of o, of all ranks: from 1 to 65536 */
    int value_dim;         /* numbers of a head of o: from 1 to 1024 */
    int queries;           /* rows of a sequence, from 1 to 8; 0: 1 */
    imbrex_dtype dtype;    /* of o */
    int replicate;         /* 0: rank r gets heads r*H/R up to (r+1)*H/R of o; 1: each gets all */
    const char *algorithm; /* "sequential", "store", "ll", "hierarchical"; NULL: chosen */
    int sms;               /* as in imbrex_gemm_desc */
    uint32_t reserved[8];
} imbrex_decode_desc;

/* Rows are batch * queries; in memory of the device, and outputs overlap nothing. */
typedef struct imbrex_decode_args {
    int64_t batch;         /* sequences of this run, alike on all ranks; 0: desc.batch;
                                 IMBREX_NONE: none */
    const void *o_partial; /* [rows, heads, value_dim] softmax over this rank's tokens, times v */
    const float *lse_partial; /* [rows, heads] logarithm of the sum that it was divided by */
    int natural;              /* 1: lse and lse_partial are to base e; 0: to base 2 */
    const float *sinks;       /* [heads] scores, to base e, of one more token whose v is 0, alike on
                                 all ranks; NULL: none */
    void *o;                  /* [rows, own heads, value_dim] */
    float *lse;               /* [rows, own heads]; NULL: not wanted */
    uint64_t reserved[6];
} imbrex_decode_args;

/* Collective.  merge_states: o = the softmax over the tokens of all ranks, times v, from each
 * rank's own:
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

/* What imbrex_plan_run is for other plans, and by the same rules. */
IMBREX_TRY imbrex_plan_run_decode(imbrex_plan *plan, const imbrex_decode_args *args,
                                  imbrex_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* IMBREX_DECODE_H */
