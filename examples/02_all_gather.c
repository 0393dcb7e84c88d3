/* 02_all_gather.c - all_gather inside a node, pushed and pulled, under the work on what arrives.
 *
 *     imbrex run -n 4 -- example_02_all_gather [--device cuda]
 *
 * Every rank has a shard and wants out = gathered * 2 + 1 of all shards.  Block b moves one shard
 * and works on one; while a block waits for its own, the others send and work:
 *
 *     push    block 1  | send to rank + 1 | wait for rank - 1 | work |
 *             block 2  | send to rank + 2 | wait for rank - 2 | work |
 *     pull    block 1  | "mine is ready" to all | wait for rank - 1's | fetch it | work |
 *     one after the other   | barrier | copies | barrier | work on all |
 *
 * A push is on its way as soon as the sender is ready and costs one latency; a pull costs two, but
 * the reader takes what it needs when it needs it, and its peers need no credit to write. */
#include "imbrex_device.h"

typedef struct gather_args {
    float *shard, *gathered; /* [n], [ranks, n]: symmetric */
    float *out;              /* [ranks, n] */
    int n;
} gather_args;

/* 0: give up, as after a wait. */
IMBREXD_FN int work(const gather_args *args, int rank)
{
    size_t at = (size_t)rank * (size_t)args->n;
    if (!imbrexd_check_read(args->gathered + at, (size_t)args->n * sizeof(float), 0, 1))
        return 0;
    for (int i = (int)imbrexd_thread(); i < args->n; i += (int)imbrexd_threads())
        args->out[at + (size_t)i] = args->gathered[at + (size_t)i] * 2 + 1;
    return 1;
}

/* Signals, on every rank: [r] rank r's shard is here; [ranks + r] rank r has read mine. */
IMBREXD_KERNEL(push, gather_args)
{
    int b = imbrexd_block_index(), ranks = team->size, rank = team->rank;
    int to = (rank + b) % ranks, from = (rank + ranks - b) % ranks;
    uint64_t epoch = imbrexd_epoch(team), *signals = imbrexd_signal(team, rank, 0);

    if (!imbrexd_wait_block(team, &signals[ranks + to], 1, epoch - 1, to))
        return; /* that was its credit: it has read what the launch before sent */
    imbrexd_put_signal_block(imbrexd_peer(team, to, args->gathered + rank * args->n), args->shard,
                             (size_t)args->n * sizeof(float), imbrexd_signal(team, to, rank), epoch,
                             IMBREXD_SET);
    if (!imbrexd_wait_block(team, &signals[from], 1, epoch, from))
        return;
    if (!work(args, from))
        return;
    imbrexd_notify_block(imbrexd_signal(team, from, ranks + rank), epoch, IMBREXD_SET);
}

IMBREXD_KERNEL(pull, gather_args)
{
    int b = imbrexd_block_index(), ranks = team->size, rank = team->rank;
    int from = (rank + ranks - b) % ranks;
    uint64_t epoch = imbrexd_epoch(team), *signals = imbrexd_signal(team, rank, 0);

    for (int r = 0; r < ranks && b == 0; r++)
        imbrexd_notify_block(imbrexd_signal(team, r, rank), epoch, IMBREXD_SET);
    if (!imbrexd_wait_block(team, &signals[from], 1, epoch, from))
        return;
    imbrexd_get_block(args->gathered + from * args->n, imbrexd_peer(team, from, args->shard),
                      (size_t)args->n * sizeof(float));
    if (!work(args, from))
        return;
    imbrexd_notify_block(imbrexd_signal(team, from, ranks + rank), epoch, IMBREXD_SET);
    if (b == ranks - 1) /* the launch ends when nobody reads the shard any more */
        imbrexd_wait_block(team, &signals[ranks], ranks, epoch, -1);
}

IMBREXD_KERNEL(work_only, gather_args)
{
    (void)team;
    work(args, imbrexd_block_index());
}

#ifndef KERNEL
#include "example.h"

enum { N = 8192 };

typedef struct run {
    imbrex_group *group;
    imbrex_kernel *kernel;
    gather_args args;
    int rank, ranks;
} run;

static void overlapped(void *ctx)
{
    run *r = ctx;
    check(imbrex_launch(r->kernel, r->ranks, 256, &r->args, sizeof r->args, NULL));
}

static void sequential(void *ctx)
{
    run *r = ctx;
    check(imbrex_barrier(r->group, NULL));
    for (int to = 0; to < r->ranks; to++)
        check(imbrex_put(r->group, r->args.gathered + r->rank * N, r->args.shard, N * sizeof(float),
                         to, NULL));
    check(imbrex_barrier(r->group, NULL));
    overlapped(ctx); /* the kernel that only works */
}

static float wanted(const void *ctx, int i)
{
    (void)ctx;
    return (float)(i / N * 1000 + i % N) * 2 + 1;
}

static int rank_main(int argc, char **argv)
{
    run r = { .group = example_begin(argc, argv) };
    r.rank = imbrex_group_rank(r.group);
    r.ranks = imbrex_group_size(r.group);
    float in[N];
    for (int i = 0; i < N; i++)
        in[i] = (float)(r.rank * 1000 + i);
    /* One piece of memory, which is what a kernel's team reaches: the shard, then all of them. */
    float *memory = example_memory(r.group, (size_t)(r.ranks + 1) * sizeof in, NULL);
    check(imbrex_copy(r.group, memory, in, sizeof in, NULL));
    r.args = (gather_args){ .shard = memory,
                            .gathered = memory + N,
                            .out = example_memory(r.group, (size_t)r.ranks * sizeof in, NULL),
                            .n = N };
    imbrex_kernel *push = EXAMPLE_KERNEL(r.group, push, .memory = memory, .signals = 2 * r.ranks,
                                         .resident = r.ranks);
    imbrex_kernel *pull = EXAMPLE_KERNEL(r.group, pull, .memory = memory, .signals = 2 * r.ranks,
                                         .resident = r.ranks);
    imbrex_kernel *work_only =
        EXAMPLE_KERNEL(r.group, work_only, .memory = memory, .resident = r.ranks);

    example_result out = { .at = r.args.out, .count = r.ranks * N, .wanted = wanted };
    r.kernel = push;
    double push_us = example_try(r.group, &out, overlapped, &r);
    r.kernel = pull;
    example_clear(r.group, r.args.gathered, (size_t)r.ranks * sizeof in);
    double pull_us = example_try(r.group, &out, overlapped, &r);
    r.kernel = work_only;
    example_clear(r.group, r.args.gathered, (size_t)r.ranks * sizeof in);
    double sequential_us = example_try(r.group, &out, sequential, &r);
    example_say(r.group, "all_gather, pushed", push_us, sequential_us);
    example_say(r.group, "all_gather, pulled", pull_us, sequential_us);
    return example_end(r.group, out.wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
