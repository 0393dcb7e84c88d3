/* imbrex_moe.h - mixture of experts: what a router's logits choose.  Part of imbrex.h, which
 * includes it and whose rules hold; docs/moe.md says what there is and in which order sums are
 * taken.
 */
#ifndef IMBREX_MOE_H
#define IMBREX_MOE_H

#ifndef IMBREX_H
#error "include imbrex.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* How a token chooses its experts: by scores, softmax or sigmoid of its logits over all experts. */
typedef struct imbrex_gate {
    int experts;        /* from 1 to 1024 */
    int top_k;          /* experts of a token, from 1 to 64 */
    int sigmoid;        /* 0: softmax; 1: each logit by itself */
    int renormalize;    /* 1: a token's weights are divided by their sum, unless that is 0 */
    int groups;         /* of as many experts each, which follow each other; 0: none */
    int top_groups;     /* the groups that count; their experts are at least top_k */
    int group_best;     /* 1 or 2: a group is as good as its best one or two together; 0: 1 */
    float scale;        /* of all weights, behind that; 0: 1 */
    imbrex_dtype dtype; /* of logits */
    uint32_t reserved[7];
} imbrex_gate;

/* ids[tokens, top_k] and weights[tokens, top_k] from logits[tokens, experts].
 *
 * A token's experts are those with the most score + bias[expert], the best first, and where two are
 * equal the lower id; bias chooses and is in no weight.  NULL: none, and the logits themselves are
 * compared, so that ids depend on no rounding.  Weights are the scores, in float32.
 *
 * A token with a logit of NaN, one of infinity or all of -infinity by softmax, or a bias that is
 * not finite gets the ids 0 to top_k - 1 and weights of NaN.  Other tokens do not notice.
 *
 * In memory of the device; outputs overlap nothing.  Local: no other rank takes part.  INVALID:
 * what is wrong, by name. */
IMBREX_TRY imbrex_topk_gate(imbrex_group *group, const imbrex_gate *gate, int64_t tokens,
                            const void *logits, const float *bias, int32_t *ids, float *weights,
                            imbrex_stream stream);

#ifdef __cplusplus
}
#endif
#endif /* IMBREX_MOE_H */
