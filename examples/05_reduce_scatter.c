/* 05_reduce_scatter.c - reduce_scatter inside a node: sums begin while other parts still travel.
 *
 *     imbrex run -n 4 -- example_05_reduce_scatter [--device cuda]
 *
 * Every rank has a partial result for each rank; each rank gets the sum of what all have for it.
 * Block c moves and adds chunk c, so that one chunk is added while others are on their way:
 *
 *     block 0   | send chunk 0 to all | wait, add rank 0's, rank 1's, ... |
 *     block 1   |                 | send chunk 1 to all | wait, add ...         |
 *     one after the other   | copies | barrier | add everything |
 *
 * Parts are added in the order of ranks, whoever comes first: the same bits on every run. */
#include "imbrex_device.h"

enum { CHUNKS = 8 };

typedef struct scatter_args {
    const float *partial; /* [ranks, n] */
    float *slots;         /* [ranks, n], symmetric: what each rank has for this one */
    float *out;           /* [n] */
    int n;
} scatter_args;

/* 0: give up, as after a wait. */
IMBREXD_FN int add(const scatter_args *args, int ranks, int first, int length)
{
    if (!imbrexd_check_read(args->slots + first, (size_t)length * sizeof(float),
                            (size_t)args->n * sizeof(float), (size_t)ranks))
        return 0;
    for (int i = (int)imbrexd_thread(); i < length; i += (int)imbrexd_threads()) {
        float sum = 0;
        for (int r = 0; r < ranks; r++)
            sum += args->slots[r * args->n + first + i];
        args->out[first + i] = sum;
    }
    return 1;
}

/* Signals, on every rank: [c * ranks + r] rank r's chunk c is here; behind them, in the same order,
 * rank r has added my chunk c. */
IMBREXD_KERNEL(scatter, scatter_args)
{
    int c = imbrexd_block_index(), ranks = team->size, rank = team->rank;
    int length = args->n / CHUNKS, first = c * length, credits = (CHUNKS + c) * ranks;
    uint64_t epoch = imbrexd_epoch(team), *signals = imbrexd_signal(team, rank, 0);

    if (!imbrexd_wait_block(team, &signals[credits], ranks, epoch - 1, -1))
        return;
    for (int i = 1; i <= ranks; i++) { /* each begins with another, so that none is hit by all */
        int to = (rank + i) % ranks;
        imbrexd_put_signal_block(imbrexd_peer(team, to, args->slots + rank * args->n + first),
                                 args->partial + to * args->n + first,
                                 (size_t)length * sizeof(float),
                                 imbrexd_signal(team, to, c * ranks + rank), epoch, IMBREXD_SET);
    }
    if (!imbrexd_wait_block(team, &signals[c * ranks], ranks, epoch, -1))
        return;
    if (!add(args, ranks, first, length))
        return;
    for (int r = 0; r < ranks; r++)
        imbrexd_notify_block(imbrexd_signal(team, r, credits + rank), epoch, IMBREXD_SET);
}

IMBREXD_KERNEL(add_only, scatter_args)
{
    int length = args->n / CHUNKS;
    add(args, team->size, imbrexd_block_index() * length, length);
}

#ifndef KERNEL
#include "example.h"

enum { N = 16384 };

typedef struct run {
    imbrex_group *group;
    imbrex_kernel *kernel;
    scatter_args args;
    int rank, ranks;
} run;

static void overlapped(void *ctx)
{
    run *r = ctx;
    check(imbrex_launch(r->kernel, CHUNKS, 256, &r->args, sizeof r->args, NULL));
}

static void sequential(void *ctx)
{
    run *r = ctx;
    check(imbrex_barrier(r->group, NULL));
    for (int to = 0; to < r->ranks; to++)
        check(imbrex_put(r->group, r->args.slots + r->rank * N, r->args.partial + to * N,
                         N * sizeof(float), to, NULL));
    check(imbrex_barrier(r->group, NULL));
    overlapped(ctx); /* the kernel that only adds */
}

static float wanted(const void *ctx, int i)
{
    const run *r = ctx;
    return (float)((r->rank * 3 + i % 100) * (r->ranks * (r->ranks + 1) / 2));
}

static int rank_main(int argc, char **argv)
{
    run r = { .group = example_begin(argc, argv) };
    r.rank = imbrex_group_rank(r.group);
    r.ranks = imbrex_group_size(r.group);
    size_t bytes = (size_t)r.ranks * N * sizeof(float);
    float *partial = example_room(bytes);
    for (int i = 0; i < r.ranks * N; i++)
        partial[i] = (float)((i / N * 3 + i % N % 100) * (r.rank + 1));
    r.args = (scatter_args){ .partial = example_memory(r.group, bytes, partial),
                             .slots = example_memory(r.group, bytes, NULL),
                             .out = example_memory(r.group, N * sizeof(float), NULL),
                             .n = N };
    free(partial);
    imbrex_kernel *scatter = EXAMPLE_KERNEL(r.group, scatter, .memory = r.args.slots,
                                            .signals = 2 * CHUNKS * r.ranks, .resident = CHUNKS);
    imbrex_kernel *add_only =
        EXAMPLE_KERNEL(r.group, add_only, .memory = r.args.slots, .resident = CHUNKS);

    example_result out = { .at = r.args.out, .count = N, .wanted = wanted };
    r.kernel = scatter;
    double us = example_try(r.group, &out, overlapped, &r);
    r.kernel = add_only;
    example_clear(r.group, r.args.slots, bytes);
    double sequential_us = example_try(r.group, &out, sequential, &r);
    example_say(r.group, "reduce_scatter", us, sequential_us);
    return example_end(r.group, out.wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
