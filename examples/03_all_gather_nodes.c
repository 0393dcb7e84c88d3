/* 03_all_gather_nodes.c - all_gather between nodes, chunk by chunk under the work on what arrives.
 *
 *     imbrex run -n 4 -- example_03_all_gather_nodes [--device cuda]
 *     IMBREX_NODE_RANKS=2 mpirun -n 4 --oversubscribe example_03_all_gather_nodes # two nodes
 *
 * No kernel reaches another node: an engine carries the data there, on a stream of its own.  Each
 * rank swaps chunks with the ranks of its number on the other nodes; a signal behind each chunk
 * tells the kernel, which passes it on to its node and works on it while the next one travels.  So
 * every byte comes to a node once.  Each shard has a block; of rank 0, on the first of two nodes:
 *
 *     network   | 2's chunk 0 | 2's chunk 1         | 2's chunk 2         | ...
 *     block 0   | pass on, work on 0, 1, 2, ...
 *     block 1   | wait | work on 0, 1, 2, ... as rank 1 passes them on
 *     block 2                 | pass on 0, work on 0 | pass on 1, work on 1 | ...
 *     block 3                     | wait | work on 0     | wait | work on 1 | ...
 *     one after the other   | barrier | network: all | copies in the node | barrier | work on all |
 *
 * On one node there is nothing to swap, and the rest is a push as in 02_all_gather.c. */
#include "imbrex_device.h"

enum { CHUNKS = 4 };

typedef struct gather_args {
    float *gathered; /* [ranks, n], symmetric; this rank's own shard is there */
    uint64_t *here;  /* [ranks, CHUNKS], symmetric: the run whose chunk of that rank is here */
    uint64_t *read;  /* [ranks], symmetric: the run that this rank of the node is done with */
    float *out;      /* [ranks, n] */
    int n;
    uint64_t run;
} gather_args;

/* 0: give up, as after a wait. */
IMBREXD_FN int work(const gather_args *args, int first, int length)
{
    if (!imbrexd_check_read(args->gathered + first, (size_t)length * sizeof(float), 0, 1))
        return 0;
    for (int i = (int)imbrexd_thread(); i < length; i += (int)imbrexd_threads())
        args->out[first + i] = args->gathered[first + i] * 2 + 1;
    return 1;
}

IMBREXD_KERNEL(gather, gather_args)
{
    int s = imbrexd_block_index(), mates = team->node_size, length = args->n / CHUNKS;
    int leader = team->rank - team->node_rank, via = leader + s % mates;
    int passes = via == team->rank; /* shard s comes to this rank, from where the others have it */
    uint64_t run = args->run;

    if (passes && !imbrexd_wait_block(team, &args->read[leader], mates, run - 1, -1))
        return;
    for (int c = 0; c < CHUNKS; c++) {
        int first = s * args->n + c * length;
        uint64_t *here = &args->here[s * CHUNKS + c];
        float *chunk = &args->gathered[first];
        if (s != team->rank && !imbrexd_wait_block(team, here, 1, run, passes ? s : via))
            return;
        for (int i = 1; passes && i < mates; i++) {
            int to = leader + (team->node_rank + i) % mates;
            imbrexd_put_signal_block(imbrexd_peer(team, to, chunk), chunk,
                                     (size_t)length * sizeof(float),
                                     (uint64_t *)imbrexd_peer(team, to, here), run, IMBREXD_SET);
        }
        if (!work(args, first, length))
            return;
    }
}

IMBREXD_KERNEL(work_only, gather_args)
{
    (void)team;
    work(args, imbrexd_block_index() * args->n, args->n);
}

#ifndef KERNEL
#include "example.h"

enum { N = 65536 };

typedef struct run {
    imbrex_group *group;
    imbrex_kernel *gather, *work_only;
    imbrex_stream network;
    gather_args args;
    example_place at;
} run;

/* length floats of each shard, from `first` on: to the node i further on, and from the one as far
 * on the other side, which is told. */
