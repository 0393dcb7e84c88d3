/* 08_gemm_rs.c - reduce_scatter under a product: c = my rows of the sum of all a * b^T.
 *
 *     imbrex run -n 4 -- example_08_gemm_rs [--device cuda]
 *
 * The product is one launch whose tiles come in an order of this rank's own: first those for the
 * next rank, last its own.  Tiles are counted; the one that completes a rank's part raises its
 * flag, and a second stream, which waits for just that, sends the part while the product goes on:
 *
 *     product   | for rank + 1 | for rank + 2 | for rank + 3 | own |
 *     copies                   | to rank + 1  | to rank + 2  | to rank + 3 | own |
 *     sum                                                                  | add in rank order |
 *     one after the other   | product | all copies | add |
 *
 * After Triton-distributed's tutorial of an overlapping GEMM and ReduceScatter. */
#include "tile.h"

typedef struct gemm_args {
    const float *a, *b; /* [ranks, ROWS, K], [N, K] */
    float *partial;     /* [ranks, ROWS, N] */
    float *slots, *c;   /* [ranks, ROWS, N], symmetric: each rank's part for this one; [ROWS, N] */
    uint64_t *done;     /* [ranks]: the run whose part for that rank is computed */
    uint64_t *here;     /* [ranks], symmetric: the run whose part of that rank is in its slot */
    uint64_t *added;    /* [ranks], symmetric: the run whose part for that rank it has added */
    uint32_t *counters; /* [ranks]: tiles of the part that are computed */
    uint64_t run;
} gemm_args;

IMBREXD_KERNEL(gemm, gemm_args)
{
    int tiles = ROWS / TILE * (N / TILE), ranks = team->size;
    for (int t = imbrexd_block_index(); t < ranks * tiles; t += imbrexd_block_count()) {
        int to = (team->rank + 1 + t / tiles) % ranks, row = t % tiles / (N / TILE) * TILE;
        int col = t % (N / TILE) * TILE;
        float *part = args->partial + (to * ROWS + row) * N;
        if (!imbrexd_check_write(part + col, TILE * sizeof(float), N * sizeof(float), TILE))
            return;
        tile_product(part, args->a + (to * ROWS + row) * K, args->b, col);
        imbrexd_sync_block();
        if (imbrexd_thread() == 0 && imbrexd_counter_last(&args->counters[to], (uint32_t)tiles))
            imbrexd_signal_post(&args->done[to], args->run);
    }
}

IMBREXD_KERNEL(add, gemm_args)
{
    int step = (int)imbrexd_threads() * imbrexd_block_count();
    int first = (int)imbrexd_thread() + imbrexd_block_index() * (int)imbrexd_threads();
    if (!imbrexd_wait_block(team, args->here, team->size, args->run, -1))
        return;
    if (!imbrexd_check_read(args->slots, (size_t)(team->size * ROWS * N) * sizeof(float), 0, 1))
        return;
    for (int i = first; i < ROWS * N; i += step) {
        float sum = 0;
        for (int r = 0; r < team->size; r++)
            sum += args->slots[r * ROWS * N + i];
        args->c[i] = sum;
    }
}

#ifndef KERNEL
#include "example.h"

enum { BLOCKS = 8, PART_BYTES = ROWS * N * sizeof(float) };

typedef struct run {
    imbrex_group *group;
    imbrex_kernel *gemm, *add;
    imbrex_stream copies;
    gemm_args args;
    int rank, ranks, overlapped;
} run;

static void one_run(void *ctx)
{
    run *r = ctx;
    gemm_args *args = &r->args;
    imbrex_stream on = r->overlapped ? r->copies : NULL;
    args->run++;
    check(imbrex_launch(r->gemm, BLOCKS, 256, args, sizeof *args, NULL));
    for (int i = 1; i <= r->ranks; i++) {
        int to = (r->rank + i) % r->ranks;
        check(imbrex_signal_wait(r->group, &args->done[to], args->run, on));
        check(imbrex_signal_wait(r->group, &args->added[to], args->run - 1, on));
        check(imbrex_put(r->group, args->slots + r->rank * ROWS * N, args->partial + to * ROWS * N,
                         PART_BYTES, to, on));
        check(imbrex_signal_post(r->group, &args->here[r->rank], args->run, to, on));
    }
    /* Its own part comes last: once that is there, all parts are sent and may be computed anew. */
    check(imbrex_launch(r->add, BLOCKS, 256, args, sizeof *args, NULL));
    for (int from = 0; from < r->ranks; from++)
        check(imbrex_signal_post(r->group, &args->added[r->rank], args->run, from, NULL));
}

static float wanted(const void *ctx, int i)
{
    const run *r = ctx;
    float sum = 0;
    for (int from = 0; from < r->ranks; from++)
        sum += tile_wanted(from, r->rank * ROWS + i / N, from + 9, i % N);
    return sum;
}

static int rank_main(int argc, char **argv)
{
    run r = { .group = example_begin(argc, argv), .overlapped = 1 };
    r.rank = imbrex_group_rank(r.group);
    r.ranks = imbrex_group_size(r.group);
    size_t ranks = (size_t)r.ranks, a_bytes = ranks * ROWS * K * sizeof(float);
    float *a = example_room(a_bytes), b[N * K];
    tile_fill(a, r.rank, 0, r.ranks * ROWS);
    tile_fill(b, r.rank + 9, 0, N);
    uint64_t *words = example_memory(r.group, 4 * ranks * sizeof *words, NULL);
    r.args = (gemm_args){ .a = example_memory(r.group, a_bytes, a),
                          .b = example_memory(r.group, sizeof b, b),
                          .partial = example_memory(r.group, ranks * PART_BYTES, NULL),
                          .slots = example_memory(r.group, ranks * PART_BYTES, NULL),
                          .c = example_memory(r.group, PART_BYTES, NULL),
                          .done = words,
                          .here = words + ranks,
                          .added = words + 2 * ranks,
                          .counters = (uint32_t *)(words + 3 * ranks) };
    free(a);
    r.gemm = EXAMPLE_KERNEL(r.group, gemm, .memory = NULL);
    r.add = EXAMPLE_KERNEL(r.group, add, .memory = NULL);
    check(imbrex_stream_create(r.group, &r.copies));

    example_result c = { .at = r.args.c, .count = ROWS * N, .wanted = wanted };
    double us = example_try(r.group, &c, one_run, &r);
    check(imbrex_stream_sync(r.group, r.copies)); /* from here on the other stream copies */
    r.overlapped = 0;
    example_clear(r.group, r.args.partial, ranks * PART_BYTES);
    example_clear(r.group, r.args.slots, ranks * PART_BYTES);
    double sequential_us = example_try(r.group, &c, one_run, &r);
    example_say(r.group, "product + reduce_scatter", us, sequential_us);
    return example_end(r.group, c.wrong);
}

int main(int argc, char **argv)
{
    return example_main(argc, argv, rank_main);
}
#endif
