/* 10_ll_all_gather.c - all_gather of small messages by LL: every word carries its own flag.
 *
 *     imbrex run -n 4 -- example_10_ll_all_gather [--device cuda]
 *
 * Four bytes of data and four of flag are one word, which arrives as a whole.  So there is no
 * signal, no fence and no barrier: a reader takes each word as soon as it is there, while the ones
 * behind it are still on their way.  One latency in all, for twice the bytes:
 *
 *     rank r     | word 0 | word 1 | word 2 | ...
 *     rank r + 1     | word 0 | word 1 | word 2 | ...
 *     one after the other   | all words | fence, barrier | read |
 *
 * The inbox has two halves in turn.  Whoever sends launch u + 2 has read launch u + 1 of every
 * rank, and that was sent after launch u was read: a half is free when it is written again. */
#include "imbrex_device.h"

typedef struct ll_args {
    const float *shard; /* [n] */
    uint64_t *inbox;    /* [2, ranks, n], symmetric; then as many floats, for the plain way */
    float *out;         /* [ranks, n] */
    int n, ll;
} ll_args;

/* Without LL: one block sends to all, all meet, and it reads. */
IMBREXD_FN void gather_plainly(const ll_args *args, const imbrexd_team *team, size_t half)
{
    size_t n = (size_t)args->n, ranks = (size_t)team->size, bytes = n * sizeof(float);
    float *inbox = (float *)(args->inbox + 2 * ranks * n) + half;
    for (int i = 1; i <= team->size; i++) {
        int to = (team->rank + i) % team->size;
        imbrexd_put_block(imbrexd_peer(team, to, inbox + (size_t)team->rank * n), args->shard,
                          bytes);
    }
    if (imbrexd_barrier_all(team))
        imbrexd_get_block(args->out, inbox, ranks * bytes);
}

IMBREXD_KERNEL(gather, ll_args)
{
    int b = imbrexd_block_index(), ranks = team->size, rank = team->rank;
    int to = (rank + b) % ranks, from = (rank + ranks - b) % ranks;
    uint64_t epoch = imbrexd_epoch(team);
    size_t n = (size_t)args->n, half = epoch % 2 * (size_t)ranks * n;
    uint64_t *inbox = args->inbox + half;

    if (!args->ll) {
        gather_plainly(args, team, half);
        return;
    }
    imbrexd_ll_pack_block((uint64_t *)imbrexd_peer(team, to, inbox + (size_t)rank * n), args->shard,
                          n * sizeof(float), (uint32_t)epoch);
    imbrexd_ll_unpack_block(team, args->out + (size_t)from * n, inbox + (size_t)from * n,
                            n * sizeof(float), (uint32_t)epoch, from);
}

#ifndef KERNEL
#include "example.h"

enum { N = 256 };

typedef struct run {
    imbrex_kernel *kernel;
    ll_args args;
    int ranks;
} run;

static void launch(void *ctx)
{
    run *r = ctx;
    int blocks = r->args.ll ? r->ranks : 1;
    check(imbrex_launch(r->kernel, blocks, 256, &r->args, sizeof r->args, NULL));
}

static float wanted(const void *ctx, int i)
{
    (void)ctx;
    return (float)(i / N * 1000 + i % N);
}

static int rank_main(int argc, char **argv)
{
    imbrex_group *group = example_begin(argc, argv);
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    float shard[N];
    for (int i = 0; i < N; i++)
        shard[i] = (float)(rank * 1000 + i);
    size_t words = 2 * (size_t)ranks * N;
    run r = { .ranks = ranks,
              .args = { .shard = example_memory(group, sizeof shard, shard),
                        .inbox = example_memory(group, words * (8 + sizeof(float)), NULL),
                        .out = example_memory(group, (size_t)ranks * sizeof shard, NULL),
                        .n = N,
                        .ll = 1 } };
    r.kernel = EXAMPLE_KERNEL(group, gather, .memory = r.args.inbox, .resident = ranks);

    example_result out = { .at = r.args.out, .count = ranks * N, .wanted = wanted };
    double us = example_try(group, &out, launch, &r);
    r.args.ll = 0;
    double sequential_us = example_try(group, &out, launch, &r);
    example_say(group, "LL all_gather of 1 KB a rank", us, sequential_us);
    return example_end(group, out.wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