static int swap(run *r, int i, int first, int length, imbrex_stream on)
{
    int ranks = r->at.ranks, rank = r->at.rank, far = i * r->at.mates;
    int to = (rank + far) % ranks, from = (rank + ranks - far) % ranks;
    float *gathered = r->args.gathered + first;
    size_t bytes = (size_t)length * sizeof(float);
    const imbrex_transfer transfers[] = {
        { .rank = to, .send = gathered + rank * N, .bytes = bytes },
        { .rank = from, .recv = gathered + from * N, .bytes = bytes },
    };
    check(imbrex_exchange(r->group, transfers, 2, on));
    return from;
}

static void overlapped(void *ctx)
{
    run *r = ctx;
    int length = N / CHUNKS, rank = r->at.rank, leader = rank - r->at.local;
    r->args.run++;
    check(imbrex_signal_wait(r->group, &r->args.read[rank], r->args.run - 1, r->network));
    for (int i = 1; i < r->at.nodes; i++) {
        for (int c = 0; c < CHUNKS; c++) {
            int from = swap(r, i, c * length, length, r->network);
            uint64_t *here = &r->args.here[from * CHUNKS + c];
            check(imbrex_signal_post(r->group, here, r->args.run, rank, r->network));
        }
    }
    check(imbrex_launch(r->gather, r->at.ranks, 256, &r->args, sizeof r->args, NULL));
    for (int mate = leader; mate < leader + r->at.mates; mate++)
        check(imbrex_signal_post(r->group, &r->args.read[rank], r->args.run, mate, NULL));
}

static void sequential(void *ctx)
{
    run *r = ctx;
    int rank = r->at.rank, leader = rank - r->at.local;
    check(imbrex_barrier(r->group, NULL));
    for (int i = 1; i < r->at.nodes; i++)
        swap(r, i, 0, N, NULL);
    for (int shard = r->at.local; shard < r->at.ranks; shard += r->at.mates) {
        float *gathered = r->args.gathered + shard * N;
        for (int mate = leader; mate < leader + r->at.mates; mate++) {
            if (mate != rank)
                check(imbrex_put(r->group, gathered, gathered, N * sizeof(float), mate, NULL));
        }
    }
    check(imbrex_barrier(r->group, NULL));
    check(imbrex_launch(r->work_only, r->at.ranks, 256, &r->args, sizeof r->args, NULL));
}

static float wanted(const void *ctx, int i)
{
    (void)ctx;
    return (float)(i / N * 1000 + i % N) * 2 + 1;
}

static int rank_main(int argc, char **argv)
{
    run r = { .group = example_begin_on_nodes(argc, argv) };
    r.at = example_find_place(r.group);
    size_t ranks = (size_t)r.at.ranks, floats = ranks * N;
    float shard[N];
    for (int i = 0; i < N; i++)
        shard[i] = (float)(r.at.rank * 1000 + i);
    /* One piece of memory, which is what a kernel's team reaches: all shards, then the signals. */
    float *memory = example_memory(
        r.group, floats * sizeof(float) + ranks * (CHUNKS + 1) * sizeof(uint64_t), NULL);
    check(imbrex_copy(r.group, memory + r.at.rank * N, shard, sizeof shard, NULL));
    uint64_t *here = (uint64_t *)(memory + floats);
    r.args = (gather_args){ .gathered = memory,
                            .here = here,
                            .read = here + ranks * CHUNKS,
                            .out = example_memory(r.group, floats * sizeof(float), NULL),
                            .n = N };
    r.gather = EXAMPLE_KERNEL(r.group, gather, .memory = memory, .resident = r.at.ranks);
    r.work_only = EXAMPLE_KERNEL(r.group, work_only, .memory = memory, .resident = r.at.ranks);
    check(imbrex_stream_create(r.group, &r.network));
    check(imbrex_barrier(r.group, NULL)); /* no chunk leaves before its shard is there */
    check(imbrex_stream_sync(r.group, NULL));

    example_result out = { .at = r.args.out, .count = r.at.ranks * N, .wanted = wanted };
    double us = example_try(r.group, &out, overlapped, &r);
    check(imbrex_stream_sync(r.group, r.network));
    example_clear(r.group, memory, floats * sizeof(float));
    check(imbrex_copy(r.group, memory + r.at.rank * N, shard, sizeof shard, NULL));
    double sequential_us = example_try(r.group, &out, sequential, &r);
    example_say(r.group, "all_gather between nodes", us, sequential_us);
    return example_end(r.group, out.wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
