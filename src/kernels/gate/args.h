/* args.h - the contract of the gate kernel: ids[tokens, top_k] and weights[tokens, top_k] from
 * logits[tokens, experts], as imbrex_topk_gate says.  In float32:
 *
 *     score    softmax or sigmoid of the logit
 *     key      score + bias; without bias the logit, which orders as the score does
 *     group    its best key; with group_best 2 the sum of its two best experts' scores + bias, the
 *              better one first, of a group of one expert that one's
 *
 * Experts of the top_groups best groups are candidates; the best of them is taken top_k times.  Of
 * equal ones the lowest number comes first.  Weights are summed in the order of the places.
 *
 * The CPU's and the CUDA form add a softmax's sum in other orders and have other exponentials:
 * weights agree within some roundings of float32, and ids wherever there is no bias and group_best
 * is 1. */
#ifndef IMX_GATE_ARGS_H
#define IMX_GATE_ARGS_H

#include <stdint.h>

enum { IMX_GATE_EXPERTS = 1024, IMX_GATE_PLACES = 64 }; /* at most */

typedef struct imx_gate_args {
    int64_t tokens;
    int experts, top_k;
    int sigmoid, renormalize;
    int groups, top_groups; /* at least 1: one group of all is none */
    int group_best;         /* 1 or 2 */
    float scale;
    int dtype; /* imbrex_dtype, of logits */
    const void *logits;
    const float *bias; /* [experts], or NULL */
    int32_t *ids;
    float *weights;
} imx_gate_args;

#endif /* IMX_GATE_ARGS_H */
