/* 07_ag_gemm.c - all_gather under a product: c = all_gather(a) * b^T, chunks by copy engine.
 *
 *     imbrex run -n 4 -- example_07_ag_gemm [--device cuda]
 *
 * A second stream copies this rank's rows to the peers, a signal behind each copy.  The product is
 * one launch; it begins with the rows that are here, goes on in the order in which the others
 * arrive, and waits only before it first reads a rank's rows:
 *
 *     copies    | to rank - 1 | to rank - 2 | to rank - 3 |
 *     product   | own rows | rank + 1's | rank + 2's | rank + 3's |
 *     one after the other   | all copies | barrier | product |
 *
 * After yifuwang's symm-mem-recipes. */
#include "tile.h"

typedef struct gemm_args {
    const float *shard, *b; /* [ROWS, K], [N, K] */
    const float *gathered;  /* [ranks, ROWS, K], symmetric */
    const uint64_t *here;   /* [ranks], symmetric: the run whose rows of that rank are here */
    float *c;               /* [ranks, ROWS, N] */
    uint64_t run;
} gemm_args;

IMBREXD_KERNEL(gemm, gemm_args)
{
    int tiles = ROWS / TILE * (N / TILE), ranks = team->size;
    for (int t = imbrexd_block_index(); t < ranks * tiles; t += imbrexd_block_count()) {
        int from = (team->rank + t / tiles) % ranks, row = t % tiles / (N / TILE) * TILE;
        const float *a = args->shard;
        if (from != team->rank) {
            if (!imbrexd_wait_block(team, &args->here[from], 1, args->run, from))
                return;
            a = args->gathered + from * ROWS * K;
            if (!imbrexd_check_read(a + row * K, TILE * K * sizeof(float), 0, 1))
                return;
        }
        tile_product(args->c + (from * ROWS + row) * N, a + row * K, args->b,
                     t % (N / TILE) * TILE);
    }
}

#ifndef KERNEL
#include "example.h"

enum { BLOCKS = 8 };

typedef struct run {
    imbrex_group *group;
    imbrex_kernel *kernel;
    imbrex_stream copies;
    gemm_args args;
    uint64_t *here, *read; /* read[r]: the last run whose rows rank r is done with */
    int rank, ranks, overlapped;
} run;

static void one_run(void *ctx)
{
    run *r = ctx;
    imbrex_stream on = r->overlapped ? r->copies : NULL;
    r->args.run++;
    for (int i = 1; i < r->ranks; i++) { /* first to the one that wants it first */
        int to = (r->rank + r->ranks - i) % r->ranks;
        check(imbrex_signal_wait(r->group, &r->read[to], r->args.run - 1, on));
        check(imbrex_put(r->group, (float *)r->args.gathered + r->rank * ROWS * K, r->args.shard,
                         ROWS * K * sizeof(float), to, on));
        check(imbrex_signal_post(r->group, &r->here[r->rank], r->args.run, to, on));
    }
    if (!r->overlapped)
        check(imbrex_barrier(r->group, NULL));
    check(imbrex_launch(r->kernel, BLOCKS, 256, &r->args, sizeof r->args, NULL));
    for (int from = 0; from < r->ranks; from++)
        check(imbrex_signal_post(r->group, &r->read[r->rank], r->args.run, from, NULL));
}

static float wanted(const void *ctx, int i)
{
    const run *r = ctx;
    return tile_wanted(0, i / N, r->rank + 1, i % N);
}

static int rank_main(int argc, char **argv)
{
    run r = { .group = example_begin(argc, argv), .overlapped = 1 };
    r.rank = imbrex_group_rank(r.group);
    r.ranks = imbrex_group_size(r.group);
    float shard[ROWS * K], b[N * K];
    tile_fill(shard, 0, r.rank * ROWS, ROWS);
    tile_fill(b, r.rank + 1, 0, N);
    size_t ranks = (size_t)r.ranks;
    r.here = example_memory(r.group, 2 * ranks * sizeof(uint64_t), NULL);
    r.read = r.here + r.ranks;
    float *gathered = example_memory(r.group, ranks * sizeof shard, NULL);
    r.args = (gemm_args){ .shard = example_memory(r.group, sizeof shard, shard),
                          .b = example_memory(r.group, sizeof b, b),
                          .gathered = gathered,
                          .here = r.here,
                          .c = example_memory(r.group, ranks * ROWS * N * sizeof(float), NULL) };
    r.kernel = EXAMPLE_KERNEL(r.group, gemm, .memory = NULL);
    check(imbrex_stream_create(r.group, &r.copies));

    example_result c = { .at = r.args.c, .count = r.ranks * ROWS * N, .wanted = wanted };
    double us = example_try(r.group, &c, one_run, &r);
    check(imbrex_stream_sync(r.group, r.copies)); /* from here on the other stream copies */
    r.overlapped = 0;
    example_clear(r.group, gathered, ranks * sizeof shard);
    double sequential_us = example_try(r.group, &c, one_run, &r);
    example_say(r.group, "all_gather + product", us, sequential_us);
    return example_end(r.group, c.wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
