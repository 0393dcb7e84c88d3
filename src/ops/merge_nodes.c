/* merge_nodes.c - states of attention over nodes: what ranks of a node have for a rank of another
 * one is merged by the rank of that one's number here, stays float32, and goes there.
 *
 *     caller   | begin | pack | fork |                                  | all nodes | end |
 *     second   | push for the next node, flags | for the one after | ... own node |
 *     adding   | wait, merge for the next node | ... | own node |
 *     engine   | exchange with the next node's | ...
 */
#include "hierarchical.h"
#include "merge.h"

enum { PACK, NODE, NODES }; /* kernels, from `first` on */

static const imx_nodes *nodes_of(const imx_run *run)
{
    return &run->plan->group->nodes;
}

/* The rank of this one's number on node t. */
static int counterpart(const imx_nodes *nodes, int t)
{
    return nodes->first[t] + nodes->local;
}

/* ---- where things lie ------------------------------------------------------------------------ */

/* In local data, behind what is packed: this node's merged states for each node's rank of this
 * number; then what has come from there. */
static char *merged(const imx_run *run, int node)
{
    return (char *)imx_run_local(run) + imx_merge_packed_bytes(run->variant) +
           (size_t)node * imx_merge_slot_bytes(run->variant, IMBREX_F32);
}

static char *incoming(const imx_run *run, int node)
{
    return merged(run, nodes_of(run)->count + node);
}

/* The lse of what lies there for an owner. */
static float *lse_of(const imx_run *run, char *slot, int owner)
{
    const imbrex_decode_desc *d = (const void *)run->plan->desc;
    int64_t at = imx_merge_lse_at(imx_merge_owner_states(run, owner), d->value_dim, sizeof(float));
    return (float *)(void *)(slot + at);
}

