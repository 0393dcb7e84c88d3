/* token_sums.h - over nodes: what each rank has of every token, weighed and added by place, becomes
 * the sums of their owners, inside each node first.
 *
 * as its streams run side by side, the caller's fork ahead of it and its join behind:
 *
 *     inner    | parts for node + 1's tokens to whose they are here, flags | node + 2 | ... | own
 *     add      |       | wait, add for the counterpart on node + 1 | node + 2 | ... | own
 *     net      |                                    | that to node + 1, from node - 1 | ...
 *     caller   behind the join: all nodes' sums of own tokens, bias, residual
 *
 * In shared data, per buffer, [nodes][ranks of a node] slots: slot t * L + l is this node's l-th
 * rank's part of the tokens that the rank of this number has on node t, and its signal says that it
 * is here.  In local data: this node's sums for each node, then what has come from there.
 *
 * A rank without a row of a token has no part in its node's sum, and a node without one none in the
 * token's. */
#ifndef IMX_TOKEN_SUMS_H
#define IMX_TOKEN_SUMS_H

#include "hierarchical.h"
#include "kernels/combine/args.h"

typedef struct imx_token_sums {
    int kernel;           /* the combine kernel's number */
    int64_t tokens;       /* of all ranks, who share them as rows are shared everywhere */
    const char *parts;    /* [tokens, n], this rank's */
    char *local;          /* room in local data */
    size_t slot_bytes;    /* of the rank that has most tokens */
    imx_combine_args own; /* IMX_COMBINE_RANKS as one node would have it, but for whose parts those
                             are: `tokens` may be fewer than this rank's share */
} imx_token_sums;

/* Of one buffer; local: bytes of the room. */
void imx_token_sums_needs(const imx_variant *variant, size_t slot_bytes, imx_needs *needs,
                          size_t *local);

/* lanes: imx_hierarchical_streams; where they are other streams, the caller forks them before. */
imbrex_status imx_token_sums_add(const imx_run *run, const imx_net_streams *lanes,
                                 const imx_token_sums *sums) IMX_MUST_CHECK;

#endif /* IMX_TOKEN_SUMS_H */
