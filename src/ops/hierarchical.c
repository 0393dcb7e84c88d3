/* hierarchical.c - gather and scatter over nodes; see hierarchical.h for which stream does what. */
#include "hierarchical.h"

#include "sum_all.h"

enum { PARTS, OWN, NODES }; /* kernels: parts of this node for another, for itself; sums of nodes */

static const imx_nodes *nodes_of(const imx_run *run)
{
    return &run->plan->group->nodes;
}

/* The rank of this one's number, i nodes further on. */
static int counterpart(const imx_nodes *nodes, int i)
{
    return nodes->first[(nodes->own + i + nodes->count) % nodes->count] + nodes->local;
}

/* From the start of the matrix to chunk q of rank. */
static size_t matrix_at(const imx_run *run, int rank, int q, int64_t width)
{
    return imx_transfer_rank_at(run, rank, width) + imx_transfer_chunk_at(run, q, width);
}

/* Of chunk q of rank; 0: it has no such chunk. */
static size_t chunk_bytes(const imx_run *run, int rank, int q, int64_t width)
{
    return q < imx_run_chunks(run, rank) ? imx_transfer_chunk_bytes(run, rank, q, width) : 0;
}

static int most_chunks(const imx_run *run, int rank, int other)
{
    return (int)imx_max(imx_run_chunks(run, rank), imx_run_chunks(run, other));
}

imx_net_streams imx_hierarchical_streams(const imx_run *run, bool overlapped)
{
    const imbrex_plan *plan = run->plan;
    if (!overlapped)
        return (imx_net_streams){ run->stream, run->stream, { run->stream }, 1 };
    imx_net_streams lanes = {
        .inner = plan->comm,
        .add = plan->aux[IMX_AUX_ADD].stream,
        .nets = plan->aux_count - IMX_AUX_NET,
    };
    for (int i = 0; i < lanes.nets; i++)
        lanes.net[i] = plan->aux[IMX_AUX_NET + i].stream;
    return lanes;
}

/* The lane of chunk q of whoever sends to the node i further on, alike at both ends. */
static int lane_of(const imx_run *run, const imx_net_streams *lanes, int i, int q)
{
    return (i * run->variant->config.chunks + q) % lanes->nets;
}

/* ---- gather ---------------------------------------------------------------------------------- */

/* From the start of data to what goes along with chunk q of rank. */
static size_t along_at(const imx_run *run, int rank, int q)
{
    return imx_transfer_along_rank_at(run, rank) + imx_transfer_along_at(run, q);
}

/* 0: it has no such chunk, or nothing goes along. */
static size_t along_bytes(const imx_run *run, int rank, int q)
{
    return q < imx_run_chunks(run, rank) ? imx_transfer_along_bytes(run, rank, q) : 0;
}

/* Own chunk's, or where that of another node came in. */
static char *along_of(const imx_run *run, int rank, int q)
{
    if (rank == run->rank)
        return (char *)(uintptr_t)run->along.shard + imx_transfer_along_at(run, q);
    return (char *)imx_run_data(run, run->rank) + along_at(run, rank, q);
}

/* Chunk q of rank's rows to the other ranks of this node, the one before first. */
static imbrex_status spread(const imx_run *run, imbrex_stream stream, int rank, int q,
                            const void *chunk, int64_t width)
{
    const imx_nodes *nodes = nodes_of(run);
    size_t along = along_bytes(run, rank, q);
    for (int i = 1; i < nodes->ranks; i++) {
        int to = imx_nodes_mate(nodes, -i);
        char *theirs = (char *)imx_run_data(run, to) + matrix_at(run, rank, q, width);
        IMX_TRY(imx_run_copy(run, stream, theirs, chunk, chunk_bytes(run, rank, q, width), to));
        if (along)
            IMX_TRY(imx_run_copy(run, stream,
                                 (char *)imx_run_data(run, to) + along_at(run, rank, q),
                                 along_of(run, rank, q), along, to));
        IMX_TRY(imx_run_post(
            run, stream, imx_run_signal(run, to) + imx_transfer_chunk_number(run, rank, q), to));
    }
    return IMBREX_OK;
}

