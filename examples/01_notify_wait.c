/* 01_notify_wait.c - notify and wait: a vector travels to the next rank in chunks, each with a
 * signal behind it.
 *
 *     imbrex run -n 4 -- example_01_notify_wait [--device cuda]
 *
 * Two blocks run at once on every rank.  Block 0 computes a chunk, puts it into the next rank's
 * memory and notifies; block 1 waits for a chunk of the rank before, and works on it:
 *
 *     rank r      block 0    | make 0 | send 0 | make 1 | send 1 | make 2 | send 2 |
 *     rank r + 1  block 1    |                 | use 0  |        | use 1  |        | use 2 |
 *
 * With one chunk nothing overlaps: all is made, then sent, then used.
 *
 * This file is both the kernel and the program: on GPUs imbrex compiles it again, with -DKERNEL. */
#include "imbrex_device.h"

enum { CHUNKS = 8 }; /* signals 0 to 7: chunk number so-and-so is there; 8: all were read */

typedef struct pipe_args {
    const float *in;
    float *inbox, *out; /* inbox: symmetric */
    int n, chunks;
} pipe_args;

IMBREXD_KERNEL(pipe, pipe_args)
{
    int next = (team->rank + 1) % team->size, before = (team->rank + team->size - 1) % team->size;
    uint64_t epoch = imbrexd_epoch(team); /* which launch this is: what all its signals say */
    int length = args->n / args->chunks, step = (int)imbrexd_threads();
    uint64_t *signals = imbrexd_signal(team, team->rank, 0);
    float *mine = (float *)imbrexd_shared();

    /* The launch before has been read over there: only then its inbox may be written again. */
    if (imbrexd_block_index() == 0 &&
        !imbrexd_wait_block(team, signals + CHUNKS, 1, epoch - 1, next))
        return;
    for (int c = 0; c < args->chunks; c++) {
        int at = c * length;
        if (imbrexd_block_index() == 0) {
            for (int i = (int)imbrexd_thread(); i < length; i += step)
                mine[i] = args->in[at + i] * 2;
            imbrexd_sync_block();
            imbrexd_put_signal_block(imbrexd_peer(team, next, args->inbox + at), mine,
                                     (size_t)length * sizeof(float), imbrexd_signal(team, next, c),
                                     epoch, IMBREXD_SET);
        } else {
            if (!imbrexd_wait_block(team, signals + c, 1, epoch, before))
                return; /* give up: the host learns why */
            /* Tells IMBREX_CHECK, which sees no plain loads, and then misses no wait. */
            if (!imbrexd_check_read(args->inbox + at, (size_t)length * sizeof(float), 0, 1))
                return;
            for (int i = (int)imbrexd_thread(); i < length; i += step)
                args->out[at + i] = args->inbox[at + i] + 1;
        }
    }
    if (imbrexd_block_index() == 1)
        imbrexd_notify_block(imbrexd_signal(team, before, CHUNKS), epoch, IMBREXD_SET);
}

#ifndef KERNEL
#include "example.h"

enum { N = 32768 };

typedef struct run {
    imbrex_kernel *kernel;
    pipe_args args;
    int before; /* the rank whose vector comes here */
} run;

static void launch(void *ctx)
{
    run *r = ctx;
    check(imbrex_launch(r->kernel, 2, 256, &r->args, sizeof r->args, NULL));
}

static float wanted(const void *ctx, int i)
{
    const run *r = ctx;
    return (float)(r->before * 100 + i % 1000) * 2 + 1;
}

static int rank_main(int argc, char **argv)
{
    imbrex_group *group = example_begin(argc, argv);
    int rank = imbrex_group_rank(group), ranks = imbrex_group_size(group);
    float in[N];
    for (int i = 0; i < N; i++)
        in[i] = (float)(rank * 100 + i % 1000);

    run r = { .args = { .in = example_memory(group, sizeof in, in),
                        .inbox = example_memory(group, sizeof in, NULL),
                        .out = example_memory(group, sizeof in, NULL),
                        .n = N,
                        .chunks = CHUNKS },
              .before = (rank + ranks - 1) % ranks };
    r.kernel = EXAMPLE_KERNEL(group, pipe, .memory = r.args.inbox, .signals = CHUNKS + 1,
                              .resident = 2, .shared_bytes = N * sizeof(float));

    example_result out = { .at = r.args.out, .count = N, .wanted = wanted };
    double us = example_try(group, &out, launch, &r);
    r.args.chunks = 1;
    example_clear(group, r.args.inbox, sizeof in);
    double sequential_us = example_try(group, &out, launch, &r);
    example_say(group, "notify and wait", us, sequential_us);
    return example_end(group, out.wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
