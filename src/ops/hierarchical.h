/* hierarchical.h - gather and scatter over several nodes with equally many ranks: between nodes a
 * rank talks to those of its own number in the others alone, so that what leaves a node leaves it
 * once, and arrives once.
 *
 * gather, as its streams run side by side:
 *
 *     inner   | own rows to the ranks of this node | chunk 0 from node + 1, to them | chunk 1 | ...
 *     net     | own chunk 0 to node - 1, theirs from node + 1 | chunk 2 | ... | node -+ 2 | ...
 *     net     | chunk 1 | chunk 3 | ...
 *
 * scatter:
 *
 *     inner   | rows of node + 1 to whose they are here, chunk by chunk | node + 2 | ... | own node
 *     add     |        | add up chunk 0 for node + 1 | chunk 1 | ...  | node + 2 | ...
 *     net     |                                 | that to node + 1, from node - 1 | chunk 2 | ...
 *     net     |                                            | chunk 1 | chunk 3 | ...
 *     caller                                            own node's rows added up, then all nodes' |
 *
 * In a variant's shared data, per buffer, gather is as in transfer.h.  Scatter has
 *
 *     [nodes][ranks of a node][most rows, n]   slot t * L + l: this node's l-th rank's part of the
 *                                              rows that the rank of this number has on node t
 *
 * and in its local data, after the operator's own, sums [nodes][most rows, n], what this node has
 * for node t, and incoming [nodes][most rows, n], what node t has for this rank.
 */
#ifndef IMX_HIERARCHICAL_H
#define IMX_HIERARCHICAL_H

#include "transfer.h"

/* The streams of the two movements; all the same: one thing after the other.  net: of the engine's
 * lanes, whose steps go to them in turn. */
typedef struct imx_net_streams {
    imbrex_stream inner, add, net[IMX_NET_LANES];
    int nets;
} imx_net_streams;

imx_net_streams imx_hierarchical_streams(const imx_run *run, bool overlapped);

/* Sends shard[rows, width], this rank's, to all.  Needs: imx_transfer_gather_needs; what has
 * arrived is awaited and taken as there. */
imbrex_status imx_hierarchical_gather(const imx_run *run, const imx_net_streams *lanes,
                                      const void *shard, int64_t width) IMX_MUST_CHECK;

/* After the operator's own local data and signals. */
void imx_hierarchical_scatter_needs(const imx_variant *variant, imx_needs *needs);

/* Makes the kernels ready, from number `first` on. */
imbrex_status imx_hierarchical_scatter_prepare(imx_variant *variant, int first) IMX_MUST_CHECK;

/* args.c becomes this rank's rows of the sum of all ranks' matrix[m, n]: within each node by rank,
 * rounded, then by node, then bias.  With done, chunk q of rank's rows is there only once done[rank
 * * chunks + q] is posted; all of it is when the caller's stream comes here. */
imbrex_status imx_hierarchical_scatter(const imx_run *run, const imx_net_streams *lanes, int first,
                                       const void *matrix, uint64_t *done) IMX_MUST_CHECK;

/* args.c[m, n] becomes all rows of that sum: the scatter, by the same kernels, then the gather.  On
 * streams of their own these meet in between, and the caller joins them behind it. */
void imx_hierarchical_sum_needs(const imx_variant *variant, imx_needs *needs);
imbrex_status imx_hierarchical_sum(const imx_run *run, const imx_net_streams *lanes, int first,
                                   const void *matrix, uint64_t *done) IMX_MUST_CHECK;

#endif /* IMX_HIERARCHICAL_H */