/* Own chunks to the node that comes to them `i` nodes after its own; theirs from the other side. */
static imbrex_status swap_shards(const imx_run *run, const imx_net_streams *lanes, int i,
                                 const char *shard, int64_t width)
{
    int to = counterpart(nodes_of(run), -i), from = counterpart(nodes_of(run), i);
    for (int q = 0; q < most_chunks(run, run->rank, from); q++) {
        const imx_transfer transfers[] = {
            { .op = { .rank = to,
                      .at = (void *)(uintptr_t)(shard + imx_transfer_chunk_at(run, q, width)),
                      .bytes = chunk_bytes(run, run->rank, q, width) } },
            { .op = { .receives = true,
                      .rank = from,
                      .at = (char *)imx_run_data(run, run->rank) + matrix_at(run, from, q, width),
                      .bytes = chunk_bytes(run, from, q, width) },
              .signal = q < imx_run_chunks(run, from) ? imx_run_signal(run, run->rank) +
                                                            imx_transfer_chunk_number(run, from, q)
                                                      : NULL },
            { .op = { .rank = to,
                      .at = along_of(run, run->rank, q),
                      .bytes = along_bytes(run, run->rank, q) } },
            { .op = { .receives = true,
                      .rank = from,
                      .at = along_of(run, from, q),
                      .bytes = along_bytes(run, from, q) } },
        };
        int lane = lane_of(run, lanes, i, q);
        IMX_TRY(imx_run_step(run, lanes->net[lane], lane, transfers, run->along.row_bytes ? 4 : 2));
    }
    return IMBREX_OK;
}

imbrex_status imx_hierarchical_gather(const imx_run *run, const imx_net_streams *lanes,
                                      const void *shard, int64_t width)
{
    const imx_nodes *nodes = nodes_of(run);
    for (int q = 0; q < imx_run_chunks(run, run->rank); q++)
        IMX_TRY(spread(run, lanes->inner, run->rank, q,
                       (const char *)shard + imx_transfer_chunk_at(run, q, width), width));
    for (int i = 1; i < nodes->count; i++)
        IMX_TRY(swap_shards(run, lanes, i, shard, width));
    for (int i = 1; i < nodes->count; i++) {
        int from = counterpart(nodes, i);
        for (int q = 0; q < imx_run_chunks(run, from); q++) {
            uint64_t *here =
                imx_run_signal(run, run->rank) + imx_transfer_chunk_number(run, from, q);
            IMX_TRY(imx_run_wait(run, lanes->inner, here, IMX_POINT_CHUNK, from, q));
            const char *chunk = imx_run_data(run, run->rank);
            IMX_TRY(
                spread(run, lanes->inner, from, q, chunk + matrix_at(run, from, q, width), width));
        }
    }
    return IMBREX_OK;
}

/* ---- scatter --------------------------------------------------------------------------------- */

/* Where the sums begin in local data: after the product's c. */
static size_t sums_at(const imx_variant *variant)
{
    const imx_shape *s = &variant->shape;
    return variant->plan->op->product
               ? imx_align((size_t)s->m * (size_t)s->n * imx_dtype_bytes(s->out), 256)
               : 0;
}

static char *sum(const imx_run *run, int node)
{
    return (char *)imx_run_local(run) + sums_at(run->variant) +
           (size_t)node * imx_transfer_slot_bytes(run->variant);
}

/* What has come from other nodes lies after the sums. */
static char *incoming(const imx_run *run, int node)
{
    return sum(run, nodes_of(run)->count + node);
}

void imx_hierarchical_scatter_needs(const imx_variant *variant, imx_needs *needs)
{
    size_t nodes = (size_t)variant->plan->group->nodes.count;
    imx_transfer_scatter_needs(variant, needs);
    needs->local_bytes = sums_at(variant) + 2 * nodes * imx_transfer_slot_bytes(variant);
    needs->done = (size_t)variant->plan->group->size * (size_t)variant->config.chunks;
}

static imx_reduce_args reduce_args(const imx_variant *variant, int64_t m, int kernel)
{
    const imx_nodes *nodes = &variant->plan->group->nodes;
    bool over = kernel == NODES;
    return (imx_reduce_args){
        .rows = imx_ceil_div(m, variant->plan->group->size),
        .n = variant->shape.n,
        .dtype = (int)variant->shape.out,
        .ranks = over ? nodes->count : nodes->ranks,
        .own = over ? nodes->own : nodes->local,
        .chunk_rows = (int)imx_variant_chunk_rows(variant, m),
        .chunks = variant->config.chunks,
        .plan = imx_variant_point(variant),
        .from = over ? nodes->local : imx_nodes_root(nodes),
        .every = over ? nodes->ranks : 1,
        .slot_bytes = (int64_t)imx_transfer_slot_bytes(variant),
    };
}

/* What adds up beside a product takes no more than was left free for it, and the engine keeps its
 * part of that; the rest is alone. */
