/* token_sums.c - sums of tokens over nodes; see token_sums.h for which stream does what. */
#include "token_sums.h"

static const imx_nodes *nodes_of(const imx_run *run)
{
    return &run->plan->group->nodes;
}

/* The rank of this one's number on node t. */
static int counterpart(const imx_nodes *nodes, int t)
{
    return nodes->first[t] + nodes->local;
}

void imx_token_sums_needs(const imx_variant *variant, size_t slot_bytes, imx_needs *needs,
                          size_t *local)
{
    size_t ranks = (size_t)variant->plan->group->size;
    needs->data_bytes = ranks * slot_bytes;
    needs->signals = ranks;
    *local = 2 * (size_t)variant->plan->group->nodes.count * slot_bytes;
}

/* ---- where things lie ------------------------------------------------------------------------ */

static int64_t first_token(const imx_run *run, const imx_token_sums *sums, int owner)
{
    return imx_team_row(sums->tokens, run->ranks, owner);
}

static int64_t tokens_of(const imx_run *run, const imx_token_sums *sums, int owner)
{
    return first_token(run, sums, owner + 1) - first_token(run, sums, owner);
}

static size_t row_bytes(const imx_token_sums *sums)
{
    return (size_t)sums->own.n * imx_dtype_bytes((imbrex_dtype)sums->own.dtype);
}

/* Of all tokens of an owner; 0: nobody has anything to send or to wait for. */
static size_t bytes_of(const imx_run *run, const imx_token_sums *sums, int owner)
{
    return (size_t)tokens_of(run, sums, owner) * row_bytes(sums);
}

static const char *part_for(const imx_run *run, const imx_token_sums *sums, int owner)
{
    return sums->parts + (size_t)first_token(run, sums, owner) * row_bytes(sums);
}

static char *slot_on(const imx_run *run, const imx_token_sums *sums, int rank, int slot)
{
    return (char *)imx_run_data(run, rank) + (size_t)slot * sums->slot_bytes;
}

/* This node's sums for the counterpart on node t; and what has come from there. */
static char *node_sums(const imx_token_sums *sums, int t)
{
    return sums->local + (size_t)t * sums->slot_bytes;
}

static char *incoming(const imx_run *run, const imx_token_sums *sums, int t)
{
    return node_sums(sums, nodes_of(run)->count + t);
}

/* ---- inside the node ------------------------------------------------------------------------- */

/* This rank's parts of node t's tokens, to the ranks of this node that add them. */
static imbrex_status push(const imx_run *run, imbrex_stream stream, const imx_token_sums *sums,
                          int t)
{
    const imx_nodes *nodes = nodes_of(run);
    int slot = t * nodes->ranks + nodes->local;
    for (int i = 1; i < nodes->ranks; i++) {
        int to = imx_nodes_mate(nodes, i);
        int owner = nodes->first[t] + to - imx_nodes_root(nodes);
        if (!bytes_of(run, sums, owner))
            continue;
        IMX_TRY(imx_run_copy(run, stream, slot_on(run, sums, to, slot), part_for(run, sums, owner),
                             bytes_of(run, sums, owner), to));
        IMX_TRY(imx_run_post(run, stream, imx_run_signal(run, to) + slot, to));
    }
    return IMBREX_OK;
}

static imbrex_status add_ranks(const imx_run *run, imbrex_stream stream, const imx_token_sums *sums,
                               int t)
{
    const imx_nodes *nodes = nodes_of(run);
    int owner = counterpart(nodes, t), slots = t * nodes->ranks;
    imx_combine_args args = sums->own;
    if (!bytes_of(run, sums, owner))
        return IMBREX_OK;
    for (int i = 1; i < nodes->ranks; i++) {
        int from = imx_nodes_mate(nodes, -i), slot = slots + from - imx_nodes_root(nodes);
        IMX_TRY(imx_run_wait(run, stream, imx_run_signal(run, run->rank) + slot, IMX_POINT_PART,
                             from, -1));
    }
    args.begin = imx_nodes_root(nodes);
    args.end = args.begin + nodes->ranks;
    args.first = first_token(run, sums, owner);
    args.tokens = tokens_of(run, sums, owner);
    args.slots = slot_on(run, sums, run->rank, slots);
    args.slot_bytes = (int64_t)sums->slot_bytes;
    args.own_part = part_for(run, sums, owner);
    args.bias = args.residual = NULL;
    args.to = node_sums(sums, t);
    return imx_run_launch(run, stream, sums->kernel, &args, sizeof args);
}

/* ---- between nodes --------------------------------------------------------------------------- */

/* With the node i further on, and the one as far on the other side. */
static imbrex_status swap(const imx_run *run, const imx_net_streams *lanes,
                          const imx_token_sums *sums, int i)
{
    const imx_nodes *nodes = nodes_of(run);
    int t = (nodes->own + i) % nodes->count, u = (nodes->own + nodes->count - i) % nodes->count;
    int to = counterpart(nodes, t), from = counterpart(nodes, u), lane = i % lanes->nets;
    const imx_transfer transfers[] = {
        { .op = { .rank = to, .at = node_sums(sums, t), .bytes = bytes_of(run, sums, to) } },
        { .op = { .receives = true,
                  .rank = from,
                  .at = incoming(run, sums, u),
                  .bytes = bytes_of(run, sums, run->rank) } },
    };
    if (lanes->add != lanes->net[lane])
        IMX_TRY(imx_run_hand_over(run, &run->plan->aux[IMX_AUX_ADD], lanes->net[lane]));
    return imx_run_step(run, lanes->net[lane], lane, transfers, 2);
}

static imbrex_status add_nodes(const imx_run *run, const imx_token_sums *sums)
{
    const imx_nodes *nodes = nodes_of(run);
    imx_combine_args args = sums->own;
    if (!bytes_of(run, sums, run->rank))
        return IMBREX_OK;
    args.ranks = args.end = nodes->count;
    args.begin = 0;
    args.own = nodes->own;
    args.slots = incoming(run, sums, 0);
    args.slot_bytes = (int64_t)sums->slot_bytes;
    args.own_part = node_sums(sums, nodes->own);
    return imx_run_launch(run, run->stream, sums->kernel, &args, sizeof args);
}

imbrex_status imx_token_sums_add(const imx_run *run, const imx_net_streams *lanes,
                                 const imx_token_sums *sums)
{
    const imx_nodes *nodes = nodes_of(run);
    for (int i = 1; i <= nodes->count; i++) { /* own node last */
        int t = (nodes->own + i) % nodes->count;
        IMX_TRY(push(run, lanes->inner, sums, t));
        IMX_TRY(add_ranks(run, lanes->add, sums, t));
        if (i < nodes->count)
            IMX_TRY(swap(run, lanes, sums, i));
    }
    if (lanes->inner != run->stream)
        IMX_TRY(imx_run_join(run));
    return add_nodes(run, sums);
}