void imx_merge_nodes_needs(const imx_variant *variant, imx_needs *needs)
{
    size_t ranks = (size_t)variant->plan->group->size;
    size_t nodes = (size_t)variant->plan->group->nodes.count;
    needs->data_bytes = ranks * imx_merge_slot_bytes(variant, variant->shape.dtype);
    needs->signals = ranks;
    needs->local_bytes =
        imx_merge_packed_bytes(variant) + 2 * nodes * imx_merge_slot_bytes(variant, IMBREX_F32);
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Of this node's ranks, for the one of this number on node t. */
static imx_merge_args node_args(const imx_variant *variant, int64_t m, int t)
{
    const imx_nodes *nodes = &variant->plan->group->nodes;
    const imbrex_decode_desc *d = (const void *)variant->plan->desc;
    int owner = counterpart(nodes, t);
    imx_merge_args args = imx_merge_args_of(variant, m, IMX_MERGE_MERGES);
    args.dtype_to = IMBREX_F32;
    args.sources = nodes->ranks;
    args.own = nodes->local;
    args.first = args.own_first = imx_merge_head(d->replicate, d->heads, args.ranks, owner);
    args.count = imx_merge_heads(d->replicate, d->heads, args.ranks, owner);
    return args;
}

/* Of all nodes, for this rank. */
static imx_merge_args nodes_args(const imx_variant *variant, int64_t m)
{
    const imx_nodes *nodes = &variant->plan->group->nodes;
    imx_merge_args args = imx_merge_args_of(variant, m, IMX_MERGE_MERGES);
    args.dtype = IMBREX_F32;
    args.sources = nodes->count;
    args.own = nodes->own;
    args.own_heads = args.count;
    args.own_first = 0;
    args.slot_bytes = (int64_t)imx_merge_slot_bytes(variant, IMBREX_F32);
    return args;
}

imbrex_status imx_merge_nodes_prepare(imx_variant *variant, int first)
{
    imx_merge_args node = node_args(variant, variant->shape.m, 0);
    imx_merge_args nodes = nodes_args(variant, variant->shape.m);
    IMX_TRY(imx_merge_pack_prepare(variant, first + PACK));
    IMX_TRY(imx_variant_prepare(variant, first + NODE, &imx_kernel_merge, &node));
    return imx_variant_prepare(variant, first + NODES, &imx_kernel_merge, &nodes);
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* This rank's states for node t to those who merge them here. */
static imbrex_status push(const imx_run *run, imbrex_stream stream, int t)
{
    const imx_nodes *nodes = nodes_of(run);
    size_t slot = imx_merge_slot_bytes(run->variant, run->variant->shape.dtype);
    int number = t * nodes->ranks + nodes->local;
    for (int i = 1; i < nodes->ranks; i++) {
        int to = imx_nodes_mate(nodes, i);
        int owner = nodes->first[t] + to - imx_nodes_root(nodes);
        if (!imx_merge_owner_states(run, owner))
            continue;
        IMX_TRY(imx_run_copy(run, stream, (char *)imx_run_data(run, to) + (size_t)number * slot,
                             imx_merge_packed(run, owner),
                             imx_merge_owner_bytes(run, owner, run->variant->shape.dtype), to));
        IMX_TRY(imx_run_post(run, stream, imx_run_signal(run, to) + number, to));
    }
    return IMBREX_OK;
}

static imbrex_status merge_node(const imx_run *run, imbrex_stream stream, int first, int t,
                                const imx_merge_states *own)
{
    const imx_nodes *nodes = nodes_of(run);
    size_t slot = imx_merge_slot_bytes(run->variant, run->variant->shape.dtype);
    int owner = counterpart(nodes, t);
    imx_merge_args args = node_args(run->variant, run->m, t);
    if (!imx_merge_owner_states(run, owner))
        return IMBREX_OK;
    for (int i = 1; i < nodes->ranks; i++) {
        int from = imx_nodes_mate(nodes, -i), number = t * nodes->ranks;
        number += from - imx_nodes_root(nodes);
        IMX_TRY(imx_run_wait(run, stream, imx_run_signal(run, run->rank) + number, IMX_POINT_PART,
                             from, -1));
    }
    imx_merge_set_states(run, own, &args);
    args.slots = (char *)imx_run_data(run, run->rank) + (size_t)(t * nodes->ranks) * slot;
    args.to = merged(run, t);
    args.lse_to = lse_of(run, merged(run, t), owner);
    return imx_run_launch(run, stream, first + NODE, &args, sizeof args);
}

/* With the node i further on, and the one as far on the other side. */
static imbrex_status swap(const imx_run *run, const imx_net_streams *lanes, int i)
{
    const imx_nodes *nodes = nodes_of(run);
    int t = (nodes->own + i) % nodes->count, u = (nodes->own + nodes->count - i) % nodes->count;
    int to = counterpart(nodes, t), from = counterpart(nodes, u), lane = i % lanes->nets;
    size_t mine = imx_merge_owner_states(run, run->rank)
                      ? imx_merge_owner_bytes(run, run->rank, IMBREX_F32)
                      : 0;
    size_t theirs =
        imx_merge_owner_states(run, to) ? imx_merge_owner_bytes(run, to, IMBREX_F32) : 0;
    const imx_transfer transfers[] = {
        { .op = { .rank = to, .at = merged(run, t), .bytes = theirs } },
        { .op = { .receives = true, .rank = from, .at = incoming(run, u), .bytes = mine } },
    };
    if (lanes->add != lanes->net[lane])
        IMX_TRY(imx_run_hand_over(run, &run->plan->aux[IMX_AUX_ADD], lanes->net[lane]));
    return imx_run_step(run, lanes->net[lane], lane, transfers, 2);
}

static imbrex_status merge_nodes(const imx_run *run, int first)
{
    imx_merge_args args = nodes_args(run->variant, run->m);
    char *own = merged(run, nodes_of(run)->own);
    imx_merge_states states = { own, lse_of(run, own, run->rank) };
    if (!imx_merge_owner_states(run, run->rank))
        return IMBREX_OK;
    imx_merge_set_states(run, &states, &args);
    imx_merge_set_results(run, &args);
    args.slots = incoming(run, 0);
    return imx_run_launch(run, run->stream, first + NODES, &args, sizeof args);
}

imbrex_status imx_merge_nodes(const imx_run *run, int first, bool overlapped,
                              const imx_merge_states *own)
{
    const imx_net_streams lanes = imx_hierarchical_streams(run, overlapped);
    const imx_nodes *nodes = nodes_of(run);
    IMX_TRY(imx_merge_pack(run, first + PACK, own));
    if (overlapped)
        IMX_TRY(imx_run_fork(run));
    for (int i = 1; i <= nodes->count; i++) { /* own node last */
        int t = (nodes->own + i) % nodes->count;
        IMX_TRY(push(run, lanes.inner, t));
        IMX_TRY(merge_node(run, lanes.add, first, t, own));
        if (i < nodes->count)
            IMX_TRY(swap(run, &lanes, i));
    }
    if (overlapped)
        IMX_TRY(imx_run_join(run));
    return merge_nodes(run, first);
}