imbrex_status imx_hierarchical_scatter_prepare(imx_variant *variant, int first)
{
    const imx_config *config = &variant->config;
    int left = (int)imx_max(1, config->reserved_sms - variant->plan->group->net_facts.workers);
    for (int kernel = PARTS; kernel <= NODES; kernel++) {
        imx_reduce_args largest = reduce_args(variant, variant->shape.m, kernel);
        bool beside = kernel == PARTS && variant->plan->op->product && config->reserved_sms > 0;
        IMX_TRY(imx_variant_prepare_blocks(variant, first + kernel, &imx_kernel_reduce, &largest,
                                           beside ? left : config->blocks));
    }
    return IMBREX_OK;
}

/* Chunk q of the rows that `to`, of this node's counterpart on node t, adds up there. */
static imbrex_status push(const imx_run *run, imbrex_stream stream, int t, int to, int q,
                          const char *matrix, uint64_t *done)
{
    const imx_nodes *nodes = nodes_of(run);
    int64_t width = run->variant->shape.n;
    int owner = nodes->first[t] + to, rank = imx_nodes_root(nodes) + to;
    int slot = t * nodes->ranks + nodes->local;
    if (q >= imx_run_chunks(run, owner))
        return IMBREX_OK;
    int number = imx_transfer_chunk_number(run, owner, q);
    if (done)
        IMX_TRY(imx_run_wait(run, stream, done + number, IMX_POINT_DONE, run->rank, number));
    char *theirs = (char *)imx_run_data(run, rank) +
                   (size_t)slot * imx_transfer_slot_bytes(run->variant) +
                   imx_transfer_chunk_at(run, q, width);
    IMX_TRY(imx_run_copy(run, stream, theirs, matrix + matrix_at(run, owner, q, width),
                         chunk_bytes(run, owner, q, width), rank));
    return imx_run_post(run, stream,
                        imx_run_signal(run, rank) + imx_transfer_chunk_number(run, slot, q), rank);
}

/* In the order in which a product makes them (gemm/schedule.h): another node's chunk by chunk, this
 * node's rank by rank. */
static imbrex_status push_all(const imx_run *run, imbrex_stream stream, int t, const char *matrix,
                              uint64_t *done)
{
    const imx_nodes *nodes = nodes_of(run);
    int chunks = run->variant->config.chunks, local_peers = nodes->ranks - 1;
    for (int i = 0; i < chunks * local_peers; i++) {
        bool by_chunk = t != nodes->own;
        int q = by_chunk ? i / local_peers : i % chunks;
        int to = (nodes->local + 1 + (by_chunk ? i % local_peers : i / chunks)) % nodes->ranks;
        IMX_TRY(push(run, stream, t, to, q, matrix, done));
    }
    return IMBREX_OK;
}

/* This node's sum of `rows` rows, from chunk q on, of what the counterpart on node t owns. */
static imbrex_status add_up(const imx_run *run, imbrex_stream stream, int first, int kernel, int t,
                            int q, int64_t rows, const char *matrix)
{
    const imx_nodes *nodes = nodes_of(run);
    int64_t width = run->variant->shape.n;
    int owner = nodes->first[t] + nodes->local, slot = t * nodes->ranks;
    imx_reduce_args args = reduce_args(run->variant, run->m, kernel);
    args.rows = rows;
    args.chunk = q;
    args.slots = (char *)imx_run_data(run, run->rank) +
                 (size_t)slot * imx_transfer_slot_bytes(run->variant) +
                 imx_transfer_chunk_at(run, q, width);
    args.own_part = matrix + matrix_at(run, owner, q, width);
    args.c = sum(run, t) + imx_transfer_chunk_at(run, q, width);
    args.epoch = run->epoch;
    args.arrived = imx_run_signal(run, run->rank) + imx_transfer_chunk_number(run, slot, q);
    if (!args.rows || !args.n)
        return IMBREX_OK;
    return imx_run_launch(run, stream, first + kernel, &args, sizeof args);
}

/* Sums for the node i further on go there, chunk by chunk as they are made; from the node as far on
 * the other side come those for this rank. */
