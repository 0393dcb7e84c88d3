/* 06_reduce_scatter_nodes.c - reduce_scatter between nodes: a node's sum leaves it while the next
 * one is made.
 *
 *     imbrex run -n 4 -- example_06_reduce_scatter_nodes [--device cuda]
 *     IMBREX_NODE_RANKS=2 mpirun -n 4 --oversubscribe example_06_reduce_scatter_nodes # two nodes
 *
 * Every rank has a partial result for each rank.  One node after the other, the next one first and
 * its own last, the ranks of a node give each other what they have for the ranks of that node; each
 * adds up what is for the rank of its own number there, and sends it only that sum.  Three streams,
 * on node 0 of three:
 *
 *     scatter   | for node 1 | for node 2 | for node 0 |
 *     add                    | node 1's   | node 2's   | node 0's |       | of all nodes |
 *     network                             | to node 1  | to node 2        |
 *     one after the other    the same on one stream
 *
 * The order of nodes is another on each, so that no node is sent to by all; and what travels is as
 * many times less as a node has ranks.  Parts are added in the order of ranks, then of nodes.
 *
 * After Triton-distributed's tutorial of an inter-node ReduceScatter. */
#include "imbrex_device.h"

typedef struct add_args {
    const float *parts;   /* [count, n] */
    const uint64_t *here; /* [count]: the run whose part is here */
    float *sum;           /* [n] */
    int count, n;
    uint64_t run;
} add_args;

IMBREXD_KERNEL(add, add_args)
{
    int step = (int)imbrexd_threads() * imbrexd_block_count();
    int first = (int)imbrexd_thread() + imbrexd_block_index() * (int)imbrexd_threads();
    if (!imbrexd_wait_block(team, args->here, args->count, args->run, -1))
        return;
    if (!imbrexd_check_read(args->parts, (size_t)(args->count * args->n) * sizeof(float), 0, 1))
        return;
    for (int i = first; i < args->n; i += step) {
        float sum = 0;
        for (int k = 0; k < args->count; k++)
            sum += args->parts[k * args->n + i];
        args->sum[i] = sum;
    }
}

#ifndef KERNEL
#include "example.h"

enum { N = 32768, BLOCKS = 8, PART_BYTES = N * sizeof(float) };

typedef struct run {
    imbrex_group *group;
    imbrex_kernel *add;
    imbrex_stream scatter, network;
    example_place at;
    const float *partial;     /* [ranks, N] */
    float *slots;             /* [nodes, mates, N], symmetric: what each mate has for a node */
    float *sums, *came, *out; /* [nodes, N], [nodes, N], [N]: sums that go, that came; the result */
    uint64_t *in_slot, *added; /* [nodes, mates], [nodes]: the run whose part, whose sum is there */
    uint64_t *here, *read;     /* [nodes]: likewise of came; [ranks]: the run that is read */
    uint64_t number;
    int overlapped;
} run;

/* This rank's parts for the ranks of node t, to their counterparts here. */
static void scatter(run *r, int t, imbrex_stream on)
{
    int mates = r->at.mates, leader = r->at.node * mates, slot = t * mates + r->at.local;
    for (int i = 1; i <= mates; i++) { /* each begins with another, so that none is hit by all */
        int to = (r->at.local + i) % mates;
        check(imbrex_put(r->group, r->slots + slot * N, r->partial + (t * mates + to) * N,
                         PART_BYTES, leader + to, on));
        check(imbrex_signal_post(r->group, &r->in_slot[slot], r->number, leader + to, on));
    }
}

static void add_up(run *r, const float *parts, const uint64_t *here, int count, float *sum)
{
    add_args args = { parts, here, sum, count, N, r->number };
    check(imbrex_launch(r->add, BLOCKS, 256, &args, sizeof args, NULL));
}

