/* 09_ring_matmul.c - the ring collective matmul: the product itself passes a on to the next rank.
 *
 *     imbrex run -n 4 -- example_09_ring_matmul [--device cuda]
 *
 * Tiles of a go round a ring.  A block loads a tile into its own memory, sends it from there to the
 * same block of the next rank, and then multiplies it.  Beneath the product the next tile comes
 * from the rank before, and other blocks send theirs:
 *
 *     rank 0   block 0     | load a0 | send | a0 * b | load a3 | send | a3 * b | ...
 *              block 1        | load a0 | send | a0 * b | load a3 | send | a3 * b | ...
 *     rank 1   block 0   | load a1 | send | a1 * b | load a0 | send | a0 * b | ...
 *     one after the other   | all copies | barrier | product |
 *
 * Every byte crosses each link of the ring once and is read from memory once.  After JAX Pallas'
 * collective matmul. */
#include "tile.h"

enum { TILES = ROWS / TILE };

typedef struct ring_args {
    float *gathered; /* [ranks, ROWS, K], symmetric; own rows are there before */
    const float *b;  /* [N, K] */
    float *c;        /* [ranks, ROWS, N] */
    int alone;       /* all of gathered is there: send nothing, wait for nothing */
} ring_args;

/* Signals: [q * TILES + i] tile i of rank q's rows is here; behind those, in the same order, the
 * next rank has loaded it. */
IMBREXD_KERNEL(ring, ring_args)
{
    int i = imbrexd_block_index(), ranks = team->size, rank = team->rank;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    uint64_t epoch = imbrexd_epoch(team), *signals = imbrexd_signal(team, rank, 0);
    float *tile = (float *)imbrexd_shared();

    for (int s = 0; s < ranks; s++) {
        int q = (rank + ranks - s) % ranks, index = q * TILES + i, row = q * ROWS + i * TILE;
        float *here = args->gathered + row * K;
        if (s > 0 && !args->alone && !imbrexd_wait_block(team, &signals[index], 1, epoch, before))
            return;
        imbrexd_get_block(tile, here, TILE * K * sizeof(float));
        if (s > 0 && !args->alone)
            imbrexd_notify_block(imbrexd_signal(team, before, ranks * TILES + index), epoch,
                                 IMBREXD_SET);
        if (s < ranks - 1 && !args->alone) {
            if (!imbrexd_wait_block(team, &signals[ranks * TILES + index], 1, epoch - 1, next))
                return;
            imbrexd_put_signal_block(imbrexd_peer(team, next, here), tile, TILE * K * sizeof(float),
                                     imbrexd_signal(team, next, index), epoch, IMBREXD_SET);
        }
        for (int col = 0; col < N; col += TILE)
            tile_product(args->c + row * N, tile, args->b, col);
        imbrexd_sync_block(); /* all have read the tile */
    }
}

#ifndef KERNEL
#include "example.h"

enum { SHARD_BYTES = ROWS * K * sizeof(float) };

typedef struct run {
    imbrex_group *group;
    imbrex_kernel *ring, *alone; /* two of one text, since all launches of one count alike */
    ring_args args;
    int rank, ranks;
} run;

static void overlapped(void *ctx)
{
    run *r = ctx;
    check(imbrex_launch(r->ring, TILES, 256, &r->args, sizeof r->args, NULL));
}

static void sequential(void *ctx)
{
    run *r = ctx;
    float *own = r->args.gathered + r->rank * ROWS * K;
    check(imbrex_barrier(r->group, NULL));
    for (int i = 1; i < r->ranks; i++)
        check(imbrex_put(r->group, own, own, SHARD_BYTES, (r->rank + i) % r->ranks, NULL));
    check(imbrex_barrier(r->group, NULL));
    check(imbrex_launch(r->alone, TILES, 256, &r->args, sizeof r->args, NULL));
}

static float wanted(const void *ctx, int i)
{
    const run *r = ctx;
    return tile_wanted(0, i / N, r->rank + 1, i % N);
}

static int rank_main(int argc, char **argv)
{
    run r = { .group = example_begin(argc, argv) };
    r.rank = imbrex_group_rank(r.group);
    r.ranks = imbrex_group_size(r.group);
    float shard[ROWS * K], b[N * K];
    tile_fill(shard, 0, r.rank * ROWS, ROWS);
    tile_fill(b, r.rank + 1, 0, N);
    size_t ranks = (size_t)r.ranks;
    r.args = (ring_args){ .gathered = example_memory(r.group, ranks * SHARD_BYTES, NULL),
                          .b = example_memory(r.group, sizeof b, b),
                          .c = example_memory(r.group, ranks * ROWS * N * sizeof(float), NULL) };
    float *own = r.args.gathered + r.rank * ROWS * K;
    check(imbrex_copy(r.group, own, shard, sizeof shard, NULL));
    r.ring =
        EXAMPLE_KERNEL(r.group, ring, .memory = r.args.gathered, .signals = 2 * r.ranks * TILES,
                       .resident = TILES, .shared_bytes = TILE * K * sizeof(float));
    r.alone =
        EXAMPLE_KERNEL(r.group, ring, .resident = TILES, .shared_bytes = TILE * K * sizeof(float));

    example_result c = { .at = r.args.c, .count = r.ranks * ROWS * N, .wanted = wanted };
    double us = example_try(r.group, &c, overlapped, &r);
    r.args.alone = 1;
    example_clear(r.group, r.args.gathered, ranks * SHARD_BYTES);
    check(imbrex_copy(r.group, own, shard, sizeof shard, NULL));
    double sequential_us = example_try(r.group, &c, sequential, &r);
    example_say(r.group, "ring collective matmul", us, sequential_us);
    return example_end(r.group, c.wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