static imbrex_status swap_sums(const imx_run *run, const imx_net_streams *lanes, int first, int i,
                               const char *matrix, uint64_t *done)
{
    const imx_nodes *nodes = nodes_of(run);
    int64_t width = run->variant->shape.n;
    int to = counterpart(nodes, i), from = counterpart(nodes, -i);
    int t = nodes->of[to], u = nodes->of[from];
    for (int q = 0; q < most_chunks(run, to, run->rank); q++) {
        int lane = lane_of(run, lanes, i, q);
        if (q < imx_run_chunks(run, to)) {
            int number = imx_transfer_chunk_number(run, to, q);
            if (done)
                IMX_TRY(imx_run_wait(run, lanes->add, done + number, IMX_POINT_DONE, run->rank,
                                     number));
            IMX_TRY(add_up(run, lanes->add, first, PARTS, t, q, imx_run_chunk_rows(run, to, q),
                           matrix));
            if (lanes->add != lanes->net[lane])
                IMX_TRY(imx_run_hand_over(run, &run->plan->aux[IMX_AUX_ADD], lanes->net[lane]));
        }
        const imx_transfer transfers[] = {
            { .op = { .rank = to,
                      .at = sum(run, t) + imx_transfer_chunk_at(run, q, width),
                      .bytes = chunk_bytes(run, to, q, width) } },
            { .op = { .receives = true,
                      .rank = from,
                      .at = incoming(run, u) + imx_transfer_chunk_at(run, q, width),
                      .bytes = chunk_bytes(run, run->rank, q, width) } },
        };
        IMX_TRY(imx_run_step(run, lanes->net[lane], lane, transfers, 2));
    }
    return IMBREX_OK;
}

/* All nodes' sums of this rank's rows.  Only when the last of them is here: a kernel that waits for
 * them on every multiprocessor might leave the engine none to bring them on. */
static imbrex_status add_nodes(const imx_run *run, const imx_net_streams *lanes, int first)
{
    for (int i = 0; i < lanes->nets && lanes->net[i] != run->stream; i++)
        IMX_TRY(imx_run_hand_over(run, &run->plan->aux[IMX_AUX_NET + i], run->stream));
    imx_reduce_args args = reduce_args(run->variant, run->m, NODES);
    args.rows = imx_run_rows(run, run->rank);
    args.slots = incoming(run, 0);
    args.own_part = sum(run, nodes_of(run)->own);
    args.bias = run->args->bias;
    args.residual = run->args->residual;
    args.c = run->args->c;
    args.epoch = run->epoch;
    if (!args.rows || !args.n)
        return IMBREX_OK;
    return imx_run_launch(run, run->stream, first + NODES, &args, sizeof args);
}

imbrex_status imx_hierarchical_scatter(const imx_run *run, const imx_net_streams *lanes, int first,
                                       const void *matrix, uint64_t *done)
{
    const imx_nodes *nodes = nodes_of(run);
    for (int i = 1; i < nodes->count; i++) {
        IMX_TRY(push_all(run, lanes->inner, nodes->of[counterpart(nodes, i)], matrix, done));
        IMX_TRY(swap_sums(run, lanes, first, i, matrix, done));
    }
    IMX_TRY(push_all(run, lanes->inner, nodes->own, matrix, done));
    IMX_TRY(
        add_up(run, run->stream, first, OWN, nodes->own, 0, imx_run_rows(run, run->rank), matrix));
    return add_nodes(run, lanes, first);
}

/* ---- sums on every rank ---------------------------------------------------------------------- */

void imx_hierarchical_sum_needs(const imx_variant *variant, imx_needs *needs)
{
    imx_needs scatter = { 0 }, gather = { 0 };
    imx_hierarchical_scatter_needs(variant, &scatter);
    imx_transfer_gather_needs(variant, variant->shape.n, &gather);
    *needs = imx_transfer_both(&scatter, &gather);
}

static imbrex_status gather_sums(const imx_run *run, const imx_net_streams *lanes)
{
    int64_t width = run->variant->shape.n;
    const void *own = imx_sum_all_own_rows(run);
    imx_needs scatter = { 0 };
    imx_hierarchical_scatter_needs(run->variant, &scatter);
    const imx_run second = imx_transfer_second(run, &scatter);
    IMX_TRY(imx_hierarchical_gather(&second, lanes, own, width));
    return imx_transfer_gather_out(&second, run->stream, own, width, run->args->c, false);
}

/* The sums are there when all that made them is done. */
imbrex_status imx_hierarchical_sum(const imx_run *run, const imx_net_streams *lanes, int first,
                                   const void *matrix, uint64_t *done)
{
    imbrex_args args;
    const imx_run scatter = imx_sum_all_first(run, &args);
    IMX_TRY(imx_hierarchical_scatter(&scatter, lanes, first, matrix, done));
    if (lanes->inner != run->stream) {
        IMX_TRY(imx_run_join(run));
        IMX_TRY(imx_run_fork(run));
    }
    return gather_sums(run, lanes);
}