/* The sum for the node i further on goes there; from the one as far on the other side comes one. */
static void swap(run *r, int i, imbrex_stream on)
{
    int nodes = r->at.nodes, t = (r->at.node + i) % nodes, u = (r->at.node + nodes - i) % nodes;
    const imbrex_transfer transfers[] = {
        { .rank = t * r->at.mates + r->at.local, .send = r->sums + t * N, .bytes = PART_BYTES },
        { .rank = u * r->at.mates + r->at.local, .recv = r->came + u * N, .bytes = PART_BYTES },
    };
    check(imbrex_signal_post(r->group, &r->added[t], r->number, r->at.rank, NULL));
    check(imbrex_signal_wait(r->group, &r->added[t], r->number, on));
    check(imbrex_exchange(r->group, transfers, 2, on));
    check(imbrex_signal_post(r->group, &r->here[u], r->number, r->at.rank, on));
}

static void one_run(void *ctx)
{
    run *r = ctx;
    int own = r->at.node, nodes = r->at.nodes, mates = r->at.mates, leader = own * mates;
    imbrex_stream copies = r->overlapped ? r->scatter : NULL;
    imbrex_stream network = r->overlapped ? r->network : NULL;
    r->number++;
    for (int mate = leader; mate < leader + mates; mate++)
        check(imbrex_signal_wait(r->group, &r->read[mate], r->number - 1, copies));
    for (int i = 1; i <= nodes; i++) {
        int t = (own + i) % nodes;
        scatter(r, t, copies);
        add_up(r, r->slots + t * mates * N, &r->in_slot[t * mates], mates,
               (t == own ? r->came : r->sums) + t * N);
        if (t != own)
            swap(r, i, network);
    }
    check(imbrex_signal_post(r->group, &r->here[own], r->number, r->at.rank, NULL));
    /* Behind it all sums have gone, too: each left in one exchange with one that came. */
    add_up(r, r->came, r->here, nodes, r->out);
    for (int mate = leader; mate < leader + mates; mate++)
        check(imbrex_signal_post(r->group, &r->read[r->at.rank], r->number, mate, NULL));
}

static float wanted(const void *ctx, int i)
{
    const run *r = ctx;
    return (float)((r->at.rank * 3 + i % 100) * (r->at.ranks * (r->at.ranks + 1) / 2));
}

static int rank_main(int argc, char **argv)
{
    run r = { .group = example_begin_on_nodes(argc, argv), .overlapped = 1 };
    r.at = example_find_place(r.group);
    size_t ranks = (size_t)r.at.ranks, nodes = (size_t)r.at.nodes;
    float *partial = example_room(ranks * PART_BYTES);
    for (int i = 0; i < r.at.ranks * N; i++)
        partial[i] = (float)((i / N * 3 + i % N % 100) * (r.at.rank + 1));
    r.partial = example_memory(r.group, ranks * PART_BYTES, partial);
    free(partial);
    r.slots = example_memory(r.group, ranks * PART_BYTES, NULL);
    r.sums = example_memory(r.group, nodes * PART_BYTES, NULL);
    r.came = example_memory(r.group, nodes * PART_BYTES, NULL);
    r.out = example_memory(r.group, PART_BYTES, NULL);
    r.in_slot = example_memory(r.group, 2 * (ranks + nodes) * sizeof(uint64_t), NULL);
    r.read = r.in_slot + ranks;
    r.added = r.read + ranks;
    r.here = r.added + nodes;
    r.add = EXAMPLE_KERNEL(r.group, add, .memory = NULL);
    check(imbrex_stream_create(r.group, &r.scatter));
    check(imbrex_stream_create(r.group, &r.network));

    example_result out = { .at = r.out, .count = N, .wanted = wanted };
    double us = example_try(r.group, &out, one_run, &r);
    check(imbrex_stream_sync(r.group, r.scatter)); /* from here on one stream does it all */
    check(imbrex_stream_sync(r.group, r.network));
    r.overlapped = 0;
    example_clear(r.group, r.slots, ranks * PART_BYTES);
    example_clear(r.group, r.sums, nodes * PART_BYTES);
    example_clear(r.group, r.came, nodes * PART_BYTES);
    double sequential_us = example_try(r.group, &out, one_run, &r);
    example_say(r.group, "reduce_scatter between nodes", us, sequential_us);
    return example_end(r.group, out.wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
